package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestConfigCheckOfAPipe reads what is piped in. testdata/typed.txt has files.
func TestConfigCheckOfAPipe(t *testing.T) {
	t.Parallel()
	got := fed(t, strings.NewReader("queues: b200\n"), "config", "check", "-")
	if want := (result{1, "", "kbnode: standard input:1: unknown key \"queues\"; write \"queue\"\n"}); got != want {
		t.Errorf("%+v", got)
	}
}

// TestConfigCheckOfAPastLoan warns of a loan that is over: on a node, no slot would take a job.
func TestConfigCheckOfAPastLoan(t *testing.T) {
	t.Parallel()
	const says = "loan.until: 2020-12-31 is over, so all slots of a node take no jobs"
	for _, tt := range []struct {
		until string
		over  bool
	}{{"2020-12-31", true}, {"2999-12-31", false}} {
		text := "queue: b200\nloan: {until: " + tt.until + "}\n"
		got := fed(t, strings.NewReader(text), "config", "check", "-")
		if got.code != 0 || strings.Contains(got.err, says) != tt.over {
			t.Errorf("%s: %+v", tt.until, got)
		}
		if got := fed(t, strings.NewReader(text), "config", "check", "-", "--json"); strings.Contains(got.out, says) != tt.over {
			t.Errorf("%s: %+v", tt.until, got)
		}
	}
}

// pageConfig returns docs/configuration.md and the example at its end.
func pageConfig(t *testing.T) (page, example string) {
	t.Helper()
	text := must.Read(t, "../../docs/configuration.md")
	_, example, found := strings.Cut(text, "## An example\n\n```yaml\n")
	if !found {
		t.Fatal("docs/configuration.md has no example")
	}
	example, _, _ = strings.Cut(example, "```")
	return text, example
}

// TestConfigPage compares what the page shows of config check with what it prints.
func TestConfigPage(t *testing.T) {
	t.Parallel()
	page, example := pageConfig(t)
	if strings.Contains(must.Read(t, "../../packaging/config.yaml"), plan.Marker) {
		t.Errorf("packaging/config.yaml has %q in it, so kbnode would overwrite what an operator writes there", plan.Marker)
	}
	root := t.TempDir()
	file := must.Write(t, root, plan.ConfigPath, example)
	got := kbnode(t, "config", "check", file)
	if text := strings.ReplaceAll(got.out, root, ""); got.code != 0 || got.err != "" || !strings.Contains(page, strings.TrimSpace(text)) {
		t.Errorf("docs/configuration.md does not have what config check prints (code %d, err %q):\n%s", got.code, got.err, text)
	}
	faults := "queues: b200\nreserve:\n  memory: 64GB\njob:\n  max_minutes: 30m\n"
	got = kbnode(t, "config", "check", must.Write(t, root, "node.yaml", faults))
	for line := range strings.Lines(faults + strings.ReplaceAll(got.err, root+"/", "")) {
		must.Contain(t, page, "    "+line)
	}
}

func TestConfigShow(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	// Without a file: the defaults, which are OK.
	got := kbnode(t, "config", "show", "--root", root)
	if again := fed(t, strings.NewReader(got.out), "config", "check", "-"); got.code != 0 || again.code != 0 || !strings.Contains(got.out, "File: none\n") {
		t.Errorf("the defaults: %+v, checked %+v", got, again)
	}
	// Saved output does not count as a file of kbnode's own.
	must.Write(t, root, plan.ConfigPath, "# "+plan.Marker+"\nqueue: b200\ngpus: [0, 2]\nagent:\n  endpoint: https://me:secret@h.example/v3\n  allowed_repositories: ['^https://TOKEN-secret@h/p$']\n")
	got = kbnode(t, "config", "show", "--root", root)
	again := fed(t, strings.NewReader(got.out), "config", "check", "-")
	if got.code != 0 || again.code != 0 || !strings.Contains(got.out, "# Secrets are shown as xxxxx") || strings.Contains(got.out, plan.Marker) {
		t.Errorf("with secrets: %+v, checked %+v", got, again)
	}
	asJSON := kbnode(t, "config", "show", "--root", root, "--json")
	var doc struct {
		File   string
		Config map[string]any
		Hidden []string
	}
	must.Do(t, json.Unmarshal([]byte(asJSON.out), &doc))
	if doc.File != root+plan.ConfigPath || doc.Config["queue"] != "b200" || len(doc.Hidden) != 2 {
		t.Errorf("JSON: %s", asJSON.out)
	}
	// JSON is YAML, so this is a configuration file too.
	text, err := json.Marshal(doc.Config)
	must.Do(t, err)
	if again := fed(t, strings.NewReader(string(text)), "config", "check", "-"); again.code != 0 {
		t.Errorf("the configuration in JSON is refused: %+v", again)
	}
	for _, r := range []result{got, again, asJSON} {
		if strings.Contains(r.out+r.err, "secret@") {
			t.Errorf("a secret is shown: %+v", r)
		}
	}
}

// squeeze replaces each run of blanks with a single one.
func squeeze(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}

func TestConfigShowEnvironment(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		file, name, value string
		says              string // a line of the answer, or an error
		refused           bool
	}{
		{"", "RAM_PER_GPU", "144", "memory_per_slot: 144GiB", false},
		{"", "GPU_COUNT", "many", "GPU_COUNT=many is not a number", true},
		// The environment overrides kbnode's own file, but not an operator's.
		{"# " + plan.Marker + "\nqueue: from-file\n", "GPU_TYPE", "from-env", "queue: from-env", false},
		{"queue: from-file\n", "GPU_TYPE", "from-env", "kbnode install would refuse it\n# ", false},
		{"queue: from-file\n", "GPU_TYPE", "from-file", "queue: from-file", false},
		{"# " + plan.Marker + "\ngpus: [6, 7]\n", "GPU_COUNT", "4", "gpu_count: 4", false},
	} {
		root := t.TempDir()
		if tt.file != "" {
			must.Write(t, root, plan.ConfigPath, tt.file)
		}
		var out strings.Builder
		err := showConfig(term.Streams{Out: &out, Err: &out}, &node.Node{Root: root}, func(k string) string { return map[string]string{tt.name: tt.value}[k] }, false)
		if (err != nil) != tt.refused || !strings.Contains(fmt.Sprint(out.String(), err), tt.says) || strings.Contains(out.String(), "[6, 7]") {
			t.Errorf("%s=%s: %v\n%s", tt.name, tt.value, err, out.String())
		}
	}
	root := t.TempDir()
	must.Write(t, root, plan.ConfigPath, "# "+plan.Marker+"\ngpus: [6, 7]\n")
	m := &node.Node{Root: root}
	for flag, want := range map[string]string{"": "GPU_COUNT=4 is read as the first 4 GPUs; write --gpu-count 4", "6-7": ""} {
		if err := (&configFlags{gpus: flag}).load(m, func(k string) string { return map[string]string{"GPU_COUNT": "4"}[k] }); err != nil || strings.Join(m.Notes, " ") != want {
			t.Errorf("with --gpus %q: %q, %v", flag, m.Notes, err)
		}
	}
}

// TestConfigShowWithoutPermission shows a file that the user must not read.
func TestConfigShowWithoutPermission(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root reads everything")
	}
	root := t.TempDir()
	must.Do(t, os.Chmod(must.Write(t, root, plan.ConfigPath, "queue: a\n"), 0))
	if got := kbnode(t, "config", "show", "--root", root); got.code != 1 || !strings.Contains(got.err, "permission denied; use sudo") {
		t.Errorf("%+v", got)
	}
}
