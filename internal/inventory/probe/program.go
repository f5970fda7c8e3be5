package probe

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/limit"
)

const (
	runDir = "/run/kbnode"
	// installedPath is the file of packages, which hosts with SELinux or fapolicyd allow to run.
	installedPath = "/usr/libexec/kbnode/kbnode-nvml"
	maxImage      = 64 << 20
)

// program is the probe to run. It is kept, since unpacking takes longer than most answers.
type program struct {
	installed string
	unpack    func(w io.Writer) error

	mu       sync.Mutex
	verified string   // identity of the installed file that is this probe
	memory   *os.File // sealed
}

var embeddedProgram = &program{installed: installedPath, unpack: unpackEmbedded}

func unpackEmbedded(w io.Writer) error {
	packed, err := embedded.Open("bin/" + runtime.GOARCH + "/kbnode-nvml.gz")
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotEmbedded
	}
	if err != nil {
		return err
	}
	defer packed.Close() //nolint:errcheck // only read
	z, err := gzip.NewReader(packed)
	if err != nil {
		return err
	}
	n, err := io.Copy(w, io.LimitReader(z, maxImage+1))
	if n > maxImage {
		err = fmt.Errorf("more than %d bytes", maxImage)
	}
	return err
}

// path returns what to execute: the installed file, or a sealed anonymous one, which needs no disk
// and works with noexec mounts.
func (p *program) path() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	refused := p.checkInstalled()
	if refused == nil {
		return p.installed, nil
	}
	if p.memory == nil {
		var err error
		if p.memory, err = p.inMemory(); errors.Is(err, ErrNotEmbedded) {
			return "", ErrNotEmbedded
		} else if err != nil {
			return "", fmt.Errorf("start the NVML probe: %w", errors.Join(fmt.Errorf("%s: %w", p.installed, refused), err))
		}
	}
	// Not /proc/self: before it executes, the child puts its own files and a pipe under numbers of its
	// choice (syscall.forkExec), perhaps under this one.
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.memory.Fd()), nil
}

// checkInstalled refuses a file that is not exactly this probe, or that others than root can change.
func (p *program) checkInstalled() error {
	f, err := os.Open(p.installed)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() || info.Mode().Perm()&0o022 != 0 || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return errors.New("not a regular file that only root can write")
	}
	// No one can set a file's ctime.
	identity := fmt.Sprint(st.Dev, st.Ino, st.Size, st.Ctim)
	if p.verified == identity {
		return nil
	}
	has, want := sha256.New(), sha256.New()
	if _, err := io.Copy(has, io.LimitReader(f, maxImage+1)); err != nil {
		return err
	}
	if err := p.unpack(want); err != nil {
		return fmt.Errorf("unpack the probe: %w", err)
	}
	if !bytes.Equal(has.Sum(nil), want.Sum(nil)) {
		return errors.New("another version")
	}
	p.verified = identity
	return nil
}

// inMemory makes a sealed anonymous file. Kernels before 6.3 do not support MFD_EXEC; newer ones may
// refuse execution without it.
func (p *program) inMemory() (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("kbnode-nvml", flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("kbnode-nvml", flags)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "kbnode-nvml")
	if err := p.unpack(f); err != nil {
		return nil, errors.Join(fmt.Errorf("unpack the probe: %w", err), f.Close())
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(fmt.Errorf("seal memfd: %w", err), f.Close())
	}
	return f, nil
}

// lockName returns the lock of a probe of one GPU, or of all. Probes of different GPUs do
// not wait for each other.
func lockName(gpu string) string {
	if gpu == "" {
		return "nvml.lock"
	}
	return "nvml-" + strings.ReplaceAll(gpu, "/", "_") + ".lock"
}

// running holds a token while this process runs a probe.
var running = make(chan struct{}, 1)

// acquire waits for its turn to run a probe. The lock file also excludes other kbnode processes.
func acquire(ctx context.Context, lockPath string) (release func(), lock *os.File, err error) {
	busy := func() error {
		return fmt.Errorf("another NVML probe is still running; a GPU may be hung in the driver: %w", ctx.Err())
	}
	select {
	case running <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, busy()
	}
	for {
		lock, held := tryLock(lockPath)
		if !held {
			return func() { _ = lock.Close(); <-running }, lock, nil // closing no file does no harm
		}
		if limit.Sleep(ctx, 50*time.Millisecond) != nil {
			<-running
			return nil, nil, busy()
		}
	}
}

// tryLock locks a file; held reports that another process has it. The file is nil where there can be
// no lock: for an ordinary user, and while no installation has created /run/kbnode.
func tryLock(path string) (f *os.File, held bool) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, false
	}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, errors.Is(err, unix.EWOULDBLOCK)
	}
	return f, false
}
