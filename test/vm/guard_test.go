//go:build vm

package vm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// step is a job in an image on one slot, with options of the docker plugin.
func step(slot int, image, command, options string) string {
	return fmt.Sprintf(`steps:
  - command: |
      %s
    agents: {queue: b200, gpu-index: "%d"}
    plugins:
      - docker#v5.11.0: {image: "%s", gpus: all, propagate-environment: true%s}
`, strings.ReplaceAll(command, "\n", "\n      "), slot, image, options)
}

// runStep runs a step to its end and returns what bkstub printed, the log too.
func runStep(m *vm.Machine, slot int, steps string, flags ...string) vm.Result {
	file := fmt.Sprintf("/root/steps-%d.yml", slot)
	m.Put(file, 0o600, steps)
	return m.Try("bkstub submit --queue b200 --wait --steps " + file + " " + strings.Join(flags, " ") + " 2>&1")
}

// idle says that a slot has no container and takes jobs.
func idle(t *testing.T, m *vm.Machine, slot int) {
	t.Helper()
	if got := m.Sh(fmt.Sprintf("ls -d /sys/fs/cgroup/buildkite.slice/buildkite-gpu%d.slice/docker-* 2>/dev/null || true; ls /run/kbnode/gpu%d/mounts 2>/dev/null || true", slot, slot)); got != "" {
		t.Errorf("slot %d is not clean: %s", slot, got)
	}
	if r := runStep(m, slot, step(slot, "busybox:test", "echo next job", "")); r.Code != 0 || !strings.Contains(r.Stdout, "next job") {
		t.Errorf("slot %d does not take the next job: %s", slot, r.Stdout)
	}
}

// TestGuard sends jobs in the shape of the existing pipelines to a node, and then hostile ones, when the node's
// operator has narrowed what they may do.
func TestGuard(t *testing.T) {
	t.Parallel()
	m := installed(t)
	compatibleJobs(t, m)
	m.Sh(`sed -i '/^job:/,$d' /etc/kbnode/config.yaml; printf 'job:\n  profile: strict\n' >>/etc/kbnode/config.yaml; kbnode reconcile`)
	m.Sh("bkstub wait-agents --count 8 --timeout 3m")

	t.Run("strict", func(t *testing.T) {
		out := runStep(m, 5, step(5, "busybox:test", `id; grep -E "^(CapEff|CapBnd|NoNewPrivs)" /proc/self/status
ls /sys/class/net
touch /anywhere || echo root is read-only
cp /bin/busybox /tmp/echo && /tmp/echo runs from tmp
echo "{}" >result.json && echo checkout is writable
echo HOME is $$HOME`, `, user: root, privileged: false`)).Stdout
		for _, want := range []string{
			fmt.Sprintf("uid=%d ", plan.JobUID(5)), "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1",
			"root is read-only", "runs from tmp", "checkout is writable", "HOME is /tmp",
		} {
			must.Contain(t, out, want)
		}
		if strings.Contains(out, "eth0") {
			t.Error("the job has a network")
		}
		if t.Failed() {
			t.Log(out)
		}
		// Without root's privileges, the payload is out of the submission's sight all the same.
		e := evaluations{m: m}
		hostile := e.submit(5, "exec kbnode runner", config(t, "hostile.py", map[string]any{
			"benchmarks": []any{map[string]string{"note": "for-the-jury-only"}},
		}))
		r := e.wait(t, hostile, "passed")
		run := r.Result.Runs["test"].Run
		if run == nil || run.Passed || r.Result.Forged {
			t.Fatalf("a hostile submission: %+v", r.Result)
		}
		if strings.Contains(run.Stdout, "SECRET") || !strings.Contains(run.Stdout, "run process 1 environ - Permission denied") {
			t.Errorf("the submission saw\n%s", run.Stdout)
		}
		if out := m.Sh("bkstub submit --queue b200 --wait --json"); !strings.Contains(out, `"success":true`) && !strings.Contains(out, `"success": true`) {
			t.Errorf("an evaluation in the strict profile: %s", out)
		}
	})
}
