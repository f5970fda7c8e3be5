package plan

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/machinetest"
)

// TestMounts checks that each unit waits for the mounts of all that it uses: whatever comes late hides what was
// written below it before.
func TestMounts(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	inv.Software.Docker.RootDir, inv.Software.Cron = "/srv/docker", false
	p := build(t, inv, config.Config{Image: config.Image{Name: "r.example/i:1", AutoUpdate: "@daily"}}, nil, false)
	waits := map[string][]string{}
	for _, f := range p.Files {
		if strings.HasPrefix(f.Path, UnitDir) {
			for line := range strings.Lines(f.Content) {
				if list, ok := strings.CutPrefix(strings.TrimSpace(line), "RequiresMountsFor="); ok {
					waits[path.Base(f.Path)] = append(waits[path.Base(f.Path)], strings.Fields(list)...)
				}
			}
		}
	}
	for unit, want := range map[string][]string{
		NodeService:   {"/etc/kbnode", "/var/lib/kbnode", "/var/lib/buildkite-agent/disks", "/srv/docker"},
		JobService(3): {DiskDir(3), BuildsDir(3), MirrorsDir, "/etc/kbnode/slots", TokenPath},
		JobSocket(3):  {DiskDir(3), "/etc/kbnode/slots"},
		AgentUnit(3):  {BuildsDir(3), AgentDir(3)},
		ImageService:  {"/srv/docker", "/var/lib/kbnode"},
	} {
		for _, dir := range want {
			if !slices.Contains(waits[unit], dir) {
				t.Errorf("%s does not wait for %s: %q", unit, dir, waits[unit])
			}
		}
	}
	for _, dir := range []string{"", "/a b", "/a%n", `/a\x20`, "relative"} { // what no unit can name as it is
		inv.Software.Docker.RootDir = dir
		if got := dockerRoot(inv); got != "/var/lib/docker" {
			t.Errorf("%q: %q", dir, got)
		}
	}
}
