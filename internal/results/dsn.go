package results

import (
	"errors"
	"net/url"
	"strings"

	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/jackc/pgx/v5"
)

// errDSN is the only error for a DSN that cannot be parsed: a misplaced part may be the
// password.
var errDSN = errors.New("the database's DSN cannot be read; write postgres://USER@HOST:PORT/NAME or host=HOST dbname=NAME user=USER, " +
	"with the password in PGPASSWORD or ~/.pgpass (in a URL, special characters as %XX), and a service from the service file")

// parse parses a DSN. It refuses one in which a password that is not quoted may have
// become a host, a database or a setting, which errors would show.
func parse(dsn string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, errDSN
	}
	if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		u, err := url.Parse(dsn)
		if err != nil || u.Fragment != "" || strings.Count(dsn, "@") > 1 || strings.Contains(u.Path+u.RawQuery, "@") {
			return nil, errDSN
		}
	}
	for key := range config.RuntimeParams {
		if strings.Trim(key, "abcdefghijklmnopqrstuvwxyz_.") != "" {
			return nil, errDSN
		}
	}
	if _, named := config.RuntimeParams["application_name"]; !named {
		config.RuntimeParams["application_name"] = "kbnode"
	}
	// No prepared statements: behind a pooler, the next transaction may use another
	// server connection.
	config.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec
	return config, nil
}

// HasPassword reports whether a DSN may contain a password and so must not be on a
// command line, which everyone on the machine sees. False positives are possible.
func HasPassword(dsn string) bool {
	if hasPassword().MatchString(dsn) {
		return true
	}
	_, rest, isURL := strings.Cut(dsn, "://")
	at := strings.LastIndex(rest, "@")
	return isURL && at >= 0 && strings.Contains(rest[:at], ":")
}

// hasPassword matches password and sslpassword as a keyword and in a query.
var hasPassword = lazy.Regexp(`(?i)password\s*=`)
