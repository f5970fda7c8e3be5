//go:build vm

package vm_test

import (
	"testing"

	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestRotation gives a node another agent token while it works, as docs/fleet.md says,
// and revokes the old one.
func TestRotation(t *testing.T) {
	t.Parallel()
	m := installed(t)
	const fresh = "bktest-agent-token-of-march"
	m.Put("/root/tokens", 0o600, bktest.DefaultAgentToken+"\n"+fresh+"\n")
	m.Put("/root/fresh", 0o600, fresh+"\n")
	m.Sh(`mkdir -p /etc/systemd/system/bkstub.service.d
		printf '[Service]\nExecStart=\nExecStart=/usr/local/bin/bkstub serve --repo https://github.com/gpu-mode/kernelbot --agent-tokens /root/tokens\n' >/etc/systemd/system/bkstub.service.d/tokens.conf
		systemctl daemon-reload; systemctl restart bkstub.service; systemctl restart buildkite-agent-gpu{0..7}.service`)
	m.Wait("the agents", "kbnode status >/dev/null")

	wake := asleep(t, m, 0)
	const pids = "systemctl show -P MainPID 'buildkite-agent-gpu*'"
	before := m.Sh(pids)
	m.Sh("kbnode install --token-file /root/fresh")
	must.Equal(t, before, m.Sh(pids))
	// The old one is revoked: who is connected stays.
	m.Put("/root/tokens", 0o600, fresh+"\n")
	idle(t, m, 3)
	// After its job, the unit starts the next agent, and has no process in between.
	m.Wait("an agent to kill", "systemctl kill --kill-whom=main -s KILL buildkite-agent-gpu3")
	m.Wait("the agent of slot 3", "kbnode status >/dev/null")
	idle(t, m, 3)
	wake()
	idle(t, m, 0)
	if r := m.Try("kbnode doctor --only agent-token"); r.Code != 0 {
		t.Errorf("exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	m.Sh("! grep -rF " + fresh + " /etc/kbnode /var/lib/kbnode; ! journalctl -b -o cat | grep -F " + fresh)
}
