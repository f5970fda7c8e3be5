package runner

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestJudgeHidesOrEnds has the pre-run take away, by its mode, a module of the image's user that the judge hides with.
func TestJudgeHidesOrEnds(t *testing.T) {
	t.Parallel()
	const submission = `
import os, sys
from array import array
from itertools import accumulate
if sys.argv[0].endswith("submission.py") and ATTACK:
    os.chmod(os.environ["PYTHONPATH"] + "/ctypes/__init__.py", 0)
def custom_kernel(data): return array("q", accumulate(data))
`
	for attack, want := range map[string]bool{"True": false, "False": true} {
		t.Run(attack, func(t *testing.T) {
			t.Parallel()
			j := newConfigJob(t, judgeConfig(t, strings.Replace(submission, "ATTACK", attack, 1), "test"))
			modules := filepath.Join(j.dir, "modules")
			must.Do(t, os.Mkdir(modules, 0o755))
			from, err := exec.CommandContext(t.Context(), "/usr/bin/python3", "-c", "import ctypes; print(ctypes.__path__[0])").Output()
			if err != nil {
				t.Skip("no python3 with ctypes: ", err)
			}
			must.Do(t, exec.CommandContext(t.Context(), "cp", "-r", strings.TrimSpace(string(from)), modules).Run())
			j.become(t, 65534) // root reads it all the same
			j.cmd.Env = append(j.cmd.Env, "PYTHONPATH="+modules, "PYTHONDONTWRITEBYTECODE=1")
			_, result := j.run(t)
			run := at(result, "runs", "test", "run")
			said, _ := at(run, "stderr").(string)
			if at(run, "passed") != want || strings.Contains(said, "the judge cannot hide") == want {
				t.Errorf("%v\n%s", result, j.stderr.String())
			}
		})
	}
}
