package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/test/vm/wire"
)

// session is one process and its standard streams.
type session struct {
	cmd   *exec.Cmd
	stdin *queue
	pty   *os.File // nil without a terminal
	in    io.WriteCloser
}

// baseEnv is what a root login would have.
var baseEnv = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/bash", "LANG=C.UTF-8",
}

func newSession(ctx context.Context, c wire.Command) (*session, error) {
	if len(c.Argv) == 0 {
		return nil, errors.New("no command")
	}
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	if cmd.Err != nil {
		return nil, cmd.Err
	}
	cmd.Dir = "/root"
	cmd.Env = append(append([]string{}, baseEnv...), c.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// A daemon that the command left behind may hold its output open.
	cmd.WaitDelay = 2 * time.Second
	s := &session{cmd: cmd, stdin: newQueue()}
	if !c.TTY {
		var err error
		s.in, err = cmd.StdinPipe()
		return s, err
	}
	pty, tty, err := openPTY(c.Rows, c.Cols)
	if err != nil {
		return nil, err
	}
	s.pty, s.in = pty, pty
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr.Setctty = true
	cmd.Env = append(cmd.Env, "TERM=xterm-256color")
	return s, nil
}

// run starts the process, copies its streams and waits for its end.
func (s *session) run(stdout, stderr sink) wire.Status {
	copied := make(chan struct{})
	if s.pty == nil {
		s.cmd.Stdout, s.cmd.Stderr = stdout, stderr
		close(copied)
	}
	err := s.cmd.Start()
	if s.pty != nil {
		_ = s.cmd.Stdin.(*os.File).Close() // ours; the child has its own
		go func() {
			defer close(copied)
			_, _ = io.Copy(stdout, s.pty) // ends with EIO when the last holder of the terminal is gone
		}()
	}
	if err != nil {
		if s.pty != nil {
			_ = s.pty.Close()
		}
		return wire.Status{Code: -1, Error: err.Error()}
	}
	go s.stdin.drain(s.in, s.pty == nil)
	err = s.cmd.Wait()
	s.stdin.close()
	if s.pty != nil {
		select {
		case <-copied:
		case <-time.After(time.Second):
		}
		_ = s.pty.Close()
	}
	return status(s.cmd.ProcessState, err)
}

func status(st *os.ProcessState, err error) wire.Status {
	if st == nil {
		return wire.Status{Code: -1, Error: fmt.Sprint(err)}
	}
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return wire.Status{Code: 128 + int(ws.Signal())}
	}
	return wire.Status{Code: st.ExitCode()}
}

// signal reaches the whole process group.
func (s *session) signal(sig syscall.Signal) error {
	if s.cmd.Process == nil {
		return nil
	}
	return unix.Kill(-s.cmd.Process.Pid, sig)
}

func (s *session) resize(p []byte) error {
	if s.pty == nil || len(p) != 4 {
		return nil
	}
	return setSize(s.pty, binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:]))
}

func openPTY(rows, cols uint16) (pty, tty *os.File, err error) {
	pty, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = pty.Close()
		}
	}()
	fd := int(pty.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, fmt.Errorf("unlock terminal: %w", err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, nil, fmt.Errorf("number of terminal: %w", err)
	}
	if err := setSize(pty, rows, cols); err != nil {
		return nil, nil, err
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	return pty, tty, err
}

func setSize(pty *os.File, rows, cols uint16) error {
	if rows == 0 || cols == 0 {
		rows, cols = 24, 80
	}
	return unix.IoctlSetWinsize(int(pty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
}

// sink is a Writer made of a function.
type sink func([]byte) error

func (f sink) Write(p []byte) (int, error) { return len(p), f(p) }

// queue holds what a process has not read yet, without bound: one slow reader
// must not stop the frames of the other sessions.
type queue struct {
	mu     sync.Mutex
	more   *sync.Cond
	chunks [][]byte
	ended  bool
}

func newQueue() *queue {
	q := &queue{}
	q.more = sync.NewCond(&q.mu)
	return q
}

// put appends p; an empty p ends the input.
func (q *queue) put(p []byte) {
	if len(p) == 0 {
		q.close()
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.chunks = append(q.chunks, p)
	q.more.Signal()
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.more.Signal()
}

// drain writes to w until the queue ends, and then closes w if it is told to.
func (q *queue) drain(w io.WriteCloser, closeAfter bool) {
	for {
		q.mu.Lock()
		for len(q.chunks) == 0 && !q.ended {
			q.more.Wait()
		}
		chunks := q.chunks
		q.chunks = nil
		q.mu.Unlock()
		if chunks == nil {
			if closeAfter {
				_ = w.Close()
			}
			return
		}
		for _, c := range chunks {
			if _, err := w.Write(c); err != nil {
				break // the process stopped reading
			}
		}
	}
}
