package selftest

import (
	"slices"
	"testing"

	"github.com/gpu-mode/kbnode/internal/node/selftest/probe"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// bad returns the names of the checks that did not hold.
func bad(checks []Check) []string {
	var list []string
	for _, c := range checks {
		if !c.Held {
			list = append(list, c.Tried)
		}
	}
	return list
}

func testSlot() (plan.Slot, plan.JobPolicy) {
	s := plan.Slot{Index: 1, Name: "gpu1", User: "kbnode-gpu1", CPUs: "2-3", GPUs: []plan.SlotGPU{{Devices: []string{"/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"}}}}
	p := plan.JobPolicy{Slot: 1, Name: "gpu1", Slice: "buildkite-gpu1.slice", CPUs: "2-3", MemoryBytes: 8 << 30, PidsLimit: 64, DiskBytes: 1 << 30,
		Socket: plan.SocketPath(1), DockerSocket: "/var/run/docker.sock", WorkRoot: plan.BuildsDir(1), Network: "bridge"}
	return s, p
}

// goodFacts are what a container of testSlot sees.
func goodFacts() *probe.Facts {
	return &probe.Facts{
		UID: 0, Status: map[string]string{"CapEff": "00000000800405fb", "CapBnd": "00000000800405fb", "NoNewPrivs": "1", "Seccomp": "2"},
		CPUs: "2-3", Cgroup: map[string]string{"memory.max": "268435456", "memory.swap.max": "0", "pids.max": "64"},
		Interfaces: []string{"lo", "eth0"}, Processes: 1, Nodes: []string{"/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-modeset"},
		RootWrites: "ok", Env: []string{"HOME", "KERNELBOT_CPUS", "PATH"}, Disks: map[string]int64{"/": 1 << 29},
		Tries: []probe.Try{
			{Kind: "open", What: plan.ContainerBinary, Saw: "ok"}, {Kind: "open", What: "/etc/shadow", Saw: "ENOENT"},
			{Kind: "tcp", What: "198.18.0.1:1", Saw: "ECONNREFUSED"}, {Kind: "call", What: "mount", Saw: "EPERM"}, {Kind: "call", What: "root", Saw: "EALREADY"},
			{Kind: "number", What: "/dev/nvidia0", Saw: "EPERM"},
		},
	}
}

func TestJudgeContainer(t *testing.T) {
	t.Parallel()
	tried := func(kind, what, saw string) func(*probe.Facts, *plan.JobPolicy) {
		return func(f *probe.Facts, _ *plan.JobPolicy) {
			f.Tries = append(f.Tries, probe.Try{Kind: kind, What: what, Saw: saw})
		}
	}
	for name, row := range map[string]struct {
		change func(*probe.Facts, *plan.JobPolicy)
		want   string // the one that does not hold; "" for none
	}{
		"as it should be":     {func(*probe.Facts, *plan.JobPolicy) {}, ""},
		"strict":              {func(f *probe.Facts, p *plan.JobPolicy) { strictly(f, p) }, ""},
		"strict as root":      {func(f *probe.Facts, p *plan.JobPolicy) { strictly(f, p); f.UID = 0 }, "its user"},
		"strict and writable": {func(f *probe.Facts, p *plan.JobPolicy) { strictly(f, p); f.RootWrites = "ok" }, "writing to the root"},
		"strict with a right": {func(f *probe.Facts, p *plan.JobPolicy) { strictly(f, p); f.Status["CapBnd"] = "0000000000000001" }, "capabilities"},
		"strict and eth0":     {func(f *probe.Facts, p *plan.JobPolicy) { strictly(f, p); f.Interfaces = []string{"lo", "eth0"} }, "a network"},
		"more CPUs":           {func(f *probe.Facts, _ *plan.JobPolicy) { f.CPUs = "0-3" }, "all CPUs"},
		"fewer CPUs":          {func(f *probe.Facts, _ *plan.JobPolicy) { f.CPUs = "2" }, "all CPUs"},
		"more memory":         {func(f *probe.Facts, _ *plan.JobPolicy) { f.Cgroup["memory.max"] = "max" }, "its memory"},
		"swap":                {func(f *probe.Facts, _ *plan.JobPolicy) { f.Cgroup["memory.swap.max"] = "max" }, "swap"},
		"more processes":      {func(f *probe.Facts, _ *plan.JobPolicy) { f.Cgroup["pids.max"] = "65" }, "its processes"},
		"the host's network":  {func(f *probe.Facts, _ *plan.JobPolicy) { f.Interfaces = []string{"lo", "eth0", "docker0"} }, "other interfaces"},
		"the host's PIDs":     {func(f *probe.Facts, _ *plan.JobPolicy) { f.Processes = 200 }, "processes of others"},
		"new privileges":      {func(f *probe.Facts, _ *plan.JobPolicy) { f.Status["NoNewPrivs"] = "0" }, "new privileges"},
		"no seccomp":          {func(f *probe.Facts, _ *plan.JobPolicy) { f.Status["Seccomp"] = "0" }, "system calls filtered"},
		"MKNOD":               {func(f *probe.Facts, _ *plan.JobPolicy) { f.Status["CapBnd"] = "00000000880405fb" }, "capabilities"},
		"AUDIT_WRITE":         {func(f *probe.Facts, _ *plan.JobPolicy) { f.Status["CapBnd"] = "00000000a00405fb" }, "capabilities"},
		"NET_ADMIN":           {func(f *probe.Facts, _ *plan.JobPolicy) { f.Status["CapBnd"] = "00000000800415fb" }, "capabilities"},
		"another GPU's node":  {func(f *probe.Facts, _ *plan.JobPolicy) { f.Nodes = append(f.Nodes, "/dev/nvidia0") }, "nodes of other devices"},
		"another instance's":  {func(f *probe.Facts, _ *plan.JobPolicy) { f.Nodes = append(f.Nodes, "/dev/nvidia-caps/nvidia-cap21") }, "nodes of other devices"},
		"no GPU":              {func(f *probe.Facts, _ *plan.JobPolicy) { f.Nodes = []string{"/dev/nvidiactl"} }, "its own GPU"},
		"a disk's node":       {func(f *probe.Facts, _ *plan.JobPolicy) { f.Nodes = append(f.Nodes, "/dev/sda") }, "nodes of other devices"},
		"a token":             {func(f *probe.Facts, _ *plan.JobPolicy) { f.Env = append(f.Env, "BUILDKITE_AGENT_ACCESS_TOKEN") }, "the agent's variables"},
		"Docker's disk":       {func(f *probe.Facts, _ *plan.JobPolicy) { f.Disks["/"] = 1 << 40 }, "filling the disk below /"},
		"another GPU opens":   {tried("number", "/dev/nvidia2", "ok"), "device /dev/nvidia2"},
		"no driver behind it": {tried("number", "/dev/nvidia2", "ENXIO"), "device /dev/nvidia2"},
		"a module":            {tried("call", "a kernel module", "EFAULT"), "a kernel module"},
		"a user namespace":    {tried("call", "a user namespace", "EINVAL"), "a user namespace"},
		"the host":            {tried("tcp", "172.17.0.1:80", "ok"), "connect to 172.17.0.1:80"},
		"the neighbour":       {tried("tcp", "198.18.2.2:4711", "ok"), "connect to 198.18.2.2:4711, a container of another slot"},
		"the engine":          {tried("unix", "/run/docker.sock", "ok"), "unix /run/docker.sock"},
		"a file of the host":  {tried("open", "/etc/shadow2", "ok"), "open /etc/shadow2"},
		"a busy program":      {tried("write", "/x", "ETXTBSY"), "write /x"},
		"a BAR":               {tried("window", "/sys/devices/pci0000:00/0000:1a:00.0/resource0", "ok"), "read or map /sys/devices/pci0000:00/0000:1a:00.0/resource0"},
		"a BAR is covered":    {tried("window", "/sys/devices/pci0000:00/0000:1a:00.0/resource0", "covered"), ""},
		"a file is covered":   {tried("open", "/etc/shadow", "covered"), "open /etc/shadow"},
		"a driver's setting":  {func(f *probe.Facts, _ *plan.JobPolicy) { f.Writable = []string{"/proc/driver/nvidia/suspend"} }, "settings of the node in /proc"},
		"no kbnode":           {func(f *probe.Facts, _ *plan.JobPolicy) { f.Tries[0].Saw = "ENOENT" }, "open " + plan.ContainerBinary},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p := testSlot()
			f := goodFacts()
			row.change(f, &p)
			var want []string
			if row.want != "" {
				want = []string{row.want}
			}
			checks := judgeContainer(s, p, probe.Ask{Disks: []string{"/"}}, probeMemory, "198.18.2.2:4711", f)
			if got := bad(checks); !slices.Equal(got, want) {
				t.Errorf("does not hold: %q, want %q", got, want)
			}
			for _, c := range checks {
				if (c.Do == "") != c.Held || c.Saw == "" {
					t.Errorf("%+v is not whole", c)
				}
			}
		})
	}
}

// TestJudgeAMDContainer tests that a container on an AMD node has its slot's own nodes, and
// that the compute driver shows it no other GPU, because ROCm uses all that it sees.
func TestJudgeAMDContainer(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		nodes, compute []string
		want           []string
	}{
		"as it should be":             {[]string{"/dev/kfd", "/dev/dri/renderD137"}, []string{"/dev/dri/renderD137"}, nil},
		"no compute driver to ask":    {[]string{"/dev/kfd", "/dev/dri/renderD137"}, nil, nil},
		"a neighbour's render node":   {[]string{"/dev/kfd", "/dev/dri/renderD137", "/dev/dri/renderD138"}, nil, []string{"nodes of other devices"}},
		"a card":                      {[]string{"/dev/kfd", "/dev/dri/renderD137", "/dev/dri/card9"}, nil, []string{"nodes of other devices"}},
		"no compute driver":           {[]string{"/dev/dri/renderD137"}, nil, []string{"its own GPU"}},
		"another partition":           {[]string{"/dev/kfd", "/dev/dri/renderD138"}, nil, []string{"nodes of other devices", "its own GPU"}},
		"all GPUs are told":           {[]string{"/dev/kfd", "/dev/dri/renderD137"}, []string{"/dev/dri/renderD136", "/dev/dri/renderD137"}, []string{"other GPUs in the compute driver's topology"}},
		"another vendor's, by chance": {[]string{"/dev/kfd", "/dev/dri/renderD137", "/dev/nvidiactl"}, nil, []string{"nodes of other devices"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p := testSlot()
			s.GPUs = []plan.SlotGPU{{Vendor: "amd", Devices: []string{"/dev/kfd", "/dev/dri/renderD137"}}}
			f := &probe.Facts{
				Status: map[string]string{"CapBnd": "00000000800405fb", "NoNewPrivs": "1", "Seccomp": "2"}, CPUs: "2-3",
				Cgroup: map[string]string{"memory.max": "268435456", "pids.max": "64"}, Interfaces: []string{"lo", "eth0"}, Processes: 1,
				Nodes: row.nodes, Compute: row.compute,
			}
			if got := bad(judgeContainer(s, p, probe.Ask{}, probeMemory, "", f)); !slices.Equal(got, row.want) {
				t.Errorf("does not hold: %q, want %q", got, row.want)
			}
		})
	}
}

func strictly(f *probe.Facts, p *plan.JobPolicy) {
	p.Profile, p.Network = "strict", "none"
	f.UID, f.RootWrites, f.Interfaces = 990, "EROFS", []string{"lo"}
	f.Status["CapBnd"] = "0000000000000000"
	f.Tries[4].Saw = "EPERM"
}

// TestInstanceNodes tests that a MIG instance's container needs its capabilities, because
// the GPU's node alone gives nothing.
func TestInstanceNodes(t *testing.T) {
	t.Parallel()
	s := plan.Slot{GPUs: []plan.SlotGPU{{Vendor: "nvidia", Devices: []string{"/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"}}}}
	if got := gpuNodes(s); !slices.Equal(got, []string{"/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"}) {
		t.Errorf("an instance is given by %q", got)
	}
	for node, own := range map[string]bool{"/dev/nvidia-caps/nvidia-cap12": true, "/dev/nvidia-caps/nvidia-cap14": false, "/dev/nvidia-modeset": true, "/dev/nvidia2": false} {
		if ownNode(s, node) != own {
			t.Errorf("%s: own %t, want %t", node, !own, own)
		}
	}
}
