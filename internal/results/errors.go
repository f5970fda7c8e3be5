package results

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrExists means that a leaderboard with this name exists.
var ErrExists = errors.New("the leaderboard exists")

// ErrShared means that rows of others refer to what was to be removed.
var ErrShared = errors.New("rows that kbnode did not create refer to it")

// unreachable returns an error that says why there is no connection. It does not wrap
// the driver's errors, which contain the configuration with the password, or quote the
// server's message, which may contain a setting of the DSN.
func (s *Store) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return fmt.Errorf("connect to PostgreSQL: %w", context.Canceled)
	}
	c := s.config
	at := net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	if strings.HasPrefix(c.Host, "/") {
		at = c.Host
	}
	if refusal, is := errors.AsType[*pgconn.PgError](err); is {
		switch refusal.Code {
		case "28P01":
			return fmt.Errorf("PostgreSQL at %q refuses the password of user %q; set PGPASSWORD or write it to ~/.pgpass", at, c.User)
		case "28000":
			return fmt.Errorf("PostgreSQL at %q refuses user %q; see its pg_hba.conf, and sslmode in the DSN", at, c.User)
		case "3D000":
			return fmt.Errorf("PostgreSQL at %q has no database %q; name another, or create it and apply kernelbot's migrations", at, c.Database)
		case "42501":
			return fmt.Errorf("user %q may not connect to database %q; grant it, or name another user", c.User, c.Database)
		case "53300":
			return fmt.Errorf("PostgreSQL at %q has no connection left; try again later", at)
		case "57P03":
			return fmt.Errorf("PostgreSQL at %q is starting or stopping; try again in a minute", at)
		}
		return fmt.Errorf("PostgreSQL at %q refuses the connection (SQLSTATE %q); see the server's log", at, refusal.Code)
	}
	why := "the server does not speak PostgreSQL's protocol, or refuses this sslmode; check the DSN"
	_, unknown := errors.AsType[*net.DNSError](err)
	_, issuer := errors.AsType[x509.UnknownAuthorityError](err)
	_, host := errors.AsType[x509.HostnameError](err)
	_, invalid := errors.AsType[x509.CertificateInvalidError](err)
	errno, failed := errors.AsType[syscall.Errno](err)
	switch {
	case errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err):
		why = fmt.Sprintf("no answer within %v; check the address and the firewall", s.limits.connect)
	case unknown:
		why = "no host has this name"
	case issuer || host || invalid:
		why = "its TLS certificate is not trusted or not for this host; check sslmode and sslrootcert"
	case failed:
		why = errno.Error() + "; is the server running there?"
	}
	return fmt.Errorf("connect to PostgreSQL at %q: %s", at, why)
}

// plain returns an error that says what the server or the connection refused, and what
// to do about it. It returns an error of this package unchanged.
func (s *Store) plain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if canceled := context.Cause(ctx); errors.Is(canceled, context.Canceled) {
		return fmt.Errorf("ask PostgreSQL: %w", context.Canceled)
	}
	refusal, is := errors.AsType[*pgconn.PgError](err)
	if !is {
		_, network := errors.AsType[net.Error](err)
		switch {
		case pgconn.Timeout(err) || errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("PostgreSQL did not answer within %v; try again", s.limits.call)
		case network || pgconn.SafeToRetry(err) || isClosed(err):
			return errLost
		}
		return err
	}
	message := strconv.Quote(refusal.Message)
	switch refusal.Code {
	case "42P01", "3F000", "42703", "42P10": // no such table, schema, column, unique column
		return fmt.Errorf("database %q lacks kernelbot's tables, or has old ones (%s); apply kernelbot's migrations first", s.config.Database, message)
	case "42501":
		return fmt.Errorf("user %q lacks a privilege (%s); grant it, or name another user", s.config.User, message)
	case "25006":
		return fmt.Errorf("database %q is read-only (%s); name the primary server", s.config.Database, message)
	case "23503":
		return fmt.Errorf("%w: %s", ErrShared, message)
	case "57014":
		return fmt.Errorf("PostgreSQL canceled a statement (%s); try again when it is less busy", message)
	case "55P03":
		return fmt.Errorf("another transaction has locked the rows for over %v; try again", s.limits.lock)
	case "40001", "40P01":
		return fmt.Errorf("%w (%s); try again", errInTheWay, message)
	case "22P05", "22021":
		return fmt.Errorf("a text contains U+0000 or something else that PostgreSQL cannot store (%s); remove it from the task", message)
	}
	if strings.HasPrefix(refusal.Code, "57P") || strings.HasPrefix(refusal.Code, "08") {
		return errLost
	}
	return fmt.Errorf("PostgreSQL refuses: %s (SQLSTATE %q)", message, refusal.Code)
}

var errInTheWay = errors.New("another transaction conflicted with this one")

var errLost = errors.New("the connection to PostgreSQL was lost; try again")

// isClosed reports whether a connection ended early. The driver has several errors for
// this.
func isClosed(err error) bool {
	return slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, pgconn.ErrConnClosed, pgx.ErrTxClosed},
		func(closed error) bool { return errors.Is(err, closed) })
}
