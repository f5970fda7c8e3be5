//go:build vm

package vm_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/vm"
)

// hostStep is a job that runs on the host, as the slot's user.
func hostStep(slot int, command string) string {
	return fmt.Sprintf(`steps:
  - command: |
      %s
    agents: {queue: b200, gpu-index: "%d"}
`, strings.ReplaceAll(command, "\n", "\n      "), slot)
}

// traces is what a job sees of earlier ones: each name on a line of its own.
const traces = `ls -A /tmp | grep -v -e ^job-env- -e ^buildkite-agent-hook-wrapper || true
ls -A /var/tmp /dev/shm /dev/mqueue | grep left || true
ls -A ~ | grep -v -x -e builds -e plugins || true
tail -qn +2 /proc/sysvipc/shm /proc/sysvipc/sem /proc/sysvipc/msg
ps -o pid=,args= -u $$USER | grep sleep | grep -v grep || true
echo that is all`

// looksClean runs a job on the host that looks for traces.
func looksClean(t *testing.T, m *vm.Machine, slot int) {
	t.Helper()
	out := runStep(m, slot, hostStep(slot, "echo traces:\n"+traces)).Stdout
	_, seen, _ := strings.Cut(strings.ReplaceAll(out, "\r", ""), "\ntraces:\n")
	if seen, ok := strings.CutPrefix(seen, "that is all\n"); !ok {
		t.Errorf("the next job of slot %d sees %q of\n%s", slot, seen, out)
	}
}

// slotIs waits until status says so of a slot, with this in its problems.
func slotIs(t *testing.T, m *vm.Machine, slot int, word, problem string) {
	t.Helper()
	deadline := time.Now().Add(m.Limit(2 * time.Minute))
	for {
		s := status(t, m).Slots[slot]
		has := strings.Join(s.Problems, "; ")
		if s.Agent == word && (problem == "") == (has == "") && strings.Contains(has, problem) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("slot %d is %s with %q; want %s with %q", slot, s.Agent, has, word, problem)
			return
		}
	}
}

// TestHygiene leaves all kinds of things behind and looks for them in the next
// job, and parks slots whose GPU does not become idle.
func TestHygiene(t *testing.T) {
	t.Parallel()
	m := installed(t)

	t.Run("what a host command leaves", func(t *testing.T) {
		r := runStep(m, 1, hostStep(1, `(setsid setsid sleep 4444 >/dev/null 2>&1 </dev/null &)
echo x >/tmp/left; echo x >/dev/shm/left; mkdir -p /var/tmp/left/deep; chmod 0 /var/tmp/left/deep /var/tmp/left
mkdir -p ~/.docker/cli-plugins; echo x >~/.bashrc
perl -e 'defined shmget(1, 4096, 01600) && defined semget(2, 1, 01600) && defined msgget(3, 01600) or die $$!; my $$queue = "left"; syscall(240, $$queue, 0102, 0600, 0) >= 0 or die $$!'
for at in tmp dev/shm dev/mqueue; do echo in $$at: $$(ls -A /$$at | grep left); done
cat /proc/sysvipc/shm /proc/sysvipc/sem /proc/sysvipc/msg | wc -l`))
		for _, want := range []string{"in tmp: left", "in dev/shm: left", "in dev/mqueue: left", "\n6"} {
			if !strings.Contains(r.Stdout, want) || r.Code != 0 {
				t.Errorf("exit code %d, no %q in\n%s", r.Code, want, r.Stdout)
			}
		}
		if got := m.Try("pgrep -f 'sleep 444[4]'").Stdout; got != "" {
			t.Errorf("process %s lives after its job", got)
		}
		looksClean(t, m, 1)
		idle(t, m, 1)
	})

	t.Run("a link in the place of the checkouts", func(t *testing.T) {
		// Root gives back and deletes what lies there.
		r := runStep(m, 4, hostStep(4, `mv ~/builds ~/was || echo mv: kept
ln -sfnT /run ~/builds || echo ln: kept
chmod 777 ~ || echo mode: kept
ls -ld ~/builds`))
		for _, want := range []string{"mv: kept", "ln: kept", "mode: kept", "root kbnode-gpu4"} {
			if !strings.Contains(r.Stdout, "\n"+want) && !strings.Contains(r.Stdout, want+" ") || r.Code != 0 {
				t.Errorf("exit code %d, no %q in\n%s", r.Code, want, r.Stdout)
			}
		}
		if got := m.Sh("stat -c %U /run/docker.sock /run/systemd; find /run /etc -user kbnode-gpu4 -not -path '/run/kbnode/gpu4/agent*' -not -path '/run/user/*'"); got != "root\nroot" {
			t.Errorf("owners: %s", got)
		}
		idle(t, m, 4)
	})

	t.Run("a job that ends what clears away", func(t *testing.T) {
		// Its parent runs the hooks.
		r := runStep(m, 2, hostStep(2, "echo x >/tmp/left\n(setsid setsid sleep 5555 >/dev/null 2>&1 </dev/null &)\nsleep 3\nkill -9 $$PPID\nsleep 5"))
		if r.Code == 0 {
			t.Errorf("it ended well\n%s", r.Stdout)
		}
		looksClean(t, m, 2)
		idle(t, m, 2)
	})

	t.Run("what a host command sees of /run", func(t *testing.T) {
		// Each line says what could be done; the job ends well whatever that is.
		m.Sh("mkdir -p /run/secret-of-the-node && echo x >/run/secret-of-the-node/x")
		agentBefore := m.Sh("systemctl show -P MainPID buildkite-agent-gpu6")
		r := runStep(m, 6, hostStep(6, `set +e
echo run: $$(ls -A /run | grep -v -x -e kbnode -e systemd -e NetworkManager -e resolvconf -e netconfig -e credentials)
echo systemd: $$(ls -A /run/systemd 2>/dev/null | grep -v -x -e resolve -e incoming)
echo slots: $$(ls -A /run/kbnode)
echo sockets: $$(find /run -type s -not -path '/run/kbnode/gpu6/*' 2>/dev/null)
loginctl enable-linger >/dev/null 2>&1 && echo lingers
systemd-run --user true >/dev/null 2>&1 && echo user manager
systemd-run true >/dev/null 2>&1 && echo system manager
systemctl list-units >/dev/null 2>&1 && echo bus
echo true | at now >/dev/null 2>&1 && echo at
echo '* * * * * true' | crontab - >/dev/null 2>&1 && echo cron
cd /run/kbnode/gpu6/agent
rm -rf registered ../registered 2>/dev/null; mkfifo registered; rm -f ../registered 2>/dev/null; mkdir ../registered 2>/dev/null && echo a directory beside the socket
for k in $$(seq 2000); do : >agent-$$k; done 2>/dev/null
head -c 64M /dev/zero >agent-big 2>/dev/null && echo 64 MiB
echo files: $$(($$(ls | grep -c ^agent-) > 1100))
exit 0`))
		out := strings.ReplaceAll(r.Stdout, "\r", "")
		for _, want := range []string{"\nrun:\n", "\nsystemd:\n", "\nslots: gpu6\n", "\nsockets:\n", "\nfiles: 0\n"} {
			if !strings.Contains(out, want) || r.Code != 0 {
				t.Errorf("exit code %d, no %q in\n%s", r.Code, want, out)
			}
		}
		for _, bad := range []string{"lingers", "user manager", "system manager", "bus", "at", "cron", "a directory beside the socket", "64 MiB"} {
			if strings.Contains(out, "\n"+bad+"\n") {
				t.Errorf("the job could: %s\n%s", bad, out)
			}
		}
		looksClean(t, m, 6)
		r = runStep(m, 6, hostStep(6, "echo agent: $$(ls -A /run/kbnode/gpu6/agent | grep -v -e '^agent-[0-9]*$$' -e ^agent-leader$$ -e ^job-api$$)\necho files: $$(($$(ls /run/kbnode/gpu6/agent | grep -c ^agent-) > 3))"))
		if out := strings.ReplaceAll(r.Stdout, "\r", ""); !strings.Contains(out, "\nagent:\n") || !strings.Contains(out, "\nfiles: 0\n") {
			t.Errorf("the next job finds what was left\n%s", out)
		}
		idle(t, m, 6)
		if agentNow := m.Sh("systemctl show -P MainPID buildkite-agent-gpu6"); agentNow == agentBefore {
			t.Errorf("the agent %s ran all three jobs", agentNow)
		}
		if s := status(t, m).Slots[6]; len(s.Problems) > 0 {
			t.Errorf("after three jobs status has %q", s.Problems)
		}
	})

	t.Run("a daemon in a container", func(t *testing.T) {
		runStep(m, 3, step(3, "busybox:test", "(setsid setsid sleep 6666 >/dev/null 2>&1 </dev/null &)\necho done", ""))
		if got := m.Try("pgrep -f 'sleep 666[6]'").Stdout; got != "" {
			t.Errorf("process %s lives after its job", got)
		}
		idle(t, m, 3)
	})

	t.Run("an agent that is killed in the middle of a job", func(t *testing.T) {
		m.Put("/root/steps-0.yml", 0o600, step(0, "busybox:test", "sleep 600", ""))
		job := m.Start("bash", "-c", "bkstub submit --queue b200 --wait --steps /root/steps-0.yml")
		m.Wait("the job's container", "docker ps -q | grep -q .")
		begun := time.Now()
		m.Wait("an agent to kill", "systemctl kill --kill-whom=main -s KILL buildkite-agent-gpu0")
		m.Wait("the slot", "! docker ps -q | grep -q .")
		slotIs(t, m, 0, "idle", "")
		t.Logf("the slot is back after %v", time.Since(begun).Round(time.Second))
		job.Signal(15)
		job.Wait()
		looksClean(t, m, 0)
		idle(t, m, 0)
	})

	t.Run("a process on the GPU that is not a job's", func(t *testing.T) {
		pid := m.Sh("setsid sleep 7777 >/dev/null 2>&1 </dev/null & echo $!")
		m.Sh("echo 'gpu.5.processes = " + pid + ":1048576' >>/etc/fake-nvml.conf")
		// The job does not wait for the driver, and so does not hear of it.
		if r := runStep(m, 5, step(5, "busybox:test", "echo a job", "")); r.Code != 0 {
			t.Errorf("exit code %d\n%s", r.Code, r.Stdout)
		}
		begun := time.Now()
		slotIs(t, m, 5, "parked", "process "+pid+" (sleep), which does not belong to a job")
		t.Logf("the slot is parked %v after the job's end", time.Since(begun).Round(time.Second))
		idle(t, m, 4)
		m.Sh("kbnode reconcile")
		slotIs(t, m, 5, "parked", "process "+pid)
		m.Sh("kill " + pid + "; echo 'gpu.5.processes =' >>/etc/fake-nvml.conf")
		slotIs(t, m, 5, "idle", "")
		idle(t, m, 5)
	})

	t.Run("memory of the GPU that stays in use", func(t *testing.T) {
		m.Sh("echo 'gpu.6.used_mib = 512' >>/etc/fake-nvml.conf")
		if r := runStep(m, 6, step(6, "busybox:test", "echo a job", "")); r.Code != 0 {
			t.Errorf("exit code %d\n%s", r.Code, r.Stdout)
		}
		slotIs(t, m, 6, "parked", "512 MiB in use without a compute process, and 0 MiB when idle")
		m.Sh("echo 'gpu.6.used_mib = 60' >>/etc/fake-nvml.conf")
		slotIs(t, m, 6, "idle", "")
		idle(t, m, 6)
	})

	t.Run("a restart while a slot is parked", func(t *testing.T) {
		m.Sh("echo 'gpu.7.used_mib = 512' >>/etc/fake-nvml.conf")
		runStep(m, 7, step(7, "busybox:test", "echo a job", ""))
		slotIs(t, m, 7, "parked", "512 MiB")
		m.Sh("systemctl restart kbnode-guard-gpu7 buildkite-agent-gpu7")
		slotIs(t, m, 7, "parked", "512 MiB")
		if got := m.Sh("systemctl show -P Result,NRestarts buildkite-agent-gpu7 | xargs"); got != "success 0" {
			t.Errorf("its agent's unit: %s", got)
		}
		m.Sh("rm /run/kbnode/gpu7/gpu-idle.json")
		slotIs(t, m, 7, "idle", "")
	})

	m.Sh(`printf 'job:\n  tasks_max: 200\n' >>/etc/kbnode/config.yaml; kbnode reconcile; bkstub wait-agents --count 8 --timeout 3m`)
	t.Run("a host command that forks without end", func(t *testing.T) {
		const bomb = "perl -e 'fork while 1'"
		script := hostStep(1, "(setsid "+bomb+" >/dev/null 2>&1 </dev/null &)\n"+bomb)
		r := runStep(m, 1, script)
		// The agent is a Go program: one that needs a thread in the seconds before the
		// guard makes room ends, and systemd starts it again. The job's log is lost then.
		if m.Try("journalctl -b -o cat -u buildkite-agent-gpu1 | grep -q 'failed to create new OS thread'").Code == 0 {
			t.Log("the agent had no thread left")
			looksClean(t, m, 1)
			r = runStep(m, 1, script)
		}
		if r.Code == 0 || !strings.Contains(r.Stdout, "job.tasks_max") {
			t.Errorf("exit code %d\n%s", r.Code, r.Stdout)
		}
		looksClean(t, m, 1)
		idle(t, m, 1)
	})
}
