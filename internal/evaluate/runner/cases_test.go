package runner

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/test/must"
)

// caseLimit is how long one case may take.
const caseLimit = time.Minute

// engineCase is a run of the Python engine: the payload and its outcome. <BASE> stands
// for the parent of the job's directory.
type engineCase struct {
	Config  json.RawMessage   `json:"config"`
	Payload *engineCoding     `json:"payload"` // if the case is about the encoding
	Env     map[string]string `json:"env"`
	Files   map[string]string `json:"files"`
	Tools   map[string]string `json:"tools"`  // executables, first on the PATH
	Leaves  []string          `json:"leaves"` // files that programs create and no one removes
	Python  struct {
		ExitCode int             `json:"exit_code"`
		Result   json.RawMessage `json:"result"` // null: it crashed, and an error is expected
	} `json:"python"`
}

type engineCoding struct {
	Kind string `json:"kind"` // json_text: Text instead of config; wrapped: with line breaks and blanks; raw: Text is encoded
	Text string `json:"text"`
}

// placeholders are texts that many cases share.
var placeholders = map[string]string{
	`"<EVAL>"`: "testdata/eval.py", `"<NVCC>"`: "testdata/tools/nvcc", `"<NCU>"`: "testdata/tools/ncu", `"<ROCPROF>"`: "testdata/tools/rocprofv3",
}

func TestOwnCases(t *testing.T) {
	t.Parallel()
	runCases(t, "testdata/cases")
}

// stricter are shared cases in which a program that fails passes. The own cases have what the runner
// says instead.
var stricter = []string{"exit1_check_pass_leaderboard", "exit112_check_pass"}

// TestSpecCases runs the project's shared cases, which are beside the repository.
func TestSpecCases(t *testing.T) {
	t.Parallel()
	runCases(t, "../../../../shared/spec/cases", stricter...)
}

// TestGivenCases runs cases of the same form from another directory.
func TestGivenCases(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("KBNODE_RUNNER_CASES")
	if dir == "" {
		t.Skip("KBNODE_RUNNER_CASES names no directory")
	}
	runCases(t, dir)
}

func runCases(t *testing.T, dir string, except ...string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	must.Do(t, err)
	if len(files) == 0 {
		t.Skip("no cases in", dir)
	}
	var texts []string
	for mark, file := range placeholders {
		quoted, err := json.Marshal(must.Read(t, file))
		must.Do(t, err)
		texts = append(texts, mark, string(quoted))
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		if slices.Contains(except, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runCase(t, strings.NewReplacer(texts...).Replace(must.Read(t, file)))
		})
	}
}

func runCase(t *testing.T, text string) {
	j := newJob(t, "PYTHONDONTWRITEBYTECODE=")
	var c, wanted engineCase
	err := json.Unmarshal([]byte(strings.ReplaceAll(text, "<BASE>", j.dir)), &c)
	if err = errors.Join(err, json.Unmarshal([]byte(text), &wanted)); err != nil {
		t.Fatal(err)
	}
	c.Python = wanted.Python // keeps <BASE>
	j.cmd.Env = append(j.cmd.Env, "PATH="+filepath.Join(j.dir, "bin")+":"+getenvLast(j.cmd.Env, "PATH"), "KERNELBOT_PAYLOAD="+c.encoded(t))
	for k, v := range c.Env {
		j.cmd.Env = append(j.cmd.Env, k+"="+v)
	}
	write := func(path, content string, mode fs.FileMode) {
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Do(t, os.WriteFile(path, []byte(content), mode))
	}
	for name, content := range c.Files {
		write(filepath.Join(j.cmd.Dir, name), content, 0o644)
	}
	for name, content := range c.Tools {
		write(filepath.Join(j.dir, "bin", name), content, 0o755)
	}
	before := j.files(t)

	timer := time.AfterFunc(caseLimit, func() { _ = j.cmd.Process.Kill() })
	code, got := j.run(t)
	if !timer.Stop() {
		t.Errorf("did not end within %s", caseLimit)
	}
	c.compare(t, j, code, got)

	var kind struct{ Mode string }
	_ = json.Unmarshal(c.Config, &kind) // the config may be invalid
	left := slices.DeleteFunc(j.files(t), func(name string) bool {
		return name == result.File || slices.Contains(before, name) || slices.Contains(c.Leaves, name) ||
			kind.Mode == "profile" && (name == ProfileDir || strings.HasPrefix(name, ProfileDir+"/"))
	})
	if len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if pids := j.processes(t); len(pids) > 0 {
		t.Errorf("left alive: %q", pids)
	}
}

// getenvLast returns a variable's last value, which is the one that os/exec passes on.
func getenvLast(env []string, name string) string {
	env = slices.Clone(env)
	slices.Reverse(env)
	return getenv(env, name)
}

// encoded returns the payload in the form that the job gets.
func (c *engineCase) encoded(t *testing.T) string {
	if c.Payload == nil {
		return payload.Encode(c.Config)
	}
	switch c.Payload.Kind {
	case "json_text":
		return payload.Encode([]byte(c.Payload.Text))
	case "raw":
		return c.Payload.Text
	case "wrapped":
		return regexp.MustCompile(".{1,76}").ReplaceAllString(payload.Encode(c.Config), "$0 \n")
	}
	t.Fatalf("payload kind %q is not known", c.Payload.Kind)
	return ""
}

func (c *engineCase) compare(t *testing.T, j *job, code int, got map[string]any) {
	if bytes.Equal(c.Python.Result, []byte("null")) || len(c.Python.Result) == 0 {
		if message, _ := at(got, "error").(string); code != 1 || at(got, "success") != false || message == "" {
			t.Errorf("exit code %d, result %v; want an error", code, got)
		}
		return
	}
	if code != c.Python.ExitCode {
		t.Errorf("exit code %d, want %d\n%s", code, c.Python.ExitCode, j.stderr.String())
	}
	var want map[string]any
	must.Do(t, json.Unmarshal(c.Python.Result, &want))
	pairs := []string{j.dir, "<BASE>"}
	runs, _ := at(got, "runs").(map[string]any)
	for name, ev := range runs {
		command, _ := at(ev, "run", "command").(string)
		if path := regexp.MustCompile(`/\S*/tmp[a-z0-9_]{8}$`).FindString(command); path != "" {
			pairs = append([]string{path, "<CASES>"}, pairs...)
		}
		if path := regexp.MustCompile(`\btmp[a-z0-9_]{8}/` + ProfileDir).FindString(command); path != "" {
			pairs = append([]string{path, "<DIR>/" + ProfileDir}, pairs...)
		}
		// If a program itself exits with 114, the case cannot know the duration.
		if w, ok := at(want, "runs", name, "run").(map[string]any); ok && len(at(w, "result").(map[string]any)) > 0 {
			w["duration"] = "*"
		}
		// A case lists the files of an archive.
		if _, ok := at(want, "runs", name, "profile", "trace").(map[string]any); ok {
			trace := map[string]any{}
			for file, text := range unzip(t, at(ev, "profile", "trace")) {
				trace[file] = text
			}
			at(ev, "profile").(map[string]any)["trace"] = trace
		}
	}
	must.Equal(t, any(want), blank(want, got, strings.NewReplacer(pairs...)))
	must.Equal(t, runNames(t, string(c.Python.Result)), runNames(t, must.Read(t, filepath.Join(j.cmd.Dir, result.File))))
}

// runNames returns the names of the runs in order.
func runNames(t *testing.T, result string) (names []string) {
	o, err := payload.ParseObject(result)
	must.Do(t, err)
	runs, _ := o.Get("runs")
	object, _ := runs.(*payload.Object)
	for name := range object.All() {
		names = append(names, name)
	}
	return names
}

// files lists the files in the job's directory and in the one for temporary files,
// whose names begin with "../tmp".
func (j *job) files(t *testing.T) (names []string) {
	for _, dir := range []string{j.cmd.Dir, filepath.Join(j.dir, "tmp")} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if name, rerr := filepath.Rel(j.cmd.Dir, path); rerr == nil && path != dir {
				names = append(names, name)
			}
			return err
		})
		must.Do(t, err)
	}
	return names
}

// processes lists the processes with the job's directory in their environment.
func (j *job) processes(t *testing.T) (pids []string) {
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	must.Do(t, err)
	for _, path := range all {
		if env, err := os.ReadFile(path); err == nil && bytes.Contains(env, []byte("TMPDIR="+j.dir+"/")) {
			pids = append(pids, filepath.Base(filepath.Dir(path)))
		}
	}
	return pids
}
