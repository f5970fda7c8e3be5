package host

import (
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestRoom counts inodes as well as bytes.
func TestRoom(t *testing.T) {
	t.Parallel()
	must.Root(t, "only root can make a small disk")
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=16m,nr_inodes=100"); err != nil {
		t.Skip("no small disk:", err)
	}
	t.Cleanup(func() { must.Do(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	if room, err := Room(dir); err != nil || room < 14<<20 || room > 16<<20 {
		t.Errorf("empty: %d, %v", room, err)
	}
	for i := range 95 {
		must.Write(t, dir, strconv.Itoa(i), "")
	}
	if room, err := Room(dir); err != nil || room >= 0 {
		t.Errorf("few inodes: %d, %v", room, err)
	}
}
