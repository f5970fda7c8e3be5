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

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/jobtest"
	"github.com/gpu-mode/kbnode/internal/pipeline"
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
