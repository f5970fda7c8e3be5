//go:build vm

package vm_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// synchronize tells the kernel that something sets its clock, as NTP does: adjtimex(2), call 159, with ADJ_MAXERROR, ADJ_ESTERROR and
// ADJ_STATUS. What ends at a time is else believed ten minutes later.
const synchronize = `perl -e '$t = pack("Lx4q4lx164", 0x1c, 0, 0, 0, 0, 0); syscall(159, $t) >= 0 or die $!'`

// twoNodes are two nodes with two slots each and one Buildkite, which runs on the first.
func twoNodes(t *testing.T) (first, second *vm.Machine) {
	t.Helper()
	first, second = forked(t), forked(t)
	vm.Join(first, second, "b200-other")
	install := second.Start("bash", "-c", installCommand+" --gpu-count 2")
	first.Sh(installCommand + " --gpu-count 2")
	if r := install.Wait(); r.Code != 0 {
		t.Fatalf("install on the second: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	first.Sh("bkstub wait-agents --count 4 --timeout 5m")
	second.Sh(synchronize)
	return first, second
}

// TestTwoNodes is what an operator does with two nodes from one place, and what a node does alone meanwhile.
func TestTwoNodes(t *testing.T) {
	t.Parallel()
	first, second := twoNodes(t)
	queue := func() string { return first.Try(api + "kbnode queue b200").Stdout }
	sees := func(what, pattern string) {
		t.Helper()
		first.Wait(what, fmt.Sprintf("%skbnode queue b200 | grep -E %q", api, pattern))
	}
	if out := queue(); !regexp.MustCompile(`(?m)^b200-node +2 +2 +0 `).MatchString(out) || !strings.Contains(out, "b200-other") {
		t.Errorf("the queue: %s", out)
	}

	t.Run("jobs on both", func(t *testing.T) {
		steps := "steps:\n"
		for range 4 {
			steps += strings.TrimPrefix(strings.ReplaceAll(sleeping, `, gpu-index: "%d"`, ""), "steps:\n")
		}
		first.Put("/root/four.yml", 0o600, steps)
		jobs := first.Start("bash", "-c", "bkstub submit --queue b200 --steps /root/four.yml --wait")
		for _, m := range []*vm.Machine{first, second} {
			m.Wait("two containers", "[ $(docker ps -q | wc -l) = 2 ]")
		}
		sees("four that are busy", "4 busy")
		first.Sh("pkill -f '^sleep 3600'")
		second.Sh("pkill -f '^sleep 3600'")
		if r := jobs.Wait(); r.Code != 0 || strings.Count(r.Stdout, "slept well") < 4 {
			t.Errorf("four jobs: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
	})

	t.Run("a drain that ends", func(t *testing.T) {
		drain := `kbnode drain gpu1 --reason "new fan" --until "$(date -d '+%d min' +%%Y-%%m-%%dT%%H:%%M)"`
		second.Sh(fmt.Sprintf(drain, 90))
		sees("why", "b200-other.*gpu1 .*drained.*: by operator until .*: new fan")
		second.Sh(fmt.Sprintf(drain, 2))
		second.Wait("its end", "kbnode events | grep -q 'gpu1 may take jobs again'")
		first.Sh("bkstub wait-agents --count 4 --timeout 5m")
	})

	t.Run("a reboot when the jobs are done", func(t *testing.T) {
		second.Put("/root/sleep.yml", 0o600, strings.Replace(fmt.Sprintf(sleeping, 1), "queue: b200", "queue: b200, node: b200-other", 1))
		job := second.Start("bash", "-c", "bkstub submit --queue b200 --steps /root/sleep.yml --wait >/root/job.log 2>&1")
		second.Wait("the job's container", "docker ps -q | grep -q .")
		agents := first.Sh("systemctl show -P MainPID buildkite-agent-gpu0 buildkite-agent-gpu1")
		second.Sh("kbnode drain gpu0 --reason 'stays so'; kbnode drain --all --reboot --yes --reason kernel")
		sees("that it waits", "1 draining")
		must.Equal(t, "0", second.Try("systemctl is-system-running | grep -c stopping").Stdout[:1])
		second.RebootsBy("pkill -f '^sleep 3600'")
		_ = job // it ended with the machine, or before
		second.Sh(synchronize)
		second.Wait("its slots", "kbnode status --json | jq -e '.slots[1].agent == \"idle\" and .slots[0].agent == \"drained\"'")
		must.Contain(t, second.Sh("kbnode events"), "the machine reboots")
		must.Equal(t, agents, first.Sh("systemctl show -P MainPID buildkite-agent-gpu0 buildkite-agent-gpu1"))
		if out := first.Sh("bkstub builds 2>/dev/null || true"); strings.Contains(out, "failed") {
			t.Errorf("builds: %s", out)
		}
		second.Sh("kbnode resume gpu0")
		first.Sh("bkstub wait-agents --count 4 --timeout 5m")
	})

	t.Run("a loan that ends", func(t *testing.T) {
		second.Sh(`kbnode install --yes --loan-until "$(date -d '+2 min' +%Y-%m-%dT%H:%M)"`)
		sees("the loan's end", "loan ended")
		must.Contain(t, second.Sh("kbnode events"), "loan ended")
		if out := queue(); !strings.Contains(out, "b200-node") {
			t.Errorf("the other node: %s", out)
		}
		second.Sh(`sed -i '/^loan:/,/until:/d' /etc/kbnode/config.yaml`)
		first.Sh("bkstub wait-agents --count 4 --timeout 5m")
	})

	t.Run("a node that is cut off", func(t *testing.T) {
		second.Unplug()
		sees("that it is gone", "b200-other.* gone")
		second.Plug()
		first.Sh("bkstub wait-agents --count 4 --timeout 15m")
	})
}
