package agent

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHookNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "environment", "post-exit", "../pre-exit"} {
		if err := Hook(t.Context(), name, 0, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "kbnode has agent-startup, pre-bootstrap and pre-exit") {
			t.Errorf("hook %q: %v", name, err)
		}
	}
}

// procs writes a /proc with these processes: pid, parent, real uid and state.
func procs(t *testing.T, list ...[4]any) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range list {
		at := filepath.Join(dir, fmt.Sprint(p[0]))
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("Name:\tx\nState:\t%s\nPPid:\t%d\nUid:\t%d\t0\t0\t0\n", p[3], p[1], p[2])
		if err := os.WriteFile(filepath.Join(at, "status"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, other := range []string{"self", "sys", "1x"} {
		if err := os.Mkdir(filepath.Join(dir, other), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const slotUID, otherUID = 950, 951

// aJob is an agent, its job and what the job left behind. The hook is 104.
func aJob(t *testing.T) string {
	t.Helper()
	return procs(t,
		[4]any{1, 0, 0, "S (sleeping)"},
		[4]any{100, 1, slotUID, "S (sleeping)"},   // the agent
		[4]any{101, 100, slotUID, "S (sleeping)"}, // the job's bootstrap
		[4]any{104, 101, slotUID, "R (running)"},  // this hook
		[4]any{102, 101, slotUID, "S (sleeping)"}, // a command that goes on
		[4]any{103, 1, slotUID, "S (sleeping)"},   // a daemon that the job made
		[4]any{105, 101, slotUID, "Z (zombie)"},
		[4]any{106, 1, otherUID, "S (sleeping)"}, // another slot's
		[4]any{107, 106, 0, "S (sleeping)"},      // root's
	)
}

func TestKillOthers(t *testing.T) {
	t.Parallel()
	proc := aJob(t)
	var killed []int
	n, err := killOthers(proc, slotUID, 104, func(pid int) error {
		killed = append(killed, pid)
		if pid == 103 { // was about to fork
			status := strings.ReplaceAll(readText(t, filepath.Join(proc, "103/status")), "\t103", "")
			child := filepath.Join(proc, "108")
			if err := os.Mkdir(child, 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(child, "status"), []byte(status), 0o600); err != nil {
				return err
			}
		}
		return os.RemoveAll(filepath.Join(proc, strconv.Itoa(pid)))
	})
	slices.Sort(killed)
	if diff := cmp.Diff([]int{102, 103, 108}, killed); diff != "" || n != 3 || err != nil {
		t.Errorf("killed %d, %v: %s", n, err, diff)
	}
}

func TestKillOthersGivesUp(t *testing.T) {
	t.Parallel()
	n, err := killOthers(aJob(t), slotUID, 104, func(int) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "more keep coming") || n != 40 {
		t.Errorf("processes that never end: %d, %v", n, err)
	}
	n, err = killOthers(aJob(t), slotUID, 104, func(int) error { return syscall.ESRCH })
	if err != nil || n != 0 {
		t.Errorf("processes that ended by themselves: %d, %v", n, err)
	}
}

func TestKillOthersRefusesRoot(t *testing.T) {
	t.Parallel()
	_, err := killOthers(aJob(t), 0, 104, func(pid int) error {
		t.Errorf("killed %d", pid)
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "refuse as root") {
		t.Errorf("%v", err)
	}
}

func readText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
