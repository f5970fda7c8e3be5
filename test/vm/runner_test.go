//go:build vm

package vm_test

import (
	"crypto/sha256"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// task has the programs of evaluations.
//
//go:embed runner
var task embed.FS

// evaluating is a step as kernelbot's pipelines have them, on one slot.
const evaluating = `steps:
  - command: %s
    agents: {queue: b200, gpu-index: "%d"}
    plugins:
      - docker#v5.11.0: {image: "kernelbot-test:latest", gpus: all, propagate-environment: true}
    artifact_paths: [result.json]
`

// evaluations are the jobs of one node.
type evaluations struct{ m *vm.Machine }

// evaluated is what came of a job.
type evaluated struct {
	Build struct {
		Number int
		State  string
	}
	Log    string
	Result struct {
		Success bool
		Error   string
		Forged  bool
		Runs    map[string]struct {
			Run *struct {
				Success, Passed bool
				Stdout          string
				Result          map[string]string
			}
		}
	}
}

// timestamp is what the agent puts before every line of a log, and what the two
// terminals on the way do.
var timestamp = regexp.MustCompile(`\x1b_bk;t=\d+\a|\r`)

// source is a file of the tasks.
func source(t *testing.T, name string) string {
	t.Helper()
	b, err := task.ReadFile("runner/" + name)
	must.Do(t, err)
	return string(b)
}

// config is a payload for eval.py and a submission, with members added.
func config(t *testing.T, submission string, members map[string]any) []byte {
	t.Helper()
	c := map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py",
		"sources": map[string]string{"eval.py": source(t, "eval.py"), "submission.py": source(t, submission)},
		"tests":   []any{map[string]int{"size": 16}},
	}
	maps.Copy(c, members)
	b, err := json.Marshal(c)
	must.Do(t, err)
	return b
}

// submit makes a job for a slot and returns the build's number.
func (e evaluations) submit(slot int, command string, config []byte) string {
	dir := fmt.Sprintf("/root/slot-%d", slot)
	e.m.Put(dir+"/steps.yml", 0o600, fmt.Sprintf(evaluating, command, slot))
	with := ""
	if config != nil {
		e.m.Put(dir+"/config.json", 0o600, string(config))
		with = "--config " + dir + "/config.json"
	}
	return e.m.Sh("bkstub submit --queue b200 --steps " + dir + "/steps.yml " + with)
}

// wait waits for a build's end, which ought to be passed or failed.
func (e evaluations) wait(t testing.TB, build, state string) (r evaluated) {
	t.Helper()
	out := e.m.Try("bkstub wait --json " + build)
	if err := json.Unmarshal([]byte(out.Stdout), &r); err != nil {
		t.Fatalf("%v in %s%s", err, out.Stdout, out.Stderr)
	}
	r.Log = timestamp.ReplaceAllString(r.Log, "")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("build %s, %+v\n%s", r.Build.State, r.Result, r.Log)
		}
	})
	must.Equal(t, state, r.Build.State)
	return r
}

// profiled says in which job profile a build ran, which should be this one.
func (e evaluations) profiled(t *testing.T, build, want string) {
	t.Helper()
	var node struct{ Profile string }
	text := e.m.Sh("bkstub artifact " + build + " node.json")
	if err := json.Unmarshal([]byte(text), &node); err != nil || node.Profile != want {
		t.Errorf("build %s ran in profile %q, want %q: %v in %s", build, node.Profile, want, err, text)
		return
	}
	t.Logf("build %s ran in profile %s", build, node.Profile)
}

// table is a text that zlib makes about a quarter of.
func table(lines int) string {
	var b strings.Builder
	x := uint32(1)
	for range lines {
		x = x*1664525 + 1013904223
		fmt.Fprintf(&b, "value = 0x%04x\n", x>>16)
	}
	return b.String()
}

// sized says whether a run of sizes.py has seen a text.
func sized(t *testing.T, r evaluated, text string) {
	t.Helper()
	run := r.Result.Runs["test"].Run
	if run == nil {
		t.Fatal("there is no run")
	}
	want := map[string]string{"size": fmt.Sprint(len(text)), "sha256": fmt.Sprintf("%x", sha256.Sum256([]byte(text))), "environ": "True", "check": "pass"}
	must.Equal(t, want, run.Result)
}
