//go:build postgres

package postgres

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestMain is the one that is killed, too: it starts a server and waits.
func TestMain(m *testing.M) {
	if os.Getenv("KBNODE_TEST_VICTIM") == "" {
		os.Exit(m.Run())
	}
	s, err := Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(s.Dir)
	select {}
}

// waitRemoved waits until a directory is not there. It waits as long as the test may.
func waitRemoved(t *testing.T, dir string) {
	t.Helper()
	for {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("%s is left", dir)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// A server is gone with its directory when it is stopped, and when the process that
// started it is killed.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	s, err := Start()
	must.Do(t, err)
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(s.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", s.Dir, err)
	}

	self, err := os.Executable()
	must.Do(t, err)
	victim := exec.CommandContext(t.Context(), self)
	victim.Env = append(os.Environ(), "KBNODE_TEST_VICTIM=1")
	victim.Stderr = os.Stderr
	out, err := victim.StdoutPipe()
	must.Do(t, err)
	must.Do(t, victim.Start())
	dir, err := bufio.NewReader(out).ReadString('\n')
	must.Do(t, err)
	dir = dir[:len(dir)-1]
	if _, err := os.Stat(dir + "/data/postmaster.pid"); err != nil {
		t.Error(err)
	}
	must.Do(t, victim.Process.Kill())
	_ = victim.Wait()
	waitRemoved(t, dir)
}
