//go:build vm

package vm_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// fakeRelease makes a second release: the same agent, which says another version
// of the same length.
const fakeRelease = `sed 's/3\.138\.3/3.138.9/g' "$(command -v buildkite-agent)" >/root/agent9 && chmod 755 /root/agent9 && /root/agent9 --version | grep -q 3.138.9`

// runs counts the slots whose agent is a binary.
const runs = `for k in 0 1 2 3 4 5 6 7; do readlink /proc/$(systemctl show -P MainPID buildkite-agent-gpu$k)/exe; done | grep -c %s || true`

const (
	newBinary = "/usr/local/libexec/kbnode/agents/3.138.9/buildkite-agent"
	oldBinary = "/usr/local/libexec/kbnode/buildkite-agent"
)

// TestUpgradeAgents changes the agents of all slots to another version and back.
func TestUpgradeAgents(t *testing.T) {
	t.Parallel()
	m := installed(t)
	allIdle(t, m)
	m.Sh(fakeRelease)
	count := func(binary string, want int) {
		t.Helper()
		if got := m.Sh(fmt.Sprintf(runs, binary)); got != fmt.Sprint(want) {
			t.Errorf("%s slots run %s; want %d", got, binary, want)
		}
	}

	t.Run("an agent that does not register", func(t *testing.T) {
		// The first slot's user does not get to Buildkite any more.
		m.Sh("nft add table inet lost; nft add chain inet lost out '{ type filter hook output priority 0; }'; nft add rule inet lost out meta skuid kbnode-gpu0 tcp dport 8899 reject with tcp reset")
		r := m.Try("kbnode upgrade --agent-binary /root/agent9 --timeout 60s --wait")
		if r.Code != 1 || !strings.Contains(r.Stderr, "gpu0 not registered yet") || !strings.Contains(r.Stderr, "sudo kbnode upgrade --agent-version 3.138.3") {
			t.Errorf("exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		count(newBinary, 8)
		m.Sh("nft delete table inet lost")
		if out := m.Sh("kbnode upgrade --agent-version 3.138.3"); !strings.Contains(out, "All slots run the installed buildkite-agent 3.138.3.") {
			t.Errorf("back: %s", out)
		}
		count(oldBinary, 8)
		allIdle(t, m)
		m.Wait("the release to go", "! test -e "+newBinary)
	})

	t.Run("beside a job, and killed in between", func(t *testing.T) {
		wake := asleep(t, m, 5)
		for range 3 {
			m.Sh(fmt.Sprintf("kbnode upgrade --agent-binary /root/agent9 >/root/upgrade.log 2>&1 & sleep %d; kill -9 $! || true", 2+rand.IntN(20)))
		}
		upgrade := m.Start("kbnode", "upgrade", "--agent-binary", "/root/agent9", "--wait")
		m.Wait("the seven other slots", fmt.Sprintf("test $("+runs+") = 7", newBinary))
		wake()
		if r := upgrade.Wait(); r.Code != 0 {
			t.Errorf("exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		count(newBinary, 8)
		allIdle(t, m)
		m.Sh(installCommand) // keeps what was chosen
		count(newBinary, 8)
		m.Sh("bkstub submit --queue b200 --wait")
	})

	t.Run("back, and left to the daemon", func(t *testing.T) {
		wake := asleep(t, m, 2)
		if out := m.Sh("kbnode upgrade --agent-version 3.138.3"); !strings.Contains(out, "Later: gpu2") {
			t.Errorf("it says %s", out)
		}
		m.Sh("test -e " + newBinary)
		wake()
		began := time.Now()
		m.Wait("the daemon to end it", "! test -e "+newBinary)
		t.Logf("the daemon took %v", time.Since(began).Round(time.Second))
		allIdle(t, m)
		count(oldBinary, 8)
	})

	t.Run("power failure", func(t *testing.T) {
		m.Start("kbnode", "upgrade", "--agent-binary", "/root/agent9")
		m.Wait("the first slot", fmt.Sprintf("test $("+runs+") -gt 0", newBinary))
		m.Reset()
		m.Sh("bkstub wait-agents --count 8 --timeout 5m")
		began := time.Now()
		m.Wait("the daemon to end it", fmt.Sprintf("test $("+runs+") = 8", newBinary))
		t.Logf("the daemon took %v", time.Since(began).Round(time.Second))
		allIdle(t, m, 0)
	})
}
