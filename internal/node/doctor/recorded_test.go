package doctor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// recording is a Source with what a recorded machine has. Another question crashes the check that asks it.
type recording struct {
	Source
	inv *inventory.Inventory
}

func (recording) Config() (*config.Config, error) {
	cfg := config.Config{Queue: "q"}.WithDefaults()
	return &cfg, nil
}

func (r recording) Inventory(context.Context) (*inventory.Inventory, error) { return r.inv, nil }

func (r recording) Plan() (*plan.Plan, error) {
	cfg, _ := r.Config()
	return plan.Build(plan.Input{Inventory: r.inv, Config: cfg})
}

func (recording) Units(context.Context, string) ([]slot.Unit, error) {
	return nil, errors.New("not recorded")
}

func (r recording) Docker(context.Context) (docker.Info, error) {
	d := r.inv.Software.Docker
	return docker.Info{Version: d.Version, CgroupDriver: d.CgroupDriver, StorageDriver: d.StorageDriver}, nil
}

// TestRecorded asks all checks about recorded machines: what is not recorded passes nowhere, and is no fault.
func TestRecorded(t *testing.T) {
	t.Parallel()
	nvidia, driverless, amd, dead := machinetest.HGXH100(), machinetest.HGXH100(), machinetest.MI300X(), machinetest.MI300X()
	driverless.NVIDIADriver = ""
	dead.AMD[3].Dead = true
	for _, tt := range []struct {
		name    string
		machine machinetest.Machine
		change  func(sw *inventory.Software)
		want    string // the checks that fail
	}{
		{"NVIDIA", nvidia, nil, ""},
		{"AMD", amd, nil, ""},
		{"no driver", driverless, nil, "nvidia-driver"},
		{"a dead GPU", dead, nil, "gpu-answers"},
		{"no engine", nvidia, func(sw *inventory.Software) { sw.Docker = inventory.Docker{} }, "docker-engine"},
		{"another engine", nvidia, func(sw *inventory.Software) {
			sw.Docker.CgroupDriver, sw.Docker.StorageDriver, sw.Docker.CDI, sw.Docker.Runtimes = "cgroupfs", "vfs", false, nil
		}, "docker-cdi docker-cgroup-driver"},
		{"no software", nvidia, func(sw *inventory.Software) { *sw = inventory.Software{} }, "docker-engine system-cgroup system-git system-mkfs system-systemd"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := tt.machine.Dir(t)
			inv, err := detect.Read(t.Context(), detect.Options{Root: root})
			must.Do(t, err)
			if tt.change != nil {
				tt.change(&inv.Software)
			}
			r, err := Run(t.Context(), &Machine{Tree: host.Tree{Root: root}, Source: recording{inv: inv}, Recorded: "x.txtar"}, Options{})
			must.Do(t, err)
			must.Equal(t, "x.txtar", r.Recorded)
			var failed []string
			for _, c := range r.Checks {
				check := All()[slices.IndexFunc(All(), func(k Check) bool { return k.ID == c.ID })]
				if !check.Recorded && (c.Status != Skip || c.Detail != notRecorded) {
					t.Errorf("%s: %s: %s", c.ID, c.Status, c.Summary())
				}
				if c.Status == Fail {
					failed = append(failed, c.ID)
				}
				for _, f := range c.Findings {
					if strings.Contains(f.Detail, "crashed") || strings.Contains(f.Fix, host.DaemonJSON) || f.Status > Skip && f.Fix+f.Advice == "" {
						t.Errorf("%s: %+v", c.ID, f)
					}
				}
			}
			slices.Sort(failed)
			must.Equal(t, tt.want, strings.Join(failed, " "))
		})
	}
}
