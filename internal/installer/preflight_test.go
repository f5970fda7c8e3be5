package installer

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/inventory"
)

func TestPreflight(t *testing.T) {
	t.Parallel()
	good := func() *inventory.Inventory {
		return machine("debian", "12", inventory.Software{Systemd: "257", CgroupV2: true, Git: "/usr/bin/git", MkfsExt4: "/usr/sbin/mkfs.ext4", Docker: inventory.Docker{Version: "26.1", CgroupDriver: "systemd", Runtimes: []string{"nvidia"}}})
	}
	if m := Preflight(good()); len(m) > 0 {
		t.Errorf("a good machine lacks %v", m)
	}
	for name, tt := range map[string]struct {
		spoil func(*inventory.Inventory)
		want  string
	}{
		"no systemd":      {func(i *inventory.Inventory) { i.Software.Systemd = "" }, "systemd does not report its version"},
		"old systemd":     {func(i *inventory.Inventory) { i.Software.Systemd = "245.4-4ubuntu3" }, "needs 249"},
		"cgroup v1":       {func(i *inventory.Inventory) { i.Software.CgroupV2 = false }, "systemd.unified_cgroup_hierarchy=1"},
		"no Docker":       {func(i *inventory.Inventory) { i.Software.Docker = inventory.Docker{} }, "sudo apt-get update && sudo apt-get install -y docker.io && sudo systemctl enable --now docker (or kbnode"},
		"no Docker, RHEL": {func(i *inventory.Inventory) { i.Software.Docker = inventory.Docker{}; i.OS.ID = "rhel" }, "run: sudo dnf install -y docker-ce"},
		"cgroupfs":        {func(i *inventory.Inventory) { i.Software.Docker.CgroupDriver = "cgroupfs" }, "native.cgroupdriver=systemd"},
		"no git":          {func(i *inventory.Inventory) { i.Software.Git = "" }, "apt-get install -y git"},
		"no mkfs":         {func(i *inventory.Inventory) { i.Software.MkfsExt4 = "" }, "apt-get install -y e2fsprogs"},
		"no toolkit":      {func(i *inventory.Inventory) { i.Software.Docker.Runtimes = nil }, "nvidia-container-toolkit"},
	} {
		inv := good()
		tt.spoil(inv)
		if m := Preflight(inv); len(m) != 1 || !strings.Contains(m[0], tt.want) {
			t.Errorf("%s: %v, want one sentence with %q", name, m, tt.want)
		}
	}
}
