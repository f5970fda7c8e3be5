package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestDriverless checks that a slot whose containers would get a GPU without its driver's libraries takes no
// jobs, and that the others do.
func TestDriverless(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	var all []string
	for _, g := range inv.GPUs {
		all = append(all, nvidiaCDI+g.UUID)
	}
	on := inventory.Docker{Version: "28.5.2", CDI: true, Runtimes: []string{"runc"}}
	with := func(change func(*inventory.Docker)) inventory.Docker {
		d := on
		change(&d)
		return d
	}
	unread := &inventory.Problem{Subject: inventory.SubjectCDI, Detail: "read /etc/cdi/nvidia.yaml: input/output error"}
	for _, tt := range []struct {
		name   string
		docker inventory.Docker
		unread *inventory.Problem
		parked int    // of the last slots
		why    string // of the last
	}{
		{"all", with(func(d *inventory.Docker) { d.CDIDevices = all }), nil, 0, ""},
		{"no specification at boot", on, nil, 8, "no CDI specification in /etc/cdi or /var/run/cdi describes NVIDIA GPUs, so jobs would have no libcuda; run sudo systemctl restart nvidia-cdi-refresh"},
		{"only another vendor's", with(func(d *inventory.Docker) { d.CDIDevices = []string{"vendor.com/nic=0"} }), nil, 8, "describes NVIDIA GPUs"},
		{"four of eight", with(func(d *inventory.Docker) { d.CDIDevices = all[:4] }), nil, 4, "no CDI specification names " + inv.GPUs[7].UUID + ", so"},
		{"by number only", with(func(d *inventory.Docker) { d.CDIDevices = []string{"nvidia.com/gpu=0", "nvidia.com/gpu=all"} }), nil, 8, "--device-name-strategy=uuid"},
		{"unreadable", on, unread, 8, "is unknown (read /etc/cdi/nvidia.yaml: input/output error)"},
		{"CDI is off", with(func(d *inventory.Docker) { d.CDI, d.CDIDevices = false, all }), nil, 8, "sudo kbnode doctor --only docker-cdi"},
		{"stale numbers, of one", with(func(d *inventory.Docker) {
			d.CDIDevices, d.CDIFaults = all, map[string]inventory.CDIFault{all[7]: {Spec: "/run/cdi/x.yaml", Detail: "/run/cdi/x.yaml gives /dev/nvidia-uvm the number 510:0, and it has 508:0"}}
		}), nil, 1, "CUDA does not start: /run/cdi/x.yaml gives /dev/nvidia-uvm the number 510:0, and it has 508:0; run sudo systemctl restart nvidia-cdi-refresh, or without that unit sudo nvidia-ctk cdi generate --output=/run/cdi/x.yaml"},
		{"a stale node, although there is a runtime", with(func(d *inventory.Docker) {
			d.Runtimes, d.CDIDevices, d.CDIFaults = []string{"nvidia"}, all, map[string]inventory.CDIFault{all[7]: {Spec: "/a", Detail: "/a gives b", Node: true}}
		}), nil, 1, "CUDA does not start: /a gives b; run sudo nvidia-modprobe -c=0 -u -m, and then run sudo systemctl"},
		{"two files that hide each other", with(func(d *inventory.Docker) {
			d.CDIDevices, d.CDIFaults = all[:7], map[string]inventory.CDIFault{all[7]: {Detail: "/etc/cdi/a.yaml and /etc/cdi/b.yaml both name it, so Docker ignores both"}}
		}), nil, 1, "/etc/cdi/a.yaml and /etc/cdi/b.yaml both name it, so Docker ignores both, and jobs would have no libcuda; move one of the files away"},
		{"NVIDIA's runtime", with(func(d *inventory.Docker) { d.Runtimes = []string{"nvidia", "runc"} }), nil, 0, ""},
		{"no engine", inventory.Docker{}, nil, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			one := *inv
			one.Software.Docker = tt.docker
			if tt.unread != nil {
				one.Problems, one.Unread = append(slices.Clone(inv.Problems), *tt.unread), []string{tt.unread.Subject}
			}
			p := build(t, &one, config.Config{}, nil, false)
			for i, s := range p.Slots {
				agent := p.Units[slices.IndexFunc(p.Units, func(u Unit) bool { return u.Name == AgentUnit(s.Index) })]
				if parks := i >= len(p.Slots)-tt.parked; (s.Parked != "") != parks || agent.Active == parks || slices.Contains(p.Warnings, s.ParkedWarning()) != parks {
					t.Errorf("slot %d: parked %q, agent %t", i, s.Parked, agent.Active)
				}
			}
			if got := p.Slots[len(p.Slots)-1].Parked; !strings.Contains(got, tt.why) {
				t.Errorf("parked: %q, want %q", got, tt.why)
			}
		})
	}
	unnamed := *inv
	unnamed.GPUs = slices.Clone(inv.GPUs)
	unnamed.GPUs[7].UUID = ""
	unnamed.Software.Docker = with(func(d *inventory.Docker) { d.CDIDevices = all })
	if p := build(t, &unnamed, config.Config{}, nil, false); !strings.Contains(p.Slots[7].Parked, "UUID") || p.Slots[0].Parked != "" {
		t.Errorf("without a UUID: %q", p.Slots[7].Parked)
	}
	silent, last := *inv, with(func(d *inventory.Docker) { d.CDIDevices = all })
	silent.Software.Docker = inventory.Docker{CDIFaults: map[string]inventory.CDIFault{all[7]: {Spec: "/a", Detail: "/a gives b"}}}
	silent.Problems, silent.Unread = append(slices.Clone(inv.Problems), inventory.Problem{Subject: inventory.SubjectDocker, Detail: "no answer"}), []string{inventory.SubjectDocker}
	recalled, err := Recall(&silent, &Bindings{Last: &inventory.Inventory{Software: inventory.Software{Docker: last}}})
	must.Do(t, err)
	if p := build(t, recalled, config.Config{}, nil, false); !strings.Contains(p.Slots[7].Parked, "/a gives b") || p.Slots[0].Parked != "" {
		t.Errorf("stale numbers while the engine is silent: %q", p.Slots[7].Parked)
	}
}

// TestDriverlessInstance checks that an instance that the specification lacks parks its own slot only.
func TestDriverlessInstance(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200MIG())
	one := *inv
	one.Software.Docker.Runtimes = []string{"runc"}
	last := ""
	for _, g := range inv.GPUs {
		for _, m := range g.MIG {
			last = m.UUID
		}
	}
	one.Software.Docker.CDIDevices = slices.DeleteFunc(slices.Clone(inv.Software.Docker.CDIDevices), func(n string) bool { return n == nvidiaCDI+last })
	var parked []string
	for _, s := range build(t, &one, config.Config{}, nil, false).Slots {
		if s.Parked != "" {
			parked = append(parked, s.GPUs[0].Instance)
		}
	}
	if last == "" || !slices.Equal(parked, []string{last}) {
		t.Errorf("parked %q, want %q", parked, last)
	}
}

// TestNoUnitWaitsForCDI checks that no unit is ordered by the toolkit's, which 1.19.0 starts after multi-user.target:
// systemd would break the cycle and drop the refresh.
func TestNoUnitWaitsForCDI(t *testing.T) {
	t.Parallel()
	for _, f := range build(t, readMachine(t, machinetest.B200x8()), config.Config{}, nil, false).Files {
		if strings.HasPrefix(f.Path, UnitDir) && strings.Contains(f.Content, "nvidia-cdi-refresh") {
			t.Errorf("%s names the unit", f.Path)
		}
	}
}
