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

var (
	errConflict = errors.New("another transaction conflicted with this one")
	errLost     = errors.New("the connection to PostgreSQL was lost; try again")
)

// noConnection has what the server's refusals of a connection mean, by SQLSTATE. SERVER, USER and
// DATABASE are the DSN's.
var noConnection = map[string]string{
	"28P01": "PostgreSQL at SERVER refuses the password of user USER; set PGPASSWORD or write it to ~/.pgpass",
	"28000": "PostgreSQL at SERVER refuses user USER; see its pg_hba.conf, and sslmode in the DSN",
	"3D000": "PostgreSQL at SERVER has no database DATABASE; name another, or create it and apply kernelbot's migrations",
	"42501": "user USER may not connect to database DATABASE; grant it, or name another user",
	"53300": "PostgreSQL at SERVER has no connection left; try again later",
	"57P03": "PostgreSQL at SERVER is starting or stopping; try again in a minute",
}

const oldTables = "database DATABASE lacks kernelbot's tables, or has old ones (MESSAGE); apply kernelbot's migrations first"

// refused has what the server's refusals in a transaction mean. MESSAGE is the server's,
// and LIMIT that of waiting for a lock.
var refused = map[string]string{
	"42P01": oldTables, // no such table
	"3F000": oldTables, // no such schema
	"42703": oldTables, // no such column
	"42501": "user USER lacks a privilege (MESSAGE); grant it, or name another user",
	"25006": "database DATABASE is read-only (MESSAGE); name the primary server",
	"57014": "PostgreSQL canceled a statement (MESSAGE); try again when it is less busy",
	"55P03": "another transaction has locked the rows for over LIMIT; try again",
	"22P05": "a text contains U+0000 or something else that PostgreSQL cannot store (MESSAGE); remove it from the task",
	"22021": "a text contains U+0000 or something else that PostgreSQL cannot store (MESSAGE); remove it from the task",
}

// fill puts the DSN's parts and the server's message into a text of the tables.
func (s *Store) fill(text, message string) error {
	at := net.JoinHostPort(s.config.Host, strconv.Itoa(int(s.config.Port)))
	if strings.HasPrefix(s.config.Host, "/") {
		at = s.config.Host
	}
	q := strconv.Quote
	return errors.New(strings.NewReplacer("SERVER", q(at), "USER", q(s.config.User), "DATABASE", q(s.config.Database), "MESSAGE", q(message), "LIMIT", s.limits.lock.String()).Replace(text))
}

// unreachable returns an error that says why there is no connection. It does not wrap
// the driver's errors, which contain the configuration with the password, or quote the
// server's message, which may contain a setting of the DSN.
func (s *Store) unreachable(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return fmt.Errorf("connect to PostgreSQL: %w", context.Canceled)
	}
	if refusal, is := errors.AsType[*pgconn.PgError](err); is {
		if text, known := noConnection[refusal.Code]; known {
			return s.fill(text, "")
		}
		return s.fill("PostgreSQL at SERVER refuses the connection (SQLSTATE MESSAGE); see the server's log", refusal.Code)
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
	return s.fill("connect to PostgreSQL at SERVER: "+why, "")
}

// plain returns an error that says what the server or the connection refused, and what
// to do about it. It returns an error of this package unchanged.
func (s *Store) plain(ctx context.Context, err error) error {
	refusal, is := errors.AsType[*pgconn.PgError](err)
	_, network := errors.AsType[net.Error](err)
	ended := slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, pgconn.ErrConnClosed, pgx.ErrTxClosed},
		func(end error) bool { return errors.Is(err, end) })
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(ctx), context.Canceled):
		return fmt.Errorf("ask PostgreSQL: %w", context.Canceled)
	case !is && (pgconn.Timeout(err) || errors.Is(err, context.DeadlineExceeded)):
		return fmt.Errorf("PostgreSQL did not answer within %v; try again", s.limits.call)
	case !is && (network || ended || pgconn.SafeToRetry(err)):
		return errLost
	case !is:
		return err
	case refusal.Code == "23505" && refusal.TableName == "leaderboard":
		return fmt.Errorf("%w; choose another name, or remove it if it is left from an earlier run", ErrExists)
	case refusal.Code == "23503":
		return fmt.Errorf("%w: %q", ErrShared, refusal.Message)
	case refusal.Code == "40001" || refusal.Code == "40P01":
		return fmt.Errorf("%w (%q); try again", errConflict, refusal.Message)
	case refused[refusal.Code] != "":
		return s.fill(refused[refusal.Code], refusal.Message)
	case strings.HasPrefix(refusal.Code, "57P") || strings.HasPrefix(refusal.Code, "08"):
		return errLost
	}
	return fmt.Errorf("PostgreSQL refuses: %q (SQLSTATE %q)", refusal.Message, refusal.Code)
}
