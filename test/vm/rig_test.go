//go:build vm

package vm_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// TestRig tests the rig itself: what the scenarios take for granted.
func TestRig(t *testing.T) {
	for name, part := range map[string]func(*testing.T){
		"Topology":      rigTopology,
		"Commands":      rigCommands,
		"SimulatedGPUs": rigSimulatedGPUs,
		"Reboot":        rigReboot,
	} {
		t.Run(name, part)
	}
}

func rigTopology(t *testing.T) {
	t.Parallel()
	m := vm.Fork(t)
	var want, got []string
	for cpu := range vm.CPUs {
		core := cpu % 10
		want = append(want, fmt.Sprintf("%d,%d package %d", core, core+10, core/5))
		got = append(got, m.Sh(fmt.Sprintf(`cd /sys/devices/system/cpu/cpu%d/topology
			echo "$(cat thread_siblings_list) package $(cat physical_package_id)"`, cpu)))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cores:\n%s", diff)
	}
	nodes := m.Sh(`cd /sys/devices/system/node; grep -H . node*/cpulist node*/distance`)
	wantNodes := "node0/cpulist:0-4,10-14\nnode1/cpulist:5-9,15-19\nnode0/distance:10 21\nnode1/distance:21 10"
	if diff := cmp.Diff(wantNodes, nodes); diff != "" {
		t.Errorf("NUMA nodes:\n%s", diff)
	}
	for line := range strings.SplitSeq(m.Sh("sim-gpu list"), "\n") {
		var k int
		var address, uuid, state string
		if _, err := fmt.Sscan(line, &k, &address, &uuid, &state); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if got, want := m.Sh("cat /sys/bus/pci/devices/"+address+"/numa_node"), fmt.Sprint(k/4); got != want {
			t.Errorf("GPU %d at %s is on node %s, want %s", k, address, got, want)
		}
	}
}

func rigCommands(t *testing.T) {
	t.Parallel()
	m := vm.Fork(t)
	must.Equal(t, vm.Result{Stdout: "out\n", Stderr: "err\n", Code: 3}, m.Try("echo out; echo err >&2; exit 3"))
	m.Put("/root/dir/mark", 0o640, "a")
	if got := m.Sh("cat /root/dir/mark") + m.Sh("stat -c %a /root/dir/mark"); got != "a640" {
		t.Errorf("the file and its mode are %s", got)
	}
	if r := vm.Fork(t).Try("cat /root/dir/mark"); r.Code == 0 {
		t.Error("a file of one fork is in the next")
	}
	long := strings.Repeat("0123456789abcdef", 1<<16)
	m.Put("/tmp/long", 0o600, long)
	if m.Sh("cat /tmp/long") != long {
		t.Error("a megabyte did not come back as it went")
	}
	p := m.Start("sh", "-c", "echo begun; sleep 1000")
	m.Wait("the sleeper", "pgrep -x sleep")
	p.Signal(syscall.SIGKILL)
	if r := p.Wait(); r.Code != 137 || r.Stdout != "begun\n" {
		t.Errorf("a killed command gave %+v", r)
	}
	if r := m.Try("pgrep -x sleep"); r.Code == 0 {
		t.Error("the killed command's child lives")
	}
}

func rigSimulatedGPUs(t *testing.T) {
	t.Parallel()
	m := vm.Fork(t)
	const query = "nvidia-smi --query-gpu=uuid,name --format=csv,noheader"
	if got, want := m.Sh("docker run --rm --device nvidia.com/gpu=3 busybox:test "+query), "GPU-6c1d4f0a-93b2-4e57-8a1c-0d5e7f2a3b03, NVIDIA B200"; got != want {
		t.Errorf("a container with GPU 3 has %q, want %q", got, want)
	}
	if got, want := m.Sh("docker run --rm --device nvidia.com/gpu=3 busybox:test nvidia-smi -L"), "GPU 3: NVIDIA B200 (UUID: GPU-6c1d4f0a-93b2-4e57-8a1c-0d5e7f2a3b03)"; got != want {
		t.Errorf("its list is %q, want %q", got, want)
	}
	if r := m.Try("docker run --rm busybox:test " + query); r.Code == 0 {
		t.Errorf("a container without a GPU has %q", r.Stdout)
	}
	open := func(k int) string { return m.Try(fmt.Sprintf("exec 3<>/dev/nvidia%d", k)).Stderr }
	if got := open(0); !strings.Contains(got, "No such device or address") {
		t.Errorf("opening a GPU without a driver says %q, want ENXIO", got)
	}
	if got := m.Sh("grep -c nvidia /proc/devices"); got != "5" {
		t.Errorf("/proc/devices has %s lines of the driver", got)
	}
	before := m.Sh("sim-gpu list; cat /etc/fake-nvml.conf; lspci | grep Test")
	m.Sh("sim-gpu lose 3")
	if r := m.Try("ls /dev/nvidia3 /proc/driver/nvidia/gpus/0000:24:00.0 /sys/bus/pci/devices/0000:24:00.0"); r.Stdout != "" {
		t.Errorf("of a lost GPU there is left: %s", r.Stdout)
	}
	if got := m.Sh("grep count /etc/fake-nvml.conf"); got != "count = 7" {
		t.Errorf("NVML would say %q", got)
	}
	m.Sh("sim-gpu restore 3; sim-gpu fail 5; grep -q handle /etc/fake-nvml.conf; sim-gpu restore 5")
	if diff := cmp.Diff(before, m.Sh("sim-gpu list; cat /etc/fake-nvml.conf; lspci | grep Test")); diff != "" {
		t.Errorf("after lose and restore:\n%s", diff)
	}
	if got := m.Sh("cat /sys/bus/pci/devices/0000:24:00.0/numa_node"); got != "0" {
		t.Errorf("the restored GPU is on node %s", got)
	}
}

func rigReboot(t *testing.T) {
	t.Parallel()
	m := vm.Fork(t)
	boot := m.Sh("cat /proc/sys/kernel/random/boot_id")
	m.Sh("echo kept >/root/kept; sim-gpu lose 7")
	// The emulator's boots die now and then, which says nothing about what is tested.
	m.Put("/etc/systemd/system/die-once.service", 0o644, `[Unit]
ConditionPathExists=/root/die
[Service]
Type=oneshot
ExecStart=sh -c 'rm /root/die && sync && echo c >/proc/sysrq-trigger'
`)
	m.Sh("touch /root/die; systemctl add-wants multi-user.target die-once.service")
	m.Reboot()
	if r := m.Try("test -e /root/die"); r.Code == 0 {
		t.Error("the first boot did not die")
	}
	if m.Sh("cat /proc/sys/kernel/random/boot_id") == boot {
		t.Error("the boot ID did not change")
	}
	if got := m.Sh("cat /root/kept"); got != "kept" {
		t.Errorf("the disk has %q", got)
	}
	if got := m.Sh("ls -d /dev/nvidia[0-9]* | wc -l; cat /sys/devices/system/cpu/cpu1/topology/thread_siblings_list"); got != "7\n1,11" {
		t.Errorf("GPUs and siblings after a reboot: %q", got)
	}
	m.Sh("docker run --rm busybox:test true")
	m.Sh("sync")
	m.Reset()
	if got := m.Sh("cat /root/kept"); got != "kept" {
		t.Errorf("the disk has %q after a reset", got)
	}
}
