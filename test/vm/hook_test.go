//go:build vm

package vm_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

const hookFile = "/usr/local/sbin/slot-hook"

// hookSays makes the hook of all slots a script that logs its call in /root/hooks and then does this.
func hookSays(m *vm.Machine, script string) {
	m.Put(hookFile+".new", 0o755, "#!/bin/bash\necho \"$KBNODE_HOOK $KBNODE_SLOT_NAME\" >>/root/hooks\n"+script+"\n")
	m.Sh("mv " + hookFile + ".new " + hookFile)
}

// hooksOf returns which hooks of a slot have run since the last call.
func hooksOf(m *vm.Machine, slot int) string {
	return m.Sh(fmt.Sprintf("touch /root/hooks; sed -n 's/ gpu%d$//p' /root/hooks | xargs; sed -i '/ gpu%[1]d$/d' /root/hooks", slot))
}

// TestHooks runs a site's prolog and epilog around jobs: in systemd's units, with what they leave, and across a kill and a boot.
func TestHooks(t *testing.T) {
	t.Parallel()
	m := installed(t)
	hookSays(m, "exit 0")
	m.Sh(`sed -i '/^job:/,$d' /etc/kbnode/config.yaml; printf 'job:\n  prolog: ` + hookFile + `\n  epilog: ` + hookFile + `\n  hook_time_limit: 30s\n' >>/etc/kbnode/config.yaml; kbnode reconcile`)
	job := func(slot int) vm.Result { return runStep(m, slot, step(slot, "busybox:test", "echo a job", "")) }
	// free waits until a slot has run its epilog and takes jobs again.
	free := func(slot int) {
		t.Helper()
		slotIs(t, m, slot, "idle", "")
	}

	t.Run("around a job", func(t *testing.T) {
		if r := job(5); r.Code != 0 {
			t.Errorf("exit code %d\n%s", r.Code, r.Stdout)
		}
		m.Wait("the epilog", "grep -q '^epilog gpu5$' /root/hooks")
		free(5)
		must.Equal(t, "prolog epilog", hooksOf(m, 5))
		m.Sh("kbnode doctor --only slot-hooks")
	})

	t.Run("what it has, and what it leaves", func(t *testing.T) {
		hookSays(m, `env >/root/hook.env; cat /proc/self/cgroup >>/root/hook.env; touch /usr/local/hook.wrote
setsid sleep 7654 </dev/null >/dev/null 2>&1 &
(trap '' TERM; exec setsid sleep 7655) &
yes a secret of the site | head -c 3000000`)
		if r := job(6); r.Code != 0 || strings.Contains(r.Stdout, "secret of the site") {
			t.Errorf("exit code %d\n%s", r.Code, r.Stdout)
		}
		m.Wait("the epilog", "grep -q '^epilog gpu6$' /root/hooks")
		m.Wait("an end of what hooks started", "! pgrep -f 'sleep 765[45]'")
		free(6)
		must.Contain(t, m.Sh("cat /root/hook.env"), "KBNODE_SLOT=6", "KBNODE_GPUS=GPU-", "kbnode-epilog-gpu6.service")
		if out := m.Sh("grep -c BUILDKITE /root/hook.env || true"); out != "0" {
			t.Errorf("it has %s variables of a build", out)
		}
		must.Contain(t, m.Sh("journalctl -u kbnode-prolog-gpu6 -n 20 -o cat"), "a secret of the site")
		if out := m.Sh("kbnode logs gpu6 | grep -c 'secret of the site' || true"); out != "0" {
			t.Errorf("kbnode logs shows %s lines of it", out)
		}
		must.Equal(t, "", m.Sh("systemctl list-units --all --plain --no-legend 'kbnode-prolog-*' 'kbnode-epilog-*'"))
	})

	t.Run("a prolog that fails, hangs, or that others can change", func(t *testing.T) {
		for script, reason := range map[string]string{
			`[ $KBNODE_HOOK = epilog ] || exit 3`:     "ended with exit status 3",
			`[ $KBNODE_HOOK = epilog ] || sleep 7656`: "did not end within 30s, and was killed",
			`[ $KBNODE_HOOK = epilog ] || kill -9 $$`: "was killed by signal 9",
		} {
			hookSays(m, script)
			if r := job(4); !strings.Contains(r.Stdout, "exit status 255") || !strings.Contains(r.Stdout, "the node's hook job.prolog "+reason) {
				t.Errorf("exit code %d\n%s", r.Code, r.Stdout)
			}
			slotIs(t, m, 4, "parked", "job.prolog "+hookFile+" "+reason)
			hookSays(m, "exit 0")
			free(4)
		}
		m.Sh("chmod g+w /usr/local/sbin")
		if r := job(4); !strings.Contains(r.Stdout, "exit status 255") || !strings.Contains(r.Stdout, "the node's hook job.prolog could not run") {
			t.Errorf("exit code %d\n%s", r.Code, r.Stdout)
		}
		const open = "/usr/local/sbin has mode 0775, so others than root can change it; type sudo chmod go-w /usr/local/sbin"
		slotIs(t, m, 4, "parked", "job.prolog: "+open)
		must.Contain(t, m.Sh("kbnode plan 2>&1"), "job.prolog: "+open)
		must.Contain(t, m.Try("kbnode doctor --only slot-hooks").Stdout, "chmod go-w /usr/local/sbin")
		m.Sh("chmod go-w /usr/local/sbin")
		free(4)
		idle(t, m, 4)
	})

	t.Run("a job's process that is killed in a prolog", func(t *testing.T) {
		// The limit of 30 seconds would end it before an emulated machine comes to the epilog.
		m.Sh("sed -i 's/hook_time_limit: 30s/hook_time_limit: 10m/' /etc/kbnode/config.yaml; kbnode reconcile; touch /root/beside")
		hookSays(m, `[ $KBNODE_HOOK = epilog ] || exec sleep 7657
pgrep -af '^sleep 7657' >>/root/beside || true`)
		_ = hooksOf(m, 3)
		m.Put("/root/killed.yml", 0o600, step(3, "busybox:test", "echo a job", ""))
		m.Sh("bkstub submit --queue b200 --steps /root/killed.yml")
		m.Wait("the prolog", "grep -q '^prolog gpu3$' /root/hooks")
		m.Sh("systemctl kill -s KILL 'kbnode-job-gpu3@*.service'")
		m.Wait("the epilog", "grep -q '^epilog gpu3$' /root/hooks")
		free(3)
		must.Equal(t, "", m.Sh("cat /root/beside"))
		hookSays(m, "exit 0")
	})

	t.Run("a drained slot, and a boot", func(t *testing.T) {
		_ = hooksOf(m, 2)
		m.Put("/root/drained.yml", 0o600, step(2, "busybox:test", "sleep 20", ""))
		m.Sh("bkstub submit --queue b200 --steps /root/drained.yml")
		m.Wait("the prolog", "grep -q '^prolog gpu2$' /root/hooks")
		m.Sh("kbnode drain gpu2 --wait")
		must.Equal(t, "prolog epilog", hooksOf(m, 2))
		m.Sh("kbnode resume gpu2; rm -f /root/hooks; sync")
		m.Reboot()
		m.Wait("eight agents", "bkstub wait-agents --count 8 --timeout 5s")
		must.Equal(t, "epilog", hooksOf(m, 2))
	})

	t.Run("none any more", func(t *testing.T) {
		m.Sh(`sed -i '/^job:/,$d' /etc/kbnode/config.yaml; kbnode reconcile; rm ` + hookFile)
		idle(t, m, 5)
		m.Sh("kbnode uninstall --now --yes")
		time.Sleep(m.Limit(time.Second))
		// One that is not found is a name that systemd still remembers.
		must.Equal(t, "", m.Sh("systemctl list-units --all --plain --no-legend 'kbnode*' | grep -v ' not-found ' || true"))
	})
}
