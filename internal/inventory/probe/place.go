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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/limit"
)

const (
	runDir   = "/run/kbnode"
	maxImage = 64 << 20
)

// place is a location to run the probe from. prepare returns a path to execute and a
// function to call after that.
type place struct {
	name    string
	prepare func() (path string, done func(), err error)
}

// source writes a probe to w. It is called again for each place, because no kbnode process
// should hold the megabytes of the unpacked probe.
type source func(w io.Writer) error

// image returns the embedded probe.
func image() (source, error) {
	name := "bin/" + runtime.GOARCH + "/kbnode-nvml.gz"
	if _, err := fs.Stat(embedded, name); errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotEmbedded
	} else if err != nil {
		return nil, fmt.Errorf("read the embedded NVML probe: %w", err)
	}
	return func(w io.Writer) error {
		packed, err := embedded.Open(name)
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
	}, nil
}

// places lists where to run the probe from, best first. Packages install it as a file,
// which hosts with SELinux or fapolicyd allow; an anonymous file needs no disk and works
// with noexec mounts; the last one is for vm.memfd_noexec=2.
func places(opts Options) ([]place, error) {
	if opts.Path != "" {
		return []place{{opts.Path, atPath(opts.Path)}}, nil
	}
	elf, err := image()
	if err != nil {
		return nil, err
	}
	var all []place
	for _, path := range []string{"/usr/local/libexec/kbnode/kbnode-nvml", "/usr/libexec/kbnode/kbnode-nvml"} {
		all = append(all, place{path, installed(path, elf)})
	}
	return append(all, place{"memfd", inMemory(elf)}, place{opts.runDir, inDir(opts.runDir, elf)}), nil
}

func atPath(path string) func() (string, func(), error) {
	return func() (string, func(), error) { return path, func() {}, nil }
}

// installed uses the file from a package, if it is exactly this probe and only root can
// change it.
func installed(path string, elf source) func() (string, func(), error) {
	return func() (string, func(), error) {
		f, err := os.Open(path)
		if err != nil {
			return "", nil, err
		}
		defer f.Close() //nolint:errcheck // only read
		st, err := f.Stat()
		if err != nil {
			return "", nil, err
		}
		if sys, ok := st.Sys().(*syscall.Stat_t); !ok || !st.Mode().IsRegular() || st.Mode().Perm()&0o022 != 0 ||
			(sys.Uid != 0 && int(sys.Uid) != os.Geteuid()) {
			return "", nil, errors.New("not a regular file that only root can write")
		}
		if kept.file(st) {
			return path, func() {}, nil
		}
		has, want := sha256.New(), sha256.New()
		if _, err := io.Copy(has, io.LimitReader(f, maxImage+1)); err != nil {
			return "", nil, err
		}
		if err := elf(want); err != nil {
			return "", nil, fmt.Errorf("unpack the probe: %w", err)
		}
		if !bytes.Equal(has.Sum(nil), want.Sum(nil)) {
			return "", nil, errors.New("another version")
		}
		kept.keepFile(st)
		return path, func() {}, nil
	}
}

// inMemory uses a sealed anonymous file. Kernels before 6.3 do not support MFD_EXEC; newer
// ones may refuse execution without it.
func inMemory(elf source) func() (string, func(), error) {
	return func() (string, func(), error) {
		if path := kept.memory(); path != "" {
			return path, func() {}, nil
		}
		const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
		fd, err := unix.MemfdCreate("kbnode-nvml", flags|unix.MFD_EXEC)
		if errors.Is(err, unix.EINVAL) {
			fd, err = unix.MemfdCreate("kbnode-nvml", flags)
		}
		if err != nil {
			return "", nil, fmt.Errorf("memfd_create: %w", err)
		}
		f := os.NewFile(uintptr(fd), "kbnode-nvml")
		if err := elf(f); err != nil {
			return "", nil, errors.Join(fmt.Errorf("unpack the probe: %w", err), f.Close())
		}
		const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			return "", nil, errors.Join(fmt.Errorf("seal memfd: %w", err), f.Close())
		}
		return fmt.Sprintf("/proc/self/fd/%d", fd), func() { kept.keepMemory(f) }, nil
	}
}

// inDir uses a file that only its owner can read or run, and removes it once it runs.
func inDir(dir string, elf source) func() (string, func(), error) {
	return func() (string, func(), error) {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // jobs' sockets live below
			return "", nil, err
		}
		// A process forked meanwhile would hold the file open for writing, and Linux does
		// not execute such a file.
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		f, err := os.CreateTemp(dir, "kbnode-nvml-*")
		if err != nil {
			return "", nil, err
		}
		remove := func() { _ = os.Remove(f.Name()) }
		if err = elf(f); err == nil {
			err = f.Chmod(0o700)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			remove()
			return "", nil, err
		}
		return f.Name(), remove, nil
	}
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

// acquire waits for its turn to run a probe. The lock file also excludes other kbnode
// processes. It is nil for an ordinary user, and while no installation has created
// /run/kbnode.
func acquire(ctx context.Context, lockPath string) (release func(), lock *os.File, err error) {
	busy := func() error {
		return fmt.Errorf("another NVML probe is still running; a GPU may be hung in the driver: %w", ctx.Err())
	}
	select {
	case running <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, busy()
	}
	f, err := os.OpenFile(lockPath, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return func() { <-running }, nil, nil //nolint:nilerr // best effort
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close(); <-running }, f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return func() { <-running }, nil, nil
		}
		if limit.Sleep(ctx, 50*time.Millisecond) != nil {
			_ = f.Close()
			<-running
			return nil, nil, busy()
		}
	}
}
