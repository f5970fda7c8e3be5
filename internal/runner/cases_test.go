package runner

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/payload"
)

// engineCase is a run of the Python engine: the payload and what came of it.
type engineCase struct {
	Name    string            `json:"name"`
	Config  json.RawMessage   `json:"config"`
	Payload *engineCoding     `json:"payload"` // where the encoding is the point
	Env     map[string]string `json:"env"`
	Files   map[string]string `json:"files"`
	Python  struct {
		ExitCode int            `json:"exit_code"`
		Result   map[string]any `json:"result"`
	} `json:"python"`
}

type engineCoding struct {
	Kind string `json:"kind"` // json_text: Text instead of config; wrapped: with line breaks and blanks
	Text string `json:"text"`
}

func TestCases(t *testing.T) {
	t.Parallel()
	runCases(t, "testdata/cases/*.json")
}

// TestSpecCases runs the project's shared cases where they lie beside the
// repository.
func TestSpecCases(t *testing.T) {
	t.Parallel()
	runCases(t, "../../../shared/spec/cases/*.json")
}

func runCases(t *testing.T, pattern string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skip("no cases at", pattern)
	}
	eval, err := os.ReadFile("testdata/eval.py")
	if err != nil {
		t.Fatal(err)
	}
	evalJSON, err := json.Marshal(string(eval))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var c engineCase
			if err := json.Unmarshal([]byte(strings.ReplaceAll(string(text), `"<EVAL>"`, string(evalJSON))), &c); err != nil {
				t.Fatal(err)
			}
			c.run(t)
		})
	}
}

func (c *engineCase) run(t *testing.T) {
	doc := []byte(c.Config)
	if c.Payload != nil && c.Payload.Kind == "json_text" {
		doc = []byte(c.Payload.Text)
	}
	var kind struct{ Lang, Mode string }
	if err := json.Unmarshal(doc, &kind); err == nil && (kind.Lang != "py" || kind.Mode == "profile") {
		t.Skipf("lang %s, mode %s is not supported yet", kind.Lang, kind.Mode)
	}
	text := payload.Encode(doc)
	if c.Payload != nil && c.Payload.Kind == "wrapped" {
		text = regexp.MustCompile(".{1,76}").ReplaceAllString(text, "$0 \n")
	}
	env := []string{"KERNELBOT_PAYLOAD=" + text, "PYTHONDONTWRITEBYTECODE="}
	for k, v := range c.Env {
		env = append(env, k+"="+v)
	}
	j := newJob(t, env...)
	for name, content := range c.Files {
		if err := os.WriteFile(filepath.Join(j.cmd.Dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	code, result := j.run(t)
	if code != c.Python.ExitCode {
		t.Errorf("exit code %d, want %d\n%s", code, c.Python.ExitCode, j.stderr.String())
	}
	want := c.Python.Result
	runs, _ := at(result, "runs").(map[string]any)
	pairs := []string{j.dir, "<BASE>"}
	for name, ev := range runs {
		command, _ := at(ev, "run", "command").(string)
		if path := regexp.MustCompile(regexp.QuoteMeta(j.dir) + `/tmp/\S+$`).FindString(command); path != "" {
			pairs = append([]string{path, "<CASES>"}, pairs...)
		}
		// A program's own exit code 114 has a duration that the case could not know.
		if w, ok := at(want, "runs", name, "run").(map[string]any); ok && len(at(w, "result").(map[string]any)) > 0 {
			w["duration"] = "*"
		}
	}
	for _, d := range differences("result", want, any(result), strings.NewReplacer(pairs...)) {
		t.Error(d)
	}
	left := []string{}
	for _, dir := range []string{j.cmd.Dir, filepath.Join(j.dir, "tmp")} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if _, given := c.Files[e.Name()]; !given && e.Name() != ResultFile {
				left = append(left, e.Name())
			}
		}
	}
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
