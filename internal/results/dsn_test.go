package results

import (
	"errors"
	"testing"
)

// TestParseRefuses checks that an error for a DSN that cannot be parsed, or not
// reliably, quotes no part of it: the password may be in the wrong place.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://u:pa55#w0rd@host/db", "postgres://u:pa55@w0rd@host/db", "postgresql://u@pa55:w0rd@host/db", "postgres://u:1234#w0rd@host/db", "postgres://u:1234/w0rd@host/db", "postgres://u:1234?w0rd@host/db",
		"postgres://u:pa55%zzw0rd@host/db", "postgres://u:pa55@host:w0rd/db", "postgres://u:pa55@host/db?sslmode=w0rd",
		"password=pa55 w0rd", "password=pa55 w0rd host=h", "password='pa55 w0rd", "host=h password=pa55 port=w0rd", "pa55w0rd",
		"service=nowhere password=pa55", "host=h password=pa55\x00w0rd", "mysql://u:pa55@host/db", "host=h connect_timeout=pa55",
	} {
		if _, err := parse(dsn); !errors.Is(err, errDSN) {
			t.Errorf("%q: %v", dsn, err)
		}
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct{ dsn, host, user, password, database string }{
		{"postgres://u:p%40ss@host:6000/db?sslmode=disable", "host", "u", "p@ss", "db"},
		{"host=/run/pg user=u password='p w' dbname=db application_name=mine", "/run/pg", "u", "p w", "db"},
		{"", "from.env", "envuser", "envpass", "envdb"},
		{"dbname=other", "from.env", "envuser", "envpass", "other"},
	} {
		t.Setenv("PGHOST", "from.env")
		t.Setenv("PGUSER", "envuser")
		t.Setenv("PGPASSWORD", "envpass")
		t.Setenv("PGDATABASE", "envdb")
		got, err := parse(c.dsn)
		if err != nil {
			t.Errorf("%q: %v", c.dsn, err)
			continue
		}
		if got.Host != c.host || got.User != c.user || got.Password != c.password || got.Database != c.database {
			t.Errorf("%q: host %q, user %q, password %q, database %q", c.dsn, got.Host, got.User, got.Password, got.Database)
		}
		if got.RuntimeParams["application_name"] == "" {
			t.Errorf("%q: no application name", c.dsn)
		}
	}
}

func TestHasPassword(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]bool{
		"": false, "env": false, "host=/run/x user=e2e dbname=kernelbot": false, "postgres://e2e@db/kernelbot": false,
		"postgres://e2e@[::1]:5432/kernelbot?sslmode=require": false, "host=db passfile=/root/pw": false,
		"host=db password=x": true, "host=db PASSWORD = x": true, "postgres://e2e:x@db/kernelbot": true, "postgresql://e2e:p/w@db/kernelbot": true,
		"postgres://db/kernelbot?user=e2e&password=x": true, "host=db sslpassword=x": true, "postgres://e2e:x@@db:1/kernelbot": true,
	} {
		if got := HasPassword(dsn); got != want {
			t.Errorf("%s: %t", dsn, got)
		}
	}
}
