//go:build vm

package vm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// installCommand is what a vendor's engineer types, but for the address.
const installCommand = "kbnode install --queue b200 --token-file /root/token --endpoint http://127.0.0.1:8899/v3"

const tokenLine = "BUILDKITE_AGENT_TOKEN=bktest-agent-token"

// sleeping is a job that sleeps until something ends its sleep, and succeeds unless it is killed.
const sleeping = `steps:
  - command: sleep 3600 || true; echo slept well
    agents: {queue: b200, gpu-index: "%d"}
    plugins:
      - docker#v5.11.0: {image: "busybox:test", gpus: all}
`

// installStreaming is installCommand with an endpoint that sends agents their jobs.
var installStreaming = strings.Replace(installCommand, "http://127.0.0.1:8899", "https://127.0.0.1:8843", 1)

// asleep starts such a job on a slot. It sleeps as long as the test needs it, however slow the
// machine is: until wake, which waits for its success.
func asleep(t *testing.T, m *vm.Machine, slot int) (wake func()) {
	t.Helper()
	m.Put("/root/sleep.yml", 0o600, fmt.Sprintf(sleeping, slot))
	job := m.Start("bash", "-c", "bkstub submit --queue b200 --steps /root/sleep.yml --wait")
	m.Wait("the job's container", "docker ps -q | grep -q .")
	return func() {
		t.Helper()
		m.Sh("pkill -f '^sleep 3600'")
		if r := job.Wait(); r.Code != 0 || !strings.Contains(r.Stdout, "slept well") {
			t.Errorf("the job: exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
	}
}

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
	must.Do(t, err)
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
	systemctl show -p MainPID,ActiveEnterTimestamp 'buildkite-agent-gpu*' 'kbnode-job-gpu*.socket'`

// TestInstall holds install to changing nothing where the machine is not fit, kills it at random moments, and at
// last ends a job with the node.
func TestInstall(t *testing.T) {
	t.Parallel()
	m := forked(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	m.Put("/root/sleep.yml", 0o600, fmt.Sprintf(sleeping, 6))
	m.Put("/root/wrong", 0o600, "BUILDKITE_AGENT_TOKEN=not-the-agent-token\n")
	before := m.Sh(machineState)
	for _, tt := range []struct {
		name, script, says, undo string
		code                     int // 2 is what waiting does not change
	}{
		{"wrong token", installCommand + " --token-file /root/wrong", "refuses the agent token", "", 2},
		{"a file in the way", "echo mine >/etc/systemd/system/buildkite-gpu3.slice; " + installCommand, "not written by kbnode", "rm /etc/systemd/system/buildkite-gpu3.slice", 2},
		{"Docker is down", "systemctl stop docker.socket docker; " + installCommand, "Docker does not answer", "systemctl start docker", 1},
		{"cgroupfs driver", `cp /etc/docker/daemon.json /root/; sed -i 's/{/{"exec-opts":["native.cgroupdriver=cgroupfs"],/' /etc/docker/daemon.json; systemctl restart docker; ` + installCommand, "native.cgroupdriver=systemd", "mv /root/daemon.json /etc/docker/; systemctl restart docker", 1},
		{"no GPU", "for k in 0 1 2 3 4 5 6 7; do sim-gpu lose $k; done; " + installCommand, "no GPU that kbnode can see", "for k in 0 1 2 3 4 5 6 7; do sim-gpu restore $k; done", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := m.Try(tt.script)
			if r.Code != tt.code || !strings.Contains(r.Stderr, tt.says) || strings.Contains(r.Stderr, "goroutine") {
				t.Errorf("exit %d, want %d and %q in\n%s", r.Code, tt.code, tt.says, r.Stderr)
			}
			m.Sh(tt.undo)
		})
	}
	must.Equal(t, before, m.Sh(machineState))

	random := rand.New(rand.NewPCG(seed, 0))
	for i := range 10 {
		p := m.Start("bash", "-c", installCommand)
		pause := time.Duration(random.IntN(4000*(i+1))) * time.Millisecond
		select {
		case <-t.Context().Done():
		case <-time.After(pause):
		}
		m.Try("pkill -9 -x kbnode -f install") // the agents that run already stay
		p.Signal(syscall.SIGKILL)
		p.Wait()
	}
	m.Sh(installCommand)
	m.Sh("bkstub wait-agents --count 8 --timeout 5m")
	if r := m.Try("kbnode plan --detailed-exit-code"); r.Code != 0 {
		t.Errorf("changes are pending: %s", r.Stdout)
	}
	m.Sh("bkstub submit --queue b200 --wait")
	must.Equal(t, "", m.Sh("find /etc/systemd/system /etc/buildkite-agent /etc/kbnode /var/lib/kbnode /usr/local/libexec -name '*~' -o -name '.*[0-9][0-9]*'"))
	// With --now a job is ended, by its agent, so that Buildkite knows.
	job := m.Start("bash", "-c", "bkstub submit --queue b200 --steps /root/sleep.yml --wait")
	m.Wait("the job's container", "docker ps -q | grep -q .")
	m.Sh("kbnode uninstall --now")
	if r := job.Wait(); r.Code != 1 {
		t.Errorf("the job that uninstall --now ended: exit %d\n%s", r.Code, r.Stderr)
	}
	must.Equal(t, before, m.Sh(machineState))
	if out := m.Sh("kbnode uninstall"); !strings.Contains(out, "Nothing to remove") {
		t.Errorf("the second uninstall says %s", out)
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
