//go:build vm

package vm_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// counted is a job that counts until it is told to stop, and leaves an artifact.
const counted = "echo '{}' >out.json; i=0; until [ -e go ]; do i=$$((i + 1)); echo line $$i; sleep 1; done; echo last $$i"

// submitted starts a step with an artifact on a slot, and waits for its output.
func submitted(m *vm.Machine, slot int, command string) (build string) {
	file := fmt.Sprintf("/root/interrupt-%d.yml", slot)
	m.Put(file, 0o600, step(slot, "busybox:test", command, "")+"    artifact_paths: [out.json]\n")
	build = m.Sh("bkstub submit --queue b200 --steps " + file)
	m.Wait("the job's output", "bkstub log "+build+" | grep -q '^line 2'")
	return build
}

// released lets the job of a build end.
func released(m *vm.Machine, slot int, build string) {
	m.Sh(fmt.Sprintf("for at in /var/lib/buildkite-agent/gpu-%d/builds/kbnode-*/checkout; do touch $at/go || { bkstub log %s >&2; exit 1; }; done", slot, build))
}

// counting waits until a job counts on, as its log says.
func counting(m *vm.Machine, build string) {
	lines := "bkstub log " + build + " | grep -c '^line '"
	m.Wait("the job to count on", "n=$("+lines+"); sleep 3; test $("+lines+") -gt $n")
}

// whole says that a job's log has each of its lines once, in order.
func whole(t *testing.T, log string) {
	t.Helper()
	next := 1
	for line := range strings.Lines(log) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "line "); ok {
			if got, err := strconv.Atoi(n); err != nil || got != next {
				t.Errorf("%q, want line %d", line, next)
			}
			next++
		}
	}
	must.Contain(t, log, fmt.Sprintf("last %d", next-1))
}

const (
	// account has the kernel account for each process that ends from now on. Tracing would patch the
	// kernel's code, at which the emulator may crash it.
	account = `: >/root/acct; perl -e 'my $f = "/root/acct"; syscall(163, $f) == 0 or die $!'`
	// accounted ends that, and prints how many processes ended, by their user and the program that they
	// had executed.
	accounted = `perl -e 'syscall(163, 0); open F, "<", "/root/acct"; while (read F, $r, 64) {
		my ($flags, $uid, $program) = unpack "C x7 V x36 Z16", $r; print scalar(getpwuid $uid) // $uid, " $program\n" unless $flags & 1 }' | sort | uniq -c`
)

// programs are those that ended since account began, as "user program", and how many of each.
func programs(m *vm.Machine) map[string]int {
	counts := map[string]int{}
	for line := range strings.Lines(m.Sh(accounted)) {
		n, program, _ := strings.Cut(strings.TrimSpace(line), " ")
		counts[program], _ = strconv.Atoi(n) // the kernel's own number
	}
	return counts
}

// TestInterrupted ends, disturbs and floods jobs at every step of their way: no slot is lost, and what
// a job has written so far is kept.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	m := installed(t)
	p := pipelines{evaluations{m: m}}

	t.Run("what runs on the host", func(t *testing.T) {
		m.Sh(account)
		steps := step(0, "busybox:test", "echo in the container", "") + "    env: {BASH_ENV: /tmp/x, PATH: /tmp, LD_PRELOAD: /tmp/x.so, GIT_SSH_COMMAND: touch /tmp/x}\n    artifact_paths: [out.json]\n"
		if r := runStep(m, 0, steps); r.Code != 0 {
			t.Errorf("exit %d: %s", r.Code, r.Stdout)
		}
		m.Wait("the agent to end", "grep -qa buildkite-agent /root/acct")
		var got []string
		for program := range programs(m) {
			if name, ok := strings.CutPrefix(program, "kbnode-gpu0 "); ok {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		must.Equal(t, []string{"buildkite-agent", "kbnode"}, got)
	})

	t.Run("canceled at any moment", func(t *testing.T) {
		for tenth := range 10 {
			slot := tenth % 8
			file := fmt.Sprintf("/root/cancel-%d.yml", slot)
			m.Put(file, 0o600, step(slot, "busybox:test", "echo ran; sleep 1000", "")+"    artifact_paths: [out.json]\n")
			build := m.Sh(fmt.Sprintf("build=$(bkstub submit --queue b200 --steps %s); sleep %d; bkstub cancel $build >&2; echo $build", file, 2*tenth))
			if r := m.Try("bkstub wait --timeout 3m " + build); strings.Contains(r.Stderr, "still running") {
				t.Errorf("canceled after %d s: %s", 2*tenth, r.Stdout)
			}
			m.Wait("the container to go", fmt.Sprintf("! ls -d /sys/fs/cgroup/buildkite.slice/buildkite-gpu%d.slice/docker-*", slot))
		}
		for slot := range 8 {
			idle(t, m, slot)
		}
	})

	t.Run("the agent is killed", func(t *testing.T) {
		submitted(m, 1, counted)
		m.Sh("systemctl kill -s KILL --kill-whom=main buildkite-agent-gpu1")
		m.Wait("the container to go", "! ls -d /sys/fs/cgroup/buildkite.slice/buildkite-gpu1.slice/docker-*")
		idle(t, m, 1)
	})

	t.Run("kbnode bootstrap is killed", func(t *testing.T) {
		build := submitted(m, 2, counted)
		m.Sh("pkill -KILL -u kbnode-gpu2 -f 'kbnode bootstrap'")
		p.wait(t, build, "failed")
		m.Wait("the container to go", "! ls -d /sys/fs/cgroup/buildkite.slice/buildkite-gpu2.slice/docker-*")
		idle(t, m, 2)
	})

	t.Run("much output", func(t *testing.T) {
		m.Put("/root/much.yml", 0o600, step(3, "busybox:test", "echo '{}' >out.json; yes 0123456789012345678901234567890123456789012345678901234567890123 | head -c 2147483648; echo last", "")+"    artifact_paths: [out.json]\n")
		build := m.Sh("bkstub submit --queue b200 --steps /root/much.yml")
		m.Wait("the container", "ls -d /sys/fs/cgroup/buildkite.slice/buildkite-gpu3.slice/docker-*")
		before := m.Sh("ps -C dockerd -o rss=")
		m.Wait("some output", "bkstub log "+build+" | head -c 100000000 | wc -c | grep -qv '^.\\{1,6\\}$'")
		m.Sh("bkstub cancel " + build)
		if r := m.Try("bkstub wait --timeout 5m " + build + " >/dev/null"); strings.Contains(r.Stderr, "still running") {
			t.Errorf("after %s: %s", before, r.Stderr)
		}
		m.Sh("bkstub artifact " + build + " out.json")
		if got := m.Sh("systemctl show -P NRestarts kbnode"); got != "0" {
			t.Errorf("the daemon restarted %s times", got)
		}
		idle(t, m, 3)
	})

	t.Run("the engine restarts, and lets containers live", func(t *testing.T) {
		build := submitted(m, 5, counted)
		m.Sh("systemctl restart docker")
		counting(m, build)
		released(m, 5, build)
		r := p.wait(t, build, "passed")
		whole(t, r.Log)
		m.Sh("bkstub artifact " + build + " out.json")
		idle(t, m, 5)
	})

	t.Run("the engine restarts, and ends its containers", func(t *testing.T) {
		m.Sh(`jq '."live-restore" = false' /etc/docker/daemon.json >/root/daemon.json; cp /root/daemon.json /etc/docker/daemon.json; systemctl reload docker`)
		m.Wait("the engine's settings", "docker info -f '{{.LiveRestoreEnabled}}' | grep false")
		build := submitted(m, 4, counted)
		m.Sh("systemctl restart docker")
		p.wait(t, build, "failed")
		if tries := p.tries(t, build); tries[0].ExitStatus == nil || *tries[0].ExitStatus != 255 {
			t.Errorf("%+v", tries)
		}
		m.Sh("bkstub artifact " + build + " out.json")
		idle(t, m, 4)
	})

	t.Run("the job's process is killed", func(t *testing.T) {
		build := submitted(m, 6, counted)
		m.Sh("systemctl kill -s KILL 'kbnode-job-gpu6@*.service'")
		p.wait(t, build, "failed")
		if tries := p.tries(t, build); tries[0].ExitStatus == nil || *tries[0].ExitStatus != 255 {
			t.Errorf("%+v", tries)
		}
		m.Wait("the container to go", "! ls -d /sys/fs/cgroup/buildkite.slice/buildkite-gpu6.slice/docker-*")
		idle(t, m, 6)
		must.Equal(t, "", m.Sh("systemctl list-units --failed --plain --no-legend 'kbnode*' 'buildkite*'"))
	})

	t.Run("the job's process is killed, and no agent follows", func(t *testing.T) {
		submitted(m, 5, counted)
		m.Sh("kbnode drain gpu5; systemctl kill -s KILL 'kbnode-job-gpu5@*.service'")
		m.Wait("the slot to be drained", `kbnode status --json | jq -e '.slots[5].agent == "drained"'`)
		m.Sh("! ls -d /sys/fs/cgroup/buildkite.slice/buildkite-gpu5.slice/docker-*; kbnode resume gpu5")
		idle(t, m, 5)
	})

	t.Run("the job's process is asked to end, as before a reboot", func(t *testing.T) {
		build := submitted(m, 4, counted)
		m.Sh("systemctl kill -s TERM 'kbnode-job-gpu4@*.service'")
		counting(m, build)
		released(m, 4, build)
		whole(t, p.wait(t, build, "passed").Log)
	})

	for process, match := range map[string]string{
		"the job's process": "-f '^[^ ]*kbnode run-job --slot %d$'",
		"kbnode bootstrap":  "-u kbnode-gpu%d -f '^[^ ]*kbnode bootstrap'",
		"the agent":         "-u kbnode-gpu%d -x buildkite-agent",
		"kbnode clear":      "-f '^[^ ]*kbnode clear --slot %d'",
	} {
		t.Run(process+" is killed at any moment", func(t *testing.T) { killed(t, m, match) })
	}

	t.Run("kbnode is upgraded", func(t *testing.T) {
		program := "readlink /proc/$(systemctl show -P MainPID 'kbnode-job-gpu6@*.service')/exe"
		build := submitted(m, 6, counted)
		m.Sh("cp /usr/local/bin/kbnode /usr/local/bin/kbnode.new; mv /usr/local/bin/kbnode.new /usr/local/bin/kbnode; systemctl daemon-reload; kbnode reconcile")
		counting(m, build)
		must.Equal(t, "/usr/local/bin/kbnode (deleted)", m.Sh(program))
		released(m, 6, build)
		whole(t, p.wait(t, build, "passed").Log)
		build = submitted(m, 6, counted)
		must.Equal(t, "/usr/local/bin/kbnode", m.Sh(program))
		released(m, 6, build)
		p.wait(t, build, "passed")
		idle(t, m, 6)
	})

	t.Run("the engine is killed, and containers end while the next one restores them", func(t *testing.T) { endedInRestore(t, p) })
}

// killed ends a process of each slot with SIGKILL, each at another moment of the slot's job, or of its agent's next start, and
// looks whether a slot ever has two containers.
func killed(t *testing.T, m *vm.Machine, match string) {
	t.Helper()
	script := `rm -f /root/done; : >/root/two
while ! [ -e /root/done ]; do
	for of in /sys/fs/cgroup/buildkite.slice/buildkite-gpu?.slice; do
		n=0; for c in $of/docker-*; do ! grep -q . $c/cgroup.procs 2>/dev/null || n=$((n + 1)); done
		[ $n -le 1 ] || echo $of $n >>/root/two
	done
	sleep 0.3
done &
watch=$! jobs=
`
	for slot := range 8 {
		file := fmt.Sprintf("/root/kill-%d.yml", slot)
		m.Put(file, 0o600, step(slot, "busybox:test", "echo ran; sleep 30", "")+"    artifact_paths: [out.json]\n")
		script += fmt.Sprintf("build=$(bkstub submit --queue b200 --steps %s)\n(sleep %d; SECONDS=0; until pkill -KILL %s || [ $SECONDS -ge 60 ]; do sleep 0.1; done; bkstub cancel $build || true; bkstub wait --timeout 1m $build >&2 || true) & jobs=\"$jobs $!\"\n", file, 2*slot, fmt.Sprintf(match, slot))
	}
	m.Sh(script + `wait $jobs; touch /root/done; wait $watch`)
	must.Equal(t, "", m.Sh("cat /root/two"))
	for slot := range 8 {
		m.Wait("the container to go", fmt.Sprintf("! ls -d /sys/fs/cgroup/buildkite.slice/buildkite-gpu%d.slice/docker-*", slot))
		idle(t, m, slot)
	}
}

// slowIptables makes the next engines call an iptables that waits while /root/slow/on is there. They call it
// after they have found the containers that run, and before they know their networks.
const slowIptables = `mkdir -p /root/slow /etc/systemd/system/docker.service.d
cat >/root/slow/iptables <<'E'
#!/bin/sh
touch /root/slow/called
while [ -e /root/slow/on ]; do sleep 0.2; done
exec /usr/sbin/iptables "$@"
E
chmod +x /root/slow/iptables
printf '[Service]\nEnvironment=PATH=/root/slow:/usr/sbin:/usr/bin:/sbin:/bin\n' >/etc/systemd/system/docker.service.d/slow.conf
jq '."live-restore" = true' /etc/docker/daemon.json >/root/daemon.json; cp /root/daemon.json /etc/docker/daemon.json
systemctl daemon-reload; systemctl restart docker; docker info -f '{{.LiveRestoreEnabled}}' | grep true`

// endedInRestore makes an engine keep containers that are gone on the networks of two slots. One gets its next
// job, and both go with kbnode.
func endedInRestore(t *testing.T, p pipelines) {
	t.Helper()
	m := p.m
	m.Sh(slowIptables)
	build := submitted(m, 7, counted)
	m.Sh("docker run -d --name theirs --network kbnode-gpu6 busybox:test sleep 1000")
	m.Sh(`theirs=$(docker inspect -f '{{.State.Pid}}' theirs); rm -f /root/slow/called; touch /root/slow/on; systemctl kill -s KILL docker
		until [ -e /root/slow/called ]; do sleep 0.1; done
		kill -KILL $theirs; for of in /sys/fs/cgroup/buildkite.slice/buildkite-gpu7.slice/docker-*/cgroup.kill; do echo 1 >$of; done
		sleep 5; rm /root/slow/on`)
	p.wait(t, build, "failed")
	idle(t, m, 7)
	must.Equal(t, "0", m.Sh("docker network inspect -f '{{len .Containers}}' kbnode-gpu7"))
	m.Sh("docker rm theirs")
	if got := m.Sh("docker network inspect -f '{{len .Containers}}' kbnode-gpu6"); got != "1" {
		t.Fatalf("the engine keeps %s containers that are gone, so this shows nothing", got)
	}
	m.Sh("kbnode uninstall")
	must.Equal(t, "", m.Sh("docker network ls -q --filter label=kbnode.slot"))
}
