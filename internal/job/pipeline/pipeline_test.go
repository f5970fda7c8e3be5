package pipeline_test

import (
	"flag"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/gpu-mode/kbnode/internal/job/pipeline"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

var update = flag.Bool("update", false, "write testdata again")

// cases are the pipelines of testdata/pipelines.txtar.
var cases = []struct {
	name, kind string
	options    pipeline.Options
}{
	{"eval on a node", pipeline.Eval, pipeline.Options{Queue: "b200", Image: "ghcr.io/gpu-mode/kernelbot:latest"}},
	{"eval anywhere", pipeline.Eval, pipeline.Options{}},
	{"eval on one AMD GPU", pipeline.Eval, pipeline.Options{Queue: "mi300", Image: "reg.example:5000/rocm@sha256:" + strings.Repeat("0", 64), Agents: map[string]string{"gpu-index": "3"}, Timeout: 30, AMD: true, Label: `mine: "now" #1`}},
	{"docker-test on a node", pipeline.DockerTest, pipeline.Options{Queue: "b200", Image: "kernelbot:latest"}},
	{"eval in the compatible profile", pipeline.Eval, pipeline.Options{Queue: "b200", Profile: config.ProfileCompatible}},
	{"docker-test in the strict profile", pipeline.DockerTest, pipeline.Options{Queue: "b200", Profile: config.ProfileStrict}},
	{"docker-test on AMD", pipeline.DockerTest, pipeline.Options{Queue: "mi300", Image: "kernelbot:latest", AMD: true}},
	{"eval before others", pipeline.Eval, pipeline.Options{Queue: "b200", Priority: pipeline.AdminPriority}},
	{"artifact-test after others", pipeline.ArtifactTest, pipeline.Options{Queue: "b200", Priority: -1}},
	{"artifact-test on a node", pipeline.ArtifactTest, pipeline.Options{Queue: "1_000"}},
}

func build(tb testing.TB, kind string, o pipeline.Options) *pipeline.Pipeline {
	tb.Helper()
	p, err := pipeline.Build(kind, o)
	must.Do(tb, err)
	return p
}

func TestGolden(t *testing.T) {
	t.Parallel()
	archive := txtar.Archive{Comment: []byte("What kbnode pipeline prints. go test ./internal/job/pipeline -update writes it.\n\n")}
	for _, c := range cases {
		p := build(t, c.kind, c.options)
		archive.Files = append(archive.Files, txtar.File{Name: c.name, Data: p.YAML()})
		for line := range strings.Lines(string(p.YAML())) {
			if strings.HasPrefix(strings.TrimSpace(line), "#") && strings.Contains(line, "$") {
				t.Errorf("%s: a comment has a dollar sign, which some readers fill in: %s", c.name, line)
			}
		}
	}
	must.Golden(t, "testdata/pipelines.txtar", *update, string(txtar.Format(&archive)))
}

func TestBuildRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind string
		o    pipeline.Options
		want []string
	}{
		{"fast", pipeline.Options{}, []string{`"fast" is not a kind of pipeline`}},
		{"evil", pipeline.Options{}, []string{`"evil" is not a kind of pipeline; write one of eval, docker-test, artifact-test`}},
		{"eval", pipeline.Options{Queue: "a\nb: c"}, []string{"not the name of a queue"}},
		{"eval", pipeline.Options{Queue: "${X?}", Image: "a b", Timeout: -1}, []string{"not the name of a queue", "not the name of an image", "time limit of -1 minutes"}},
		{"eval", pipeline.Options{Queue: "${X:-$(id)}"}, []string{"not the name of a queue"}},
		{"eval", pipeline.Options{Queue: "$X"}, []string{"or a variable, such as '${GPU_QUEUE}'"}},
		{"eval", pipeline.Options{Queue: "a${X}"}, []string{"not the name of a queue"}},
		{"eval", pipeline.Options{Queue: "nvidia-h100-{index}"}, []string{"not the name of a queue"}},
		{"eval", pipeline.Options{Image: "my_host:5000/x"}, []string{"not the name of an image"}},
		{"eval", pipeline.Options{Image: "Upper"}, []string{"not the name of an image"}},
		{"eval", pipeline.Options{Agents: map[string]string{"queue": "x", "a b": "c", "d": "$e", "f": "\u202e", "g": "\xff"}}, []string{"tag queue is already set", `"a b=c" is not a tag`, `"d=$e" is not a tag`, `"f=\u202e" is not a tag`, `"g=\xff" is not a tag`}},
		{"eval", pipeline.Options{Timeout: 1 << 30}, []string{"out of range; give 1 to 10080"}},
		{"eval", pipeline.Options{Priority: 1001}, []string{"a priority of 1001 is out of range; give -1000 to 1000"}},
		{"eval", pipeline.Options{Priority: -1001}, []string{"a priority of -1001 is out of range"}},
		{"eval", pipeline.Options{Profile: "Strict"}, []string{`"Strict" is not a profile; write strict or compatible`}},
		{"eval", pipeline.Options{Label: "cost: $5"}, []string{"is not a label"}},
		{"eval", pipeline.Options{Label: "a\x1b[2J"}, []string{`"a\x1b[2J" is not a label`}},
	} {
		_, err := pipeline.Build(tt.kind, tt.o)
		for _, want := range tt.want {
			must.Err(t, err, want)
		}
	}
	build(t, pipeline.Eval, pipeline.Options{Image: "my_kernelbot:latest"})
}

// FuzzBuild checks that accepted names come back from the YAML unchanged, also after Buildkite
// substitutes variables, and change nothing else.
func FuzzBuild(f *testing.F) {
	for _, s := range []string{"b200", "on", "1_000", "0x1f", "1e3", "12:30:45", "null", "~", "a\nb", "'", `"`, "${HOME}", "$$", "a: b", "- a", "#", "!!int 3", "*x", "%41", "\xff", "\ufeff", "\u0085", "\ufffd"} {
		for _, kind := range pipeline.Kinds {
			f.Add(kind, s, s, s, s, 3)
		}
	}
	f.Fuzz(func(t *testing.T, kind, queue, image, tag, label string, timeout int) {
		o := pipeline.Options{Queue: queue, Image: image, Agents: map[string]string{"tag": tag}, Label: label, Timeout: timeout}
		p, err := pipeline.Build(kind, o)
		if err != nil {
			return
		}
		// The fake's parser substitutes variables.
		env := map[string]string{"KERNELBOT_QUEUE": "from-the-build", "HOME": "leaked"}
		b := submit(t, string(p.YAML()), env)
		want := []string{"queue=" + queue, "tag=" + tag}
		if queue == "" {
			want[0] = "queue=from-the-build"
		}
		if len(b.Jobs) != 1 {
			t.Fatalf("%d jobs", len(b.Jobs))
		}
		must.Equal(t, want, b.Jobs[0].AgentQueryRules)
		if label != "" && b.Jobs[0].Name != label {
			t.Errorf("the label is %q, want %q", b.Jobs[0].Name, label)
		}
		command := func(p *pipeline.Pipeline) any { return p.Steps[0].(map[string]any)["command"] }
		must.Equal(t, command(build(t, kind, pipeline.Options{Image: image})), command(p))
		if strings.Contains(b.Jobs[0].Command, "leaked") {
			t.Errorf("the command is %q", b.Jobs[0].Command)
		}
	})
}

// submit has the fake Buildkite parse a pipeline.
func submit(tb testing.TB, steps any, env map[string]string) bktest.Build {
	tb.Helper()
	b, err := bktest.New(bktest.Options{}).Submit(bktest.NewBuild{Steps: steps, Env: env})
	if err != nil {
		tb.Fatalf("%v in\n%s", err, steps)
	}
	return b
}
