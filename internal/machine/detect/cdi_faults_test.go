package detect

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestCDIFaults compares specifications with device nodes of this machine: /dev/null is 1:3.
func TestCDIFaults(t *testing.T) {
	t.Parallel()
	const null = "/dev/null"
	// spec returns a specification of GPU-a, whose edits are those of all and then its own.
	spec := func(all, own string) string {
		return fmt.Sprintf("kind: nvidia.com/gpu\ncontainerEdits: {%s}\ndevices:\n- name: GPU-a\n  containerEdits: {%s}\n- name: GPU-b\n  containerEdits: {}\n", all, own)
	}
	node := func(path, more string) string { return "deviceNodes: [{path: " + path + more + "}]" }
	for _, tt := range []struct {
		name     string
		etc, run string // specifications
		own      bool   // only GPU-a has the fault
		want     string // of GPU-a; FILE is the specification
	}{
		{name: "the number", run: spec(node("/dev/x", ", hostPath: "+null+", major: 1, minor: 3"), "")},
		{name: "another minor number", run: spec(node("/dev/x", ", hostPath: "+null+", major: 1, minor: 5"), ""), want: "FILE gives /dev/null the number 1:5, and it has 1:3"},
		{name: "another major number, without a minor one", run: spec(node(null, ", major: 510"), ""), want: "FILE gives /dev/null the number 510:0, and it has 1:3"},
		{name: "no number, which the engine looks up", run: spec(node(null, ""), "")},
		{name: "a minor number alone, which the engine ignores", run: spec(node(null, ", minor: 7"), "")},
		{name: "of one device", run: spec("", node(null, ", major: 2")), own: true, want: "FILE gives /dev/null the number 2:0, and it has 1:3"},
		{name: "a node that is not there", run: spec(node("/dev/kbnode-none", ", major: 510"), "")},
		{name: "the stale one is hidden", etc: spec(node(null, ", major: 510"), ""), run: spec(node(null, ", major: 1, minor: 3"), "")},
		{name: "the stale one hides another", etc: spec(node(null, ", major: 1, minor: 3"), ""), run: spec(node(null, ", major: 510"), ""), want: "FILE gives /dev/null the number 510:0, and it has 1:3"},
		{name: "no nvidia-uvm", run: spec("", node("/dev/nvidia0", "")), own: true, want: "FILE does not give /dev/nvidia-uvm"},
		{name: "another GPU's node", run: spec(node("/dev/nvidia-uvm", ", major: 510"), node("/dev/nvidia1", "")), own: true, want: "FILE gives /dev/nvidia1, and the GPU is /dev/nvidia0 now"},
		{name: "its node", run: spec(node("/dev/nvidia-uvm", ", major: 510"), node("/dev/nvidia0", ", major: 195"))},
		{name: "a node that the engine looks up, and is not there", run: spec(node("/dev/kbnode-none", ""), ""), want: "FILE gives /dev/kbnode-none, which does not exist"},
		{name: "a null in place of its number", run: spec("", node("/dev/kbnode-none", ", major: null")), own: true, want: "FILE gives /dev/kbnode-none, which does not exist"},
		{name: "a node elsewhere in the container", run: spec(node("/dev/kbnode-none", ", hostPath: "+null), "")},
		{name: "a library of another driver", run: spec("mounts: [{hostPath: /usr/lib/kbnode-none/libcuda.so.570.1.2}]", ""), want: "FILE names /usr/lib/kbnode-none/libcuda.so.570.1.2, which does not exist"},
		{name: "another missing file, which doctor reports", run: spec("mounts: [{hostPath: /run/kbnode-none/socket}]", "")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			must.Write(t, dir, "etc/nvidia.yaml", tt.etc)
			must.Write(t, dir, "run/nvidia.yaml", tt.run)
			specs, err := ReadCDI("/", []string{dir + "/etc", dir + "/run"})
			must.Do(t, err)
			inv := &inventory.Inventory{GPUs: []inventory.GPU{{Vendor: "nvidia", UUID: "GPU-a", Minor: 0}, {Vendor: "nvidia", UUID: "GPU-b", Minor: 1}}}
			faults, err := ReadCDIFaults("/", inv, specs)
			must.Do(t, err)
			a, b := faults["nvidia.com/gpu=GPU-a"], faults["nvidia.com/gpu=GPU-b"]
			want := strings.ReplaceAll(tt.want, "FILE", dir+"/run/nvidia.yaml")
			must.Equal(t, want, a.Detail)
			if tt.own {
				want = ""
			}
			must.Equal(t, want, b.Detail)
		})
	}
}

// TestCDINodeMissing checks which missing nodes the driver's own program creates.
func TestCDINodeMissing(t *testing.T) {
	t.Parallel()
	for node, own := range map[string]bool{"/dev/nvidia-uvm": true, "/dev/nvidia-caps/nvidia-cap3": true, "/dev/dri/card8": false} {
		dir := t.TempDir()
		must.Write(t, dir, "etc/cdi/a.yaml", "kind: nvidia.com/gpu\ndevices: [{name: GPU-a, containerEdits: {deviceNodes: [{path: "+node+"}]}}]\n")
		specs, err := ReadCDI(dir, []string{"/etc/cdi"})
		must.Do(t, err)
		faults, err := ReadCDIFaults(dir, &inventory.Inventory{}, specs)
		must.Do(t, err)
		want := inventory.CDIFault{Spec: "/etc/cdi/a.yaml", Detail: "/etc/cdi/a.yaml gives " + node + ", which does not exist", Node: own}
		must.Equal(t, want, faults["nvidia.com/gpu=GPU-a"])
	}
}

// TestCDITwice checks that a device that two files of one directory name is a fault.
func TestCDITwice(t *testing.T) {
	t.Parallel()
	const gpu = "nvidia.com/gpu=GPU-a"
	specs := []CDISpec{{Path: "/etc/cdi/x.yaml", Devices: []string{gpu}}, {Path: "/etc/cdi/y.yaml", Devices: []string{gpu}}}
	faults, err := ReadCDIFaults("/", &inventory.Inventory{}, specs)
	must.Do(t, err)
	must.Equal(t, map[string]inventory.CDIFault{gpu: {Detail: "/etc/cdi/x.yaml and /etc/cdi/y.yaml both name nvidia.com/gpu=GPU-a, so Docker ignores both"}}, faults)
}

// TestCheckCDI checks that this machine's specifications are looked at, and only if they matter.
func TestCheckCDI(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Write(t, dir, "a.yaml", "kind: nvidia.com/gpu\ndevices: [{name: GPU-a, containerEdits: {deviceNodes: [{path: /dev/null, major: 9}]}}]\n")
	gpus := []inventory.GPU{{Vendor: "nvidia", UUID: "GPU-a", Minor: 0}}
	for _, tt := range []struct {
		root string
		gpus []inventory.GPU
		cdi  bool
		want int
	}{{"/", gpus, true, 1}, {"/", gpus, false, 0}, {"/", []inventory.GPU{{Vendor: "amd"}}, true, 0}, {dir, gpus, true, 0}} {
		d := inventory.Docker{Version: "28.5.2", CDI: tt.cdi}
		if tt.cdi {
			d.CDIDirs = []string{dir}
		}
		checkCDI(treeAt(t, tt.root), tt.gpus, &d)
		if len(d.CDIFaults) != tt.want {
			t.Errorf("%+v: %v", tt, d.CDIFaults)
		}
	}
}

// TestCDIDynamicNumbers checks the drivers to which the kernel gives a number when they are loaded.
func TestCDIDynamicNumbers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ node, want string }{
		{"/dev/nvidia-uvm", "gives /dev/nvidia-uvm the major number 510, and the driver has 508"},
		{"/dev/nvidia-uvm-tools", "gives /dev/nvidia-uvm-tools the major number 510, and the driver has 508"},
		{"/dev/nvidia-caps/nvidia-cap21", "gives /dev/nvidia-caps/nvidia-cap21 the major number 510, and the driver has 238"},
		{"/dev/nvidia-caps-imex-channels/channel0", "gives /dev/nvidia-caps-imex-channels/channel0 the major number 510, and the driver has 239"},
		{"/dev/nvidia-modeset", ""},
		{"/dev/nvidiactl", ""},
	} {
		dir := t.TempDir()
		must.Write(t, dir, "proc/devices", "Character devices:\n  1 mem\n195 nvidia\n238 nvidia-caps\n239 nvidia-caps-imex-channels\n508 nvidia-uvm\n\nBlock devices:\n510 nvidia-uvm\n")
		must.Write(t, dir, "etc/cdi/a.yaml", "kind: nvidia.com/gpu\ndevices: [{name: GPU-a, containerEdits: {deviceNodes: [{path: "+tt.node+", major: 510, minor: 1}]}}]\n")
		specs, err := ReadCDI(dir, []string{"/etc/cdi"})
		must.Do(t, err)
		faults, err := ReadCDIFaults(dir, &inventory.Inventory{}, specs)
		must.Do(t, err)
		must.Equal(t, tt.want, strings.TrimPrefix(faults["nvidia.com/gpu=GPU-a"].Detail, "/etc/cdi/a.yaml "))
	}
}
