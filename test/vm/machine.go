package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/vm/wire"
)

// Patience is how long the helpers of Machine wait for one thing on the reference: emulated, a boot
// takes a minute and Docker ten seconds. On a slower machine they wait longer.
const Patience = 6 * time.Minute

// Machine is a fork that belongs to a test, which fails where it cannot reach
// it. All of its methods run as root in the guest.
type Machine struct {
	VM       *VM
	t        testing.TB
	survived int    // how many times the kernel died while it booted, and booted again
	suffix   string // of the directory for its logs
}

var templates = map[string]func() (*Template, error){Trixie: once(Trixie), Bookworm: once(Bookworm)}

func once(debian string) func() (*Template, error) {
	return sync.OnceValues(func() (*Template, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 40*time.Minute)
		defer cancel()
		return Ensure(ctx, slog.New(slog.NewTextHandler(os.Stderr, nil)), debian)
	})
}

// Fork returns a fresh machine that is up, with the tools of InstallTools in it and
// the stand-in for Buildkite serving on the guest's loopback. It ends with the
// test; if that failed, its logs are kept.
func Fork(t testing.TB) *Machine {
	t.Helper()
	return ForkOn(t, Trixie)
}

// ForkOn is Fork on another Debian, whose template is made when it is first asked for.
func ForkOn(t testing.TB, debian string) *Machine {
	t.Helper()
	template, ok := templates[debian]
	if !ok {
		t.Fatalf("the rig has no Debian %q", debian)
	}
	tpl, err := template()
	if err != nil {
		t.Fatalf("no virtual machine: %v", err)
	}
	v, err := tpl.Fork(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, v)
	if v.slow > slowest {
		if err := v.calm(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("after other work on this machine, they are multiplied by %.1f", v.slow)
	}
	if err := v.InstallTools(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

func newMachine(t testing.TB, v *VM) *Machine {
	t.Helper()
	m := &Machine{VM: v, t: t}
	t.Cleanup(m.end)
	t.Logf("limits are multiplied by %.1f", v.slow)
	return m
}

// InstallTools puts into the guest what is built from this source tree, and so
// is not part of the template: KBNODE_BIN, BKSTUB_BIN and NVML_LIB name the
// files on the host. One that is not set is left out.
func (m *VM) InstallTools(ctx context.Context) error {
	for _, f := range []struct{ env, path string }{
		{"KBNODE_BIN", "/usr/local/bin/kbnode"},
		{"BKSTUB_BIN", "/usr/local/bin/bkstub"},
		{"NVML_LIB", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"},
	} {
		name := os.Getenv(f.env)
		if name == "" {
			continue
		}
		file, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("%s: %w", f.env, err)
		}
		err = m.Put(ctx, f.path, 0o755, file)
		_ = file.Close()
		if err != nil {
			return err
		}
	}
	r, err := m.Run(ctx, nil, "systemctl", "start", "bkstub.service")
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("start the stand-in for Buildkite: %s", r.Stderr)
	}
	return err
}

// Run runs one command and returns what came of it, whatever that is.
func (m *Machine) Run(ctx context.Context, argv ...string) Result {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, m.Limit(Patience))
	defer cancel()
	ctx, died := context.WithCancelCause(ctx)
	defer died(nil)
	go m.listen(ctx, m.survived, died)
	r, err := m.VM.Run(ctx, nil, argv...)
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errDied) {
			err = cause
		}
		m.t.Fatalf("%s: %v\n%s%s", strings.Join(argv, " "), err, r.Stdout, r.Stderr)
	}
	return r
}

// errDied ends the wait for a command that a dead guest cannot answer.
var errDied = errors.New("the guest's kernel died; serial.log says how")

// listen to the console, so that a dead guest is not waited for until patience ends.
func (m *Machine) listen(ctx context.Context, survived int, died context.CancelCauseFunc) {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// Of a stall it may recover; of a panic it does not.
		if panics := m.VM.panics(); len(panics) > survived {
			died(fmt.Errorf("%w: %s", errDied, panics[survived]))
			return
		}
	}
}

// Try runs a bash script and returns what came of it.
func (m *Machine) Try(script string) Result {
	m.t.Helper()
	return m.Run(m.t.Context(), "bash", "-euo", "pipefail", "-c", script)
}

// Sh runs a bash script that must succeed, and returns its standard output
// without the last line break.
func (m *Machine) Sh(script string) string {
	m.t.Helper()
	r := m.Try(script)
	if r.Code != 0 {
		m.t.Fatalf("exit %d from\n%s\n%s%s", r.Code, script, r.Stdout, r.Stderr)
	}
	return strings.TrimSuffix(r.Stdout, "\n")
}

// Wait runs a bash script until it succeeds; what says what is waited for.
func (m *Machine) Wait(what, script string) {
	m.t.Helper()
	for deadline := time.Now().Add(m.Limit(Patience)); ; {
		r := m.Try(script)
		if r.Code == 0 {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("waited %s for %s; at last: exit %d\n%s%s", m.Limit(Patience), what, r.Code, r.Stdout, r.Stderr)
		}
		select {
		case <-m.t.Context().Done():
			m.t.Fatalf("stopped waiting for %s", what)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// Put writes a file with its directories.
func (m *Machine) Put(path string, mode os.FileMode, content string) {
	m.t.Helper()
	if err := m.VM.Put(m.t.Context(), path, mode, strings.NewReader(content)); err != nil {
		m.t.Fatal(err)
	}
}

// Process is a command that runs while the test goes on.
type Process struct {
	m              *Machine
	session        *session
	stdout, stderr *buffer
}

// Start starts a command without waiting for it.
func (m *Machine) Start(argv ...string) *Process {
	m.t.Helper()
	p := &Process{m: m, stdout: &buffer{}, stderr: &buffer{}}
	var err error
	p.session, err = m.VM.guest.start(wire.Command{Argv: argv}, p.stdout, p.stderr)
	if err == nil {
		err = p.session.input(strings.NewReader(""))
	}
	if err != nil {
		m.t.Fatalf("start %s: %v", strings.Join(argv, " "), err)
	}
	return p
}

// Signal reaches the command and those of its children that did not leave its
// process group.
func (p *Process) Signal(sig syscall.Signal) {
	p.m.t.Helper()
	if err := p.session.signal(sig); err != nil {
		p.m.t.Fatal(err)
	}
}

// Wait waits for the command's end.
func (p *Process) Wait() Result {
	p.m.t.Helper()
	return p.WaitFor(Patience)
}

// WaitFor is Wait for what takes longer than Patience.
func (p *Process) WaitFor(patience time.Duration) Result {
	p.m.t.Helper()
	ctx, cancel := context.WithTimeout(p.m.t.Context(), p.m.Limit(patience))
	defer cancel()
	st, err := p.session.wait(ctx)
	if err != nil {
		p.m.t.Fatalf("%v\n%s%s", err, p.stdout, p.stderr)
	}
	return Result{p.stdout.String(), p.stderr.String(), st.Code}
}

// Reboot restarts the guest the orderly way and waits until it is up again;
// units that failed to start are the test's business.
func (m *Machine) Reboot() {
	m.t.Helper()
	m.back(m.VM.Reboot)
}

// RebootsBy runs a script after which the guest reboots by itself, and waits until it is up again.
func (m *Machine) RebootsBy(script string) {
	m.t.Helper()
	m.back(func(ctx context.Context) error {
		m.Sh(script)
		return m.VM.comeBack(ctx)
	})
}

// Reset cuts the power and waits until the guest is up again: nothing in it
// gets to finish or to write what it holds in memory.
func (m *Machine) Reset() {
	m.t.Helper()
	m.back(m.VM.Reset)
}

func (m *Machine) back(how func(context.Context) error) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), m.Limit(2*Patience))
	defer cancel()
	err := how(ctx)
	for n := 0; err == nil; n++ {
		// A kernel that dies while it boots boots again by itself (panic=1).
		for panics := m.VM.panics(); m.survived < len(panics); m.survived++ {
			m.t.Logf("the guest's kernel died while it booted, and booted again: %s", panics[m.survived])
		}
		booting, died := context.WithCancelCause(ctx)
		go m.listen(booting, m.survived, died)
		once, done := context.WithTimeout(booting, m.Limit(bootPatience))
		_, err = m.VM.Booted(once)
		hangs := err != nil && errors.Is(once.Err(), context.DeadlineExceeded) && ctx.Err() == nil
		done()
		died(nil)
		switch {
		case n < 2 && errors.Is(context.Cause(booting), errDied):
			err = m.VM.comeBack(ctx)
			continue
		case n < 2 && hangs: // as in comeBack, but after the first sign of life
			err = m.VM.Reset(ctx)
			continue
		}
		break
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// end closes the machine, after it wrote the logs of a failed test to
// $KBNODE_VM_LOGS (else the system's directory for temporary files).
func (m *Machine) end() {
	if m.t.Failed() {
		dir := os.Getenv("KBNODE_VM_LOGS")
		if dir == "" {
			dir = filepath.Join(os.TempDir(), "kbnode-vm-logs")
		}
		dir = filepath.Join(dir, strings.ReplaceAll(m.t.Name(), "/", "-")+m.suffix)
		if err := m.keepLogs(dir); err != nil {
			m.t.Log(err)
		}
		m.t.Logf("logs of the machine are in %s", dir)
	}
	if err := m.VM.Close(); err != nil {
		m.t.Error(err)
	}
}

func (m *Machine) keepLogs(dir string) error {
	// The logs of a test's first run stay when it runs once more.
	if err := os.Rename(dir, dir+".first"); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the test's own has ended
	defer cancel()
	r, err := m.VM.Run(ctx, nil, "journalctl", "--no-pager", "--boot")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "journal.log"), []byte(r.Stdout), 0o644)
	} else if errors.Is(err, errGone) {
		select {
		case <-m.VM.ended: // what QEMU died of is in its log by then
		case <-ctx.Done():
		}
	}
	for _, name := range []string{"serial.log", "qemu.log"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(m.VM.Log(name)), 0o644))
	}
	return err
}
