package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestPlanText lends some of the GPUs until a time, which the plan says.
func TestPlanText(t *testing.T) {
	t.Parallel()
	got := kbnode(t, "plan", "--root", machinetest.B200x8().Dir(t), "--queue", "b200", "--node", "node1", "--gpus", "0,4", "--loan-until", "2999-12-31T18:00:00Z")
	if got.code != 0 || got.err != "" {
		t.Fatalf("code %d, err %q", got.code, got.err)
	}
	golden(t, "b200x8.plan.txt", got.out)
}

// planned runs kbnode plan and returns its plan. TestJSONDocuments has the names of its fields.
func planned(t *testing.T, args ...string) (p planOutput) {
	t.Helper()
	got := kbnode(t, append([]string{"plan", "--json"}, args...)...)
	if err := json.Unmarshal([]byte(got.out), &p); err != nil || got.code != 0 || got.err != "" {
		t.Fatalf("%q: code %d, err %q: %v", args, got.code, got.err, err)
	}
	if strings.Contains(got.out, "null") {
		t.Errorf("%q: something is null; want lists that may be empty", args)
	}
	return p
}

func TestPlanJSON(t *testing.T) {
	t.Parallel()
	noDriver := machinetest.B200x8()
	noDriver.NVIDIADriver = ""
	for _, m := range []machinetest.Machine{noDriver, machinetest.B200x8(), machinetest.MI300X()} {
		if p := planned(t, "--root", m.Dir(t), "--queue", "q"); len(p.Slots) != 8 || len(p.Changes) == 0 {
			t.Errorf("%s: %d slots, %d changes", m.Name, len(p.Slots), len(p.Changes))
		}
	}
}

func TestPlanExitCodes(t *testing.T) {
	t.Parallel()
	root := machinetest.VM().Dir(t)
	if got := kbnode(t, "plan", "--root", root, "--detailed-exit-code"); got.code != 3 || got.err != "" {
		t.Errorf("with changes: code %d, err %q; want 3 and no words", got.code, got.err)
	}
	if got := kbnode(t, "plan", "--root", root); got.code != 0 {
		t.Errorf("without --detailed-exit-code: %d", got.code)
	}
	for _, asJSON := range []bool{true, false} {
		var out strings.Builder
		if err := showPlan(term.Streams{Out: &out}, planOutput{Plan: &plan.Plan{}}, asJSON, true); err != nil {
			t.Errorf("without changes: %v", err)
		}
		want := map[bool]string{true: `"changes": []`, false: "Nothing to change."}[asJSON]
		must.Contain(t, out.String(), want)
	}
}

// TestPlanReadsOnlyItsRoot sets everything in this process that must not affect the plan of
// another machine.
func TestPlanReadsOnlyItsRoot(t *testing.T) {
	root := machinetest.VM().Dir(t)
	want := kbnode(t, "plan", "--json", "--root", root)
	for name, value := range map[string]string{
		"GPU_TYPE": "leak", "NODE_NAME": "leak", "GPU_COUNT": "7", "CPUS_PER_GPU": "2", "RAM_PER_GPU": "20", "BUILDKITE_AGENT_TOKEN": "leak-leak",
	} {
		t.Setenv(name, value)
	}
	got := kbnode(t, "plan", "--json", "--root", root)
	if got != want {
		t.Errorf("the environment changes the plan of a tree: %s", got.out)
	}
	if strings.Contains(got.out, "leak") {
		t.Error("the plan of a tree holds a variable of this process")
	}
	// A link cannot lead out of the tree.
	target := must.Write(t, t.TempDir(), "config.yaml", "queue: leak\n")
	must.Do(t, os.MkdirAll(filepath.Join(root, "etc/kbnode"), 0o755))
	must.Do(t, os.Symlink(target, filepath.Join(root, plan.ConfigPath)))
	if got := kbnode(t, "plan", "--root", root); got.code != 1 || !strings.Contains(got.err, "read configuration: ") || strings.Contains(got.out, "leak") {
		t.Errorf("a link out of the tree: %+v", got)
	}
}

func TestPlanOfCapture(t *testing.T) {
	t.Parallel()
	root := machinetest.MI300X().Dir(t)
	must.Write(t, root, "etc/hostname", "secret-name\n")
	file := filepath.Join(t.TempDir(), "node.txtar")
	if got := kbnode(t, "inventory", "--root", root, "--capture", file); got.code != 0 || got.out != "" || !strings.Contains(got.err, "wrote "+file) {
		t.Fatalf("capture: %+v", got)
	}
	want, got := kbnode(t, "plan", "--json", "--root", root, "--node", "n"), kbnode(t, "plan", "--json", "--root", file, "--node", "n")
	short := strings.Replace(got.out, fmt.Sprintf("  \"recorded\": %q,\n", file), "", 1)
	if short == got.out {
		t.Error("the plan does not say that its machine is recorded")
	}
	got.out = short
	if got != want || got.code != 0 {
		t.Errorf("the plan of a capture is not that of its machine: %+v", got)
	}
	// A capture of a capture is the same capture, on standard output too.
	text := must.Read(t, file)
	must.Equal(t, text, kbnode(t, "inventory", "--root", file, "--capture", "-").out)
	if strings.Contains(text, "secret-name") {
		t.Error("the capture holds the host's name")
	}
}

// TestPlanOfARecordedNode tries flags on one, and asks for what is not recorded.
func TestPlanOfARecordedNode(t *testing.T) {
	t.Parallel()
	file := filepath.Join(machinesDir, "b200x8.txtar")
	if got := kbnode(t, "plan", "--root", file, "--gpus", "0-3"); got.code != 0 || !strings.Contains(got.out, "4 of 8 GPUs used") || !strings.Contains(got.err, "and [0, 1, 2, 3] here") {
		t.Errorf("%+v", got)
	}
	for _, json := range []bool{false, true} {
		args := []string{"plan", "--root", file, "--detailed-exit-code"}
		if json {
			args = append(args, "--json")
		}
		got := kbnode(t, args...)
		if got.code != 2 || !strings.Contains(got.err, "b200x8.txtar is not recorded; leave out --detailed-exit-code") || strings.Contains(got.out, `"error": `) != json {
			t.Errorf("%+v", got)
		}
	}
}

func TestConfigFileOfATree(t *testing.T) {
	t.Parallel()
	ours := "# " + plan.Marker + "\n"
	for _, tt := range []struct {
		name, text string
		args       []string
		code       int
		out, err   string
	}{
		{name: "taken", text: "queue: from-file\ngpus: [1]\n", out: `"queue": "from-file"`},
		{name: "kbnode's own gives way to flags", text: ours + "queue: from-file\n", args: []string{"--queue", "from-flag"}, out: `"queue": "from-flag"`},
		{name: "kbnode's own keeps what no flag says", text: ours + "queue: from-file\nnode: n9\n", args: []string{"--cpus-per-slot", "4"}, out: `"agent": "n9-gpu0"`},
		{name: "an operator's that agrees", text: "queue: from-file\n", args: []string{"--queue", "from-file"}, out: `"queue": "from-file"`},
		{name: "an operator's that disagrees", text: "queue: from-file\n", args: []string{"--queue", "from-flag"}, out: `"queue": "from-flag"`, err: plan.ConfigPath + " was written by hand and conflicts with the given flags or variables: queue is from-file in the file, and from-flag here; change the file, or leave them out: kbnode install would refuse it"},
		{name: "an operator's count that disagrees", text: "gpu_count: 4\n", args: []string{"--gpus", "0-2"}, out: `"name": "gpu2"`, err: "gpus is not set in the file, and [0, 1, 2] here; gpu_count is 4 in the file, and not set here"},
		{name: "kbnode's own count gives way to a choice", text: ours + "gpu_count: 4\n", args: []string{"--gpus", "6-7"}, out: `"name": "gpu7"`},
		{
			name: "kbnode's own and a flag that it does not go with", text: ours + "gpus: none\nslots: 4\n", args: []string{"--gpus-per-slot", "2"}, code: 2,
			err: plan.ConfigPath + " with the given flags or variables: gpus: none cannot be combined with gpus_per_slot or groups; leave them out",
		},
		{name: "kbnode's own number of slots gives way", text: ours + "gpus: none\nslots: 4\n", args: []string{"--slots", "6"}, out: `"index": 5`},
		{name: "kbnode's own groups and a choice without them", text: ours + "groups: [[0, 2]]\n", args: []string{"--gpus", "0-1"}, code: 2, err: "groups: GPU 2 is not among gpus; add it there, or leave it out of groups"},
		{name: "another file", text: "queue: b200\n", args: []string{"--config", must.Write(t, t.TempDir(), "node.yaml", "queue: canary\n")}, out: `"queue": "canary"`},
		{name: "another file with an error", args: []string{"--config", must.Write(t, t.TempDir(), "node.yaml", "queues: canary\n")}, code: 2, err: `unknown key "queues"; write "queue"`},
		{name: "unknown key", text: "\nqueue: a\nqueues: b\n", code: 2, err: plan.ConfigPath + `:3: unknown key "queues"; write "queue"`},
		{name: "two errors", text: "cpus_per_slot: -1\nmemory_per_slot: 8GB\n", code: 2, err: plan.ConfigPath + `:2: "8GB" is not a size`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := machinetest.B200x8().Dir(t)
			must.Write(t, root, plan.ConfigPath, tt.text)
			got := kbnode(t, append([]string{"plan", "--json", "--root", root}, tt.args...)...)
			if got.code != tt.code || !strings.Contains(got.out, tt.out) || !strings.Contains(got.err, tt.err) || tt.code != 0 && !strings.HasPrefix(got.out, "{\n  \"schema\": 1,\n  \"error\": ") {
				t.Errorf("code %d, err %q; want code %d with %q or %q", got.code, got.err, tt.code, tt.out, tt.err)
			}
			if tt.code == 2 && strings.Contains(tt.err, ":") && !strings.HasPrefix(got.err, "kbnode: "+root) {
				t.Errorf("%q does not name the file as the user can open it", got.err)
			}
		})
	}
}

// TestConfigFileIsWrittenWhereItMustBe checks that the plan writes the configuration file only
// if it must: writing it could undo an edit made meanwhile.
func TestConfigFileIsWrittenWhereItMustBe(t *testing.T) {
	t.Parallel()
	const contentKept = "kept"
	ours := "# " + plan.Marker + "\n"
	for _, tt := range []struct {
		name, text string
		args       []string
		want       string // content to write, or kept; "" if the file is not planned
	}{
		{name: "none yet", args: []string{"--queue", "a"}, want: "queue: a"},
		{name: "all is said", text: ours + "queue: a # why\n", want: contentKept},
		{name: "said again", text: ours + "queue: a\n", args: []string{"--queue", "a"}, want: contentKept},
		{name: "a new wish", text: ours + "queue: a\n", args: []string{"--queue", "b"}, want: "queue: b"},
		{name: "by hand", text: "queue: a\n"},
	} {
		root := machinetest.B200x8().Dir(t)
		if tt.text != "" {
			must.Write(t, root, plan.ConfigPath, tt.text)
		}
		p, got := planned(t, append([]string{"--root", root}, tt.args...)...), ""
		if i := slices.IndexFunc(p.Files, func(f plan.File) bool { return f.Path == plan.ConfigPath }); i >= 0 && p.Files[i].ModeOnly {
			got = contentKept + p.Files[i].Content
		} else if i >= 0 {
			got = p.Files[i].Content
		}
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) || tt.want == contentKept && got != contentKept {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestKeptBindings(t *testing.T) {
	t.Parallel()
	root := machinetest.B200x8().Dir(t)
	must.Write(t, root, plan.BindingsPath, "{")
	if got := kbnode(t, "plan", "--json", "--root", root); got.code != 1 || !strings.Contains(got.out, "read slot bindings") {
		t.Errorf("not JSON: %+v", got)
	}
	// The first slot keeps the last GPU.
	must.Write(t, root, plan.BindingsPath, `{"written_by": "kbnode", "schema": 1, "slots": [{"slot": 0, "uuid": "GPU-29010000-0000-4000-8000-000000000008", "pci": "0000:df:00.0", "vendor": "nvidia", "model": "NVIDIA B200", "numa_node": 1, "memory_node": -1}]}`)
	must.Equal(t, "0000:df:00.0", planned(t, "--root", root).Slots[0].GPUs[0].PCI)
}

func TestChangeLines(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		c    reconcile.Change
		want string
	}{
		{"new file without its content", reconcile.Change{Kind: reconcile.Create, Subject: "/etc/a", Diff: "+x\n"}, "+ create    /etc/a\n"},
		{"changed file with what changes", reconcile.Change{Kind: reconcile.Update, Subject: "/etc/a", Diff: "-x\n+y\n"}, "~ update    /etc/a\n    -x\n    +y\n"},
		{"deferred", reconcile.Change{Kind: reconcile.Restart, Subject: "a.service", Why: "its unit changed", Deferred: "waits for job 7"}, "~ restart   a.service: its unit changed; waits for job 7\n"},
		{"stopped", reconcile.Change{Kind: reconcile.Drain, Subject: "a.service"}, "- drain     a.service\n"},
	} {
		var b strings.Builder
		printChange(&b, tt.c)
		must.Equal(t, tt.want, b.String())
	}
}

// TestMigrationCommand runs what docs/migration.md has for setup-agent.sh, on the machines of
// the guide that it comes from.
func TestMigrationCommand(t *testing.T) {
	t.Parallel()
	line := regexp.MustCompile("`setup-agent.sh [^`]*`[^|]*\\| `kbnode install ([^`]*)`").FindStringSubmatch(must.Read(t, "../../docs/migration.md"))
	if line == nil {
		t.Fatal("the page has no command for setup-agent.sh")
	}
	for _, m := range []machinetest.Machine{machinetest.GuideH100(), machinetest.GuideH100SMT()} {
		p := planned(t, append([]string{"--root", m.Dir(t)}, strings.Fields(strings.ReplaceAll(line[1], "'", ""))...)...)
		if len(p.Slots) != 8 {
			t.Fatalf("%s: %d slots", m.Name, len(p.Slots))
		}
		for i, s := range p.Slots {
			if cpus, err := cpuset.Parse(s.CPUs); err != nil || cpus.Len() != 16 || s.MemoryBytes < 30<<30 || s.Queue != fmt.Sprintf("nvidia-h100-%d", i) {
				t.Errorf("%s: %+v", m.Name, s)
			}
		}
	}
}

// TestPlanOfHooks warns of a hook that would not run.
func TestPlanOfHooks(t *testing.T) {
	t.Parallel()
	root := machinetest.B200x8().Dir(t)
	file := must.Write(t, t.TempDir(), "node.yaml", "queue: b200\njob: {prolog: /usr/local/sbin/slot-prolog}\n")
	got := kbnode(t, "plan", "--root", root, "--config", file)
	must.Contain(t, strings.Join(strings.Fields(got.out+got.err), " "), "job.prolog: /usr/local does not exist; put the program there, or name another")
}
