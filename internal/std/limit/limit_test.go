package limit

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestCall checks that a hanging call is given up, is not made again while it hangs,
// and is made again after it has returned. Calls of other names and scopes continue.
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
		const scope, name = "TestCall", "disk"
		for i := range 3 {
			began := time.Now()
			_, err := Call(scope, name, time.Second, read)
			if late, ok := errors.AsType[*Error](err); !ok || late.Call != name || calls.Load() != 1 {
				t.Errorf("%v, %d calls", err, calls.Load())
			}
			if took := time.Since(began); i > 0 && took != 0 {
				t.Errorf("it waited for %s again", took)
			}
		}
		must.Equal(t, []string{name}, Overdue(scope))
		must.Equal(t, []string(nil), Overdue("TestCal"))
		why := errors.New("no such file")
		if v, err := Call(scope, "other", time.Second, func() (int, error) { return 3, why }); v != 3 || !errors.Is(err, why) {
			t.Errorf("another call: %d, %v", v, err)
		}
		close(hang)
		synctest.Wait()
		must.Equal(t, []string(nil), Overdue(scope))
		if v, err := Call(scope, name, time.Second, read); v != 7 || err != nil {
			t.Errorf("after that: %d, %v", v, err)
		}
	})
}

// TestCallWaits checks that two simultaneous calls of a name run one after the other.
func TestCallWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		go func() {
			_, _ = Call("TestCallWaits", "disk", time.Minute, func() (int, error) { time.Sleep(2 * time.Second); return 0, nil })
		}()
		synctest.Wait()
		began := time.Now()
		v, err := Call("TestCallWaits", "disk", 5*time.Second, func() (int, error) { return 1, nil })
		if v != 1 || err != nil || time.Since(began) != 2*time.Second {
			t.Errorf("%d, %v after %s", v, err, time.Since(began))
		}
	})
}
