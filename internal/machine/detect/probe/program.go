package probe

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/std/limit"
)

const runDir = "/run/kbnode"

// source is where the probe comes from.
type source struct {
	installed string                   // the file of packages, which hosts with SELinux or fapolicyd allow to run
	embedded  func() (*os.File, error) // an anonymous file, which needs no disk and works with noexec mounts
	other     atomic.Bool              // what is installed is of another version, and its output cannot be read
}

// standard keeps the anonymous file, since unpacking takes longer than most answers.
var standard = &source{
	installed: "/usr/libexec/kbnode/kbnode-nvml",
	embedded:  sync.OnceValues(func() (*os.File, error) { return inMemory(unpackEmbedded) }),
}

// path returns what to execute.
func (s *source) path() (string, error) {
	if !s.other.Load() {
		if _, err := os.Stat(s.installed); err == nil {
			return s.installed, nil
		}
	}
	f, err := s.embedded()
	if err != nil {
		return "", err
	}
	return pathOf(f), nil
}

// refuse makes path return the embedded probe: a kbnode in /usr/local/bin may run beside the package of another version. It
// returns false if there is no embedded probe, or if path returns it already.
func (s *source) refuse() bool {
	if _, err := s.embedded(); err != nil {
		return false
	}
	return !s.other.Swap(true)
}

// pathOf returns the path of an open file. It is not below /proc/self: before it executes, the child puts
// its own files and a pipe under numbers of its choice (syscall.forkExec), perhaps under this one.
func pathOf(f *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) }

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
	_, err = io.Copy(w, z) //nolint:gosec // it is our own
	return err
}

// inMemory makes an anonymous file. Kernels before 6.3 do not support MFD_EXEC; newer ones may refuse
// execution without it.
func inMemory(unpack func(io.Writer) error) (*os.File, error) {
	fd, err := unix.MemfdCreate("kbnode-nvml", unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("kbnode-nvml", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("start the NVML probe: memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "kbnode-nvml")
	err = unpack(f)
	switch {
	case errors.Is(err, ErrNotEmbedded):
		return nil, errors.Join(err, f.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("unpack the NVML probe: %w", err), f.Close())
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

// running holds a token of each lock while this process runs the probe that has it. One of a GPU that cannot be killed
// must not keep others from being read.
var running struct {
	sync.Mutex
	tokens map[string]chan struct{} // by the lock's path
}

func tokenOf(lockPath string) chan struct{} {
	running.Lock()
	defer running.Unlock()
	if running.tokens == nil {
		running.tokens = map[string]chan struct{}{}
	}
	if running.tokens[lockPath] == nil {
		running.tokens[lockPath] = make(chan struct{}, 1)
	}
	return running.tokens[lockPath]
}

// acquire waits for its turn to run a probe. The lock file also excludes other kbnode processes.
func acquire(ctx context.Context, lockPath string) (release func(), lock *os.File, err error) {
	busy := func() error {
		return fmt.Errorf("another NVML probe is still running; a GPU may be hung in the driver: %w", ctx.Err())
	}
	token := tokenOf(lockPath)
	select {
	case token <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, busy()
	}
	for {
		lock, held := tryLock(lockPath)
		if !held {
			return func() { _ = lock.Close(); <-token }, lock, nil // closing no file does no harm
		}
		if limit.Sleep(ctx, 50*time.Millisecond) != nil {
			<-token
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
