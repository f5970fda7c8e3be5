//go:build vm

package vm_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/vm"
)

// installBefore installs the last kbnode whose agents ran jobs on the host, with some slots.
func installBefore(t testing.TB, m *vm.Machine, slots int) {
	t.Helper()
	text, err := os.ReadFile(os.Getenv("KBNODE_BEFORE"))
	if err != nil {
		t.Fatalf("KBNODE_BEFORE: %v", err)
	}
	m.Sh("mv /usr/local/bin/kbnode /root/kbnode-now")
	m.Put("/usr/local/bin/kbnode", 0o755, string(text))
	m.Sh(fmt.Sprintf("%s --gpu-count %d; bkstub wait-agents --count %d --timeout 5m", installCommand, slots, slots))
}

// changeOver replaces its program and waits until the slots have changed over.
func changeOver(m *vm.Machine, slots string) {
	m.Sh("install -m 755 /root/kbnode-now /usr/local/bin/kbnode.new; mv /usr/local/bin/kbnode.new /usr/local/bin/kbnode")
	m.Wait("slots that have changed over", fmt.Sprintf(`for k in %s; do tr '\0' '\n' </proc/$(systemctl show -P MainPID kbnode-guard-gpu$k)/cmdline >/dev/null && grep -q 'kbnode bootstrap --slot' /etc/buildkite-agent/agent-$k/buildkite-agent.cfg && [ -e /run/kbnode/gpu$k/registered ] && (kbnode status --json || true) | jq -e ".slots[$k].agent == \"idle\"" || exit 1; done`, slots))
}

// TestChangeOver upgrades a node whose agents run jobs on the host to one that runs them in one
// container, while such a job runs.
func TestChangeOver(t *testing.T) {
	t.Parallel()
	m := forked(t)
	installBefore(t, m, 3)
	idle(t, m, 0)

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

	changeOver(m, "0 1")
	if got := m.Sh("systemctl show -P MainPID buildkite-agent-gpu2; ls /etc/buildkite-agent/hooks | xargs"); got != agent+"\nagent-startup environment pre-artifact pre-bootstrap pre-exit" {
		t.Errorf("while a job of the earlier way runs: %s, its agent was %s", got, agent)
	}
	m.Sh("docker tag kernelbot-test:latest ghcr.io/gpu-mode/kernelbot:latest")
	m.Put("/root/new.yml", 0o600, "steps:\n  - command: nvidia-smi -L\n    agents: {queue: b200, gpu-index: \"0\"}\n")
	p.wait(t, m.Sh("bkstub submit --queue b200 --steps /root/new.yml"), "passed")

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
