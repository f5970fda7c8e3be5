package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestKilledRunnerLeavesNothing checks that no program outlives the runner and that an
// earlier job's result.json is not taken for this one's.
func TestKilledRunnerLeavesNothing(t *testing.T) {
	t.Parallel()
	config := map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{
		"submission.py": "", "eval.py": report + `open("now", "w").close(); time.sleep(60)`,
	}}
	j := newConfigJob(t, config)
	write(t, filepath.Join(j.cmd.Dir, result.File), "{}")
	must.Do(t, j.cmd.Start())
	waitFor(t, filepath.Join(j.cmd.Dir, "now"))
	must.Do(t, j.cmd.Process.Kill())
	if _, result := j.wait(t); result != nil {
		t.Errorf("there is a result: %v", result)
	}
	for range 200 {
		if processesWith(t, j.dir) == nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Error("the program is alive")
}

// TestOrphanIsNoProgram forks a child whose runner is already gone.
func TestOrphanIsNoProgram(t *testing.T) {
	t.Parallel()
	c := child{parent: os.Getppid(), rules: -1}
	pid := c.fork()
	afterFork()
	if _, err := unix.Wait4(pid, nil, 0, nil); err != nil || c.failed != unix.ESRCH {
		t.Errorf("child %d: %v, %v", pid, c.failed, err)
	}
}

func TestSpace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, sub := range []string{"a", "b"} {
		must.Do(t, os.Mkdir(filepath.Join(dir, sub), 0o755))
	}
	for _, row := range []struct {
		env  []string
		want string
	}{
		{[]string{"TMPDIR=" + dir + "/a", "TEMP=" + dir + "/b"}, dir + "/a"},
		{[]string{"TMPDIR=" + dir + "/none", "TMP=" + dir + "/b"}, dir + "/b"},
		{[]string{"TMPDIR=b"}, dir + "/b"},
	} {
		got, err := (&engine{temp: row.env, dir: dir}).newSpace(tempName())
		if err != nil || filepath.Dir(string(got)) != row.want || !strings.HasPrefix(filepath.Base(string(got)), "tmp") {
			t.Errorf("%q: got %s, %v", row.env, got, err)
		}
	}
}

// TestRulesFollowDevices lets a program use a device that a driver made after the last one started.
func TestRulesFollowDevices(t *testing.T) { //nolint:paralleltest // the rules are the process's
	version := landlockVersion()
	if version == 0 {
		t.Skip("this kernel has no Landlock")
	}
	var files [3]*os.File
	for i := range files {
		var err error
		if files[i], err = landlockRules(version, []string{t.TempDir()}); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			rules.devices.Sec-- // as if an entry had come since
		}
	}
	if files[0] != files[1] || files[1] == files[2] {
		t.Errorf("rules %v", files)
	}
}

func TestHomeless(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	for _, row := range []struct{ in, want string }{
		{"HOME=/nowhere XDG_CACHE_HOME=/x TRITON_CACHE_DIR=/x TEMP=/x A=1", "HOME=/nowhere A=1 PYTHONNOUSERSITE=1"},
		{"PYTHONUSERBASE=/x LD_LIBRARY_PATH=:/a:.:/b: LIBRARY_PATH= PYTHONPATH=. CPATH=/a", "PYTHONUSERBASE=/x LD_LIBRARY_PATH=/a:/b CPATH=/a"},
		{"HOME=" + home, "HOME=" + home + " PYTHONUSERBASE=" + home + "/.local"},
	} {
		write(t, filepath.Join(home, ".local", "lib", "x"), "")
		if got := strings.Join(homeless(strings.Fields(row.in)), " "); got != row.want {
			t.Errorf("%s\ngot  %s\nwant %s", row.in, got, row.want)
		}
	}
}
