package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/gpu-mode/kbnode/test/vm/wire"
)

// Share lets other programs on this host run commands in the guest until ctx ends. A
// connection to the socket is one command, in the frames that the guest itself speaks;
// the guest's own socket takes one connection only, which is the test's.
func (m *VM) Share(ctx context.Context, socket string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("share the machine: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go m.relay(ctx, conn)
		}
	}()
	return nil
}

func (m *VM) relay(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	in, out := wire.NewReader(conn), wire.NewWriter(conn)
	f, err := in.Frame()
	if err != nil || f.Type != wire.Exec {
		return
	}
	var c wire.Command
	if json.Unmarshal(f.Payload, &c) != nil {
		return
	}
	s, err := m.guest.start(c, stream{out, wire.Stdout, f.Session}, stream{out, wire.Stderr, f.Session})
	if err != nil {
		_ = out.JSON(wire.Exit, f.Session, wire.Status{Code: -1, Error: err.Error()})
		return
	}
	go func() {
		for {
			f, err := in.Frame()
			if err != nil {
				_ = s.signal(syscall.SIGHUP) // who typed it is gone; nothing happens if it has ended
				return
			}
			if f.Type == wire.Stdin {
				_ = s.g.out.Frame(wire.Stdin, s.id, f.Payload)
			}
		}
	}()
	st, err := s.wait(ctx)
	if err != nil {
		st = wire.Status{Code: -1, Error: err.Error()}
	}
	_ = out.JSON(wire.Exit, f.Session, st)
}

// stream is a Writer of one session's output.
type stream struct {
	to      *wire.Writer
	kind    wire.Type
	session uint32
}

func (s stream) Write(p []byte) (int, error) { return len(p), s.to.Data(s.kind, s.session, p) }

// SSH is ssh for programs that insist on it: it takes ssh's arguments, leaves options
// and host out, and runs the command in the guest that Share shares.
func SSH(ctx context.Context, socket string, args []string, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	command, err := sshCommand(args)
	if err != nil {
		return 255, err
	}
	g, err := dialGuest(ctx, socket)
	if err != nil {
		return 255, err
	}
	s, err := g.start(wire.Command{Argv: []string{"sh", "-c", command}}, stdout, stderr)
	if err != nil {
		return 255, err
	}
	go func() { _ = s.input(stdin) }()
	st, err := s.wait(ctx)
	if err != nil {
		return 255, err
	}
	return st.Code, nil
}

// sshCommand is what a remote shell is given. A command without one is a login.
func sshCommand(args []string) (string, error) {
	for i := 0; i < len(args); i++ {
		option := args[i]
		switch {
		case !strings.HasPrefix(option, "-"):
			if i+1 == len(args) {
				return "", errors.New("there is no command after the host, and no terminal here")
			}
			return strings.Join(args[i+1:], " "), nil
		case len(option) == 2 && strings.Contains("BbcDEeFIiJLlmOopQRSWw", option[1:]):
			i++ // its value is the next word
		}
	}
	return "", errors.New("no host is given")
}
