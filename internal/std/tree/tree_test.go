package tree

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/test/must"
)

// put makes a file and the directories above it.
func put(t *testing.T, path string) {
	t.Helper()
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(t, os.WriteFile(path, nil, 0o600))
}

// TestRemoveFromALayer removes directories that cannot be moved: those of an image's layer, on overlayfs.
func TestRemoveFromALayer(t *testing.T) {
	t.Parallel()
	must.Root(t, "mounts a file system")
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must.Do(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "")) // a TempDir may be on overlayfs itself, which cannot be an upper layer
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	put(t, at("lower/tree/a/b/c/file"))
	put(t, at("lower/tree/a/d/e/f/file"))
	for _, d := range []string{"upper", "work", "all"} {
		must.Do(t, os.Mkdir(at(d), 0o755))
	}
	if err := unix.Mount("overlay", at("all"), "overlay", 0, "lowerdir="+at("lower")+",upperdir="+at("upper")+",workdir="+at("work")); err != nil {
		t.Skip("no overlayfs: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at("all"), unix.MNT_DETACH) })
	must.Do(t, RemoveAll(at("all/tree")))
	entries, err := os.ReadDir(at("all"))
	if err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// TestRemoveGoesOn removes all but what cannot be removed.
func TestRemoveGoesOn(t *testing.T) {
	t.Parallel()
	must.Root(t, "makes a file immutable")
	dir := t.TempDir()
	for _, name := range []string{"1/2/x", "1/kept/file", "3/4/5/x", "z/x", "6"} {
		put(t, filepath.Join(dir, "tree", name))
	}
	f, err := os.Open(filepath.Join(dir, "tree/1/kept/file"))
	must.Do(t, err)
	defer f.Close() //nolint:errcheck // opened for reading
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, unix.STATX_ATTR_IMMUTABLE); err != nil {
		t.Skip("this file system has no immutable files: ", err)
	}
	err = RemoveAll(filepath.Join(dir, "tree"))
	must.Do(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0))
	must.Err(t, err, "operation not permitted")
	files := 0
	must.Do(t, filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files++
		}
		return err
	}))
	if files != 1 {
		t.Errorf("%d files are left, want 1", files)
	}
}

// TestRemoveReadsOnce removes a large directory without reading it from its start again and again, which takes hours
// where the blocks of what was removed stay, as on ext4.
func TestRemoveReadsOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	large := filepath.Join(dir, "tree", "large")
	first := filepath.Join(large, "first")
	put(t, first)
	for n := range 20_000 {
		must.Do(t, os.Link(first, filepath.Join(large, strconv.Itoa(n))))
	}
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must.Do(t, err)
	defer unix.Close(watch)                                                                 //nolint:errcheck // it is only read
	_, err = unix.InotifyAddWatch(watch, large, unix.IN_OPEN|unix.IN_CLOSE|unix.IN_ONLYDIR) // equal events after each other are one
	must.Do(t, err)
	must.Do(t, RemoveAll(filepath.Join(dir, "tree")))
	events := make([]byte, 1<<16)
	size, err := unix.Read(watch, events)
	must.Do(t, err)
	opened := 0
	for at := 0; at+unix.SizeofInotifyEvent <= size; {
		mask, name := binary.NativeEndian.Uint32(events[at+4:]), binary.NativeEndian.Uint32(events[at+12:])
		if mask&unix.IN_OPEN != 0 && name == 0 {
			opened++
		}
		at += unix.SizeofInotifyEvent + int(name)
	}
	if opened == 0 || opened > 6 {
		t.Errorf("the directory was opened %d times, want up to 6", opened)
	}
	if _, err := os.Lstat(filepath.Join(dir, "tree")); !os.IsNotExist(err) {
		t.Errorf("the tree is still there: %v", err)
	}
}
