package runner

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// standIn puts a shell script on a job's PATH, before all other programs.
func (j *job) standIn(t *testing.T, name, text string) {
	t.Helper()
	dir := filepath.Join(j.dir, "bin")
	must.Do(t, os.MkdirAll(dir, 0o755))
	must.Program(t, filepath.Join(dir, name), "#!/bin/sh\n"+text)
	for i, kv := range j.cmd.Env {
		if rest, ok := strings.CutPrefix(kv, "PATH="); ok && !strings.HasPrefix(rest, dir) {
			j.cmd.Env[i] = "PATH=" + dir + ":" + rest
		}
	}
}

// nvcc is a fake compiler that joins the sources into a shell script.
const nvcc = `[ "$1" = --version ] && { echo "stand-in 1"; exit 0; }
for a; do case "$a" in *.cu) set -- "$a";; esac; done
echo compiling; echo "ptxas info" >&2
{ echo "#!/bin/sh"; cat *.cu; } >eval.out && chmod +x eval.out
`

func newCUDAJob(t *testing.T, extra map[string]any) *job {
	t.Helper()
	config := map[string]any{
		"lang": "cu", "mode": "test", "arch": "90a",
		"sources": map[string]string{"eval.cu": `ls *.cu *.h 2>/dev/null || echo "check: pass" >&$POPCORN_FD; exit 0`},
	}
	maps.Copy(config, extra)
	return newConfigJob(t, config)
}

func TestCUDADoesNotRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		nvcc   string // how it compiles
		code   float64
		stderr string
	}{
		"nothing to show":         {nvcc: "exit 0", stderr: "the compiler left no program"},
		"what is no program":      {nvcc: "echo rubbish >eval.out; chmod +x eval.out", stderr: "cannot be executed"},
		"what must not be run":    {nvcc: "echo rubbish >eval.out", stderr: "cannot be executed"},
		"a compiler without end":  {nvcc: "echo begun >&2; sleep 60", code: 114, stderr: "begun\nkbnode: stopped after its limit of 0.5 s\n"},
		"a directory for program": {nvcc: "mkdir eval.out", stderr: "the compiler left no program"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newCUDAJob(t, nil)
			if c.code == 114 {
				j.cmd.Env = append(j.cmd.Env, "KBNODE_TEST_COMPILE=0.5")
			}
			j.standIn(t, "nvcc", `[ "$1" = --version ] && { echo v; exit 0; }`+"\n"+c.nvcc)
			old := filepath.Join(j.cmd.Dir, evalProgram)
			must.Program(t, old, "#!/bin/sh\necho 'check: pass' >&$POPCORN_FD\n")
			code, result := j.run(t)
			ev := at(result, "runs", "test")
			comp := at(ev, "compilation")
			stderr, _ := at(comp, "stderr").(string)
			if code != 0 || at(ev, "run") != nil || at(comp, "success") != false || at(comp, "nvcc_found") != true ||
				at(comp, "exit_code") != c.code || !strings.Contains(stderr, c.stderr) {
				t.Errorf("exit code %d, evaluation %v\n%s", code, ev, j.stderr.String())
			}
			if _, err := os.Lstat(filepath.Join(j.cmd.Dir, "eval.cu")); err == nil {
				t.Error("the source is still there")
			}
		})
	}
}

// TestOldCUDAProgram starts where an earlier job left its program.
func TestOldCUDAProgram(t *testing.T) {
	t.Parallel()
	j := newCUDAJob(t, map[string]any{"mode": "leaderboard", "benchmarks": []any{map[string]int{"n": 1}}})
	j.standIn(t, "nvcc", nvcc)
	must.Program(t, filepath.Join(j.cmd.Dir, evalProgram), "#!/bin/sh\n")
	if code, result := j.run(t); code != 0 || at(result, "runs", "leaderboard", "run", "passed") != true {
		t.Errorf("exit code %d, %v\n%s", code, result, j.stderr.String())
	}
}

func TestCUDARefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config map[string]any
		want   string
	}{
		"defines in a list":       {map[string]any{"defines": []string{"A"}}, "defines: is a list"},
		"an include file":         {map[string]any{"include_dirs": []string{"/etc/passwd"}}, "is not a directory"},
		"a header outside":        {map[string]any{"headers": map[string]string{"../a.h": ""}}, `headers: "../a.h" leads out of the job's directory`},
		"a header without a text": {map[string]any{"headers": map[string]any{"a.h": 1}}, `headers: "a.h" is a number`},
		"an option as a source":   {map[string]any{"sources": map[string]string{"-o": ""}}, "begins with a dash"},
		"a flag without a dash":   {map[string]any{"compile_flags": []string{"x"}}, "does not begin with a dash"},
		"a flag with a NUL":       {map[string]any{"arch": "\x00"}, "cannot hold"},
		"libraries of numbers":    {map[string]any{"libraries": []int{1}}, "libraries[0]: is a number"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newCUDAJob(t, c.config)
			j.standIn(t, "nvcc", nvcc)
			code, result := j.run(t)
			if message, _ := at(result, "error").(string); code != 1 || !strings.Contains(message, c.want) {
				t.Errorf("exit code %d, error %q, want %q in it", code, message, c.want)
			}
			if entries, err := os.ReadDir(j.cmd.Dir); err != nil || len(entries) != 1 {
				t.Errorf("left behind: %v, %v", entries, err)
			}
		})
	}
}
