package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
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
			if f.Path == UnitDir+"/"+JobSocket(3) && strings.Contains(f.Content, "disk --slot 3") != (row.disk > 0) {
				t.Errorf("%s: %s", name, f.Content)
			}
		}
	}
}

// TestDiskBetweenPlans checks that slots keep their disks while the file system's size differs little, as that of
// ZFS does with what others use of its pool.
func TestDiskBetweenPlans(t *testing.T) {
	t.Parallel()
	machine := readMachine(t, machinetest.B200x8())
	sized := func(gib int64) *inventory.Inventory {
		inv := *machine
		inv.Disks = []inventory.DiskFree{{Path: agentsDir, TotalBytes: gib << 30}}
		return &inv
	}
	jobDisk := func(gib int64) config.Config { return config.Config{Job: config.Job{Disk: config.Size(gib << 30)}} }
	for name, row := range map[string]struct {
		then, now config.Config
		sizes     []int64 // GiB, of one plan after the other
		want      int64   // GiB, of the last
	}{
		"others use the pool":        {sizes: []int64{512, 511, 505, 490, 511}, want: 32},
		"others use less":            {sizes: []int64{512, 530, 513}, want: 32},
		"little by little":           {sizes: []int64{512, 500, 490, 480, 464}, want: 29},
		"a smaller disk":             {sizes: []int64{512, 400}, want: 25},
		"a larger disk":              {sizes: []int64{512, 640}, want: 40},
		"one that was above the cap": {sizes: []int64{1000, 790}, want: 50},
		"fewer slots":                {now: config.Config{GPUCount: 7}, sizes: []int64{448, 448}, want: 32},
		"no more configured":         {then: jobDisk(31), sizes: []int64{512, 512}, want: 32},
		"configured now":             {now: jobDisk(31), sizes: []int64{512, 512}, want: 31},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := build(t, sized(row.sizes[0]), row.then, nil, false)
			for _, gib := range row.sizes[1:] {
				in := input(sized(gib), row.now)
				in.Bindings = bindingsOf(t, p)
				p = planned(t, in)
			}
			for _, s := range p.Slots {
				must.Equal(t, row.want<<30, s.DiskBytes)
			}
		})
	}
}

// TestAutoUpdate expects a cron line, a timer if there is no cron, and nothing
// without the key.
func TestAutoUpdate(t *testing.T) {
	t.Parallel()
	units := func(p *Plan) []Unit {
		return slices.DeleteFunc(slices.Clone(p.Units), func(u Unit) bool { return !strings.HasPrefix(u.Name, "kbnode-image") })
	}
	for _, tt := range []struct {
		name, when string
		cron       bool
		line       string // of CronPath
		calendar   string // of ImageTimer
		err        string
	}{
		{name: "not asked for", cron: true},
		{name: "switched off", when: "off", cron: true},
		{name: "cron", when: " 0 3  * * 1-5", cron: true, line: `0 3 * * 1-5 root /opt/100\%/kbnode image update --auto`},
		{name: "a word", when: "@daily", cron: true, line: `@daily root /opt/100\%/kbnode image update --auto`},
		{name: "no cron", when: "0 3 * * 1", calendar: "OnCalendar=Mon *-*-* 03:00:00"},
		{name: "what a timer cannot say", when: "0 3 1 * 1", err: "set one of them"},
		{name: "what cron can", when: "0 3 1 * 1", cron: true, line: `0 3 1 * 1 root /opt/100\%/kbnode image update --auto`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := input(readMachine(t, machinetest.Published()[0]), config.Config{Node: "node1", Image: config.Image{AutoUpdate: tt.when}})
			in.Inventory.Software.Cron, in.Binary = tt.cron, "/opt/100%/kbnode"
			p, err := Build(in)
			if tt.err != "" {
				must.Err(t, err, tt.err)
				return
			}
			must.Do(t, err)
			cron, timer := fileOf(p, CronPath), fileOf(p, UnitDir+"/"+ImageTimer)
			if (cron != "") != (tt.line != "") || !strings.HasSuffix(cron, tt.line+"\n") && tt.line != "" {
				t.Errorf("cron has %q, want %q", cron, tt.line)
			}
			if cron != "" && (!strings.HasPrefix(cron, "# "+Marker) || !strings.Contains(cron, "\nPATH=/")) {
				t.Errorf("cron has %q", cron)
			}
			if (timer != "") != (tt.calendar != "") || !strings.Contains(timer, tt.calendar) {
				t.Errorf("the timer is %q, want %q", timer, tt.calendar)
			}
			var want []Unit
			if tt.calendar != "" {
				// In the plan, so that a concurrent reconcile does not stop it.
				want = []Unit{{Name: ImageService, Slot: -1}, {Name: ImageTimer, Slot: -1, Enabled: true, Active: true}}
				if s := fileOf(p, UnitDir+"/"+ImageService); !strings.Contains(s, "ExecStart=/opt/100%/kbnode image update --auto\n") {
					t.Errorf("the service is %q", s)
				}
			}
			if d := cmp.Diff(want, units(p)); d != "" && len(want)+len(units(p)) > 0 {
				t.Error(d)
			}
		})
	}
}
