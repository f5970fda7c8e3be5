package limit

import (
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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

// TestCall checks that a hanging call is given up, is not made again while it hangs,
// and is made again after it has returned. Calls of other names continue.
func TestCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var calls atomic.Int32
		read := func() (int, error) {
			calls.Add(1)
			<-hang
			return 7, nil
		}
		const name = "TestCall disk"
		for i := range 3 {
			began := time.Now()
			_, err := Call(name, time.Second, read)
			if late, ok := errors.AsType[*Error](err); !ok || late.Call != name || calls.Load() != 1 {
				t.Errorf("%v, %d calls", err, calls.Load())
			}
			if took := time.Since(began); i > 0 && took != 0 {
				t.Errorf("it waited for %s again", took)
			}
		}
		if !slices.Contains(Calls("disk"), name) {
			t.Errorf("overdue: %q", Calls("disk"))
		}
		if len(Calls("/mnt")) > 0 {
			t.Errorf("overdue below another path: %q", Calls("/mnt"))
		}
		why := errors.New("no such file")
		if v, err := Call("TestCall other", time.Second, func() (int, error) { return 3, why }); v != 3 || !errors.Is(err, why) {
			t.Errorf("another call: %d, %v", v, err)
		}
		close(hang)
		synctest.Wait()
		if slices.Contains(Calls("disk"), name) {
			t.Error("it is overdue after it has returned")
		}
		if v, err := Call(name, time.Second, read); v != 7 || err != nil {
			t.Errorf("after that: %d, %v", v, err)
		}
	})
}

// TestCallWaits checks that two simultaneous calls of a name run one after the other.
func TestCallWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		go func() {
			_, _ = Call("TestCallWaits", time.Minute, func() (int, error) { time.Sleep(2 * time.Second); return 0, nil })
		}()
		synctest.Wait()
		began := time.Now()
		v, err := Call("TestCallWaits", 5*time.Second, func() (int, error) { return 1, nil })
		if v != 1 || err != nil || time.Since(began) != 2*time.Second {
			t.Errorf("%d, %v after %s", v, err, time.Since(began))
		}
	})
}
