package vm

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/test/vm/wire"
)

// What a session sees when its machine ended, or its guest rebooted.
var (
	errGone     = errors.New("the machine went away")
	errRebooted = errors.New("the machine rebooted")
)

// guest is the host's end of the command channel.
type guest struct {
	conn   net.Conn
	out    *wire.Writer
	env    []string // of every command
	hellos chan wire.Greeting

	mu       sync.Mutex
	next     uint32
	sessions map[uint32]*session
	dead     error // set once the reader has ended
}

// session is one process in the guest.
type session struct {
	id             uint32
	g              *guest
	stdout, stderr io.Writer
	done           chan struct{}
	status         wire.Status
	err            error
}

func dialGuest(ctx context.Context, path string) (*guest, error) {
	conn, err := dialWhenThere(ctx, path)
	if err != nil {
		return nil, err
	}
	g := &guest{
		conn: conn, out: wire.NewWriter(conn),
		hellos:   make(chan wire.Greeting, 16),
		sessions: map[uint32]*session{},
	}
	go g.read()
	return g, nil
}

// hello greets until the server in the guest answers, which it does as soon as
// it runs, and returns the guest's boot ID. It answers no later than ctx ends.
func (g *guest) hello(ctx context.Context, not string) (boot string, err error) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	nonce := strconv.FormatInt(time.Now().UnixNano(), 36)
	for {
		// While no one reads in the guest the socket fills up; that is no error.
		if err := g.conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			return "", err
		}
		err := g.out.JSON(wire.Hello, 0, wire.Greeting{Nonce: nonce, UnixNano: time.Now().UnixNano()})
		var timeout net.Error
		if err != nil && (!errors.As(err, &timeout) || !timeout.Timeout()) {
			return "", fmt.Errorf("greet the guest: %w", err)
		}
		if err := g.conn.SetWriteDeadline(time.Time{}); err != nil {
			return "", err
		}
	wait:
		for {
			select {
			case h, ok := <-g.hellos:
				if !ok {
					return "", errGone
				}
				if h.Nonce == nonce && h.BootID != not {
					return h.BootID, nil
				}
			case <-tick.C:
				break wait
			case <-ctx.Done():
				return "", fmt.Errorf("wait for the guest: %w", ctx.Err())
			}
		}
	}
}

func (g *guest) read() {
	in := wire.NewReader(g.conn)
	for {
		f, err := in.Frame()
		if err != nil {
			g.drop(fmt.Errorf("%w: %w", errGone, err))
			close(g.hellos)
			return
		}
		if f.Type == wire.Hello {
			var h wire.Greeting
			if json.Unmarshal(f.Payload, &h) == nil {
				select {
				case g.hellos <- h:
				default: // no one is greeting
				}
			}
			continue
		}
		g.mu.Lock()
		s := g.sessions[f.Session]
		g.mu.Unlock()
		if s != nil {
			s.receive(f)
		}
	}
}

// drop ends all sessions; a later start fails only if the reader has ended.
func (g *guest) drop(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, s := range g.sessions {
		s.err = err
		close(s.done)
		delete(g.sessions, id)
	}
	if !errors.Is(err, errRebooted) {
		g.dead = err
	}
}

func (s *session) receive(f wire.Frame) {
	switch f.Type {
	case wire.Stdout:
		_, _ = s.stdout.Write(f.Payload)
	case wire.Stderr:
		_, _ = s.stderr.Write(f.Payload)
	case wire.Exit:
		s.g.mu.Lock()
		defer s.g.mu.Unlock()
		if s.g.sessions[s.id] != s {
			return
		}
		delete(s.g.sessions, s.id)
		s.err = json.Unmarshal(f.Payload, &s.status)
		close(s.done)
	}
}

func (g *guest) start(c wire.Command, stdout, stderr io.Writer) (*session, error) {
	g.mu.Lock()
	if g.dead != nil {
		g.mu.Unlock()
		return nil, g.dead
	}
	g.next++
	s := &session{id: g.next, g: g, stdout: stdout, stderr: stderr, done: make(chan struct{})}
	g.sessions[s.id] = s
	g.mu.Unlock()
	c.Env = append(slices.Clone(g.env), c.Env...)
	b, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	if len(b) > wire.MaxPayload {
		return nil, fmt.Errorf("command line of %d bytes is over %d; use Put and a script", len(b), wire.MaxPayload)
	}
	return s, g.out.Frame(wire.Exec, s.id, b)
}

// wait returns how the process ended; with ctx it is killed.
func (s *session) wait(ctx context.Context) (wire.Status, error) {
	select {
	case <-s.done:
	case <-ctx.Done():
		_ = s.signal(syscall.SIGKILL)
		select {
		case <-s.done:
		case <-time.After(10 * time.Second):
		}
		return wire.Status{Code: -1}, ctx.Err()
	}
	if s.err != nil {
		return wire.Status{Code: -1}, s.err
	}
	if s.status.Code == -1 && s.status.Error != "" {
		return s.status, errors.New(s.status.Error)
	}
	return s.status, nil
}

func (s *session) signal(sig syscall.Signal) error {
	return s.g.out.Frame(wire.Signal, s.id, []byte{byte(sig)})
}

func (s *session) resize(rows, cols uint16) error {
	return s.g.out.Frame(wire.Resize, s.id, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, rows), cols))
}

// input sends all of r, then closes the process's standard input.
func (s *session) input(r io.Reader) error {
	buf := make([]byte, wire.MaxPayload)
	for {
		n, err := r.Read(buf)
		if werr := s.g.out.Data(wire.Stdin, s.id, buf[:n]); werr != nil {
			return werr
		}
		if errors.Is(err, io.EOF) {
			return s.g.out.Frame(wire.Stdin, s.id, nil)
		}
		if err != nil {
			return err
		}
	}
}

// run starts a command, feeds it stdin, and returns when it has ended.
func (g *guest) run(ctx context.Context, stdin io.Reader, c wire.Command) (Result, error) {
	var stdout, stderr buffer
	s, err := g.start(c, &stdout, &stderr)
	if err != nil {
		return Result{Code: -1}, err
	}
	if stdin == nil {
		stdin = bytes.NewReader(nil)
	}
	if err := s.input(stdin); err != nil {
		return Result{Code: -1}, err
	}
	st, err := s.wait(ctx)
	return Result{Stdout: stdout.String(), Stderr: stderr.String(), Code: st.Code}, err
}

// Result is what a command in the guest said, and its exit status: 128+n for
// signal n, -1 if it did not start or did not end.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// buffer collects output that may be looked at before it is complete.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
