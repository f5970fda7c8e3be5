package vm

import (
	"bytes"
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/vm/wire"
)

// echo is a guest in which every command says what it is, repeats its input and ends
// with 3.
func echo(t *testing.T, l net.Listener) {
	conn, err := l.Accept()
	if err != nil {
		t.Error(err)
		return
	}
	in, out := wire.NewReader(conn), wire.NewWriter(conn)
	for {
		f, err := in.Frame()
		if err != nil {
			return
		}
		switch f.Type {
		case wire.Exec:
			var c wire.Command
			err = json.Unmarshal(f.Payload, &c)
			_ = out.Data(wire.Stderr, f.Session, []byte(strings.Join(c.Argv, "|")))
		case wire.Stdin:
			err = out.Data(wire.Stdout, f.Session, f.Payload)
			if len(f.Payload) == 0 {
				err = out.JSON(wire.Exit, f.Session, wire.Status{Code: 3})
			}
		}
		if err != nil {
			t.Error(err)
		}
	}
}

func TestShare(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "guest"))
	if err != nil {
		t.Fatal(err)
	}
	go echo(t, l)
	g, err := dialGuest(t.Context(), filepath.Join(dir, "guest"))
	if err != nil {
		t.Fatal(err)
	}
	m := &VM{guest: g}
	shared := filepath.Join(dir, "shared")
	if err := m.Share(t.Context(), shared); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("0123456789", wire.MaxPayload)
	for _, input := range []string{"", "short", long} {
		var stdout, stderr bytes.Buffer
		code, err := SSH(t.Context(), shared, []string{"-C", "guest", "cat"}, strings.NewReader(input), &stdout, &stderr)
		if err != nil || code != 3 || stdout.String() != input || stderr.String() != "sh|-c|cat" {
			t.Errorf("%d bytes: exit code %d, %v, %d bytes back, %s", len(input), code, err, stdout.Len(), &stderr)
		}
	}
}

func TestSSHCommand(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"as Ansible types it": {[]string{"-C", "-o", "User=\"root\"", "-o", "ConnectTimeout=10", "guest", "/bin/sh -c 'echo ~ && sleep 0'"}, "/bin/sh -c 'echo ~ && sleep 0'"},
		"a terminal":          {[]string{"-tt", "-p22", "guest", "id", "-u"}, "id -u"},
		"the command's own":   {[]string{"guest", "ls", "-o", "/"}, "ls -o /"},
		"a login":             {[]string{"-o", "User=root", "guest"}, ""},
		"nothing":             {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := sshCommand(tt.args)
			if got != tt.want || (err != nil) != (tt.want == "") {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
		})
	}
}
