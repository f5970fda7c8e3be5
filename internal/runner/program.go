package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// drainLimit is how long to wait for output after a program's end. Then the processes
// that may still hold its pipes are killed.
const drainLimit = 250 * time.Millisecond

// program is a child process to run to its end.
type program struct {
	argv    []string
	env     []string
	dir     string
	stdin   *os.File // nil for /dev/null
	limit   limit
	popcorn bool      // give it a POPCORN_FD
	stdout  io.Writer // receives standard output instead of the outcome, if not nil

	landlock int      // its version, 0 for none
	writable []string // directories in which it may write, with Landlock
}

// outcome is how a program ended. A program is killed when it reaches its limit or the
// job is canceled.
type outcome struct {
	exitCode  int // the negative signal number if a signal ended it
	timedOut  bool
	cancelled bool
	stdout    capture
	stderr    capture
	popcorn   bounded
	duration  time.Duration
}

// texts returns stdout and stderr in the form of the result. Like the Python engine, it
// translates newlines unless the program reached its limit.
func (o *outcome) texts() (stdout, stderr string) {
	return o.stdout.text(!o.timedOut), o.stderr.text(!o.timedOut)
}

// errNoProgram means that the program to run is not installed.
var errNoProgram = errors.New("is not on the PATH")

// run runs a program and returns when it and everything it started are gone. It reaps
// every child of this process, so only one program may run at a time.
func (p program) run(ctx context.Context) (*outcome, error) {
	path, err := lookPath(p.env, p.argv[0])
	if err != nil {
		return nil, err
	}
	o := &outcome{popcorn: bounded{limit: popcornLimit}}
	stdout := p.stdout
	if stdout == nil {
		stdout = &o.stdout
	}
	pipes := newPipes(stdout, &o.stderr)
	defer pipes.close()
	stdin := p.stdin
	if stdin == nil {
		if stdin, err = os.Open(os.DevNull); err != nil {
			return nil, fmt.Errorf("run %s: %w", p.argv[0], err)
		}
		defer stdin.Close() //nolint:errcheck // opened for reading
	}
	if p.popcorn {
		pipes.add(&o.popcorn)
		p.env = setenv(p.env, "POPCORN_FD", "3")
	}
	if pipes.err != nil {
		return nil, fmt.Errorf("run %s: %w", p.argv[0], pipes.err)
	}
	spareThreads()
	start := time.Now()
	pid, release, err := p.start(path, append([]uintptr{stdin.Fd()}, pipes.childEnds()...))
	defer release()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", p.argv[0], err)
	}
	pipes.read()
	err = o.wait(ctx, pid, p.limit)
	o.duration = time.Since(start)
	// Compare the clock too: a program may have stopped this process until after the
	// limit.
	o.timedOut = o.timedOut || !o.cancelled && o.duration.Seconds() >= p.limit.seconds
	return o, errors.Join(err, pipes.drain(pid))
}

// spareThreads makes Go create the threads that it may need while a program uses up all
// processes that the container may have: Go exits if it cannot create a thread.
func spareThreads() {
	const spares = 8
	var locked, done sync.WaitGroup
	locked.Add(spares)
	for range spares {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			locked.Done()
			locked.Wait()
		})
	}
	done.Wait()
}

// wait waits for the program to end. It kills it at its limit or when ctx is done.
func (o *outcome) wait(ctx context.Context, pid int, l limit) error {
	exited := make(chan error, 1)
	go func() { exited <- o.reap(pid) }()
	var expired <-chan time.Time
	if l.seconds <= 0 {
		now := make(chan time.Time)
		close(now)
		expired = now
	} else if l.seconds < 1e9 { // 30 years; a longer Duration may overflow
		t := time.NewTimer(time.Duration(l.seconds * float64(time.Second)))
		defer t.Stop()
		expired = t.C
	}
	select {
	case err := <-exited:
		return err
	case <-expired:
		o.timedOut = true
	case <-ctx.Done():
		o.cancelled = true
	}
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	giveUp := time.NewTimer(endLimit)
	defer giveUp.Stop()
	for {
		killGroup(pid)
		select {
		case err := <-exited:
			return err
		case <-again.C:
		case <-giveUp.C:
			return fmt.Errorf("end program: process %d is alive %s after SIGKILL", pid, endLimit)
		}
	}
}

// reap waits for the program, and reaps orphans that end in the meantime.
func (o *outcome) reap(pid int) error {
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for process %d: %w", pid, err)
		case got == pid && status.Signaled():
			o.exitCode = -int(status.Signal())
			return nil
		case got == pid:
			o.exitCode = status.ExitStatus()
			return nil
		}
	}
}

// pipes copy a child's output to writers while it runs.
type pipes struct {
	ends    []*os.File // ours
	child   []int      // the child's, open until read
	writers []io.Writer
	done    chan struct{} // one value for each pipe that has ended
	err     error
}

func newPipes(writers ...io.Writer) *pipes {
	p := &pipes{}
	for _, w := range writers {
		p.add(w)
	}
	return p
}

func (p *pipes) add(w io.Writer) {
	var fds [2]int
	err := unix.Pipe2(fds[:], unix.O_CLOEXEC)
	if err == nil {
		// Only our end: with a deadline, it can give up a pipe that someone keeps open.
		err = unix.SetNonblock(fds[0], true)
		p.ends = append(p.ends, os.NewFile(uintptr(fds[0]), "pipe"))
		p.child = append(p.child, fds[1])
		p.writers = append(p.writers, w)
	}
	p.err = errors.Join(p.err, err)
}

func (p *pipes) childEnds() []uintptr {
	var fds []uintptr
	for _, fd := range p.child {
		fds = append(fds, uintptr(fd))
	}
	return fds
}

// read closes the child's ends and starts to read ours.
func (p *pipes) read() {
	for _, fd := range p.child {
		_ = unix.Close(fd)
	}
	p.child = nil
	p.done = make(chan struct{}, len(p.ends))
	for i, end := range p.ends {
		go func() {
			// The copy ends at end of file or at a deadline. Neither is an error here.
			_, _ = io.CopyBuffer(p.writers[i], onlyReader{end}, make([]byte, 32<<10))
			p.done <- struct{}{}
		}()
	}
}

// onlyReader hides os.File's WriteTo, which would allocate its own buffer.
type onlyReader struct{ io.Reader }

// drain waits for the end of all pipes, kills what is left of the program, and gives up
// on pipes that a process out of its reach keeps open.
func (p *pipes) drain(group int) error {
	open := p.await(len(p.ends), drainLimit)
	killGroup(group)
	err := endTree()
	if open = p.await(open, drainLimit); open > 0 {
		for _, end := range p.ends {
			err = errors.Join(err, end.SetReadDeadline(time.Now()))
		}
		for range open {
			<-p.done
		}
	}
	return err
}

// await waits for n pipes to end and returns how many have not ended after atMost.
func (p *pipes) await(n int, atMost time.Duration) int {
	t := time.NewTimer(atMost)
	defer t.Stop()
	for ; n > 0; n-- {
		select {
		case <-p.done:
		case <-t.C:
			return n
		}
	}
	return 0
}

func (p *pipes) close() {
	for _, end := range p.ends {
		_ = end.Close()
	}
	for _, fd := range p.child {
		_ = unix.Close(fd)
	}
}

// lookPath finds a program on the PATH of an environment. It ignores relative entries,
// which would lead into the job's directory.
func lookPath(env []string, name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dir := range filepath.SplitList(getenv(env, "PATH")) {
		if !filepath.IsAbs(dir) {
			continue
		}
		path := dir + "/" + name // in the form that which(1) prints
		if info, err := os.Stat(path); err == nil && !info.IsDir() && unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s %w", name, errNoProgram)
}

func getenv(env []string, name string) string {
	v, _ := lookupEnv(env, name)
	return v
}

func lookupEnv(env []string, name string) (string, bool) {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// setenv returns a copy of an environment with one variable set.
func setenv(env []string, name, value string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	return append(env, name+"="+value)
}
