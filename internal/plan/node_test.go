package plan

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/test/machinetest"
)

func TestDiskShare(t *testing.T) {
	t.Parallel()
	disk := func(path string, total int64) []inventory.DiskFree {
		return []inventory.DiskFree{{Path: "/var/lib/docker", TotalBytes: 1 << 50}, {Path: path, TotalBytes: total}}
	}
	for name, row := range map[string]struct {
		disks []inventory.DiskFree
		slots int
		want  int64
	}{
		"a large disk":   {disk(agentsDir, 4<<40), 8, 50 << 30},
		"a small one":    {disk(agentsDir, 64<<30), 8, 4 << 30},
		"rounded down":   {disk(agentsDir, 64<<30-1), 8, 4<<30 - 64<<20},
		"many slots":     {disk(agentsDir, 1<<40), 64, 8 << 30},
		"too small":      {disk(agentsDir, 100<<20), 8, 0},
		"none of it":     {disk("/srv", 4<<40), 8, 0},
		"nothing at all": {nil, 8, 0},
	} {
		if got := diskShare(row.disks, row.slots); got != row.want {
			t.Errorf("%s: %s, want %s", name, config.Size(got), config.Size(row.want))
		}
	}
}

func TestDisk(t *testing.T) {
	t.Parallel()
	machine := readMachine(t, machinetest.B200x8())
	for name, row := range map[string]struct {
		spoil   func(*inventory.Inventory)
		job     config.Job
		disk    int64
		warning string // "" for none about disks
	}{
		"as configured":          {func(*inventory.Inventory) {}, config.Job{Disk: 100 << 30}, 100 << 30, ""},
		"small":                  {func(*inventory.Inventory) {}, config.Job{Disk: 1 << 30}, 1 << 30, "1GiB of disk; 50GiB is the minimum"},
		"unknown":                {func(i *inventory.Inventory) { i.Disks = i.Disks[1:] }, config.Job{}, 0, "set job.disk"},
		"containerd's store":     {func(i *inventory.Inventory) { i.Software.Docker.StorageDriver = "overlayfs" }, config.Job{}, 50 << 30, "containerd-snapshotter"},
		"the same, but strictly": {func(i *inventory.Inventory) { i.Software.Docker.StorageDriver = "overlayfs" }, config.Job{Profile: config.ProfileStrict}, 50 << 30, ""},
	} {
		inv := *machine
		row.spoil(&inv)
		p := build(t, &inv, config.Config{Queue: "b200", Job: row.job}, nil, false)
		if got := p.Slots[3].DiskBytes; got != row.disk {
			t.Errorf("%s: %s of disk, want %s", name, config.Size(got), config.Size(row.disk))
		}
		text := strings.Join(p.Warnings, "\n")
		if row.warning == "" && text != "" || !strings.Contains(text, row.warning) {
			t.Errorf("%s: warnings %q, want one with %q", name, text, row.warning)
		}
		for _, f := range p.Files {
			if f.Path == UnitDir+"/"+GuardUnit(3) && strings.Contains(f.Content, "disk --slot 3") != (row.disk > 0) {
				t.Errorf("%s: %s", name, f.Content)
			}
		}
	}
}
