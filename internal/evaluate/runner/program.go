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
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/runner/compile"
	"github.com/gpu-mode/kbnode/internal/evaluate/witness"
)

// drainLimit is how long to wait for output after a program's end. Then the processes
// that may still hold its pipes are killed.
const drainLimit = 250 * time.Millisecond

// program is a child process to run to its end.
type program struct {
	argv    []string // as it is reported
	exec    []string // as it is executed, if not nil: with paths instead of names
	env     []string
	dir     string
	limit   timeLimit
	popcorn bool      // give it a POPCORN_FD
	wrapped bool      // the judge is a child of this program, a profiler
	stdout  io.Writer // receives standard output instead of the outcome, if not nil

	compilers *compile.Service // if not nil, offered in home
	home      string
	note      func(format string, args ...any)
	reopen    func() // the way to home, which a program may close

	landlock int      // its version, 0 for none
	writable []string // directories in which it may write with Landlock, besides devices

	workers *engine                   // if not nil, starts workers for it
	worker  chan<- syscall.WaitStatus // of one; nil for other programs
	hidden  string                    // a directory in which a worker may not even read
	cores   *unix.CPUSet              // if not nil, all that a worker and its compilers ever run on: a judge needs one for itself
}

// outcome is how a program ended. A program is killed when it reaches its limit or the
// job is canceled.
type outcome struct {
	exitCode  int // the negative signal number if a signal ended it
	timedOut  bool
	cancelled bool
	stdout    capture
	stderr    capture
	popcorn   reports
	duration  time.Duration
	last      witness.Mark
	starved   int // processes that the kernel ended meanwhile because memory ran out
}

// texts returns stdout and stderr in the form of the result. Like the Python engine, it
// translates newlines unless the program reached its limit.
func (o *outcome) texts() (stdout, stderr string) {
	return o.stdout.text(!o.timedOut), o.stderr.text(!o.timedOut)
}

// errNoProgram means that the program to run is not installed.
var errNoProgram = errors.New("is not on the PATH; install it in the job's image")

// run runs a program and returns when it and everything it started are gone. It reaps
// every child of this process, so only one program may run at a time.
func (p program) run(ctx context.Context) (*outcome, error) {
	if p.exec == nil {
		p.exec = p.argv
	}
	path, err := lookPath(p.env, p.exec[0])
	if err != nil {
		return nil, err
	}
	o := &outcome{popcorn: reports{bounded: bounded{limit: popcornLimit}}}
	stdout := p.stdout
	if stdout == nil {
		stdout = &o.stdout
	}
	pipes := newPipes(stdout, &o.stderr)
	defer pipes.close()
	// Never the job's own, which may be a terminal: what is written there is in the log.
	stdin, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", p.argv[0], err)
	}
	defer stdin.Close() //nolint:errcheck // opened for reading
	if p.popcorn {
		pipes.addReports(&o.popcorn)
		p.env = setenv(p.env, "POPCORN_FD", "3")
	}
	forks := newForker()
	defer close(forks)
	workers := p.offerWorkers(pipes, forks)
	if pipes.err != nil {
		return nil, fmt.Errorf("run %s: %w", p.argv[0], pipes.err)
	}
	preparing.Wait()
	o.popcorn.sight.begin()
	start, starved := time.Now(), endedForMemory()
	offer := p.offerCompilers(forks)
	defer offer.remove() //nolint:errcheck // after an error
	p.env, path = offer.lead(p.env, path)
	pid, err := forks.start(p, path, append([]uintptr{stdin.Fd()}, pipes.childEnds()...))
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", p.argv[0], err)
	}
	if !p.wrapped {
		o.popcorn.judge = pid
	}
	o.popcorn.session = pid
	pipes.read()
	err = o.wait(ctx, pid, p.limit)
	workers.programEnded()
	offer.end()
	helpers.clear()
	o.duration = time.Since(start)
	// Compare the clock too: a program may have stopped this process until after the
	// limit.
	o.timedOut = o.timedOut || !o.cancelled && o.duration.Seconds() >= p.limit.seconds
	err = errors.Join(err, pipes.drain(func() error { return o.end(pid) }), workers.close(), offer.remove())
	o.starved = endedForMemory() - starved
	o.last = o.popcorn.sight.end(len(o.popcorn.buf))
	if out, errs := offer.unfinished(path); err == nil {
		_, _ = stdout.Write(out)    // as to a pipe
		_, _ = o.stderr.Write(errs) // likewise
	}
	return o, err
}

// spareThreads makes Go create the threads that it may need while a program uses up all
// processes that the container may have: Go exits if it cannot create a thread. It keeps them.
func spareThreads() {
	const spares = 16
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
func (o *outcome) wait(ctx context.Context, pid int, l timeLimit) error {
	exited := make(chan error, 1)
	go func() { exited <- awaitExit(pid) }()
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

// awaitExit returns when a child has ended, and leaves it to be reaped: until then, its process ID
// names no other process and no other group. It reaps orphans that end in the meantime.
func awaitExit(pid int) error {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil)
		// The union of siginfo_t begins with the process ID (waitid(2)).
		ended := int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), unsafe.Sizeof(info)-112))) //nolint:gosec // as the kernel wrote it
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for process %d: %w", pid, err)
		case ended == pid:
			return nil
		default:
			helpers.reap(ended)
		}
	}
}

// end kills what is left of a program and reaps all of it.
func (o *outcome) end(pid int) error {
	killGroup(pid)
	var status unix.WaitStatus
	got, err := unix.Wait4(pid, &status, unix.WNOHANG, nil)
	for errors.Is(err, unix.EINTR) {
		got, err = unix.Wait4(pid, &status, unix.WNOHANG, nil)
	}
	switch {
	case err != nil:
		err = fmt.Errorf("reap process %d: %w", pid, err)
	case got == 0: // it hangs in the kernel, and endTree says so
	case status.Signaled():
		o.exitCode = -int(status.Signal())
	default:
		o.exitCode = status.ExitStatus()
	}
	return errors.Join(err, endTree())
}

// tools are the programs that the engine starts by name.
var tools = []string{"python3", "nvcc", "ncu", "rocprofv3"}

// findPrograms looks for the tools before a program of the submission can put another one ahead of
// them on the PATH.
func (e *engine) findPrograms(ctx context.Context) {
	e.programs = map[string]string{}
	for _, name := range tools {
		if path, err := lookPath(e.env, name); err == nil {
			e.programs[name] = path
		}
	}
	if !isScript(e.programs["python3"]) {
		return
	}
	// Such a script selects an interpreter whenever it runs.
	out, ok := e.tool(ctx, "python3", "-c", "import sys; print(sys.executable)")
	if path := strings.TrimSuffix(out, "\n"); ok && filepath.IsAbs(path) {
		e.programs["python3"] = path
	}
}

// isScript reports whether a program is run by another one.
func isScript(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close() //nolint:errcheck // opened for reading
	mark := make([]byte, 2)
	_, err = io.ReadFull(f, mark)
	return err == nil && string(mark) == "#!"
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
