//go:build vm

package vm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// provenImage is what pipelines of the node call the image that GPUs prove themselves with.
const provenImage = "proof-test:latest"

// provenBy makes an image with that name: change is what a shell does in it.
func provenBy(m *vm.Machine, change string) {
	m.Sh(fmt.Sprintf(`docker run --name making --network none kernelbot-test:latest sh -c '%s' >/dev/null; docker commit making %s >/dev/null; docker rm making >/dev/null`, change, provenImage))
}

// TestProof lets GPUs fail, which return when an evaluation has passed in their slots.
func TestProof(t *testing.T) {
	t.Parallel()
	m := installed(t)
	m.Sh("printf 'image:\n  name: " + provenImage + "\n' >>/etc/kbnode/config.yaml; systemctl reload kbnode")
	allIdle(t, m)
	sick := func(slot int) { m.Sh(fmt.Sprintf("echo 'gpu.%d.recovery_action = 1' >>/etc/fake-nvml.conf", slot)) }
	mend := func() { m.Sh("sed -i /recovery_action/d /etc/fake-nvml.conf") }
	const broken = `rm /usr/bin/python3*; printf "#!/bin/sh\nexit 3\n" >/usr/bin/python3; chmod 755 /usr/bin/python3`

	t.Run("a node without its image", func(t *testing.T) {
		sick(4)
		slotIs(t, m, 4, "drained", "gpu.recovery")
		mend()
		slotIs(t, m, 4, "idle", "")
		if got := m.Sh("kbnode events"); !strings.Contains(got, "nothing was tried, because this node has no image "+provenImage) {
			t.Errorf("events: %s", got)
		}
	})

	t.Run("passed", func(t *testing.T) {
		provenBy(m, "true")
		sick(4)
		slotIs(t, m, 4, "drained", "gpu.recovery")
		mend()
		m.Wait("the evaluation", "docker ps -q --filter label=kbnode.slot=4 | grep -q .")
		m.Sh("systemctl kill -s KILL kbnode") // it is begun again
		slotIs(t, m, 4, "idle", "")
		idle(t, m, 4)
		if got := m.Sh("kbnode events"); !strings.Contains(got, "a short evaluation passed: the container ran") {
			t.Errorf("events: %s", got)
		}
	})

	t.Run("failed, until an operator does without", func(t *testing.T) {
		provenBy(m, broken)
		sick(2)
		slotIs(t, m, 2, "drained", "gpu.recovery")
		mend()
		m.Wait("the verdict", "kbnode status | grep -q 'failed a short evaluation'")
		must.Equal(t, "", m.Sh("docker ps -q --filter label=kbnode.slot=2"))
		m.Reboot()
		m.Sh("bkstub wait-agents --count 7 --timeout 5m")
		m.Wait("the verdict after a reboot", "kbnode status | grep -q 'failed a short evaluation'")
		if r := m.Try("kbnode resume --all"); r.Code != 1 || !strings.Contains(r.Stdout, "gpu2: still drained by gpu.proof") {
			t.Errorf("resume --all: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		if r := m.Try("kbnode resume gpu2"); r.Code != 0 || !strings.Contains(r.Stdout, "gpu2: takes jobs") {
			t.Errorf("resume: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		slotIs(t, m, 2, "idle", "")
		idle(t, m, 2)
	})

	t.Run("an operator's drain", func(t *testing.T) {
		m.Sh("kbnode drain 6")
		sick(6)
		slotIs(t, m, 6, "drained", "gpu.recovery")
		mend()
		slotIs(t, m, 6, "drained", "gpu.proof")
		m.Sh("sleep 40; test -z \"$(docker ps -aq)\"")
		provenBy(m, "true")
		if r := m.Try("kbnode resume 6"); r.Code != 1 || !strings.Contains(r.Stdout, "gpu6: still drained by gpu.proof") {
			t.Errorf("resume: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		slotIs(t, m, 6, "idle", "")
	})

	t.Run("none asked for", func(t *testing.T) {
		provenBy(m, broken)
		m.Sh("printf 'health:\n  proof: none\n' >>/etc/kbnode/config.yaml; systemctl reload kbnode")
		sick(5)
		slotIs(t, m, 5, "drained", "gpu.recovery")
		mend()
		slotIs(t, m, 5, "idle", "")
	})

	t.Run("uninstall meanwhile", func(t *testing.T) {
		provenBy(m, "true")
		m.Sh("sed -i '/proof: none/d; /^health:/d' /etc/kbnode/config.yaml; systemctl reload kbnode")
		sick(3)
		slotIs(t, m, 3, "drained", "gpu.recovery")
		mend()
		m.Wait("the evaluation", "docker ps -q --filter label=kbnode.slot=3 | grep -q .")
		m.Sh("kbnode uninstall")
		must.Equal(t, "", m.Sh("docker ps -aq; ls /var/lib/kbnode/health.json 2>/dev/null || true"))
	})
}
