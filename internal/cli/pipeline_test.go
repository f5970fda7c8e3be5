package cli

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/job/pipeline"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/doctest"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// nodeTree returns a machine with the files of a node: its configuration and planned files.
func nodeTree(t *testing.T, m machinetest.Machine, cfg config.Config, text string) string {
	t.Helper()
	root := m.Dir(t)
	n := &node.Node{Root: root, Config: cfg.WithDefaults(), Log: term.Streams{Err: t.Output()}.Logger()}
	must.Do(t, n.Read(t.Context()))
	must.Do(t, n.MakePlan())
	for _, f := range n.Plan.Files {
		must.Write(t, root, f.Path, f.Content)
	}
	must.Write(t, root, plan.ConfigPath, text)
	return root
}

// printed checks that the command prints the pipeline.
func printed(t *testing.T, kind string, o pipeline.Options, args ...string) {
	t.Helper()
	p, err := pipeline.Build(kind, o)
	must.Do(t, err)
	got := kbnode(t, append([]string{"pipeline"}, args...)...)
	if got.code != 0 || got.err != "" {
		t.Fatalf("%q: code %d, err %q", args, got.code, got.err)
	}
	must.Equal(t, string(p.YAML()), got.out)
}

func TestPipelineOfANode(t *testing.T) {
	t.Parallel()
	root := nodeTree(t, machinetest.B200x8(), config.Config{Queue: "b200"}, "queue: b200\nimage: {name: 'reg.example/eval:v2'}\n")
	own := pipeline.Options{Queue: "b200", Image: "reg.example/eval:v2"}
	printed(t, "eval", own, "--root", root)
	for _, kind := range pipeline.Kinds {
		printed(t, kind, own, kind, "--root", root)
	}
	with := own
	with.Queue, with.Image, with.Timeout, with.Label = "other", "x:1", 30, "mine"
	with.Agents = map[string]string{"gpu-index": "3", "node": "n1"}
	printed(t, "eval", with, "--root", root, "--queue", "other", "--image", "x:1", "--timeout", "30m", "--label", "mine", "--gpu-index", "3", "--agent", "node=n1")
	with.Timeout = 45
	printed(t, "docker-test", with, "docker-test", "--root", root, "--queue", "other", "--image", "x:1", "--timeout", "45", "--label", "mine", "--agent", "gpu-index=3", "--agent", "node=n1")

	p, err := pipeline.Build("eval", own)
	must.Do(t, err)
	var want bytes.Buffer
	must.Do(t, term.PrintJSON(&want, p))
	must.Equal(t, want.String(), kbnode(t, "pipeline", "--root", root, "--json").out)

	// The slots show that the GPUs are AMD's.
	root = nodeTree(t, machinetest.MI300X(), config.Config{Queue: "mi300"}, "queue: mi300\n")
	amd := pipeline.Options{Queue: "mi300", Image: config.DefaultImage, AMD: true}
	printed(t, "docker-test", amd, "docker-test", "--root", root)
	amd.AMD = false
	printed(t, "docker-test", amd, "docker-test", "--root", root, "--vendor", "nvidia")
}

func TestPipelineWithAQueuePerSlot(t *testing.T) {
	t.Parallel()
	root := nodeTree(t, machinetest.B200x8(), config.Config{Queue: "{vendor}-{gpu}-{index}"}, "queue: '{vendor}-{gpu}-{index}'\n")
	printed(t, "eval", pipeline.Options{Queue: "nvidia-b200-5", Image: config.DefaultImage, Agents: map[string]string{"gpu-index": "5"}}, "--root", root, "--gpu-index", "5")
	printed(t, "eval", pipeline.Options{Queue: "mine", Image: config.DefaultImage}, "--root", root, "--queue", "mine")
	for want, args := range map[string][]string{
		"each slot of this node has its own queue, nvidia-b200-0 to nvidia-b200-7; add --gpu-index N or --queue NAME": nil,
		"this node has no slot gpu8; it has gpu0 to gpu7":                                                             {"--gpu-index", "8"},
	} {
		got := kbnode(t, append([]string{"pipeline", "--root", root}, args...)...)
		if got.code != term.ExitUsage || got.out != "" || got.err != "kbnode: "+want+"\n" {
			t.Errorf("%q: code %d, %q, %s; want %s", args, got.code, got.out, got.err, want)
		}
	}
}

func TestPipelineElsewhere(t *testing.T) {
	t.Parallel()
	none := t.TempDir()
	printed(t, "eval", pipeline.Options{}, "--root", none)
	printed(t, "eval", pipeline.Options{AMD: true, Agents: map[string]string{"gpu-index": "0"}}, "--root", none, "--vendor", "amd", "--gpu-index", "0")

	printed(t, "eval", pipeline.Options{Priority: pipeline.AdminPriority}, "--root", none, "--admin")
	printed(t, "eval", pipeline.Options{Priority: -2}, "--root", none, "--priority", "-2")

	configured := t.TempDir() // but not installed
	must.Write(t, configured, plan.ConfigPath, "queue: h100\n")
	printed(t, "eval", pipeline.Options{Queue: "h100", Image: config.DefaultImage}, "--root", configured)
	noConfig := t.TempDir() // an agent's configuration without a queue
	must.Write(t, noConfig, plan.SlotPolicyPath(0), `{"slot": 0, "vendor": "amd"}`)
	must.Write(t, noConfig, plan.AgentDir(0)+"/buildkite-agent.cfg", "name=\"x\"\n")
	must.Write(t, noConfig, filepath.Dir(plan.SlotPolicyPath(0))+"/gpu0.json~", "")
	printed(t, "eval", pipeline.Options{AMD: true}, "--root", noConfig)
}

// TestPipelineOfPage checks that the job in docs/pipelines.md, which TestTutorial of test/vm runs, is
// what the command prints.
func TestPipelineOfPage(t *testing.T) {
	t.Parallel()
	blocks, err := doctest.Parse(must.Read(t, "../../docs/pipelines.md"))
	must.Do(t, err)
	var jobs []string
	for _, b := range blocks {
		if b.Kind == doctest.Job {
			jobs = append(jobs, b.Text)
		}
	}
	want := []string{kbnode(t, "pipeline", "eval", "--root", t.TempDir()).out}
	must.Equal(t, want, jobs)
}

// payloadDoc has what encoding/json would not preserve: the order of keys, a duplicate key, and
// Python's numbers.
const payloadDoc = `{"mode": "test", "lang": "py", "sources": {"b.py": "", "a.py": "é\u0041"}, "tests": [], "seed": 1E3, "x": NaN, "seed": 12345678901234567890123}`

func TestPayloadThereAndBack(t *testing.T) {
	t.Parallel()
	file := must.Write(t, t.TempDir(), "task.json", payloadDoc)
	want := result{out: payload.Encode([]byte(payloadDoc)) + "\n"}
	encoded := must.Write(t, t.TempDir(), "payload", want.out)
	for name, got := range map[string]result{
		"file":           kbnode(t, "payload", "encode", file),
		"standard input": fed(t, strings.NewReader(payloadDoc), "payload", "encode"),
		"a dash":         fed(t, strings.NewReader(payloadDoc), "payload", "encode", "-"),
	} {
		if got != want {
			t.Errorf("encode, %s: %+v", name, got)
		}
	}
	for name, got := range map[string]result{
		"file":           kbnode(t, "payload", "decode", encoded),
		"standard input": fed(t, strings.NewReader("  "+want.out), "payload", "decode"),
		"a dash":         fed(t, strings.NewReader(want.out), "payload", "decode", "-"),
	} {
		if got != (result{out: payloadDoc + "\n"}) {
			t.Errorf("decode, %s: %+v", name, got)
		}
	}
	in := strings.NewReader(payload.Encode([]byte(`{"seed": 1E3, "a": [], "seed": 12345678901234567890123}`)))
	if got := fed(t, in, "payload", "decode", "--indent"); got.out != "{\n  \"seed\": 1E3,\n  \"a\": [],\n  \"seed\": 12345678901234567890123\n}\n" {
		t.Errorf("indented: %+v", got)
	}
}

// Not parallel: it sets the environment.
func TestPayloadOfTheEnvironment(t *testing.T) {
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); payload.IsVar(name) {
			t.Setenv(name, "")
		}
	}
	const nothing = "kbnode: nothing to decode; name a file, pipe a payload in, or set KERNELBOT_PAYLOAD\n"
	if got := kbnode(t, "payload", "decode"); got.code != 2 || got.err != nothing {
		t.Errorf("without a payload: %+v", got)
	}
	doc := `{"a": "` + must.Random(300_000) + `"}` // takes more than one variable
	env := fed(t, strings.NewReader(doc), "payload", "encode", "--env")
	lines := strings.Split(strings.TrimSuffix(env.out, "\n"), "\n")
	if env.code != 0 || len(lines) < 2 {
		t.Fatalf("encode --env: code %d, %d lines, %s", env.code, len(lines), env.err)
	}
	for _, kv := range lines {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	null, err := os.Open(os.DevNull)
	must.Do(t, err)
	t.Cleanup(func() { _ = null.Close() })
	for name, in := range map[string]io.Reader{"nothing piped in": strings.NewReader("\n"), "/dev/null": null} {
		if got := fed(t, in, "payload", "decode"); got.out != doc+"\n" {
			t.Errorf("%s: code %d, %d bytes, %s", name, got.code, len(got.out), got.err)
		}
	}
	if got := fed(t, strings.NewReader(payload.Encode([]byte("{}"))), "payload", "decode"); got.out != "{}\n" {
		t.Errorf("what is piped in goes before: %+v", got)
	}
	if one := fed(t, strings.NewReader("{}"), "payload", "encode", "--env"); one.out != "KERNELBOT_PAYLOAD="+payload.Encode([]byte("{}"))+"\n" {
		t.Errorf("one variable: %+v", one)
	}
	if got := fed(t, null, "payload", "encode"); got.code != 2 || !strings.Contains(got.err, "nothing to encode; name a JSON file") {
		t.Errorf("nothing to encode: %+v", got)
	}
}
