package cli

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/acceptance"
	"github.com/gpu-mode/kbnode/internal/doctor"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/selftest"
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
	below := `
WARN  noise-swap: ` + strings.Repeat("swap is on ", 7) + `again
      type  sudo sh -c 'swapoff -a && echo 0 >/x'

FAIL  gpu-present: slot 3: GPU ` + uuid + ` at 0000:82:00.0 is missing
      do    reboot

FAIL  agent-hooks: slots 0,4: no hook
FAIL  agent-hooks: slot 5: old hook
FAIL  agent-guard: slot 5: no socket
      type  sudo kbnode reconcile

NOT FIT: 3 failed, 1 warning, 3 ok, 3 skipped.
`
	const table = `GROUP  CHECK             FOUND
node   2 checks    ok
gpu    2 checks    skip  no AMD GPU
       nvidia-mig  skip  no MIG
noise  noise-smt   ok    none
`
	const all = `GROUP  CHECK                 FOUND
node   config          ok    no file
       plan            ok    8 slots
gpu    amd-driver      skip  no AMD GPU
       amd-partitions  skip  no AMD GPU
       nvidia-mig      skip  no MIG
noise  noise-smt       ok    none
`
	for _, tt := range []struct {
		how  verbosity
		want string
	}{{normal, table + below}, {onlyProblems, below}, {everyCheck, all + below}} {
		var out strings.Builder
		printDoctor(&out, bad, tt.how)
		if diff := cmp.Diff(tt.want, out.String()); diff != "" {
			t.Errorf("%d: %s", tt.how, diff)
		}
	}
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
	want := `Node    n1
Time    2026-03-01 12:00:00 UTC
kbnode  v1, ` + runtime.GOARCH + `
Queue   b200
Image   ghcr.io/x:1
GPU     gpu0: NVIDIA B200, GPU-1

   ITEM              VERDICT    SECONDS
1  the node is fit   passed     12.3
2  an agent is back  NOT TRIED  0.0
 1. passed: 90 checks
 2. not tried: no slot is idle
    do  again

NOT ACCEPTED: 1 passed, 0 failed, 1 not tried, 0 by hand. Send all of this to the operators.
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Error(diff)
	}
}

func TestSelftestOutput(t *testing.T) {
	t.Parallel()
	held := selftest.Check{Group: "plan", Tried: "everything", Saw: "as planned", Held: true}
	itself := selftest.SlotReport{Slot: "node", Index: -1, Checks: []selftest.Check{held}}
	var many []selftest.Check
	for i := range 20 {
		many = append(many, selftest.Check{Group: "container", Tried: fmt.Sprintf("open file %d", i), Saw: "ok", Do: "sudo kbnode reconcile"})
	}
	for name, row := range map[string]struct {
		slots []selftest.SlotReport
		flags bool
		want  []string
		not   []string
	}{
		"all held": {
			slots: []selftest.SlotReport{itself, {Slot: "gpu0", Checks: []selftest.Check{held, held}}},
			want:  []string{"gpu0  plan", "2 held", "\nEverything held in 1 slot.\n"},
			not:   []string{"NOT HELD", "as planned"},
		},
		"in full": {
			slots: []selftest.SlotReport{itself, {Slot: "gpu0", Checks: []selftest.Check{held}}}, flags: true,
			want: []string{"everything", "held: as planned"},
		},
		"a busy slot": {
			slots: []selftest.SlotReport{itself, {Slot: "gpu0", Checks: []selftest.Check{held}}, {Slot: "gpu1", Index: 1, Skipped: "it is busy with job x"}},
			want:  []string{"skipped: it is busy with job x", "Everything held in 1 slot; 1 slot was skipped."},
		},
		"nothing to try": {
			slots: []selftest.SlotReport{itself, {Slot: "gpu0", Skipped: "it is parked: away"}},
			want:  []string{"No slot could be tried, all are busy or parked"},
		},
		"what did not hold, last and with what to type": {
			slots: []selftest.SlotReport{itself, {Slot: "gpu0", Checks: append([]selftest.Check{held}, many...)}},
			want: []string{
				"20 of 20 did not hold", "NOT HELD  gpu0, container: open file 0\n  found ok\n  type  sudo kbnode reconcile\n",
				"open file 7", `12 more of "container"`, "\nNOT HELD: gpu0.\n",
			},
			not: []string{"open file 8"},
		},
		"the node itself": {
			slots: []selftest.SlotReport{{Slot: "node", Index: -1, Checks: many[:1]}, {Slot: "gpu0", Checks: []selftest.Check{held}}},
			want:  []string{"NOT HELD: node."},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b bytes.Buffer
			printSelftest(&b, &node.SelftestReport{Slots: row.slots}, row.flags)
			contain(t, b.String(), row.want...)
			for _, not := range row.not {
				if strings.Contains(b.String(), not) {
					t.Errorf("says %q:\n%s", not, b.String())
				}
			}
		})
	}
}

// TestSelftestGroups checks that every group of checks is in the table, or it would run but never be
// shown, and in docs/security.md.
func TestSelftestGroups(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, g := range groups {
		shown[g.name] = true
		if !strings.Contains(string(page), "| "+g.name+" |") {
			t.Errorf("docs/security.md does not describe the group %q", g.name)
		}
	}
	for _, file := range []string{"agent.go", "containers.go", "devices.go", "judge.go", "node.go", "selftest.go", "slot.go"} {
		text, err := os.ReadFile("../selftest/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:Group: |group(?:, tried)? *= )"([a-z ]+)"`).FindAllStringSubmatch(string(text), -1) {
			if !shown[m[1]] {
				t.Errorf("%s makes checks of the group %q, which is never shown", file, m[1])
			}
		}
	}
}
