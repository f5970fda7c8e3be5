package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/machinetest"
)

// TestTyped types each line of testdata/typed.txt and compares all that kbnode prints: a wrong line is
// answered with the right one before the machine is asked anything, and no secret is repeated.
func TestTyped(t *testing.T) {
	for _, name := range []string{"BUILDKITE_AGENT_TOKEN", "BUILDKITE_API_TOKEN", "BUILDKITE_API_URL", "BUILDKITE_ORG", "BUILDKITE_PIPELINE", "GPU_TYPE", "KBNODE_DB"} {
		t.Setenv(name, "")
	}
	dir := typedFiles(t)
	text, err := os.ReadFile("testdata/typed.txt")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	answers := false
	for line := range strings.Lines(string(text)) {
		typed, is := strings.CutPrefix(line, "$ kbnode ")
		switch title := strings.HasPrefix(line, "== "); {
		case title && answers:
			got.WriteString("\n" + line + "\n")
		case !is && !answers || title:
			got.WriteString(line)
		}
		if answers = answers || is; !is {
			continue
		}
		args := strings.Fields(strings.ReplaceAll(typed, "DIR", dir))
		for i, a := range args {
			if word, err := strconv.Unquote(a); err == nil {
				args[i] = word
			}
		}
		r := kbnode(t, args...)
		if r.code != exitDone && r.out != "" && !slices.Contains(args, "--json") || strings.Contains(r.out+r.err, "secret") || strings.Contains(r.err, "hunter2") {
			t.Errorf("kbnode %s: %+v", typed, r)
		}
		got.WriteString(line + strings.ReplaceAll(r.out+r.err, dir, "DIR"))
		if r.code != exitUsage {
			fmt.Fprintf(&got, "exit code %d\n", r.code)
		}
	}
	golden(t, "typed.txt", got.String())
}

// typedFiles writes the files that testdata/typed.txt names.
func typedFiles(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"token": "", "wide": "", "empty/x": "", "broken.json": `{"a": 1,}`, "nojson": payload.Encode([]byte("text")), "task.json": `{"lang": "cu", "arch": "90a"}`,
		"hopper/task.yml":      `{files: [{name: submission.cu, source: "@SUBMISSION@"}], lang: cu, config: {sources: [submission.cu], arch: 90a}}`,
		"hopper/submission.cu": "",
		"Dockerfile":           "ARG BASE=x\nFROM $BASE\nARG NUMPY\n",
		"large":                strings.Repeat(" ", 1<<20+1),
		"text":                 "steps:\n",

		"well.yaml":    "queue: b200\nnode:\nreserve: {cpus: 4, memory: 8GiB}\nagent: {}\n",
		"nothing.yaml": "# nothing\n",
		"faults.yaml":  "queues: b200\ngpus: [x]\njob:\n  max_minutes: 1.5\n  profile: open\n",
		"two.yaml":     "queue: a\n---\nqueue: b\n",

		"template" + plan.ConfigPath: "queue: h100-{index}\n",
		"broken" + plan.ConfigPath:   "queues: h100\n",

		"hostile" + plan.SlotPolicyPath(0):                    `{"slot": 0}`,
		"hostile" + plan.AgentDir(0) + "/buildkite-agent.cfg": "tags=\"queue=${HOME},gpu=x\"\n",
		"cut" + plan.SlotPolicyPath(0):                        `{"slot": 0`,
	} {
		put(t, dir, name, text)
	}
	err := errors.Join(os.Remove(filepath.Join(dir, "empty/x")), os.Chmod(filepath.Join(dir, "wide"), 0o640), os.Symlink("Dockerfile", filepath.Join(dir, "link")))
	if err != nil {
		t.Fatal(err)
	}
	machinetest.B200x8().Write(t, filepath.Join(dir, "b200"))
	machinetest.NoGPU().Write(t, filepath.Join(dir, "nogpu"))
	return dir
}

// TestPastedAsRoot checks what a line for root repeats besides what was typed.
func TestPastedAsRoot(t *testing.T) {
	const pasted = "sudo kbnode drain gpu3 --reason 'a new fan, and a longer one' --wait --timeout 30m"
	if screen := onTerminal(t, 60, "drain", "gpu3", "--reason", "a new fan, and a longer one", "--wait", "--timeout", "30m"); !strings.HasSuffix(screen, "\n  "+pasted+"\n") {
		t.Errorf("the command is cut: %s", screen)
	}
	t.Setenv("BUILDKITE_AGENT_TOKEN", "bkct_secret")
	t.Setenv("GPU_TYPE", "b200")
	want := "type sudo --preserve-env=BUILDKITE_AGENT_TOKEN,GPU_TYPE kbnode install\n"
	if got := kbnode(t, "install"); !strings.HasSuffix(got.err, want) {
		t.Errorf("%q; want %q", got.err, want)
	}
}
