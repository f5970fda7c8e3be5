//go:build vm

package vm_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/vm"
)

// began is a job that says when its container's first instruction ran.
const began = `steps:
  - command: echo began $$(date +%%s%%N)
    agents: {queue: b200, gpu-index: "0"}
    plugins:
      - docker#v5.11.0: {image: "kernelbot-test:latest", gpus: all, propagate-environment: true, skip-checkout: %t}
`

// startTimes returns how long jobs of the first slot took from the agent's start of the job to the
// container's first instruction, without a checkout or with one of the newest commit.
func startTimes(t *testing.T, m *vm.Machine, skip bool) (took []time.Duration) {
	t.Helper()
	p := pipelines{evaluations{m: m}}
	m.Put("/root/began.yml", 0o600, fmt.Sprintf(began, skip))
	for range 5 {
		build := m.Sh("bkstub submit --queue b200 --steps /root/began.yml")
		p.wait(t, build, "passed")
		var b struct {
			Jobs []struct {
				StartedAt time.Time `json:"started_at"`
			}
		}
		if err := json.Unmarshal([]byte(m.Sh(p.asking(build))), &b); err != nil {
			t.Fatal(err)
		}
		var at int64
		if _, err := fmt.Sscan(regexp.MustCompile(`(?m)^began ([0-9]+)`).FindStringSubmatch(m.Sh("bkstub log " + build))[1], &at); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Unix(0, at).Sub(b.Jobs[0].StartedAt))
	}
	slices.Sort(took)
	return took
}

// dockerTimes returns how long Docker takes by itself to a container's first instruction.
func dockerTimes(t *testing.T, m *vm.Machine) (took []time.Duration) {
	t.Helper()
	for range 5 {
		var from, to int64
		if _, err := fmt.Sscan(m.Sh("date +%s%N; docker run --rm --cgroup-parent buildkite-gpu0.slice kernelbot-test:latest date +%s%N"), &from, &to); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Duration(to-from))
	}
	slices.Sort(took)
	return took
}

// TestChangeOver upgrades a node whose agents run jobs on the host to one that runs them in one
// container, while such a job runs.
func TestChangeOver(t *testing.T) {
	t.Parallel()
	m := forked(t)
	text, err := os.ReadFile(os.Getenv("KBNODE_BEFORE"))
	if err != nil {
		t.Fatalf("KBNODE_BEFORE: %v", err)
	}
	m.Sh("mv /usr/local/bin/kbnode /root/kbnode-now")
	m.Put("/usr/local/bin/kbnode", 0o755, string(text))
	m.Sh(installCommand + " --gpu-count 3; bkstub wait-agents --count 3 --timeout 5m")
	idle(t, m, 0)
	before, fetched := startTimes(t, m, true), startTimes(t, m, false)

	m.Put("/root/old.yml", 0o600, `steps:
  - command: |
      until [ -e go ]; do sleep 1; done
      echo slept well | tee said.txt
      ln -s /etc/buildkite-agent/token leak.txt
    artifact_paths: "*.txt"
    agents: {queue: b200, gpu-index: "2"}
`)
	p := pipelines{evaluations{m: m}}
	build := m.Sh("bkstub submit --queue b200 --steps /root/old.yml")
	m.Wait("the job", "kbnode status --json | jq -e '.slots[2].job'")
	agent := m.Sh("systemctl show -P MainPID buildkite-agent-gpu2")

	m.Sh("install -m 755 /root/kbnode-now /usr/local/bin/kbnode.new; mv /usr/local/bin/kbnode.new /usr/local/bin/kbnode")
	m.Wait("two slots that have changed over", `for k in 0 1; do tr '\0' '\n' </proc/$(systemctl show -P MainPID kbnode-guard-gpu$k)/cmdline >/dev/null && grep -q 'kbnode bootstrap --slot' /etc/buildkite-agent/agent-$k/buildkite-agent.cfg && [ -e /run/kbnode/gpu$k/registered ]; done && (kbnode status --json || true) | jq -e '[.slots[0,1].agent] == ["idle", "idle"]'`)
	if got := m.Sh("systemctl show -P MainPID buildkite-agent-gpu2; ls /etc/buildkite-agent/hooks | xargs"); got != agent+"\nagent-startup environment pre-artifact pre-bootstrap pre-exit" {
		t.Errorf("while a job of the earlier way runs: %s, its agent was %s", got, agent)
	}
	compare := func(what string, before []time.Duration, now []time.Duration) {
		t.Logf("until the first instruction, %s, emulated: %v before, %v now, ratio of medians %.2f", what, before, now, float64(now[2])/float64(before[2]))
	}
	compare("no checkout", before, startTimes(t, m, true))
	compare("the newest commit", fetched, startTimes(t, m, false))
	t.Logf("until the first instruction, by Docker alone, emulated: %v", dockerTimes(t, m))

	m.Sh("for at in /var/lib/buildkite-agent/gpu-2/builds/*/*/*/; do touch $at/go; done")
	if r := p.wait(t, build, "passed"); !strings.Contains(r.Log, "slept well") {
		t.Errorf("the job of the earlier way: %s", r.Log)
	}
	if got := m.Sh("bkstub artifact " + build + " said.txt"); got != "slept well" {
		t.Errorf("its artifact: %s", got)
	}
	if r := m.Try("bkstub artifact " + build + " leak.txt"); r.Code == 0 {
		t.Errorf("a link was uploaded: %s", r.Stdout)
	}
	m.Wait("the last slot", "kbnode plan --detailed-exit-code && kbnode status")
	if got := m.Sh("ls /etc/buildkite-agent/hooks; ls /etc/buildkite-agent/gitconfig 2>/dev/null || true"); got != "agent-startup" {
		t.Errorf("files of the earlier way are left: %s", got)
	}
	for k := range 3 {
		idle(t, m, k)
	}
	m.Sh("kbnode uninstall")
}
