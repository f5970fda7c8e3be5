package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

// installed returns a node of two slots in a directory, as kbnode install leaves it.
func installed(t *testing.T) (*Node, *reconcile.Host) {
	t.Helper()
	root := must.MemoryDir(t)
	machine := machinetest.Machine{
		Name: "two", Packages: 1, Nodes: 1, Cores: 24, Threads: 2, CoresPerL3: 8, NodeBytes: 128 << 30, NVIDIADriver: "580.95.05",
		Files: map[string]string{"usr/bin/buildkite-agent": "#!/bin/sh\n"},
	}
	for i := range 2 {
		machine.NVIDIA = append(machine.NVIDIA, machinetest.NVIDIA{PCI: fmt.Sprintf("0000:%02x:00.0", i+1), Device: "2901", Model: "NVIDIA B200", Minor: i, UUID: fmt.Sprintf("GPU-29010000-0000-4000-8000-%012x", i+1)})
	}
	machine.Live = machinetest.Live(machine)
	machine.Write(t, root)
	n := &Node{Root: root}
	must.Do(t, n.Load(func(string) string { return "" }, config.Config{Queue: "b200", Node: "two", Docker: config.Docker{Socket: "/run/other.sock"}, Image: config.Image{Name: "ghcr.io/gpu-mode/other:1"}}))
	must.Do(t, n.Read(t.Context()))
	must.Do(t, n.MakePlan())
	sd, err := systemdtest.New(root, n.Inventory.CPU.Online, "0")
	must.Do(t, err)
	host := &reconcile.Host{Root: root, Systemd: sd, Users: systemdtest.Users{Root: root}}
	_, err = WriteToken(host, "the-agent-token")
	must.Do(t, err)
	_, err = Converge(t.Context(), host, n.Plan)
	must.Do(t, err)
	return &Node{Root: root}, host
}

// silentNetwork is of an engine that does not answer.
type silentNetwork struct{ reconcile.Network }

func (silentNetwork) Observe(context.Context) (reconcile.NetworkState, error) {
	return reconcile.NetworkState{}, context.DeadlineExceeded
}

// TestUnplanned breaks what a node is planned from, in each way, and drains a slot, looks at it and
// lets it serve again, while Docker does not answer either.
func TestUnplanned(t *testing.T) {
	t.Parallel()
	must.Root(t, "makes users")
	write := func(name, text string) func(*testing.T, string) {
		return func(t *testing.T, root string) { t.Helper(); must.Write(t, root, name, text) }
	}
	for name, tt := range map[string]struct {
		breaks func(t *testing.T, root string)
		why    string // in the warning; "" if the node can be planned
	}{
		"nothing":         {func(*testing.T, string) {}, ""},
		"no YAML":         {write(plan.ConfigPath, "queue: [\n"), "config.yaml"},
		"an unknown key":  {write(plan.ConfigPath, "queue: b200\ncolour: red\n"), "colour"},
		"a wrong value":   {write(plan.ConfigPath, "queue: b200\njob: {shm_size: 32}\n"), "32"},
		"two mistakes":    {write(plan.ConfigPath, "queues: b200\ngpus: [x]\n"), "queues"},
		"no text":         {write(plan.ConfigPath, "\xff\xfe\x00"), "config.yaml"},
		"broken bindings": {write(plan.BindingsPath, "{"), "slots.json"},
		"no file": {func(t *testing.T, root string) {
			t.Helper()
			must.Do(t, os.Remove(filepath.Join(root, plan.ConfigPath)))
		}, "config.yaml is missing"},
		"a directory": {func(t *testing.T, root string) {
			t.Helper()
			file := filepath.Join(root, plan.ConfigPath)
			must.Do(t, errors.Join(os.Remove(file), os.Mkdir(file, 0o755)))
		}, "read configuration"},
		"one slot's file, too": {func(t *testing.T, root string) {
			t.Helper()
			must.Write(t, root, plan.ConfigPath, "queue: [\n")
			must.Write(t, root, plan.SlotPolicyPath(0), "{")
		}, "config.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, host := installed(t)
			host.Network = silentNetwork{}
			tt.breaks(t, n.Root)
			before := tree(t, n.Root)
			warned := ""
			warn := func(err error) { warned += err.Error() + "\n" }
			agents := func() (words string) {
				units, err := host.Systemd.Units(t.Context(), plan.AgentUnit(0), plan.AgentUnit(1))
				must.Do(t, err)
				for _, u := range units {
					words += u.Active + "; "
				}
				return words
			}

			p, slots, err := n.Drain(t.Context(), host, Selection{Names: []string{"gpu1"}}, plan.Drain{Reason: "a fan"}, warn)
			must.Do(t, err)
			if len(slots) != 1 || slots[0].Name != "gpu1" || slots[0].Serves() || (warned == "") != (tt.why == "") || !strings.Contains(warned, tt.why) || strings.Count(warned, "\n") > 1 {
				t.Errorf("%+v: warned %q", slots, warned)
			}
			must.Equal(t, "active; inactive; ", agents())
			now := ""
			must.Do(t, WaitDrained(t.Context(), host, p, slots, true, func(_ plan.Slot, what string) { now = what }))
			must.Equal(t, "drained", now)

			st, err := n.readStatus(t.Context(), host, func(context.Context, string, int) ([]string, error) { return nil, nil })
			must.Do(t, err)
			if (st.Unplanned == "") != (tt.why == "") || tt.why != "" && !st.Disagrees() || len(st.Slots) != 2 || st.Slots[1].Agent != "drained" || st.Slots[1].Queue != "b200" || len(st.Changes) > 0 {
				t.Errorf("status: %+v", st)
			}
			if tt.why != "" {
				must.Equal(t, "/run/other.sock ghcr.io/gpu-mode/other:1", n.Config.Docker.Socket+" "+n.Config.Image.Name)
			}

			slots, err = n.Resume(t.Context(), host, Selection{All: true}, warn)
			if err != nil || len(slots) != 2 || !slots[1].Serves() || slots[1].User == "" {
				t.Errorf("%+v, %v", slots, err)
			}
			must.Equal(t, "active; active; ", agents())
			must.Equal(t, before, tree(t, n.Root))
			if _, _, err := n.Drain(t.Context(), host, Selection{Names: []string{"gpu7"}}, plan.Drain{}, warn); err == nil || !strings.Contains(err.Error(), `no slot "gpu7"; it has gpu0, gpu1`) {
				t.Errorf("another slot: %v", err)
			}
		})
	}
	n := &Node{Root: t.TempDir()}
	if _, _, err := n.Drain(t.Context(), &reconcile.Host{Root: n.Root}, Selection{All: true}, plan.Drain{}, func(error) {}); !errors.Is(err, ErrNone) {
		t.Errorf("no node: %v", err)
	}
}

// TestBrokenLast breaks the last inventory: a node that can be read is planned without it, says so once, and the next
// change writes it again. One that cannot be read is not planned.
func TestBrokenLast(t *testing.T) {
	t.Parallel()
	must.Root(t, "makes users")
	n, host := installed(t)
	good := must.Read(t, filepath.Join(n.Root, plan.LastPath))
	unplanned := func() error { return (&Node{Root: n.Root}).Refresh(t.Context()) }
	memory := filepath.Join(n.Root, "proc/meminfo")
	must.Do(t, os.Rename(memory, memory+".aside"))
	must.Do(t, os.Symlink("meminfo", memory)) // to itself
	must.Do(t, unplanned())
	must.Write(t, n.Root, plan.LastPath, "{")
	must.Err(t, unplanned(), "could not be read")
	must.Do(t, errors.Join(os.Remove(memory), os.Rename(memory+".aside", memory)))

	must.Do(t, n.Refresh(t.Context()))
	must.Do(t, n.MakePlan())
	if got := strings.Join(n.Plan.Warnings, "\n"); strings.Count(got, plan.LastPath) != 1 {
		t.Errorf("warned %q", got)
	}
	_, changes, err := n.Compare(t.Context(), host)
	must.Do(t, err)
	if len(changes) != 1 || changes[0].Subject != plan.LastPath {
		t.Errorf("changes %+v", changes)
	}
	_, err = Converge(t.Context(), host, n.Plan)
	must.Do(t, err)
	must.Equal(t, good, must.Read(t, filepath.Join(n.Root, plan.LastPath)))
}

// tree returns the files below /etc, and their texts.
func tree(t *testing.T, root string) (all []string) {
	t.Helper()
	must.Do(t, filepath.WalkDir(filepath.Join(root, "etc"), func(name string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			text, err := os.ReadFile(name)
			all = append(all, name+": "+string(text))
			return err
		}
		return err
	}))
	slices.Sort(all)
	return all
}

// TestLacks looks at a machine whose Docker gives no container a GPU: only slots of GPUs need that.
func TestLacks(t *testing.T) {
	t.Parallel()
	n := &Node{Inventory: &inventory.Inventory{NVIDIA: &inventory.NVIDIA{}, Software: inventory.Software{
		Systemd: "257", CgroupV2: true, Git: "/usr/bin/git", MkfsExt4: "/usr/sbin/mkfs.ext4",
		Docker: inventory.Docker{Version: "28.5.2", CgroupDriver: "systemd"},
	}}}
	if all := n.lacks(); len(all) != 1 || !strings.Contains(all[0], "NVIDIA GPUs") {
		t.Errorf("slots of GPUs: %q", all)
	}
	n.Config.GPUs.None = true
	must.Equal(t, 0, len(n.lacks()))
}

// TestNoWayToGPUs takes from Docker what gives containers their GPUs, as a toolkit that writes its specification late
// does at each boot: slots are parked with the reason, and come back with it.
func TestNoWayToGPUs(t *testing.T) {
	t.Parallel()
	must.Root(t, "makes users")
	for why, cdi := range map[string]bool{"no CDI specification in /etc/cdi": true, "CDI is off": false} {
		n, host := installed(t)
		file := filepath.Join(n.Root, "kbnode/live.json")
		good := must.Read(t, file)
		var live map[string]any
		must.Do(t, json.Unmarshal([]byte(good), &live))
		docker := live["software"].(map[string]any)["docker"].(map[string]any)
		docker["cdi"], docker["cdi_devices"], docker["runtimes"] = cdi, []string{}, []string{"runc"}
		text, err := json.Marshal(live)
		must.Do(t, err)
		for _, now := range []struct{ live, parked, agents string }{{string(text), why, "inactive"}, {good, "", "active"}} {
			must.Write(t, n.Root, "kbnode/live.json", now.live)
			must.Do(t, n.Refresh(t.Context()))
			_, err := Converge(t.Context(), host, n.Plan)
			must.Do(t, err)
			units, err := host.Systemd.Units(t.Context(), plan.AgentUnit(0), plan.AgentUnit(1))
			must.Do(t, err)
			for i, s := range n.Plan.Slots {
				if (s.Parked == "") != (now.parked == "") || !strings.Contains(s.Parked, now.parked) || units[i].Active != now.agents {
					t.Errorf("%s: %q, agent %s; want %q, %s", s.Name, s.Parked, units[i].Active, now.parked, now.agents)
				}
			}
		}
	}
}
