//go:build vm

package vm_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/doctor"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// breakage is one thing that is wrong with a node.
type breakage struct {
	name   string
	breaks string   // by hand, as root
	check  string   // that says so
	also   []string // checks that may say so too
	// fix is typed if the check names no command.
	fix   string
	after string // what a test has to put back beside it
}

// The daemon is stopped meanwhile: it would fix much of this itself.
var breakages = []breakage{
	{name: "an unknown key", breaks: "echo 'colour: red' >>/etc/kbnode/config.yaml", check: "config", fix: "sed -i /colour/d /etc/kbnode/config.yaml"},
	{name: "half a file of bindings", breaks: "cp /var/lib/kbnode/slots.json /root/slots; echo '{\"slo' >/var/lib/kbnode/slots.json", check: "plan", fix: "cp /root/slots /var/lib/kbnode/slots.json"},
	{name: "a unit edited by hand", breaks: "echo '# by hand' >>/etc/systemd/system/kbnode-job-gpu1@.service", check: "as-planned"},
	{name: "a stopped socket", breaks: "systemctl stop kbnode-job-gpu4.socket", check: "agent-socket", also: []string{"as-planned"}},
	{name: "a stopped agent", breaks: "systemctl stop buildkite-agent-gpu2", check: "agent-running", also: []string{"as-planned"}},
	{name: "memory.max by hand", breaks: "echo 1G >/sys/fs/cgroup/buildkite.slice/buildkite-gpu2.slice/memory.max", check: "slot-limits"},
	{name: "cpuset.cpus by hand", breaks: "cat /sys/fs/cgroup/buildkite.slice/buildkite-gpu0.slice/cpuset.cpus >/sys/fs/cgroup/buildkite.slice/buildkite-gpu1.slice/cpuset.cpus", check: "slot-limits"},
	{name: "a unit's own limits", breaks: "mkdir -p /etc/systemd/system/buildkite-agent-gpu3.service.d; printf '[Service]\nRestart=no\n' >/etc/systemd/system/buildkite-agent-gpu3.service.d/x.conf; systemctl daemon-reload", check: "agent-unit", after: "rm -rf /etc/systemd/system/buildkite-agent-gpu3.service.d; systemctl daemon-reload"},
	{name: "a token for all to read", breaks: "chmod 644 /etc/buildkite-agent/token", check: "agent-token", also: []string{"as-planned"}},
	{name: "an operator's hook that all may write", breaks: "printf '#!/bin/sh\n' >/etc/buildkite-agent/hooks/pre-exit; chmod 777 /etc/buildkite-agent/hooks/pre-exit", check: "agent-hooks", after: "rm /etc/buildkite-agent/hooks/pre-exit"},
	{name: "a second agent", breaks: "printf '[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n' >/etc/systemd/system/buildkite-agent.service; systemctl daemon-reload; systemctl enable -q --now buildkite-agent", check: "agent-other", after: "systemctl disable -q --now buildkite-agent || true; rm -f /etc/systemd/system/buildkite-agent.service; systemctl daemon-reload"},
	{name: "an agent that is not executable", breaks: "chmod 644 $(readlink -f /usr/bin/buildkite-agent)", check: "agent-binary", also: []string{"plan", "as-planned", "agent-version"}},
	// The stand-in forgets its agents, which end when it tells them so, seconds later, and register again.
	{name: "no endpoint", breaks: "systemctl stop bkstub", check: "agent-endpoint", fix: "systemctl start bkstub; bkstub wait-agents --count 8 --timeout 3m"},
	{name: "no git", breaks: "mv /usr/bin/git /usr/bin/git.away", check: "system-git", also: []string{"as-planned"}, fix: "mv /usr/bin/git.away /usr/bin/git"},
	{name: "no engine", breaks: "systemctl stop docker.socket docker", check: "docker-engine", also: []string{"plan"}},
	{name: "a daemon.json that is none", breaks: "cp /etc/docker/daemon.json /root/daemon.json; sed -i '1s/{/{,/' /etc/docker/daemon.json", check: "docker-config", fix: "cp /root/daemon.json /etc/docker/daemon.json"},
	{name: "an agent's user in group docker", breaks: "usermod -aG docker kbnode-gpu0", check: "system-users"},
	{name: "a socket for everybody", breaks: "chmod 666 /run/docker.sock", check: "docker-socket"},
	{name: "no forwarding", breaks: "sysctl -qw net.ipv4.ip_forward=0", check: "docker-network"},
	{name: "a specification of another driver", breaks: "cp /etc/cdi/nvidia.yaml /root/cdi; echo '# /usr/lib/x86_64-linux-gnu/libcuda.so.570.10.10' >>/etc/cdi/nvidia.yaml", check: "docker-cdi-driver", fix: "cp /root/cdi /etc/cdi/nvidia.yaml"},
	{name: "a GPU that the driver lost", breaks: "echo 'gpu.3.handle = 15' >>/etc/fake-nvml.conf", check: "gpu-answers", also: []string{"gpu-present", "plan", "slot-parked", "as-planned", "docker-cdi-slots"}, fix: "sed -i '$d' /etc/fake-nvml.conf"},
	{name: "a driver that hangs", breaks: "echo 'hang = 100' >>/etc/fake-nvml.conf", check: "nvidia-nvml", fix: "sed -i '$d' /etc/fake-nvml.conf", also: []string{"plan", "as-planned"}},
	{name: "no persistence", breaks: "echo 'gpu.2.persistence = 0' >>/etc/fake-nvml.conf", check: "as-planned", after: "sed -i '/gpu.2.persistence = 0/d' /etc/fake-nvml.conf"},
	{name: "somebody else on a GPU", breaks: "sleep 10000 & echo \"gpu.5.processes = $!:1048576\" >>/etc/fake-nvml.conf", check: "slot-gpu-processes", fix: "pkill -x sleep; sed -i '$d' /etc/fake-nvml.conf"},
	{name: "swap", breaks: "fallocate -l 64M /swap; chmod 600 /swap; mkswap -q /swap; swapon /swap", check: "noise-swap", after: "swapoff /swap 2>/dev/null || true; rm -f /swap"},
	{name: "a full disk", breaks: "fallocate -l $(($(df --output=avail -B1 / | tail -n 1) - 200000000)) /full", check: "system-space", also: []string{"slot-disk"}, fix: "rm -f /full"},
}

// timed runs a command, and says by the machine's own clock how long it took.
func timed(t testing.TB, m *vm.Machine, command string) (time.Duration, vm.Result) {
	t.Helper()
	// Try's shell ends at the first failure, and doctor's 1 is an answer.
	r := m.Try("began=${EPOCHREALTIME/./}; code=0; " + command + " || code=$?; echo $((${EPOCHREALTIME/./} - began)) >/root/took; exit $code")
	us, err := strconv.ParseInt(strings.TrimSpace(m.Sh("cat /root/took")), 10, 64)
	must.Do(t, err)
	return time.Duration(us) * time.Microsecond, r
}

// asked is what doctor says of each check.
func asked(t testing.TB, m *vm.Machine, flags string) map[string]doctor.Result {
	t.Helper()
	took, r := timed(t, m, "kbnode doctor --json "+flags)
	var report doctor.Report
	if err := json.Unmarshal([]byte(r.Stdout), &report); err != nil || r.Code > 1 {
		t.Fatalf("exit code %d, %v: %s%s", r.Code, err, r.Stdout, r.Stderr)
	}
	if took > m.Limit(time.Minute) && !strings.Contains(flags, "--timeout") {
		t.Errorf("it took %v", took)
	}
	all := map[string]doctor.Result{}
	for _, c := range report.Checks {
		all[c.ID] = c
	}
	return all
}

// wrong are the checks that say more than they did, with what they say.
func wrong(before, now map[string]doctor.Result) map[string]string {
	all := map[string]string{}
	for id, c := range now {
		if c.Summary() == "node.clock: nothing synchronizes the clock" {
			continue // health says so when the machine, which has no time server, has run for a while
		}
		if c.Status > doctor.Skip && (c.Status > before[id].Status || c.Status == before[id].Status && c.Summary() != before[id].Summary()) {
			all[id] = c.Status.String() + ": " + c.Summary()
		}
	}
	return all
}

// settled is what is still wrong when agents have registered and cgroups settled.
func settled(t *testing.T, m *vm.Machine, before map[string]doctor.Result) map[string]string {
	t.Helper()
	left := wrong(before, asked(t, m, "--fast"))
	for range 10 {
		if len(left) == 0 {
			break
		}
		time.Sleep(3 * time.Second)
		left = wrong(before, asked(t, m, "--fast"))
	}
	return left
}

// TestDoctor breaks a node in many ways, one at a time: the right check says so, and
// what it says to type fixes it.
func TestDoctor(t *testing.T) {
	t.Parallel()
	m := installed(t)
	allIdle(t, m)
	healthy := asked(t, m, "--fast")
	for id, c := range healthy {
		if c.Status == doctor.Fail {
			t.Errorf("a healthy node: %s: %s", id, c.Summary())
		}
		if c.Status > doctor.Skip {
			t.Logf("%s %s: %s", c.Status, id, c.Summary())
		}
	}
	t.Run("the daemon", func(t *testing.T) {
		m.Sh("systemctl stop kbnode")
		must.Equal(t, map[string]string{"daemon": "fail: it is inactive"}, wrong(healthy, asked(t, m, "--fast")))
	})
	m.Sh("systemctl stop kbnode") // also where only some of what follows is asked for
	quiet := asked(t, m, "--fast")
	for _, b := range breakages {
		t.Run(b.name, func(t *testing.T) {
			m.Sh("systemctl stop kbnode; " + b.breaks) // kbnode reconcile has started it again
			now := asked(t, m, "--fast")
			said := wrong(quiet, now)
			if said[b.check] == "" {
				t.Errorf("%s says %s: %s; others: %v", b.check, now[b.check].Status, now[b.check].Summary(), said)
			}
			for id, text := range said {
				if id != b.check && !slices.Contains(b.also, id) {
					t.Errorf("it is none of the business of %s: %s", id, text)
				}
			}
			fix := b.fix
			for _, f := range now[b.check].Findings {
				if fix == "" && f.Status > doctor.Skip {
					fix = f.Fix
				}
			}
			t.Logf("%s; type %s", said[b.check], fix)
			if fix == "" {
				t.Error("it says nothing to type")
			} else if r := m.Try(fix); r.Code != 0 {
				t.Errorf("%s: exit code %d: %s", fix, r.Code, r.Stderr)
			}
			if left := settled(t, m, quiet); len(left) > 0 {
				t.Errorf("after %s: %v", fix, left)
			}
			if b.after != "" {
				m.Sh(b.after)
			}
			if t.Failed() {
				m.Try("kbnode reconcile")
			}
			m.Sh("systemctl stop kbnode")
		})
	}

	t.Run("containers", func(t *testing.T) {
		if c := asked(t, m, "--only container --timeout 10m")["container"]; c.Status != doctor.OK {
			t.Errorf("%s: %+v", c.Status, c.Findings)
		}
	})

	t.Run("fixes and packs", func(t *testing.T) {
		m.Sh("rm /etc/buildkite-agent/hooks/agent-startup; systemctl stop kbnode-job-gpu1.socket")
		if r := m.Try("kbnode doctor --fast --fix </dev/null"); r.Code != 2 || !strings.Contains(r.Stderr, "add --yes") {
			t.Errorf("nobody agreed: %d, %s", r.Code, r.Stderr)
		}
		r := m.Try("kbnode doctor --fast --fix --yes --bundle /root/bundle.tgz")
		if !strings.Contains(r.Stderr, "running: kbnode reconcile") || !strings.Contains(r.Stderr, "running: systemctl start kbnode.service") {
			t.Errorf("%d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		allIdle(t, m)
		m.Sh("token=$(cut -d= -f2 /etc/buildkite-agent/token); mkdir /root/bundle; tar -xzf /root/bundle.tgz -C /root/bundle; test -s /root/bundle/kbnode-doctor/journal/agents.txt; test $(stat -c %a /root/bundle.tgz) = 600; ! grep -rF \"$token\" /root/bundle")
		if left := settled(t, m, healthy); len(left) > 0 {
			t.Errorf("%v", left)
		}
	})

	t.Run("garbage in every file, and no program", func(t *testing.T) {
		m.Sh(`systemctl stop kbnode
			for d in /etc/kbnode /etc/buildkite-agent /var/lib/kbnode /etc/docker /etc/cdi; do mkdir -p /root/away/$d; cp -a $d/. /root/away/$d; done
			find /etc/kbnode /etc/buildkite-agent /var/lib/kbnode /etc/docker /etc/cdi -xdev -type f -size -1M | while read -r f; do head -c 4000 /dev/urandom >"$f"; done`)
		took, r := timed(t, m, "env -i PATH=/nowhere /usr/local/bin/kbnode doctor --fast")
		if took > m.Limit(time.Minute) || r.Code != 1 || !strings.Contains(r.Stdout, "NOT FIT") || strings.Contains(r.Stderr, "goroutine") {
			t.Errorf("%v, exit code %d: %s%s", took, r.Code, r.Stdout, r.Stderr)
		}
		m.Sh("for d in /etc/kbnode /etc/buildkite-agent /var/lib/kbnode /etc/docker /etc/cdi; do cp -a /root/away/$d/. $d; done; systemctl start kbnode")
		allIdle(t, m)
	})

	t.Run("nothing answers", func(t *testing.T) {
		m.Sh("systemctl stop kbnode; echo 'hang = 100' >>/etc/fake-nvml.conf; kill -STOP $(pidof dockerd) $(pidof dbus-daemon)")
		took, r := timed(t, m, "kbnode doctor")
		if took > m.Limit(time.Minute) || r.Code != 1 || !strings.Contains(r.Stdout, "NOT FIT") {
			t.Errorf("%v, exit code %d: %s%s", took, r.Code, r.Stdout, r.Stderr)
		}
		m.Sh("kill -CONT $(pidof dockerd) $(pidof dbus-daemon); sed -i '$d' /etc/fake-nvml.conf; systemctl start kbnode")
		allIdle(t, m)
	})
}

// BenchmarkDoctor is how long a person waits on a healthy node, emulated. What takes
// longest of it is logged.
func BenchmarkDoctor(b *testing.B) {
	m := installed(b)
	m.Wait("a node as planned", "kbnode status >/dev/null")
	factor := slowness(b, m)
	for b.Loop() {
		for _, flags := range []string{"--fast", "--timeout=10m"} { // the machine is emulated
			took, r := timed(b, m, "kbnode doctor "+flags)
			if r.Code > 1 {
				b.Fatal(r.Stderr)
			}
			b.ReportMetric(took.Seconds(), fmt.Sprintf("s-doctor%s-emulated", flags))
			b.ReportMetric(took.Seconds()/factor, fmt.Sprintf("s-doctor%s", flags))
		}
		checks := slices.SortedFunc(maps.Values(asked(b, m, "--timeout=10m")), func(x, y doctor.Result) int { return cmp.Compare(y.Took, x.Took) })
		for _, c := range checks[:20] {
			b.Logf("%-24s %6.2f s", c.ID, c.Took.Seconds())
		}
	}
}
