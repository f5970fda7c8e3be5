package vm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Template is a booted machine on disk, ready to be forked.
type Template struct {
	dir string
	fw  firmware
	use *os.File // shared lock: pruning leaves the directory alone
}

// Ensure returns a Debian's template for this source, agent and QEMU, and makes it if
// the cache does not have it: a few minutes, and root (or sudo) for the image.
// The cache is $KBNODE_VM_CACHE, else kbnode/vm in the user's cache directory;
// $AGENT names the buildkite-agent that goes into the image.
func Ensure(ctx context.Context, log *slog.Logger, debian string) (*Template, error) {
	b, done, err := openBuilder(ctx, log, debian)
	if err != nil {
		return nil, err
	}
	defer done()
	b.agent = os.Getenv("AGENT")
	if b.agent == "" {
		return nil, errors.New("AGENT does not name a buildkite-agent binary; run this through make")
	}
	b.guestd = filepath.Join(b.cache, "guestd")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w",
		"-o", b.guestd, "github.com/gpu-mode/kbnode/test/vm/guestd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
	if err := runProgram(build); err != nil {
		return nil, err
	}
	key, err := b.key(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := cached(b.cache, "template", key, func(dir string) error { return b.make(ctx, dir) })
	if err != nil {
		return nil, fmt.Errorf("make the machine's template: %w", err)
	}
	use, err := os.Open(filepath.Join(dir, "state"))
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(use.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, use.Close())
	}
	t := &Template{dir: dir, use: use, fw: firmware{filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "initrd")}}
	return t, b.prune()
}

// EnsureTrees makes what of a template depends on Debian alone, if the cache does not have it.
func EnsureTrees(ctx context.Context, log *slog.Logger, debian string) error {
	b, done, err := openBuilder(ctx, log, debian)
	if err != nil {
		return err
	}
	defer done()
	_, err = b.trees(ctx)
	return err
}

// openBuilder locks the cache until done, for a builder of a Debian's template.
func openBuilder(ctx context.Context, log *slog.Logger, debian string) (b *builder, done func(), err error) {
	suite, err := suiteOf(debian)
	if err != nil {
		return nil, nil, err
	}
	cache, done, err := lockCache(ctx)
	if err != nil {
		return nil, nil, err
	}
	b = &builder{cache: cache, suite: suite, log: log}
	if err := b.clean(); err != nil {
		done()
		return nil, nil, err
	}
	return b, done, nil
}

// Fork starts a machine that goes on where the template stopped.
func (t *Template) Fork(ctx context.Context) (*VM, error) {
	args := qemuArgs(t.fw, memory{dir: t.dir}, "disk.qcow2", "")
	m, err := start(append(args, "-incoming", "defer"), func(dir string) error {
		return newDisk(ctx, filepath.Join(dir, "disk.qcow2"), filepath.Join(t.dir, "disk.qcow2"), "qcow2")
	})
	if err != nil {
		return nil, err
	}
	err = m.resume(ctx, filepath.Join(t.dir, "state"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("fork the machine: %w", err), m.Close())
	}
	return m, nil
}

func (m *VM) resume(ctx context.Context, state string) error {
	if err := m.connect(ctx); err != nil {
		return err
	}
	if err := m.migrate(ctx, "migrate-incoming", "exec:cat '"+state+"'"); err != nil {
		return err
	}
	if _, err := m.qmp.call(ctx, "cont", nil); err != nil {
		return err
	}
	if err := m.Ready(ctx); err != nil {
		return err
	}
	return m.measurePace(ctx)
}

// freeze writes everything but the RAM, which is in its files already.
func (m *VM) freeze(ctx context.Context, state string) error {
	if _, err := m.qmp.call(ctx, "stop", nil); err != nil {
		return err
	}
	if err := m.migrate(ctx, "migrate", "exec:cat >'"+state+"'"); err != nil {
		return err
	}
	_, err := m.qmp.call(ctx, "quit", nil)
	if err == nil {
		<-m.ended
	}
	return err
}

// migrate writes or reads everything but the RAM.
func (m *VM) migrate(ctx context.Context, command, uri string) error {
	if _, err := m.qmp.call(ctx, "migrate-set-capabilities", map[string]any{
		"capabilities": []map[string]any{{"capability": "x-ignore-shared", "state": true}},
	}); err != nil {
		return err
	}
	if _, err := m.qmp.call(ctx, command, map[string]any{"uri": uri}); err != nil {
		return err
	}
	return m.qmp.migrated(ctx)
}

func newDisk(ctx context.Context, path, backing, format string) error {
	return runProgram(exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", format, "-b", backing, path))
}
