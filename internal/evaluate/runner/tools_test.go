package runner

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestLookPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "plain", "tool"), "")
	write(t, filepath.Join(dir, "directory", "tool", "x"), "")
	write(t, filepath.Join(dir, "good", "tool"), "")
	must.Do(t, os.Chmod(filepath.Join(dir, "good", "tool"), 0o755))
	for path, want := range map[string]string{ // as which(1) prints it
		dir + "/good":          dir + "/good/tool",
		dir + "/good/":         dir + "/good//tool",
		dir + "/plain/../good": dir + "/plain/../good/tool",
		dir + "/plain:" + dir + "/directory::good:.": "",
		dir + "/nowhere:" + dir + "/good":            dir + "/good/tool",
		"":                                           "",
	} {
		got, err := lookPath([]string{"PATH=" + path}, "tool")
		if got != want || errors.Is(err, errNoProgram) == (want != "") {
			t.Errorf("%s: got %q, %v, want %q", path, got, err, want)
		}
	}
}

// TestToolsLeaveNothing has the tools start processes that outlive them and keep their
// outputs open.
func TestToolsLeaveNothing(t *testing.T) {
	t.Parallel()
	const linger = "setsid sleep 60 &\n"
	for name, start := range map[string]func(t *testing.T) *job{
		"nvidia-smi": func(t *testing.T) *job {
			j := newProfileJob(t, 1, "")
			j.standIn(t, "ncu", ncu)
			j.standIn(t, "nvidia-smi", linger+"echo GPU")
			return j
		},
		"ncu": func(t *testing.T) *job {
			j := newProfileJob(t, 1, "")
			j.standIn(t, "ncu", linger+ncu)
			return j
		},
		"nvcc": func(t *testing.T) *job {
			j := newCUDAJob(t, nil)
			j.standIn(t, "nvcc", linger+nvcc)
			return j
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := start(t)
			code, result := j.run(t)
			runs, _ := at(result, "runs").(map[string]any)
			for name, ev := range runs {
				if at(ev, "run", "passed") != true {
					t.Errorf("%s: %v", name, ev)
				}
			}
			if code != 0 || len(runs) != 1 {
				t.Errorf("exit code %d, result %v\n%s", code, result, j.stderr.String())
			}
			if pids := j.processes(t); len(pids) > 0 {
				t.Errorf("left alive: %q", pids)
			}
		})
	}
}
