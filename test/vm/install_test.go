//go:build vm

package vm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/vm"
)

// installCommand is what a vendor's engineer types, but for the address.
const installCommand = "kbnode install --queue b200 --token-file /root/token --endpoint http://127.0.0.1:8899/v3"

const tokenLine = "BUILDKITE_AGENT_TOKEN=bktest-agent-token"

// looking is a job that shows what it sees from inside of its container.
// It also leaves what the next job's checkout could not remove by itself.
const looking = `steps:
  - command: |
      mkdir -p left/deep; touch left/deep/file; chmod 0 left
      cat /proc/self/status
      mknod /gpu0 c 195 0 2>&1 || true
      (exec 3<>/dev/nvidia5) 2>&1 || true
      ls /dev/nvidia*
      env
      sleep 20
    agents: {queue: b200, gpu-index: "%d"}
    plugins:
      - docker#v5.11.0:
          image: busybox:test
          gpus: all
          propagate-environment: true
          environment: [NVIDIA_VISIBLE_DEVICES=all, CUDA_VISIBLE_DEVICES, KERNELBOT_GPU_INDEX, KERNELBOT_CPUSET, KERNELBOT_CPUS, KERNELBOT_MEMORY]
`

// sleeping is a job that succeeds unless it is killed.
const sleeping = `steps:
  - command: for i in $$(seq %d); do sleep 1; done; echo slept well
    agents: {queue: b200, gpu-index: "%d"}
    plugins:
      - docker#v5.11.0: {image: "busybox:test", gpus: all}
`

// forked is a machine on which nothing is installed yet, with a token file.
func forked(t *testing.T) *vm.Machine {
	t.Helper()
	m := vm.Fork(t)
	m.Put("/root/token", 0o600, tokenLine+"\n")
	return m
}

// node is a machine on which kbnode is installed and all agents wait, as a
// snapshot: most tests begin with one.
var node = sync.OnceValues(func() (*vm.Template, error) {
	madeNode = true
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	base, err := vm.Base()
	if err != nil {
		return nil, err
	}
	return base.Snapshot(ctx, func(ctx context.Context, m *vm.VM) error {
		if err := m.InstallTools(ctx); err != nil {
			return err
		}
		script := "(umask 077; echo " + tokenLine + " >/root/token); " + installCommand + " && bkstub wait-agents --count 8 --timeout 5m"
		r, err := m.Run(ctx, nil, "bash", "-euo", "pipefail", "-c", script)
		if err == nil && r.Code != 0 {
			err = fmt.Errorf("exit %d from\n%s\n%s%s", r.Code, script, r.Stdout, r.Stderr)
		}
		return err
	})
})

func TestMain(m *testing.M) {
	if socket := os.Getenv("KBVM_SOCKET"); socket != "" {
		os.Exit(asSSH(socket))
	}
	code := m.Run()
	if madeNode {
		if snapshot, err := node(); err == nil {
			_ = snapshot.Close()
		}
	}
	os.Exit(code)
}

var madeNode bool // node was called

func installed(t testing.TB) *vm.Machine {
	t.Helper()
	snapshot, err := node()
	if err != nil {
		t.Fatal(err)
	}
	return vm.ForkOf(t, snapshot)
}

func status(t *testing.T, m *vm.Machine) (st struct {
	Slots []struct {
		Slot, UUID, CPUs, Agent string
		Problems                []string
		Job                     *struct{ ID string }
	}
	Changes []struct{ Kind, Subject, Deferred string }
}) {
	t.Helper()
	r := m.Try("kbnode status --json")
	if err := json.Unmarshal([]byte(r.Stdout), &st); err != nil {
		t.Fatalf("status is no JSON: %v\n%s%s", err, r.Stdout, r.Stderr)
	}
	return st
}

// writes is what a run of kbnode may not change when it has nothing to do: the
// files of units and agents, by time, and how often systemd has loaded units.
const writes = `find /etc/systemd/system /etc/buildkite-agent /etc/kbnode /var/lib/kbnode /usr/local/libexec/kbnode -printf '%p %T@ %m %u\n' | sort
	journalctl -b -o cat _PID=1 | grep -c Reloading || true
	systemctl show -p MainPID,ActiveEnterTimestamp 'buildkite-agent-gpu*' 'kbnode-guard-gpu*'`

// TestInstallServes is the main job: eight agents, each with its share, and
// jobs that see no more than that.
func TestInstallServes(t *testing.T) {
	t.Parallel()
	m := installed(t)
	var p plan.Plan
	if err := json.Unmarshal([]byte(m.Sh("kbnode plan --json")), &p); err != nil {
		t.Fatal(err)
	}
	if len(p.Slots) != 8 {
		t.Fatalf("%d slots are planned", len(p.Slots))
	}
	t.Run("slots", func(t *testing.T) {
		for _, s := range p.Slots {
			dir := "/sys/fs/cgroup/buildkite.slice/buildkite-" + s.Name + ".slice"
			got := m.Sh(fmt.Sprintf("cd %s; cat cpuset.cpus.effective cpuset.mems.effective memory.max memory.swap.max", dir))
			want := fmt.Sprintf("%s\n%s\n%d\n0", s.CPUs, s.MemoryNodes, s.MemoryBytes)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: %s", s.Name, diff)
			}
			cpus, err := cpuset.Parse(s.CPUs)
			if err != nil {
				t.Fatal(err)
			}
			for _, cpu := range cpus.Ints() {
				siblings, err := cpuset.Parse(m.Sh(fmt.Sprintf("cat /sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu)))
				if err != nil || !siblings.Difference(cpus).Equal(cpuset.Set{}) {
					t.Errorf("%s has CPU %d and not all of its siblings %s (%v)", s.Name, cpu, siblings, err)
				}
			}
		}
	})
	t.Run("users", func(t *testing.T) {
		if got := m.Sh("getent group docker | cut -d: -f4; id -nG kbnode-gpu3"); got != "\nkbnode-gpu3" && got != "kbnode-gpu3" {
			t.Errorf("docker group and groups of a slot's user: %q", got)
		}
	})
	t.Run("token", func(t *testing.T) {
		if got := m.Sh("stat -c '%a %U' /etc/buildkite-agent/token"); got != "600 root" {
			t.Errorf("the token file is %s", got)
		}
		for what, script := range map[string]string{
			"its file":                "cat /etc/buildkite-agent/token",
			"the unit's credential":   "cat /run/credentials/buildkite-agent-gpu3.service/token",
			"the agent's environment": "cat /proc/$(systemctl show -P MainPID buildkite-agent-gpu3)/environ",
			"the agent's memory":      "head -c1 /proc/$(systemctl show -P MainPID buildkite-agent-gpu3)/mem",
		} {
			if r := m.Try("runuser -u kbnode-gpu3 -- bash -c '" + script + "'"); r.Code == 0 || strings.Contains(r.Stdout, "bktest") {
				t.Errorf("the slot's user reads the token from %s: %s", what, r.Stdout)
			}
		}
		if got := m.Sh("cut -d= -f2 /root/token >/root/pattern; t='-f /root/pattern'; grep -rl --exclude=image $t /etc /run/systemd /var/lib/kbnode /var/lib/buildkite-agent 2>/dev/null; journalctl -b | grep -c $t || true; cat /proc/[0-9]*/cmdline 2>/dev/null | grep -c $t || true"); got != "/etc/buildkite-agent/token\n0\n0" {
			t.Errorf("the token stands in: %s", got)
		}
	})
	t.Run("evaluation", func(t *testing.T) {
		out := m.Sh("bkstub submit --queue b200 --wait --json")
		if !strings.Contains(out, `"success":true`) && !strings.Contains(out, `"success": true`) {
			t.Errorf("the job's result: %s", out)
		}
	})
	t.Run("job sees its share", func(t *testing.T) {
		s := p.Slots[5]
		m.Put("/root/look.yml", 0o600, fmt.Sprintf(looking, 5))
		job := m.Start("bash", "-c", "bkstub submit --queue b200 --steps /root/look.yml --wait")
		m.Wait("the job's container", "docker ps -q | grep -q .")
		cgroup := m.Sh(`cut -d: -f3 "/proc/$(docker inspect -f '{{.State.Pid}}' $(docker ps -q))/cgroup"`)
		if !strings.HasPrefix(cgroup, "/buildkite.slice/buildkite-gpu5.slice/docker-") {
			t.Errorf("the job's container is in %s", cgroup)
		}
		if got, want := m.Sh("cd /sys/fs/cgroup"+cgroup+"; cat cpuset.cpus.effective cpuset.mems.effective memory.max"), fmt.Sprintf("%s\n%s\n%d", s.CPUs, s.MemoryNodes, s.MemoryBytes); got != want {
			t.Errorf("the container's limits are %q, want %q", got, want)
		}
		log := job.Wait().Stdout
		for _, want := range []string{
			"Cpus_allowed_list:\t" + s.CPUs,
			"Mems_allowed_list:\t" + s.MemoryNodes,
			"mknod: /gpu0: Operation not permitted",
			"/dev/nvidia5: No such device or address", // ENXIO: it may, and there is no driver
			"CUDA_VISIBLE_DEVICES=" + s.GPUs[0].UUID,
			"KERNELBOT_GPU_INDEX=5", "KERNELBOT_CPUSET=" + s.CPUs,
		} {
			if !strings.Contains(log, want) {
				t.Errorf("the job did not see %q", want)
			}
		}
		for _, leak := range []string{"BUILDKITE_AGENT_ACCESS_TOKEN=", "BUILDKITE_AGENT_JOB_API_TOKEN=", "bktest-agent-token", "/dev/nvidia0"} {
			if strings.Contains(log, leak) {
				t.Errorf("the job saw %s", leak)
			}
		}
		if t.Failed() {
			t.Log(log)
		}
		if got := m.Sh("find /var/lib/buildkite-agent/gpu-5/builds -mindepth 1 ! -user kbnode-gpu5"); got != "" {
			t.Errorf("the job left files of others: %s", got)
		}
		m.Sh("bkstub submit --queue b200 --steps /root/look.yml --wait")
	})
	t.Run("the slice refuses other GPUs to anything in it", func(t *testing.T) {
		log := m.Try(`docker run --rm --privileged --cgroup-parent buildkite-gpu5.slice busybox:test sh -c '
			for k in 0 1 2 3 4 5 6 7; do mknod /gpu$k c 195 $k; (exec 3<>/gpu$k) 2>&1; done'`).Stdout
		for k := range 8 {
			says := regexp.MustCompile(fmt.Sprintf(`/gpu%d: (.*)`, k)).FindString(log)
			if want := map[bool]string{true: "No such device or address", false: "Operation not permitted"}[k == 5]; !strings.Contains(says, want) {
				t.Errorf("opening GPU %d in a privileged container of slot 5 says %q, want %q", k, says, want)
			}
		}
	})
	t.Run("nobody else uses the slots' CPUs", func(t *testing.T) {
		if got := m.Sh("cat /sys/fs/cgroup/system.slice/cpuset.cpus.effective"); got != p.Reserved.CPUs {
			t.Errorf("system.slice has CPUs %s, want %s", got, p.Reserved.CPUs)
		}
	})
	t.Run("second install changes nothing", func(t *testing.T) {
		before := m.Sh(writes)
		if out := m.Sh(installCommand + "; kbnode reconcile"); strings.Count(out, "Nothing to change") != 2 {
			t.Errorf("it says %s", out)
		}
		if diff := cmp.Diff(before, m.Sh(writes)); diff != "" {
			t.Error(diff)
		}
		if r := m.Try("kbnode plan --detailed-exit-code; kbnode status"); r.Code != 0 {
			t.Errorf("exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
	})
	t.Run("lost and dead GPUs", func(t *testing.T) {
		m.Sh("sim-gpu lose 3; sim-gpu fail 6; kbnode reconcile")
		for i, s := range status(t, m).Slots {
			if want := map[bool]string{true: "parked", false: "idle"}[i == 3 || i == 6]; s.Agent != want {
				t.Errorf("agent of slot %d is %s, want %s (%v)", i, s.Agent, want, s.Problems)
			}
		}
		m.Sh("sim-gpu restore 3; sim-gpu restore 6; kbnode reconcile; bkstub wait-agents --count 8 --timeout 3m")
	})
	t.Run("units are sound", func(t *testing.T) {
		if r := m.Try("systemd-analyze verify /etc/systemd/system/*kbnode* /etc/systemd/system/buildkite* 2>&1"); r.Code != 0 || r.Stdout != "" {
			t.Errorf("exit %d: %s", r.Code, r.Stdout)
		}
	})
	t.Run("drift is mended", func(t *testing.T) {
		m.Sh("echo '# changed' >>/etc/systemd/system/buildkite-gpu1.slice; echo 1G >/sys/fs/cgroup/buildkite.slice/buildkite-gpu2.slice/memory.max; rm /etc/buildkite-agent/hooks/pre-exit; kbnode reconcile")
		if r := m.Try("kbnode plan --detailed-exit-code >/dev/null"); r.Code != 0 {
			t.Errorf("changes are pending: %s", m.Try("kbnode plan").Stdout)
		}
		if got, want := m.Sh("cat /sys/fs/cgroup/buildkite.slice/buildkite-gpu2.slice/memory.max"), fmt.Sprint(p.Slots[2].MemoryBytes); got != want {
			t.Errorf("memory.max is %s, want %s", got, want)
		}
	})
	t.Run("reboot", func(t *testing.T) {
		m.Reboot()
		m.Sh("bkstub wait-agents --count 8 --timeout 5m")
		m.Wait("all slots as planned", "kbnode status")
		m.Sh("bkstub submit --queue b200 --wait")
	})
}

// TestInstallLeavesJobsAlone changes a node under a running job.
func TestInstallLeavesJobsAlone(t *testing.T) {
	t.Parallel()
	m := installed(t)
	m.Put("/root/sleep.yml", 0o600, fmt.Sprintf(sleeping, 120, 2))
	job := m.Start("bash", "-c", "bkstub submit --queue b200 --steps /root/sleep.yml --wait")
	m.Wait("the job's container", "docker ps -q | grep -q .")
	before := m.Sh("docker ps -q; systemctl show -P MainPID buildkite-agent-gpu2")

	if out := m.Sh(installCommand + " 2>&1"); !strings.Contains(out, "Nothing to change") {
		t.Errorf("reinstall during a job says %s", out)
	}
	out := m.Sh(strings.Replace(installCommand, "b200", "other", 1))
	if !strings.Contains(out, "later: ") || !strings.Contains(out, "waits for job") {
		t.Errorf("a changed install during a job says %s", out)
	}
	if diff := cmp.Diff(before, m.Sh("docker ps -q; systemctl show -P MainPID buildkite-agent-gpu2")); diff != "" {
		t.Errorf("the job's container or agent changed: %s", diff)
	}
	st := status(t, m)
	if s := st.Slots[2]; s.Agent != "draining" || s.Job == nil || len(s.Problems) == 0 {
		t.Errorf("status of the busy slot is %+v", s)
	}
	if st.Slots[3].Agent != "idle" {
		t.Errorf("status of an idle slot is %+v", st.Slots[3])
	}
	if r := job.Wait(); r.Code != 0 || !strings.Contains(r.Stdout, "slept well") {
		t.Fatalf("the job ended with %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	// The timer's reconcile goes on from here by itself.
	m.Wait("all agents in the new queue", `test "$(bkstub agents --json | grep -c '"queue=other"')" = 8`)
	m.Wait("all slots as planned", "kbnode status")
}

// TestInstallSurvivesKill kills install at random moments.
func TestInstallSurvivesKill(t *testing.T) {
	t.Parallel()
	m := forked(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range 10 {
		p := m.Start("bash", "-c", installCommand)
		pause := time.Duration(random.IntN(4000*(i+1))) * time.Millisecond
		select {
		case <-t.Context().Done():
		case <-time.After(pause):
		}
		m.Try("pkill -9 -x kbnode -f install") // the guards and agents that run already stay
		p.Signal(syscall.SIGKILL)
		p.Wait()
	}
	m.Sh(installCommand)
	m.Sh("bkstub wait-agents --count 8 --timeout 5m")
	if r := m.Try("kbnode plan --detailed-exit-code"); r.Code != 0 {
		t.Errorf("changes are pending: %s", r.Stdout)
	}
	m.Sh("bkstub submit --queue b200 --wait")
	if got := m.Sh("find /etc/systemd/system /etc/buildkite-agent /etc/kbnode /var/lib/kbnode /usr/local/libexec -name '*~' -o -name '.*[0-9][0-9]*'"); got != "" {
		t.Errorf("left over: %s", got)
	}
}

// machineState is everything that uninstall must leave as it was.
const machineState = `find /etc /usr/local /var/lib /run /root /home /opt /srv -xdev \
		-not -path '/var/lib/docker*' -not -path '/var/lib/containerd*' -not -path '/run/docker*' -not -path '/run/containerd*' \
		-not -path '/run/log/*' -not -path '/run/systemd/*' -not -path '/var/lib/systemd/*' -not -path '/run/udev/*' -not -path '/var/lib/dbus/*' \
		-not -name '*-' -not -name '.updated' -not -path '/run/credentials*' -not -path '/run/user*' -printf '%p %m %u\n' | sort
	cut -d: -f1,3 /etc/passwd /etc/group; cut -d: -f1 /etc/shadow
	find /sys/fs/cgroup -maxdepth 2 -type d -name '*buildkite*'
	systemctl list-units --all --plain --no-legend '*kbnode*' '*buildkite*'
	find /run/systemd/system.control /run/systemd/transient -mindepth 1 2>/dev/null || true
	docker network ls --format '{{.Name}} {{.Driver}}' | sort
	{ ip -o link; nft list tables; } | grep kbnode || true
	docker ps -aq`

func TestUninstallLeavesNothing(t *testing.T) {
	t.Parallel()
	m := forked(t)
	m.Put("/root/sleep.yml", 0o600, fmt.Sprintf(sleeping, 60, 6))
	before := m.Sh(machineState)
	m.Sh(installCommand)
	m.Sh("bkstub wait-agents --count 8 --timeout 5m; bkstub submit --queue b200 --wait")
	job := m.Start("bash", "-c", "bkstub submit --queue b200 --steps /root/sleep.yml --wait")
	m.Wait("the job's container", "docker ps -q | grep -q .")
	out := m.Sh("kbnode uninstall 2>&1")
	if !strings.Contains(out, "waiting for job") {
		t.Errorf("uninstall with a running job says %s", out)
	}
	if r := job.Wait(); r.Code != 0 || !strings.Contains(r.Stdout, "slept well") {
		t.Errorf("the job ended with %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if diff := cmp.Diff(before, m.Sh(machineState)); diff != "" {
		t.Errorf("uninstall left: %s", diff)
	}
	if out := m.Sh("kbnode uninstall"); !strings.Contains(out, "Nothing to remove") {
		t.Errorf("the second uninstall says %s", out)
	}

	// With --now a job is ended, by its agent, so that Buildkite knows.
	m.Sh(installCommand)
	m.Put("/root/sleep.yml", 0o600, fmt.Sprintf(sleeping, 3600, 6))
	job = m.Start("bash", "-c", "bkstub submit --queue b200 --steps /root/sleep.yml --wait")
	m.Wait("the job's container", "docker ps -q | grep -q .")
	m.Sh("kbnode uninstall --now")
	if r := job.Wait(); r.Code != 1 {
		t.Errorf("the job that uninstall --now ended: exit %d\n%s", r.Code, r.Stderr)
	}
	if diff := cmp.Diff(before, m.Sh(machineState)); diff != "" {
		t.Errorf("uninstall --now left: %s", diff)
	}
}

// TestInstallRefuses holds each bad input to one sentence and to changing
// nothing.
func TestInstallRefuses(t *testing.T) {
	t.Parallel()
	m := forked(t)
	m.Put("/root/wrong", 0o600, "BUILDKITE_AGENT_TOKEN=not-the-agent-token\n")
	m.Put("/root/empty", 0o600, "")
	before := m.Sh(machineState)
	for _, tt := range []struct {
		name, script, says string
		code               int
		undo               string
	}{
		{name: "unknown flag", script: installCommand + " --foo", says: "unknown flag: --foo", code: 2},
		{name: "no queue", script: "kbnode install --token-file /root/token", says: "--queue b200", code: 2},
		{name: "queue with a comma", script: installCommand + " --queue a,b", says: "is not a queue name", code: 2},
		{name: "queue with a blank", script: installCommand + " --queue 'a b'", says: "is not a queue name", code: 2},
		{name: "no token", script: "kbnode install --queue b200", says: "--token-file FILE", code: 2},
		{name: "empty token file", script: installCommand + " --token-file /root/empty", says: "no agent token found", code: 1},
		{name: "wrong token", script: installCommand + " --token-file /root/wrong", says: "refuses the agent token", code: 1},
		{name: "not root", script: "runuser -u nobody -- " + installCommand, says: "type sudo kbnode install", code: 1},
		{name: "no such GPU", script: installCommand + " --gpus 0,9", says: "GPU 9 does not exist: this machine has GPUs 0 to 7", code: 1},
		{name: "memory that does not fit", script: installCommand + " --memory-per-slot 64GiB", says: "--memory-per-slot", code: 1},
		{name: "CPUs that do not fit", script: installCommand + " --cpus-per-slot 64", says: "--cpus-per-slot", code: 1},
		{name: "unknown key", script: "mkdir -p /etc/kbnode; echo 'queues: a' >/etc/kbnode/config.yaml; " + installCommand, says: `config.yaml:1: unknown key "queues"; write "queue"`, code: 2, undo: "rm -r /etc/kbnode"},
		{name: "a file in the way", script: "echo mine >/etc/systemd/system/buildkite-gpu3.slice; " + installCommand, says: "not written by kbnode", code: 1, undo: "rm /etc/systemd/system/buildkite-gpu3.slice"},
		{name: "kbnode in a place of others", script: "install /usr/local/bin/kbnode /tmp/kbnode; " + strings.Replace(installCommand, "kbnode", "/tmp/kbnode", 1), says: "sudo install -m 755 /tmp/kbnode", code: 1, undo: "rm /tmp/kbnode"},
		{name: "Docker is down", script: "systemctl stop docker.socket docker; " + installCommand, says: "Docker does not answer", code: 1, undo: "systemctl start docker"},
		{name: "cgroupfs driver", script: `cp /etc/docker/daemon.json /root/; sed -i 's/{/{"exec-opts":["native.cgroupdriver=cgroupfs"],/' /etc/docker/daemon.json; systemctl restart docker; ` + installCommand, says: "native.cgroupdriver=systemd", code: 1, undo: "mv /root/daemon.json /etc/docker/; systemctl restart docker"},
		{name: "no GPU", script: "for k in 0 1 2 3 4 5 6 7; do sim-gpu lose $k; done; " + installCommand, says: "no GPU that kbnode can see", code: 1, undo: "for k in 0 1 2 3 4 5 6 7; do sim-gpu restore $k; done"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := m.Try(tt.script)
			if r.Code != tt.code || !strings.Contains(r.Stderr, tt.says) || strings.Contains(r.Stderr, "goroutine") {
				t.Errorf("exit %d, want %d and %q in\n%s", r.Code, tt.code, tt.says, r.Stderr)
			}
			if tt.undo != "" {
				m.Sh(tt.undo)
			}
		})
	}
	if diff := cmp.Diff(before, m.Sh(machineState)); diff != "" {
		t.Errorf("refusals left: %s", diff)
	}
	t.Run("full disk", func(t *testing.T) {
		m.Sh("mkdir -p /etc/systemd/system; mount -t tmpfs -o size=16k tmpfs /etc/systemd/system")
		r := m.Try(installCommand)
		if r.Code != 1 || !strings.Contains(r.Stderr, "no space left on device") {
			t.Errorf("exit %d: %s", r.Code, r.Stderr)
		}
		m.Sh("umount /etc/systemd/system; " + installCommand + "; bkstub wait-agents --count 8 --timeout 5m; kbnode plan --detailed-exit-code")
	})
}
