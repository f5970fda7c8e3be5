// Package probe runs kbnode-nvml, the one-shot program that queries NVIDIA's library about
// the GPUs. It loads no driver code into the calling process.
package probe

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const (
	timeout   = 20 * time.Second // for NVML to start, and for what is asked about one GPU
	killGrace = 2 * time.Second  // after SIGKILL; a process stuck in a driver does not die
	maxOutput = 8 << 20
	maxErrors = 64 << 10
)

// ErrNotEmbedded means that this kbnode was built without the probe.
var ErrNotEmbedded = errors.New("this kbnode was built without the NVML probe")

// ErrNoLoader means that the machine has no glibc, which NVML itself needs.
var ErrNoLoader = errors.New("NVML is not available: this machine has no glibc loader (ld-linux)")

var (
	errCrashed = errors.New("the NVML probe crashed")
	errReport  = errors.New("read NVML report") // its output is not as this kbnode expects
)

// Error is NVML's refusal to start.
type Error struct {
	Code   int    // of nvml.h
	Text   string // as reported by NVML or the loader
	Absent bool   // no libnvidia-ml.so.1 on this machine
}

func (e *Error) Error() string {
	switch {
	case e.Absent:
		return "NVML: there is no NVIDIA driver library (libnvidia-ml.so.1) on this machine"
	case e.Code == nvml.CodeNoDriver:
		return "NVML: the NVIDIA driver is not loaded; try modprobe nvidia"
	case e.Code == nvml.CodeMismatch:
		return "NVML: the driver was upgraded while the old kernel module is loaded; reboot, or reload the nvidia modules"
	default:
		return fmt.Sprintf("NVML: %s (code %d)", e.Text, e.Code)
	}
}

// Options change how the probe is run; on a real machine, use the zero value.
type Options struct {
	Path     string        // this binary instead of the embedded one
	Env      []string      // NAME=value, added to the clean environment
	Timeout  time.Duration // 0 means 20 s for one GPU, 30 s for all
	GPU      string        // query only what uses the GPU with this UUID: its processes and memory
	Silence  *Silence      // of what Run read before; nil remembers nothing
	set      []string      // change a setting instead: the arguments of kbnode-nvml set
	runDir   string        // "" means /run/kbnode; for tests
	source   *source       // nil means standard; for tests
	patience time.Duration // 0 means 10 s; for tests
}

// Run queries NVML about this machine. If NVML cannot start, it returns the report and an
// *Error. At a time it runs one probe of all GPUs and one of each GPU, machine-wide if it
// may write /run/kbnode: a GPU that hangs in the driver must not accumulate processes that
// cannot be killed. Such a GPU keeps none of the others from being read: see nvml.Report.Hung.
func Run(ctx context.Context, opts Options) (*nvml.Report, error) {
	opts.runDir = cmp.Or(opts.runDir, runDir)
	if opts.GPU == "" && opts.set == nil {
		return sweep(ctx, opts)
	}
	opts.Timeout = cmp.Or(max(0, opts.Timeout), timeout)
	ctx, cancel := context.WithTimeout(ctx, opts.Timeout)
	defer cancel()

	release, lock, err := acquire(ctx, filepath.Join(opts.runDir, lockName(opts.GPU)))
	if err != nil {
		return nil, err
	}
	args := []string{opts.GPU}
	if opts.set != nil {
		args = append([]string{"set"}, opts.set...)
	}
	c := &child{ended: release, parse: Parse}
	c.stdout.limit = maxOutput
	if err := c.start(opts, lock, func(path string) *exec.Cmd {
		cmd := exec.Command(path, args...)
		cmd.Stdout = &c.stdout
		return cmd
	}); err != nil {
		release()
		return nil, err
	}
	return c.wait(ctx)
}

// child is one probe process, from fork to reaping.
type child struct {
	cmd            *exec.Cmd
	stdout, stderr bounded
	exited         chan error
	ended          func()                             // called when it is really gone
	parse          func([]byte) (*nvml.Report, error) // its output
}

// start runs the command that is made for the probe's path, on a thread of its own, which lives as
// long as the probe: the kernel sends Pdeathsig when the thread that forked ends. The child inherits
// the lock.
func (c *child) start(opts Options, lock *os.File, command func(path string) *exec.Cmd) error {
	path := opts.Path
	if path == "" {
		var err error
		if path, err = cmp.Or(opts.source, standard).path(); err != nil {
			return err
		}
	}
	cmd := command(path)
	c.cmd, c.exited, c.stderr.limit = cmd, make(chan error, 1), maxErrors
	cmd.Dir, cmd.Stderr = "/", &c.stderr
	// None of our environment: LD_BIND_NOW=1 alone would kill it before main.
	cmd.Env = slices.Concat([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}, cmd.Env, opts.Env)
	cmd.WaitDelay = killGrace
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if lock != nil {
		cmd.ExtraFiles = []*os.File{lock}
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		err = cmd.Wait()
		c.ended()
		c.exited <- err
	}()
	err := <-started
	if errors.Is(err, syscall.ENOENT) {
		return ErrNoLoader
	}
	if err != nil {
		return fmt.Errorf("start the NVML probe: %w", err)
	}
	return nil
}

// wait returns the child's report, or kills its process group when ctx ends.
func (c *child) wait(ctx context.Context) (*nvml.Report, error) {
	select {
	case err := <-c.exited:
		return c.report(err)
	case <-ctx.Done():
	}
	exit, err := c.kill()
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", err, ctx.Err())
	case exit == nil:
		return c.report(nil) // it had just finished
	}
	return nil, fmt.Errorf("the NVML probe did not answer and was killed: %w", ctx.Err())
}

// kill kills the child's process group and returns how it ended. It returns an error if it does not.
func (c *child) kill() (exit, err error) {
	pid := c.cmd.Process.Pid
	_ = syscall.Kill(-pid, syscall.SIGKILL) // if it is already gone, that is fine
	select {
	case exit = <-c.exited:
		return exit, nil
	case <-time.After(killGrace):
		return nil, fmt.Errorf("the NVML probe (process %d) cannot be killed: a GPU is hung in the driver", pid)
	}
}

// report parses the output of a probe that has ended.
func (c *child) report(exit error) (*nvml.Report, error) {
	if c.stdout.overflowed() {
		return nil, fmt.Errorf("the NVML probe printed more than %d bytes", maxOutput)
	}
	var status *exec.ExitError
	code := 0
	if errors.As(exit, &status) {
		code = status.ExitCode()
	} else if exit != nil {
		return nil, fmt.Errorf("run the NVML probe: %w", exit)
	}
	if code != 0 && code != 3 {
		return nil, fmt.Errorf("%w: %s", errCrashed, c.lastWords(status))
	}
	r, err := c.parse(c.stdout.bytes())
	if err != nil {
		return nil, err
	}
	if r.OK != (code == 0) {
		return nil, fmt.Errorf("the NVML probe exited with %d but reports ok=%t", code, r.OK)
	}
	if !r.OK {
		return r, &Error{Code: r.Code, Text: r.Error, Absent: r.Absent}
	}
	return r, nil
}

// lastWords returns the first line that a crashed probe wrote, the loader's "symbol lookup
// error" or Go's name for a signal, and its exit status.
func (c *child) lastWords(status *exec.ExitError) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(c.stderr.bytes())), "\n")
	line = strings.ReplaceAll(line, c.cmd.Path+": ", "")
	if line == "" {
		return status.Error()
	}
	return fmt.Sprintf("%s (%s)", text.Line(line, 300), status.Error())
}

// Parse parses a report, from a probe or from a captured machine.
func Parse(data []byte) (*nvml.Report, error) {
	if len(data) > maxOutput {
		return nil, fmt.Errorf("%w: more than %d bytes", errReport, maxOutput)
	}
	var r nvml.Report
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("%w: %w", errReport, err)
	}
	if r.Schema != nvml.Schema {
		return nil, fmt.Errorf("%w: it has schema %d, but this kbnode reads %d", errReport, r.Schema, nvml.Schema)
	}
	return &r, nil
}

// bounded keeps what is written to it up to a limit. Beyond that it refuses the writer,
// which closes the pipe and ends the process behind it. The buffer is not embedded: its
// ReadFrom would bypass the limit. A process that cannot be killed may still write.
type bounded struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	limit int
	full  bool
	more  chan struct{} // has a value after something was written; nil if no one waits for that
}

func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buf.Len()+len(p) > b.limit {
		b.full = true
		return 0, fmt.Errorf("more than %d bytes", b.limit)
	}
	select {
	case b.more <- struct{}{}:
	default:
	}
	return b.buf.Write(p)
}

func (b *bounded) bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.buf.Bytes())
}

func (b *bounded) overflowed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.full
}
