package job_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/jobtest"
	"github.com/gpu-mode/kbnode/internal/job/pipeline"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
)

// optionTables are in docs/pipelines.md, one for each verdict.
var optionTables = regexp.MustCompile(`(?m)^\| taken \|.*\n((\|.*)?\n)*\|.*\n`)

// TestOptionsPage tests that the documented options are those of the code.
func TestOptionsPage(t *testing.T) {
	t.Parallel()
	const file = "../../docs/pipelines.md"
	page, err := os.ReadFile(file)
	must.Do(t, err)
	var want strings.Builder
	for i, o := range job.Options {
		switch {
		case i == 0:
			fmt.Fprintf(&want, "| %s | |\n|---|---|\n", o.Verdict)
		case o.Verdict != job.Options[i-1].Verdict:
			fmt.Fprintf(&want, "\n| %s | |\n|---|---|\n", o.Verdict)
		}
		names := "`" + strings.ReplaceAll(o.Names, " ", "`, `") + "`"
		fmt.Fprintf(&want, "| %s | %s |\n", names, escape(o.Note))
	}
	if *update {
		page = optionTables.ReplaceAllLiteral(page, []byte(want.String()))
		must.Do(t, os.WriteFile(file, page, 0o644))
	}
	must.Equal(t, want.String(), string(optionTables.Find(page)))
}

// escape keeps Markdown from reading stars and placeholders.
func escape(note string) string {
	return regexp.MustCompile(`\S*[*_$<{]\S*[^\s,.;:]|\S*\*`).ReplaceAllString(note, "`$0`")
}

// TestOptions tests that each option has the effect that the table says.
func TestOptions(t *testing.T) {
	t.Parallel()
	// A value of another type is refused by what reads it, and of no interest to what does not.
	odd := `{"a":[{"b":1}]}`
	for _, o := range job.Options {
		for name := range strings.FieldsSeq(o.Names) {
			s, err := job.Read(attack(with(name, odd)))
			if o.Verdict != job.Slot {
				refused(t, err, name)
			} else if err != nil {
				t.Errorf("%s: %v", name, err)
			} else {
				inert(t, read(t, attack(jobtest.Options(`"image":"a"`))), s)
			}
			if o.Verdict == job.Refused {
				for _, none := range []string{`false`, `""`, `[]`, `"off"`, `null`} {
					if _, err := job.Read(attack(with(name, none))); err != nil {
						t.Errorf("%s: %s is nothing to refuse: %v", name, none, err)
					}
				}
			}
		}
	}
}

// TestValues tests that a value has the text that the agent makes of it, and that nothing of a list is lost.
func TestValues(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ options, want string }{
		{`"environment":["A=",1.0,"B=2"]`, `["A=","B=2"] `}, // 1.0 is a name that the build does not have
		{`"command":["x",1.0,1e-07,12345678901234567890,true]`, `["x","1.0","1e-07","12345678901234567890","true"]`},
		{`"command":["a","","b"]`, `["a"]`},
		{`"command":["a",null,"b"]`, "command: "},
		{`"command":"false"`, "command: it is not a list; write it as the step's command"},
		{`"command":{"a":1}`, "command: it is not a list; "},
		{`"volumes":false`, "volumes: it is not a list; "},
		{`"tmpfs":"0"`, "tmpfs: it is not a list; "},
		{`"ulimits":{"nofile":1024}`, "ulimits: it is not a list; write a list, such as [nofile=1024:2048]"},
		{`"environment":[{"A":"1"}]`, "environment: it has more than texts in the list"},
		{`"shell":"/bin/bash -e -c"`, `shell: it is not a list; write a list of words, such as ["/bin/bash", "-e", "-c"]`},
		{`"additional-groups":["video","","render"]`, "additional-groups: "},
		{`"volumes":["$PWD/x:/x"],"expand-volume-vars":true`, "volumes: $PWD is a path of the node; write ./"},
		{`"":1`, "plugins: an option of the docker plugin has no name"},
		{`"memory":1e400`, "memory: "},
		{`"memory":0`, "memory: \"0\" is no size"},
		{`"shm-size":"0g"`, "shm-size: \"0g\" is no size"},
	} {
		vars := jobtest.Options(`"image":"a",` + row.options)
		if strings.Contains(row.options, "command") {
			vars["BUILDKITE_COMMAND"] = ""
		}
		s, err := job.Read(attack(vars))
		got := fmt.Sprint(err)
		if err == nil {
			list := s.Command
			if strings.Contains(row.options, "environment") {
				list = nil
				for _, e := range s.Env {
					list = append(list, e.Name+"="+e.Value)
				}
			}
			text, err := json.Marshal(list)
			must.Do(t, err)
			got = string(text)
		}
		if !strings.HasPrefix(got, strings.TrimSpace(row.want)) {
			t.Errorf("%s: %s, want %s", row.options, got, row.want)
		}
	}
}

// TestProfileOfACommand tests that whatever runs kbnode runner first is strict.
func TestProfileOfACommand(t *testing.T) {
	t.Parallel()
	for command, strict := range map[string]bool{
		"kbnode runner": true, "exec\tkbnode runner --payload x": true, "/usr/local/bin/kbnode runner && ls": true, "kbnode runner; ls": true,
		"kbnode runner\nls": true, "kbnode runner|tee x": true, "kbnode  runner>x": true, "\nkbnode runner\n": true,
		"kbnode runners": false, "ls; kbnode runner": false, "kbnode runner-x": false, "echo kbnode runner": false,
	} {
		s := read(t, attack(map[string]string{"BUILDKITE_PLUGINS": "", "BUILDKITE_COMMAND": command}))
		if (s.Profile == config.ProfileStrict) != strict {
			t.Errorf("%q: %s", command, s.Profile)
		}
	}
}

// TestImageNames tests names against the engine's grammar: what it does not take would end as the node's fault.
func TestImageNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "a-b", "a--b", "a__b", "a.b/c_d:1", "GHCR.io/a/b", "h:5000/a", "localhost/a", "a@sha256:" + strings.Repeat("0", 64), "a-", "a..b", "a.", "a___b", "a/b-", "-a", "a/", "a//b", "A", "a/B", strings.Repeat("0", 64), "h-/a", "a:b:c"} {
		_, err := job.Read(attack(jobtest.Options(fmt.Sprintf(`"image":%q`, name))))
		if _, engine := reference.ParseDockerRef(name); (err == nil) != (engine == nil) {
			t.Errorf("%s: %v, and the engine: %v", name, err, engine)
		}
	}
	// These it takes, and cannot pull.
	for name, refuses := range map[string]bool{
		"h:0/a": true, "h:00000/a": true, "h:65535/a": false, "h:65536/a": true, "h:99999/a:1": true, "a:99999": false, "h/a:99999": false,
		"scratch": true, "scratch:latest": true, "library/scratch": true, "index.docker.io/library/scratch": true, "scratch@sha256:" + strings.Repeat("0", 64): true,
		"scratch2": false, "a/scratch": false, "ghcr.io/scratch": false, "scratch/a": false,
	} {
		_, err := job.Read(attack(jobtest.Options(fmt.Sprintf(`"image":%q`, name))))
		if refuses {
			refused(t, err, "image")
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// with is a step with an option, and an image.
func with(name, value string) map[string]string {
	if name == "image" {
		return jobtest.Options(`"image":` + value)
	}
	return jobtest.Options(fmt.Sprintf(`"image":"a",%q:%s`, name, value))
}

var update = flag.Bool("update", false, "write testdata and documents again")

// TestPipelines tests what becomes of the pipelines that must go on working.
func TestPipelines(t *testing.T) {
	t.Parallel()
	const file = "testdata/pipelines.txtar"
	archive, err := txtar.ParseFile(file)
	must.Do(t, err)
	want := txtar.Archive{Comment: archive.Comment}
	for _, f := range archive.Files {
		name, isEnv := strings.CutSuffix(f.Name, ".env")
		if !isEnv {
			continue
		}
		vars, err := job.ReadEnvFile(string(f.Data))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		env := map[string]string{}
		for _, v := range vars {
			env[v.Name] = v.Value
		}
		spec := read(t, build(env))
		want.Files = append(want.Files, f, txtar.File{Name: name + ".spec", Data: brief(t, *spec)})
	}
	if *update {
		must.Do(t, os.WriteFile(file, txtar.Format(&want), 0o644))
	}
	if diff := cmp.Diff(string(txtar.Format(&want)), string(txtar.Format(archive))); diff != "" && !*update {
		t.Error(diff)
	}
}

// brief has a line for each field that is not empty. It leaves out the variables of every build.
func brief(t *testing.T, s job.Spec) []byte {
	t.Helper()
	s.Env = slices.DeleteFunc(s.Env, func(v job.Var) bool {
		return strings.HasPrefix(v.Name, "BUILDKITE") || v.Name == "CI"
	})
	var b bytes.Buffer
	line := json.NewEncoder(&b)
	line.SetEscapeHTML(false)
	fields := reflect.ValueOf(s)
	for i := range fields.NumField() {
		if v := fields.Field(i); !v.IsZero() && (v.Kind() != reflect.Slice || v.Len() > 0) {
			b.WriteString(fields.Type().Field(i).Tag.Get("json") + " ")
			must.Do(t, line.Encode(v.Interface()))
		}
	}
	return b.Bytes()
}

func read(t *testing.T, in job.Input) *job.Spec {
	t.Helper()
	spec, err := job.Read(in)
	must.Do(t, err)
	return spec
}

// TestOwnPipelines tests that the steps that kbnode pipeline prints need no checkout, and get the
// profile that was asked for.
func TestOwnPipelines(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind, asked, profile string
		amd                  bool
		runs                 job.Kind
	}{
		{pipeline.Eval, "", config.ProfileStrict, false, job.KindPlugin},
		{pipeline.Eval, config.ProfileCompatible, config.ProfileCompatible, true, job.KindPlugin},
		{pipeline.DockerTest, "", config.ProfileCompatible, false, job.KindPlugin},
		{pipeline.DockerTest, config.ProfileStrict, config.ProfileStrict, true, job.KindPlugin},
		{pipeline.ArtifactTest, "", config.ProfileCompatible, false, job.KindNode},
	} {
		p, err := pipeline.Build(tt.kind, pipeline.Options{Queue: "b200", Image: "kernelbot:latest", Profile: tt.asked, AMD: tt.amd})
		must.Do(t, err)
		var steps []struct {
			Command       string
			Plugins       json.RawMessage
			ArtifactPaths []string `json:"artifact_paths"`
		}
		text, err := json.Marshal(p.Steps)
		must.Do(t, errors.Join(err, json.Unmarshal(text, &steps)))
		step := steps[0]
		s := read(t, build(map[string]string{
			"BUILDKITE_COMMAND": strings.ReplaceAll(step.Command, "$$", "$"), "BUILDKITE_PLUGINS": string(step.Plugins),
			"BUILDKITE_ARTIFACT_PATHS": strings.Join(step.ArtifactPaths, ";"), "BUILDKITE_TIMEOUT": "15",
		}))
		if s.Checkout.Mode != job.CheckoutNone || s.Profile != tt.profile || s.Kind != tt.runs || len(s.Artifacts) != len(step.ArtifactPaths) {
			t.Errorf("%s with profile %q: checkout %q, profile %q, kind %q, artifacts %q", tt.kind, tt.asked, s.Checkout.Mode, s.Profile, s.Kind, s.Artifacts)
		}
	}
}
