//go:build vm

package vm_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/node/doctor"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

func runSelftest(t *testing.T, m *vm.Machine, flags string) (doctor.Result, int) {
	t.Helper()
	r := m.Try("kbnode selftest --json " + flags)
	var report doctor.Report
	if err := json.Unmarshal([]byte(r.Stdout), &report); err != nil || len(report.Checks) != 1 {
		t.Fatalf("exit code %d, %v: %s%s", r.Code, err, r.Stdout, r.Stderr)
	}
	return report.Checks[0], r.Code
}

// failures are what did not hold, a line each.
func failures(r doctor.Result) string {
	var b strings.Builder
	for _, f := range r.Findings {
		if f.Status == doctor.Fail {
			fmt.Fprintf(&b, "%v: %s\n", f.Slots, f.Detail)
		}
	}
	return b.String()
}

// clean runs a self-test that must pass in so many slots, and looks at what it leaves.
func clean(t *testing.T, m *vm.Machine, flags string, slots int) {
	t.Helper()
	r, code := runSelftest(t, m, flags)
	tried := 0
	for _, f := range r.Findings {
		t.Logf("%v %s: %s", f.Slots, f.Status, f.Detail)
		if f.Status == doctor.OK {
			tried += len(f.Slots)
		}
	}
	if code != 0 || tried != slots {
		t.Errorf("exit code %d, %d slots, want %d\n%s", code, tried, slots, failures(r))
	}
	nothingLeft(t, m)
}

// nothingLeft looks for what self-tests make.
func nothingLeft(t *testing.T, m *vm.Machine) {
	t.Helper()
	if got := m.Sh("docker ps -aq; docker images -q kbnode-selftest; ls -d /run/kbnode/gpu*/mounts/* 2>/dev/null || true; systemctl list-units --all --plain --no-legend 'kbnode-selftest*'"); got != "" {
		t.Errorf("left behind: %s", got)
	}
}

// TestSelftest lets a node try itself, and then takes one protection after
// another away behind kbnode's back.
func TestSelftest(t *testing.T) {
	t.Parallel()
	m := installed(t)
	// All at once take longer, emulated, than a command may.
	t.Run("a clean node", func(t *testing.T) {
		clean(t, m, "--slot 0,1,2,3", 4)
		clean(t, m, "--slot 4,5,6,7", 4)
	})

	t.Run("limits that slots share", func(t *testing.T) {
		// As much as a job can take, unless something stops it, and it is still there.
		m.Put("/root/hoard.yml", 0o600, step(4, "kernelbot-test:latest", fmt.Sprintf(hoard, 20000), ""))
		job := m.Start("bash", "-c", "bkstub submit --queue b200 --wait --steps /root/hoard.yml")
		m.Wait("what a job takes", "find /var/lib/buildkite-agent/gpu-4/builds -name TAKEN | grep -q .")
		took := m.Sh("cat $(find /var/lib/buildkite-agent/gpu-4/builds -name TAKEN)")
		t.Log("one slot has ", took)
		var inotify, pipes, aio, ptys int
		if _, err := fmt.Sscanf(took, "inotify %d pipes %d aio %d ptys %d", &inotify, &pipes, &aio, &ptys); err != nil {
			t.Fatal(err)
		}
		// More than the kernel's defaults leave to anyone; terminals are the container's.
		if inotify <= 128 || pipes <= 1024 || aio <= 16 || ptys < 1 || ptys > 256 {
			t.Error("limits that bind before the slot's own, or no limit of terminals")
		}
		if r := runStep(m, 5, step(5, "kernelbot-test:latest", fmt.Sprintf(hoard, 3)+"\ncat TAKEN", "")); r.Code != 0 || !strings.Contains(r.Stdout, "inotify 3 pipes 3 aio 3 ptys 3 of 65536 bytes") {
			t.Errorf("the neighbor: %d %s", r.Code, r.Stdout)
		}
		m.Sh("echo a line >/root/tailed; timeout 5 tail -f /root/tailed 2>&1 | grep -q inotify && exit 1; script -qec true /dev/null; docker run --rm -t busybox:test true")
		m.Sh("docker kill $(docker ps -q)")
		job.Wait()
	})

	t.Run("devices of other slots through /sys", func(t *testing.T) {
		// Every device that has memory of its own.
		const job = `cat /proc/self/attr/current 2>/dev/null || echo no profile
for bar in /sys/bus/pci/devices/*/resource0; do
  for f in $$bar $$(dirname $$bar)/config; do
    (true <$$f) 2>/dev/null && [ -f $$f ] && echo "reads $$f" || echo "kept from $$f"
  done
  cat $$(dirname $$bar)/numa_node
done`
		wantOutput := func(want string) {
			t.Helper()
			r := runStep(m, 2, step(2, "busybox:test", job, ""))
			if r.Code != 0 || !strings.Contains(r.Stdout, want) || strings.Contains(r.Stdout, "reads /sys") || !strings.Contains(r.Stdout, "kept from /sys/bus/pci/devices/") {
				t.Errorf("want %q: %d %s", want, r.Code, r.Stdout)
			}
		}
		// Debian's Docker uses no AppArmor as long as there is no parser for it.
		const used = "grep '^docker-default (enforce)' /sys/kernel/security/apparmor/profiles"
		if m.Try(used).Code == 0 {
			t.Fatal("Docker uses AppArmor already")
		}
		wantOutput("kept from")
		m.InstallPackages("apparmor")
		m.Sh("systemctl restart docker")
		m.Sh(used)
		wantOutput("(enforce)")
		profile := m.Sh("grep -o '^kbnode-job-[0-9a-f]*' /sys/kernel/security/apparmor/profiles")
		m.Sh("printf " + profile + " >/sys/kernel/security/apparmor/.remove")
		wantOutput(profile + " (enforce)") // the job's process has loaded it again
		clean(t, m, "--slot 2", 1)
	})

	t.Run("a job that comes meanwhile", func(t *testing.T) {
		test := m.Start("kbnode", "selftest", "--slot", "6", "--json")
		m.Wait("its container", "docker ps -q --filter label=kbnode.slot=6 | grep -q .")
		if out := runStep(m, 6, step(6, "busybox:test", "echo it ran", "")); out.Code != 0 || !strings.Contains(out.Stdout, "it ran") {
			t.Errorf("the job: %s", out.Stdout)
		}
		if r := test.Wait(); r.Code != 1 || !strings.Contains(r.Stdout, "a job came") {
			t.Errorf("exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		idle(t, m, 6)
	})

	// The daemon would fix what follows.
	m.Sh("mkdir -p /run/systemd/system/kbnode.service.d; printf '[Service]\nType=simple\nWatchdogSec=0\nExecStart=\nExecStart=/bin/sleep infinity\n' >/run/systemd/system/kbnode.service.d/off.conf; systemctl daemon-reload; systemctl restart kbnode")
	m.Sh("kbnode reconcile")
	edit := func(expr string) string {
		return "f=/etc/kbnode/slots/gpu1.json; jq '" + expr + "' $f >/root/edited && cat /root/edited >$f"
	}
	const reconcile = "kbnode reconcile"
	takeAway(t, m, 1, []taken{
		{"CPUs", "systemctl set-property --runtime buildkite-gpu1.slice AllowedCPUs=0-19", "", []string{"cpuset.cpus.effective"}},
		{"the policy's GPU", edit(`.cdi_devices = ["nvidia.com/gpu=all"]`), reconcile, []string{"nodes of other devices"}},
		{"the socket", "systemctl stop kbnode-job-gpu1.socket; touch /run/kbnode/gpu1/job.sock; mount --bind /run/docker.sock /run/kbnode/gpu1/job.sock",
			"umount /run/kbnode/gpu1/job.sock; rm -f /run/kbnode/gpu1/job.sock; " + reconcile, []string{"a container that tries to escape: "}},
		{"Docker's seccomp", `jq '."seccomp-profile"="unconfined"' /etc/docker/daemon.json >/root/daemon.json; cp /etc/docker/daemon.json /root/daemon.old; cp /root/daemon.json /etc/docker/daemon.json; systemctl restart docker`,
			"cp /root/daemon.old /etc/docker/daemon.json; systemctl restart docker", []string{"system calls filtered: saw Seccomp 0"}},
	})

	m.Sh(`printf 'job:\n  profile: strict\n  allowed_images: ["^busybox:test$"]\n' >>/etc/kbnode/config.yaml; kbnode reconcile`)
	m.Sh("bkstub wait-agents --count 8 --timeout 3m")
	takeAway(t, m, 1, []taken{
		{"the strict profile", edit(`.profile = "compatible"`), reconcile, []string{"writing to the root: saw ok"}},
		{"no network", edit(`.network = "bridge"`), reconcile, []string{"a network: "}},
	})
}

// hoard takes as many as it is let, up to a number, of what the kernel counts for a
// user or the machine, says so in the file TAKEN, and holds them.
const hoard = `cat >hoard.py <<'END'
import ctypes, fcntl, os, resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
libc, most = ctypes.CDLL(None), int(sys.argv[1])
def take(one, most):
    for n in range(most):
        try:
            if one() < 0:
                return n
        except OSError:
            return n
    return most
def context():
    return libc.syscall(206, 4096, ctypes.byref(ctypes.c_ulong()))
size = fcntl.fcntl(os.pipe()[0], 1032)
text = "inotify %%d pipes %%d aio %%d ptys %%d of %%d bytes" %% (take(libc.inotify_init, min(most, 1000)), take(lambda: os.pipe()[0], min(most, 3000)),
    take(context, min(most, 64)), take(lambda: os.openpty()[0], most), size)
open("TAKEN.new", "w").write(text + "\n")
os.rename("TAKEN.new", "TAKEN")
if most > 3:
    time.sleep(600)
END
python3 hoard.py %d`

// taken is one protection that is taken away by hand.
type taken struct {
	name  string
	spoil string
	mend  string   // "" is what kbnode reconcile does
	want  []string // in the lines of what did not hold
}

func takeAway(t *testing.T, m *vm.Machine, slot int, list []taken) {
	t.Helper()
	flag := fmt.Sprintf("--slot %d", slot)
	for _, p := range list {
		t.Run("without "+p.name, func(t *testing.T) {
			m.Sh(p.spoil)
			r, code := runSelftest(t, m, flag)
			bad := failures(r)
			must.Equal(t, 1, code)
			must.Contain(t, bad, p.want...)
			if len(bad) > 4000 {
				bad = bad[:4000] + "…"
			}
			t.Log(bad)
			if p.mend == "" {
				p.mend = "kbnode reconcile"
			}
			m.Sh(p.mend)
		})
	}
	t.Run("mended", func(t *testing.T) { clean(t, m, flag, 1) })
}
