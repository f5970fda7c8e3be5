package firewall

import (
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// namespace is a network namespace on its own thread.
type namespace struct {
	thread int
	do     chan func()
}

func newNamespace(t *testing.T) *namespace {
	t.Helper()
	n := &namespace{do: make(chan func())}
	ready := make(chan error)
	go func() {
		// The thread ends with this goroutine, and the namespace with it.
		runtime.LockOSThread()
		n.thread = unix.Gettid()
		ready <- unix.Unshare(unix.CLONE_NEWNET)
		for f := range n.do {
			f()
		}
	}()
	if err := <-ready; err != nil {
		close(n.do)
		t.Skipf("no network namespace, which only root gets: %v", err)
	}
	t.Cleanup(func() { close(n.do) })
	return n
}

// in runs f in the namespace.
func (n *namespace) in(f func()) {
	done := make(chan struct{})
	n.do <- func() { defer close(done); f() }
	<-done
}

// sh runs a command line in the namespace; @name is replaced with another namespace.
func (n *namespace) sh(t *testing.T, script string, others ...*namespace) {
	t.Helper()
	for i, o := range others {
		script = strings.ReplaceAll(script, fmt.Sprintf("@%d", i), fmt.Sprint(o.thread))
	}
	n.in(func() {
		if out, err := exec.Command("sh", "-euc", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
}
