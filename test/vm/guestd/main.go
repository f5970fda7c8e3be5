// Command guestd runs inside the rig's virtual machine, as root, and starts
// the commands that the rig sends over a virtio-serial port. It serves tests
// only and does no access control.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/test/vm/wire"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	port, err := openPort(wire.PortName)
	if err != nil {
		log.Error("no port", "err", err)
		os.Exit(1)
	}
	s := &server{port: port, out: wire.NewWriter(port), log: log, sessions: map[uint32]*session{}}
	s.serve()
}

// openPort finds the port by its name in sysfs: udev may not have run yet.
func openPort(name string) (*os.File, error) {
	for range 600 {
		names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			b, err := os.ReadFile(n)
			if err != nil || string(bytes.TrimSpace(b)) != name {
				continue
			}
			// Blocking on purpose: with the host away, a poll on the port
			// returns at once, forever.
			fd, err := unix.Open("/dev/"+filepath.Base(filepath.Dir(n)), unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				return nil, fmt.Errorf("open port %s: %w", name, err)
			}
			return os.NewFile(uintptr(fd), name), nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil, fmt.Errorf("no virtio port is named %s", name)
}

type server struct {
	port *os.File
	out  *wire.Writer
	log  *slog.Logger

	mu       sync.Mutex
	sessions map[uint32]*session
}

func (s *server) serve() {
	in := wire.NewReader(eternal{s.port})
	for {
		f, err := in.Frame()
		if err != nil {
			s.log.Error("port lost", "err", err)
			os.Exit(1) // systemd starts us again
		}
		if err := s.handle(f); err != nil {
			s.log.Warn("frame refused", "type", f.Type, "session", f.Session, "err", err)
		}
	}
}

// eternal hides that a port reads as ended while the host is not connected.
type eternal struct{ r io.Reader }

func (e eternal) Read(p []byte) (int, error) {
	for {
		n, err := e.r.Read(p)
		if n > 0 || (err != nil && !errors.Is(err, io.EOF)) {
			return n, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *server) handle(f wire.Frame) error {
	if f.Type == wire.Hello {
		return s.hello(f.Payload)
	}
	if f.Type == wire.Exec {
		var c wire.Command
		if err := json.Unmarshal(f.Payload, &c); err != nil {
			return err
		}
		s.start(f.Session, c)
		return nil
	}
	s.mu.Lock()
	ses := s.sessions[f.Session]
	s.mu.Unlock()
	if ses == nil {
		return nil // it ended while the frame was on its way
	}
	switch f.Type {
	case wire.Stdin:
		ses.stdin.put(f.Payload)
	case wire.Signal:
		if len(f.Payload) == 1 {
			return ses.signal(syscall.Signal(f.Payload[0]))
		}
	case wire.Resize:
		return ses.resize(f.Payload)
	}
	return nil
}

// hello answers, ends what an earlier host left running, and sets the clock.
func (s *server) hello(payload []byte) error {
	var g wire.Greeting
	if err := json.Unmarshal(payload, &g); err != nil {
		return err
	}
	if d := time.Until(time.Unix(0, g.UnixNano)); g.UnixNano != 0 && d.Abs() > 500*time.Millisecond {
		tv := unix.NsecToTimeval(g.UnixNano)
		if err := unix.Settimeofday(&tv); err != nil {
			s.log.Warn("clock not set", "err", err)
		}
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		s.log.Warn("no boot id", "err", err)
	}
	return s.out.JSON(wire.Hello, 0, wire.Greeting{Nonce: g.Nonce, BootID: strings.TrimSpace(string(boot))})
}

func (s *server) start(id uint32, c wire.Command) {
	ses, err := newSession(context.Background(), c)
	if err != nil {
		s.exit(id, wire.Status{Code: -1, Error: err.Error()})
		return
	}
	s.mu.Lock()
	s.sessions[id] = ses
	s.mu.Unlock()
	go func() {
		st := ses.run(
			func(p []byte) error { return s.out.Data(wire.Stdout, id, p) },
			func(p []byte) error { return s.out.Data(wire.Stderr, id, p) })
		s.mu.Lock()
		delete(s.sessions, id)
		s.mu.Unlock()
		s.exit(id, st)
	}()
}

func (s *server) exit(id uint32, st wire.Status) {
	if err := s.out.JSON(wire.Exit, id, st); err != nil {
		s.log.Warn("exit not reported", "session", id, "err", err)
	}
}
