package guard

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/job"
)

// TestEmptyMounts mounts a directory that all jobs of a node shared, as pipelines of the old
// scripts do. Each container gets an empty one of its own.
func TestEmptyMounts(t *testing.T) {
	t.Parallel()
	mounts := []job.Mount{{Target: "/cache"}, {Target: "/pip", ReadOnly: true}}
	prepared := func(d *slotDisk) (sources map[string]string, tmpfs map[string]string) {
		wanted, err := made(testPolicy(), testFacts(), func(s *job.Spec) { s.Mounts = mounts })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.prepare(wanted, nil); err != nil {
			t.Fatal(err)
		}
		sources = map[string]string{}
		for _, m := range wanted.HostConfig.Mounts {
			sources[m.Target] = m.Source
			if strings.HasPrefix(m.Source, cacheSource) || m.Target == "/pip" != m.ReadOnly && m.Target != testPolicy().Binary && !strings.HasSuffix(m.Target, "/kbnode") && !strings.HasPrefix(m.Target, "/etc/") && m.Target != "/cache" {
				t.Errorf("the engine gets %+v", m)
			}
		}
		return sources, wanted.HostConfig.Tmpfs
	}
	d, _ := testDisk(t)
	first, _ := prepared(d)
	if err := os.WriteFile(filepath.Join(first["/cache"], "planted"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	second, _ := prepared(d)
	for target, source := range second {
		if target != "/cache" && target != "/pip" {
			continue
		}
		entries, err := os.ReadDir(source)
		info, err2 := os.Stat(source)
		if err != nil || err2 != nil || len(entries) > 0 || info.Mode().Perm() != 0o777 || source == first[target] || second["/cache"] == second["/pip"] {
			t.Errorf("%s: %s, %v, %v, %v", target, source, entries, err, err2)
		}
	}
	without, tmpfs := prepared(&slotDisk{})
	if without["/cache"] != "" || tmpfs["/cache"] != "exec,mode=0777" || tmpfs["/pip"] != "exec,mode=0777,ro" {
		t.Errorf("without a disk: %v, %v", without, tmpfs)
	}
}
