package results

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// hides checks that err does not show the password, in its text or in a wrapped error
// that a logger might format.
func hides(t *testing.T, err error) {
	t.Helper()
	for e := err; e != nil; e = errors.Unwrap(e) {
		doc, _ := json.Marshal(e)
		if text := fmt.Sprintf("%v %+v %#v %s", e, e, e, doc); strings.Contains(text, "pa55") || strings.Contains(text, "w0rd") {
			t.Errorf("the password is in %s", text)
		}
	}
}

// TestConnectRefused checks that an error says why there is no connection and what to do
// about it, without a part of the DSN.
func TestConnectRefused(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // answers no one
	must.Do(t, err)
	t.Cleanup(func() { _ = l.Close() })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for _, c := range []struct{ dsn, err string }{
		{"host=127.0.0.1 sslmode=disable connect_timeout=1 password=pa55-w0rd port=" + port, "no server answers there"},
		{"host=w0rd.invalid password=pa55", "no server answers there"},
		{"host=127.0.0.1 port=1 connect_timeout=pa55", ErrDSN.Error()},
		{"password='pa55 w0rd", ErrDSN.Error()},
		{"pa55w0rd", ErrDSN.Error()},
	} {
		_, err := Open(t.Context(), c.dsn)
		must.Err(t, err, c.err)
		hides(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, "postgres://u:pa55-w0rd@127.0.0.1:1/db"); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
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
