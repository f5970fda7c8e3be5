//go:build vm

package vm_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// lookAround is a job on each of these slots, all in one build, that says what its container has.
func lookAround(slots ...int) string {
	var b strings.Builder
	b.WriteString("steps:\n")
	for _, k := range slots {
		script := `ls /dev/nvidia? | tr '\n' ' '; echo "= devices $$KERNELBOT_GPU_INDEX"
    echo "$$CUDA_VISIBLE_DEVICES = GPU $$KERNELBOT_GPU_INDEX"
    echo "$$(sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status) = CPUs $$KERNELBOT_GPU_INDEX"
    echo "$$(sed -n 's/^Mems_allowed_list:\t//p' /proc/self/status) = nodes $$KERNELBOT_GPU_INDEX"
    echo "$$(cat /sys/fs/cgroup/memory.max) = memory $$KERNELBOT_GPU_INDEX"
    env | grep ^BUILDKITE_AGENT || true`
		b.WriteString(strings.TrimPrefix(step(k, "busybox:test", strings.ReplaceAll(script, "\n    ", "\n"), ", environment: [KERNELBOT_GPU_INDEX]"), "steps:\n"))
	}
	return b.String()
}

// intruder is a job, root in its container, that reaches for what is not its own.
const intruder = `set +e
mknod /gpu0 c 195 0 2>&1; (exec 3<>/dev/nvidia1) 2>&1
mount -t proc proc /mnt 2>&1; echo 0 >/proc/sys/kernel/panic; echo max >/sys/fs/cgroup/memory.max
for f in /var/run/docker.sock /run/kbnode /etc/buildkite-agent /var/lib/buildkite-agent /root/token; do if [ -e $$f ]; then echo "reached $$f"; fi; done
if wget -q -T 5 -O /dev/null http://127.0.0.1:8899/v3/metrics; then echo reached Buildkite; fi
(setsid sleep 4444 &); mkdir -p left/deep; touch left/deep/file; chmod 0 left
tail /dev/zero
echo went on`

// TestStory is a node's life on one machine that boots once: what must hold at every commit. Each
// part takes the node as the one before left it.
func TestStory(t *testing.T) {
	m := forked(t)
	var p plan.Plan
	part := func(name string, do func(t *testing.T)) {
		t.Helper()
		if !t.Run(name, do) {
			t.FailNow()
		}
	}
	planned := func(slots int) {
		t.Helper()
		p = plan.Plan{}
		if err := json.Unmarshal([]byte(m.Sh("kbnode plan --json")), &p); err != nil || len(p.Slots) != slots {
			t.Fatalf("%d slots are planned, want %d (%v)", len(p.Slots), slots, err)
		}
	}
	before := m.Sh(machineState)

	part("install", func(t *testing.T) {
		m.Sh(installStreaming + "; bkstub wait-agents --count 8 --timeout 5m")
		if r := m.Try("systemd-analyze verify /etc/systemd/system/*kbnode* /etc/systemd/system/buildkite* 2>&1"); r.Code != 0 || r.Stdout != "" {
			t.Errorf("units are not sound: exit code %d: %s", r.Code, r.Stdout)
		}
		m.Wait("streams", `for k in 0 1 2 3 4 5 6 7; do journalctl -u buildkite-agent-gpu$k | grep -q 'Ping stream connection established' || exit 1; done`)
		m.Wait("the daemon's first look", "test -e /var/lib/kbnode/health.json && kbnode status")
		state := m.Sh(writes)
		if out := m.Sh(installStreaming); !strings.Contains(out, "Nothing to change") {
			t.Errorf("a second install says %s", out)
		}
		must.Equal(t, state, m.Sh(writes))
		planned(8)
	})

	part("shares", func(t *testing.T) {
		for _, s := range p.Slots {
			got := m.Sh(fmt.Sprintf("cd /sys/fs/cgroup/buildkite.slice/buildkite-%s.slice; cat cpuset.cpus.effective cpuset.mems.effective memory.max memory.swap.max", s.Name))
			if diff := cmp.Diff(fmt.Sprintf("%s\n%s\n%d\n0", s.CPUs, s.MemoryNodes, s.MemoryBytes), got); diff != "" {
				t.Errorf("%s: %s", s.Name, diff)
			}
		}
		must.Equal(t, p.Reserved.CPUs, m.Sh("cat /sys/fs/cgroup/system.slice/cpuset.cpus.effective"))
		separate(t, m, p)
	})

	part("token", func(t *testing.T) {
		for what, script := range map[string]string{
			"its file":                "cat /etc/buildkite-agent/token",
			"the unit's properties":   "systemctl show buildkite-agent-gpu3 | grep bktest",
			"the agent's environment": "cat /proc/$(systemctl show -P MainPID buildkite-agent-gpu3)/environ",
			"the agent's memory":      "head -c1 /proc/$(systemctl show -P MainPID buildkite-agent-gpu3)/mem",
		} {
			if r := m.Try("runuser -u kbnode-gpu3 -- bash -c '" + script + "'"); r.Code == 0 || strings.Contains(r.Stdout, "bktest") {
				t.Errorf("the slot's user reads the token from %s: %s", what, r.Stdout)
			}
		}
		if got := m.Sh("cut -d= -f2 /root/token >/root/pattern; t='-f /root/pattern'; grep -rl --exclude=image $t /etc /run/systemd /var/lib/kbnode /var/lib/buildkite-agent 2>/dev/null; journalctl -b | grep -c $t || true; cat /proc/[0-9]*/cmdline 2>/dev/null | grep -c $t || true; rm /root/pattern"); got != "/etc/buildkite-agent/token\n0\n0" {
			t.Errorf("the token is in: %s", got)
		}
	})

	part("eight slots serve", func(t *testing.T) {
		together := [][]int{{0, 1, 2, 3, 4, 5, 6, 7}}
		if m.Limit(time.Second) > 3*time.Second { // so slow that the engine takes minutes to start eight
			together = [][]int{{0, 1, 2, 3}, {4, 5, 6, 7}}
		}
		for i, slots := range together {
			m.Put(fmt.Sprintf("/root/look%d.yml", i), 0o600, lookAround(slots...))
		}
		r := m.Try("for look in /root/look*.yml; do bkstub submit --queue b200 --steps $look --wait 2>&1 && bkstub wait-agents --count 8 --timeout 5m >&2 || exit; done")
		must.Equal(t, 0, r.Code)
		for k, s := range p.Slots {
			for _, want := range []string{
				fmt.Sprintf("/dev/nvidia%d = devices %d", k, k), fmt.Sprintf("%s = GPU %d", s.GPUs[0].UUID, k),
				fmt.Sprintf("%s = CPUs %d", s.CPUs, k), fmt.Sprintf("%s = nodes %d", s.MemoryNodes, k), fmt.Sprintf("%d = memory %d", s.MemoryBytes, k),
			} {
				if !regexp.MustCompile(`(?m)(^|[^0-9/a-z])` + regexp.QuoteMeta(want) + `\r?$`).MatchString(r.Stdout) {
					t.Errorf("a job did not see %q", want)
				}
			}
		}
		for _, leak := range []string{"BUILDKITE_AGENT_ACCESS_TOKEN=", "BUILDKITE_AGENT_JOB_API_TOKEN=", "bktest-agent-token"} {
			if strings.Contains(r.Stdout, leak) {
				t.Errorf("a job saw %s", leak)
			}
		}
		if t.Failed() {
			t.Log(r.Stdout)
		}
	})

	part("a hostile job", func(t *testing.T) {
		log := runStep(m, 5, step(5, "busybox:test", intruder, "")).Stdout
		must.Contain(t, log, "mknod: /gpu0: Operation not permitted", "panic: Read-only file system", "memory.max: Read-only file system")
		for _, bad := range []string{"reached", "went on", "/dev/nvidia1: No such device or address"} {
			if strings.Contains(log, bad) {
				t.Errorf("the job saw %q", bad)
			}
		}
		if t.Failed() {
			t.Log(log)
		}
		must.Equal(t, "", m.Try("pgrep -f 'sleep 4444'").Stdout)
		idle(t, m, 5)
		// Clearing for the next agent ends what runs in the slot.
		m.Wait("a container", `docker run --rm --privileged --cgroup-parent buildkite-gpu5.slice busybox:test sh -c '
			for k in 0 1 2 3 4 5 6 7; do mknod /gpu$k c 195 $k; (exec 3<>/gpu$k) 2>&1; done' >/root/opened || true; grep -q /gpu7: /root/opened`)
		log = m.Sh("cat /root/opened; rm /root/opened")
		for k := range 8 {
			says := regexp.MustCompile(fmt.Sprintf(`/gpu%d: (.*)`, k)).FindString(log)
			if want := map[bool]string{true: "No such device or address", false: "Operation not permitted"}[k == 5]; !strings.Contains(says, want) {
				t.Errorf("opening GPU %d in a privileged container of slot 5 says %q, want %q", k, says, want)
			}
		}
	})

	part("a change that waits for a job", func(t *testing.T) {
		wake := asleep(t, m, 2)
		runs := m.Sh("docker ps -q; systemctl show -P MainPID buildkite-agent-gpu2")
		// From here on, two slots: the emulator pays for each agent.
		if out := m.Sh(installStreaming + " --gpu-count 2"); !strings.Contains(out, "later: ") || !strings.Contains(out, "waits for job") {
			t.Errorf("a changed install during a job says %s", out)
		}
		must.Equal(t, runs, m.Sh("docker ps -q; systemctl show -P MainPID buildkite-agent-gpu2"))
		wake()
		// The daemon continues by itself.
		m.Wait("two slots", "kbnode status && ! ls -d /sys/fs/cgroup/buildkite.slice/buildkite-gpu[2-7].slice 2>/dev/null")
		m.Sh("bkstub wait-agents --count 2 --timeout 5m")
		planned(2)
		separate(t, m, p)
	})

	part("drain and resume", func(t *testing.T) {
		if out := m.Sh("kbnode drain gpu1 --reason 'new fan' --wait"); !strings.Contains(out, "gpu1: drained") {
			t.Errorf("drain says %s", out)
		}
		slotIs(t, m, 1, "drained", "")
		m.Wait("its reason in Buildkite", api+"kbnode queue b200 | grep -q 'gpu1 drained.*: by operator: new fan'")
		m.Sh("kbnode resume gpu1; bkstub wait-agents --count 2 --timeout 5m")
		idle(t, m, 1)
		m.Wait("no reason in Buildkite", api+"kbnode queue b200 --agents | grep -c '^b200-node-gpu1 ' | grep -q '^1$'")
	})

	part("another agent and back, beside a job", func(t *testing.T) {
		old, err := os.ReadFile(os.Getenv("OLD_AGENT"))
		must.Do(t, err)
		m.Put("/root/agent-old", 0o755, string(old))
		m.Sh("kbnode upgrade --agent-binary /root/agent-old --wait; bkstub wait-agents --count 2 --timeout 5m")
		must.Contain(t, m.Try("kbnode doctor --only agent-version").Stdout, "3.76.2", "2027-01-01", "sudo kbnode upgrade --agent-version "+plan.PinnedAgentVersion)
		wake := asleep(t, m, 1)
		upgrade := m.Start("kbnode", "upgrade", "--agent-version", plan.PinnedAgentVersion, "--wait")
		// status exits with 1 while slot 1 waits.
		m.Wait("the idle slot", `(kbnode status --json || true) | jq -e '.slots[0].agent == "idle"' && ! pgrep -u kbnode-gpu0 -f agents/3.76.2 && pgrep -u kbnode-gpu1 -f agents/3.76.2`)
		wake()
		if r := upgrade.Wait(); r.Code != 0 {
			t.Errorf("upgrade: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		m.Sh("rm /root/agent-old; bkstub wait-agents --count 2 --timeout 5m")
		m.Wait("streams", `for k in 0 1; do journalctl _SYSTEMD_INVOCATION_ID=$(systemctl show -P InvocationID buildkite-agent-gpu$k) | grep -q 'Ping stream connection established' || exit 1; done`)
		if r := m.Try("kbnode doctor --only agent-version,agent-endpoint"); r.Code != 0 {
			t.Errorf("doctor: exit %d: %s", r.Code, r.Stdout)
		}
	})

	part("a GPU lost and back", func(t *testing.T) {
		m.Sh("sim-gpu lose 1")
		slotIs(t, m, 1, "parked", "missing")
		m.Wait("its reason in Buildkite", api+"kbnode queue b200 | grep -q 'gpu1 parked: '")
		slotIs(t, m, 0, "idle", "")
		m.Sh("sim-gpu restore 1; bkstub wait-agents --count 2 --timeout 5m")
		slotIs(t, m, 1, "idle", "")
	})

	part("reboot", func(t *testing.T) {
		m.Reboot()
		m.Sh("bkstub wait-agents --count 2 --timeout 5m")
		m.Wait("all slots as planned", "kbnode status")
		if out := m.Sh("bkstub submit --queue b200 --wait --json"); !regexp.MustCompile(`"success": ?true`).MatchString(out) {
			t.Errorf("an evaluation: %s", out)
		}
	})

	part("uninstall", func(t *testing.T) {
		wake := asleep(t, m, 1)
		uninstall := m.Start("bash", "-c", "kbnode uninstall >/run/uninstall.log 2>&1")
		m.Wait("uninstall to wait for the job", "grep -q 'waiting for job' /run/uninstall.log")
		wake()
		if r := uninstall.Wait(); r.Code != 0 {
			t.Errorf("uninstall: exit %d: %s", r.Code, m.Sh("cat /run/uninstall.log"))
		}
		m.Sh("rm -f /root/*.yml /run/uninstall.log")
		must.Equal(t, before, m.Sh(machineState))
	})
}

// separate says that no two slots share a CPU or a core.
func separate(t *testing.T, m *vm.Machine, p plan.Plan) {
	t.Helper()
	siblings := strings.Split(m.Sh("cat $(ls -v /sys/devices/system/cpu/cpu*/topology/thread_siblings_list)"), "\n")
	var taken cpuset.Set
	for _, s := range p.Slots {
		cpus, err := cpuset.Parse(s.CPUs)
		must.Do(t, err)
		if !cpus.Difference(taken).Equal(cpus) {
			t.Errorf("%s shares CPUs %s with another slot", s.Name, cpus)
		}
		taken = taken.Union(cpus)
		for _, cpu := range cpus.Ints() {
			core, err := cpuset.Parse(siblings[cpu])
			if err != nil || !core.Difference(cpus).Equal(cpuset.Set{}) {
				t.Errorf("%s has CPU %d and not all of its siblings %s (%v)", s.Name, cpu, core, err)
			}
		}
	}
}
