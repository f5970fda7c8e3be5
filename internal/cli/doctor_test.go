package cli

import (
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/acceptance"
	"github.com/gpu-mode/kbnode/internal/doctor"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/selftest"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestPrintDoctor(t *testing.T) {
	t.Parallel()
	skip := func(id, group, why string) doctor.Result {
		return doctor.Result{ID: id, Group: group, Status: doctor.Skip, Detail: why}
	}
	one := func(id, group string, f ...doctor.Finding) doctor.Result {
		return doctor.Result{ID: id, Group: group, Status: f[0].Status, Findings: f}
	}
	const uuid = "GPU-6c1d4f0a-93b2-4e57-8a1c-0d5e7f2a3b03"
	guard := func(slot int, why string) doctor.Finding {
		return doctor.Finding{Status: doctor.Fail, Slots: []int{slot}, Detail: why, Fix: "kbnode reconcile"}
	}
	bad := &doctor.Report{Checks: []doctor.Result{
		one("config", "node", doctor.Finding{Status: doctor.OK, Detail: "no file"}),
		one("plan", "node", doctor.Finding{Status: doctor.OK, Detail: "8 slots"}),
		one("gpu-present", "gpu", doctor.Finding{Status: doctor.Fail, Slots: []int{3}, Detail: "GPU " + uuid + " at 0000:82:00.0 is missing", Advice: "reboot"}, doctor.Finding{Status: doctor.OK, Detail: "7 GPUs"}),
		skip("amd-driver", "gpu", "no AMD GPU"),
		skip("amd-partitions", "gpu", "no AMD GPU"),
		skip("nvidia-mig", "gpu", "no MIG"),
		one("agent-hooks", "agent", guard(0, "no hook"), guard(4, "no hook"), guard(5, "old hook")),
		one("agent-guard", "agent", guard(5, "no socket")),
		one("noise-swap", "noise", doctor.Finding{Status: doctor.Warn, Detail: strings.Repeat("swap is on ", 7) + "again", Fix: "swapoff -a && echo 0 >/x"}),
		one("noise-smt", "noise", doctor.Finding{Status: doctor.OK, Detail: "none"}),
	}}
	var all strings.Builder
	for _, how := range []verbosity{normal, onlyProblems, everyCheck} {
		printDoctor(&all, bad, how)
		all.WriteString("----\n")
	}
	golden(t, "doctor.txt", all.String())
	var out strings.Builder
	printDoctor(&out, &doctor.Report{Fit: true, Checks: bad.Checks[:1]}, onlyProblems)
	if out.Len() > 0 {
		t.Errorf("nothing is wrong: %s", &out)
	}
	printDoctor(&out, &doctor.Report{Fit: true, Checks: bad.Checks[:1]}, normal)
	if !strings.HasSuffix(out.String(), "\nFIT: 0 failed, 0 warnings, 1 ok, 0 skipped.\n") {
		t.Error(out.String())
	}
}

func TestAsRoot(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		"kbnode reconcile":                                      "sudo kbnode reconcile",
		"apt-get update && apt-get install -y git":              "sudo apt-get update && sudo apt-get install -y git",
		"sudo dmesg; nvidia-smi":                                "sudo dmesg; sudo nvidia-smi",
		"sed -i 's/a && b;c/$x/' /etc/x && systemctl restart x": "sudo sed -i 's/a && b;c/$x/' /etc/x && sudo systemctl restart x",
		"echo 'a' >/etc/x":                                      `sudo sh -c 'echo '\''a'\'' >/etc/x'`,
		"for g in 1 2; do nvidia-smi -i $g; done":               "sudo sh -c 'for g in 1 2; do nvidia-smi -i $g; done'",
		"echo 1 | tee /sys/x":                                   "sudo sh -c 'echo 1 | tee /sys/x'",
	} {
		if got := asRoot(command); got != want {
			t.Errorf("%s: %s; want %s", command, got, want)
		}
	}
}

func TestPrintAcceptance(t *testing.T) {
	t.Parallel()
	out := &acceptance.Report{
		Node: "n1", Kbnode: "v1", Queues: []string{"b200"}, GPUs: []string{"gpu0: NVIDIA B200, GPU-1"}, Image: "ghcr.io/x:1",
		Time: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Items: []acceptance.Item{
			{ID: "doctor", About: "the node is fit", Verdict: acceptance.Passed, Saw: "90 checks", Seconds: 12.34},
			{ID: "restart", About: "an agent is back", Verdict: acceptance.Untried, Saw: "no slot is idle", Do: "again"},
		},
	}
	var text strings.Builder
	printAcceptance(&text, out)
	golden(t, "acceptance.txt", strings.ReplaceAll(text.String(), runtime.GOARCH, "ARCH"))
}

func TestSelftestOutput(t *testing.T) {
	t.Parallel()
	held := selftest.Check{Group: "plan", Tried: "everything", Saw: "as planned", Held: true}
	itself := selftest.SlotReport{Slot: "node", Index: -1, Checks: []selftest.Check{held}}
	var many []selftest.Check
	for i := range 20 {
		many = append(many, selftest.Check{Group: "container", Tried: fmt.Sprintf("open file %d", i), Saw: "ok", Do: "sudo kbnode reconcile"})
	}
	var all strings.Builder
	for _, tt := range []struct {
		name    string
		verbose bool
		slots   []selftest.SlotReport
	}{
		{"all held", false, []selftest.SlotReport{itself, {Slot: "gpu0", Checks: []selftest.Check{held, held}}}},
		{"in full", true, []selftest.SlotReport{itself, {Slot: "gpu0", Checks: []selftest.Check{held}}}},
		{"a busy slot", false, []selftest.SlotReport{itself, {Slot: "gpu0", Checks: []selftest.Check{held}}, {Slot: "gpu1", Index: 1, Skipped: "it is busy with job x"}}},
		{"nothing to try", false, []selftest.SlotReport{itself, {Slot: "gpu0", Skipped: "it is parked: away"}}},
		{"what did not hold, last and with what to type", false, []selftest.SlotReport{itself, {Slot: "gpu0", Checks: append([]selftest.Check{held}, many...)}}},
		{"the node itself", false, []selftest.SlotReport{{Slot: "node", Index: -1, Checks: many[:1]}, {Slot: "gpu0", Checks: []selftest.Check{held}}}},
	} {
		fmt.Fprintf(&all, "== %s\n", tt.name)
		printSelftest(&all, &node.SelftestReport{Slots: tt.slots}, tt.verbose)
	}
	golden(t, "selftest.txt", all.String())
}

// TestSelftestGroups checks that every group of checks is in the table, or it would run but never be
// shown, and in docs/security.md.
func TestSelftestGroups(t *testing.T) {
	t.Parallel()
	page := must.Read(t, "../../docs/security.md")
	shown := map[string]bool{}
	for _, g := range groups {
		shown[g.name] = true
		if !strings.Contains(page, "| "+g.name+" |") {
			t.Errorf("docs/security.md does not describe the group %q", g.name)
		}
	}
	files, err := filepath.Glob("../selftest/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files of selftest: %v", err)
	}
	for _, file := range files {
		text := must.Read(t, file)
		for _, m := range regexp.MustCompile(`(?:Group: |group(?:, tried)? *= )"([a-z ]+)"`).FindAllStringSubmatch(text, -1) {
			if !shown[m[1]] {
				t.Errorf("%s makes checks of the group %q, which is never shown", file, m[1])
			}
		}
	}
}
