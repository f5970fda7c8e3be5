package cli

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/doctor"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
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
	missing := func(slot int, why string) doctor.Finding {
		return doctor.Finding{Status: doctor.Fail, Slots: []int{slot}, Detail: why, Fix: "kbnode reconcile"}
	}
	bad := &doctor.Report{Checks: []doctor.Result{
		one("config", "node", doctor.Finding{Status: doctor.OK, Detail: "no file"}),
		one("plan", "node", doctor.Finding{Status: doctor.OK, Detail: "8 slots"}),
		one("gpu-present", "gpu", doctor.Finding{Status: doctor.Fail, Slots: []int{3}, Detail: "GPU " + uuid + " at 0000:82:00.0 is missing", Advice: "reboot"}, doctor.Finding{Status: doctor.OK, Detail: "7 GPUs"}),
		skip("amd-driver", "gpu", "no AMD GPU"),
		skip("amd-partitions", "gpu", "no AMD GPU"),
		skip("nvidia-mig", "gpu", "no MIG"),
		one("agent-hooks", "agent", missing(0, "no hook"), missing(4, "no hook"), missing(5, "old hook")),
		one("agent-socket", "agent", missing(5, "no socket")),
		one("noise-swap", "noise", doctor.Finding{Status: doctor.Warn, Detail: strings.Repeat("swap is on ", 7) + "again", Fix: "swapoff -a && echo 0 >/x"}),
		one("noise-smt", "noise", doctor.Finding{Status: doctor.OK, Detail: "none"}),
	}}
	var all strings.Builder
	for _, how := range []verbosity{normal, onlyProblems, everyCheck} {
		printDoctor(&all, bad, how)
		all.WriteString("----\n")
	}
	lost := &doctor.Report{Checks: []doctor.Result{
		one("plan", "node", doctor.Finding{Status: doctor.Fail, Detail: "no GPU", Advice: "see the page"}),
		one("nvidia-driver", "gpu", doctor.Finding{Status: doctor.Fail, Detail: "not loaded", Fix: "modprobe nvidia"}),
		one("docker-engine", "docker", doctor.Finding{Status: doctor.Fail, Detail: "not installed", Advice: "install it"}),
	}}
	printDoctor(&all, lost, normal)
	all.WriteString("----\n")
	printDoctor(&all, &doctor.Report{Cut: true, Checks: []doctor.Result{
		one("system-systemd", "system", doctor.Finding{Status: doctor.Fail, Detail: "this is a container", Advice: "run kbnode on the host"}),
	}}, normal)
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

func TestPrintSelftest(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]doctor.Finding{
		"Everything held in the slots that were tried.": {Detail: "60 attempts, all blocked"},
		"NOT HELD.": {Status: doctor.Fail, Detail: "open /dev/sda: saw ok", Advice: "reconcile"},
		"No slot could be tried; try again when one is idle.": {Status: doctor.Skip, Detail: "it is busy"},
	} {
		var b strings.Builder
		r := &doctor.Report{Fit: f.Status != doctor.Fail, Checks: []doctor.Result{{ID: "escape", Group: "selftest", Status: f.Status, Findings: []doctor.Finding{f}}}}
		printSelftest(&b, r, normal)
		if got := b.String(); !strings.HasSuffix(got, "\n"+want+"\n") || !strings.Contains(got, f.Detail) {
			t.Errorf("%s; want %s", got, want)
		}
	}
	var b strings.Builder
	printSelftest(&b, &doctor.Report{Checks: []doctor.Result{{ID: "plan", Status: doctor.Fail, Findings: []doctor.Finding{{Status: doctor.Fail, Detail: "no GPU"}}}, {ID: "image-large", Group: "selftest", Status: doctor.OK}, {ID: "escape", Group: "selftest", Status: doctor.Skip}}}, normal)
	if got := b.String(); !strings.Contains(got, "no GPU") || !strings.Contains(got, "No slot could be tried") {
		t.Errorf("without a plan: %s", got)
	}
	for how, want := range map[verbosity]string{normal: "skip  slot 5: it is busy\n", everyCheck: "ok  slots 0-4: 60 attempts, all blocked\nskip  slot 5: it is busy\n"} {
		var b strings.Builder
		findings := []doctor.Finding{{Slots: []int{0, 1, 2, 3, 4}, Detail: "60 attempts, all blocked"}, {Slots: []int{5}, Status: doctor.Skip, Detail: "it is busy"}}
		printSelftest(&b, &doctor.Report{Fit: true, Checks: []doctor.Result{{ID: "escape", Group: "selftest", Findings: findings}}}, how)
		if got := b.String(); !strings.Contains(got, "\n"+want+"\nEverything held") {
			t.Errorf("%s; want %s", got, want)
		}
	}
}

func TestPrintAcceptance(t *testing.T) {
	t.Parallel()
	report := &doctor.Report{Fit: true, Checks: []doctor.Result{
		{ID: "config", Group: "node", Findings: []doctor.Finding{{Detail: "no file"}}},
		{ID: "accept-restart", Group: "acceptance", Status: doctor.Skip, Findings: []doctor.Finding{{Status: doctor.Skip, Detail: "no slot is idle"}}},
	}}
	full := config.Config{Image: config.Image{Name: "ghcr.io/x:1"}}
	m := &doctor.Machine{Config: &full, Now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Plan: &plan.Plan{Node: "n1", Slots: []plan.Slot{
		{Name: "gpu0", Queue: "b200", GPUs: []plan.SlotGPU{{Model: "NVIDIA B200", UUID: "GPU-1"}}}, {Name: "gpu1", Queue: "b200"},
	}}}
	var text strings.Builder
	printAcceptance(&text, doctor.Accept(m, report, "v1"))
	golden(t, "acceptance.txt", strings.ReplaceAll(text.String(), runtime.GOARCH, "ARCH"))
	report.Checks = report.Checks[:1]
	if out := doctor.Accept(m, report, "v1"); !out.Accepted {
		t.Errorf("%+v", out)
	}
}
