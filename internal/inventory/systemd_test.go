package inventory

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"

	"github.com/gpu-mode/kbnode/test/must"
)

// peer is a D-Bus server that answers every call with one variant; with nil it accepts a
// connection and never answers.
func peer(t *testing.T, answer any) (address string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "private")
	listener, err := net.Listen("unix", socket)
	must.Do(t, err)
	done := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			done <- err
			return
		}
		defer conn.Close() //nolint:errcheck // the client closes first
		in := bufio.NewReader(conn)
		if answer == nil {
			_, err = in.WriteTo(io.Discard) // until the client leaves
		} else {
			err = serve(conn, in, answer)
		}
		done <- err
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		if err := <-done; err != nil && answer != nil {
			t.Error(err)
		}
	})
	return "unix:path=" + socket
}

func serve(conn net.Conn, in *bufio.Reader, answer any) error {
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		reply := "ERROR"
		switch words := strings.Fields(strings.Trim(line, "\x00\r\n")); {
		case words[0] == "BEGIN":
			call, err := dbus.DecodeMessage(in)
			if err != nil {
				return err
			}
			if got := fmt.Sprint(call.Body...); !strings.Contains(got, "Version") {
				return fmt.Errorf("asked for %s, want the Version", got)
			}
			back := dbus.Message{
				Type: dbus.TypeMethodReply,
				Headers: map[dbus.HeaderField]dbus.Variant{
					dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()),
					dbus.FieldSignature:   dbus.MakeVariant(dbus.SignatureOf(dbus.Variant{})),
				},
				Body: []any{dbus.MakeVariant(answer)},
			}
			return back.EncodeTo(conn, binary.LittleEndian)
		case len(words) == 1 && words[0] == "AUTH":
			reply = "REJECTED EXTERNAL"
		case len(words) == 2 && words[0] == "AUTH":
			reply = "DATA"
		case words[0] == "AUTH", words[0] == "DATA":
			reply = "OK 0123456789abcdef0123456789abcdef"
		}
		if _, err := fmt.Fprintf(conn, "%s\r\n", reply); err != nil {
			return err
		}
	}
}

func TestSystemdVersion(t *testing.T) {
	t.Parallel()
	for answer, want := range map[any]string{"257.9-1~deb13u1": "257", "v255": "255", "devel": "", uint32(257): ""} {
		t.Run(fmt.Sprint(answer), func(t *testing.T) {
			t.Parallel()
			got, err := systemdVersion(t.Context(), peer(t, answer), false)
			if got != want || (err == nil) != (want != "") {
				t.Errorf("got %q, %v; want %q", got, err, want)
			}
		})
	}
	t.Run("nobody answers", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if got, err := systemdVersion(ctx, peer(t, nil), false); err == nil {
			t.Errorf("got %q, want an error", got)
		}
	})
}
