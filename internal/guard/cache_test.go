package guard

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
)

// caches returns the mounts that a container gets for these mounts of a job, on a slot with or
// without a disk: "target=source below the container's directory".
func caches(t *testing.T, d *slotDisk, mounts string) (got []string, h *container.HostConfig, scratch string, err error) {
	t.Helper()
	wanted, err := rebuild(testPolicy(), testFacts(), []byte(`{"Image":"i","HostConfig":{"ReadonlyRootfs":true,`+mounts+`}}`))
	if err != nil {
		return nil, nil, "", err
	}
	if scratch, err = d.prepare(wanted, nil); err != nil {
		return nil, nil, scratch, err
	}
	h = wanted.HostConfig
	for _, m := range h.Mounts {
		if d.dir != "" && strings.HasPrefix(m.Source, d.dir+"/") {
			below, err := filepath.Rel(d.path(scratch), m.Source)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprintf("%s=%s ro:%t", m.Target, below, m.ReadOnly))
			if entries, err := os.ReadDir(m.Source); err != nil || len(entries) > 0 && !strings.Contains(below, "shared") {
				t.Errorf("%s: %v %v", m.Source, entries, err)
			}
			if info, err := os.Stat(m.Source); err != nil || info.Mode().Perm() != 0o777 {
				t.Errorf("%s: %v", m.Source, err)
			}
		} else if strings.HasPrefix(m.Source, cacheSource) || strings.Contains(m.Source, "/cache") {
			t.Errorf("the engine gets %s", m.Source)
		}
	}
	return got, h, scratch, nil
}

// TestOldCache mounts a directory that all jobs of a node shared, as pipelines of the old
// scripts do. Each container gets an empty one of its own.
func TestOldCache(t *testing.T) {
	t.Parallel()
	binds := func(list ...string) string { return `"Binds":["` + strings.Join(list, `","`) + `"]` }
	for _, row := range []struct{ mounts, want string }{
		{binds("/var/lib/buildkite-agent/cache:/cache:rw"), "/cache=cache ro:false"},
		{binds("/var/lib/buildkite-agent/cache/pip:/root/.cache/pip:rw"), "/root/.cache/pip=cache/pip ro:false"},
		{binds("/var/lib/buildkite-agent/cache/:/cache:ro"), "/cache=cache ro:true"},
		{binds("/var/lib//buildkite-agent/./cache/a/b:/b"), "/b=cache/a/b ro:false"},
		{binds("/var/lib/buildkite-agent/cache/buildkite-agent:/b", "/var/lib/buildkite-agent/cache/buildkite-agent:/c:ro"), "/b=cache/buildkite-agent ro:false /c=cache/buildkite-agent ro:true"},
		{binds("/var/lib/buildkite-agent/cache/shared/x:/x", "/var/lib/buildkite-agent/cache/shared:/y"), "/x=cache/shared/x ro:false /y=cache/shared ro:false"},
		{`"Mounts":[{"Type":"bind","Source":"/var/lib/buildkite-agent/cache/hf","Target":"/hf","ReadOnly":true}]`, "/hf=cache/hf ro:true"},
	} {
		d, _ := testDisk(t)
		got, _, first, err := caches(t, d, row.mounts)
		if err != nil || strings.Join(got, " ") != row.want {
			t.Errorf("%s: %q, %v, want %q", row.mounts, got, err, row.want)
		}
		if _, _, second, err := caches(t, d, row.mounts); err != nil || first == second {
			t.Errorf("%s: two containers have %s and %s (%v)", row.mounts, first, second, err)
		}
	}
	d, _ := testDisk(t)
	many := make([]string, maxVolumes+1)
	for i := range many {
		many[i] = fmt.Sprintf("/var/lib/buildkite-agent/cache/%d:/m%d", i, i)
	}
	for _, mounts := range []string{
		binds("/var/lib/buildkite-agent/cache/../gpu-1:/x"), binds("/var/lib/buildkite-agent/cache/x/../../disks:/x"),
		binds("/var/lib/buildkite-agent/cachet:/x"), binds("/var/lib/buildkite-agent/gpu-1:/x"), binds("cache:/pip:/x"), binds("cache:/x"),
		binds("/var/lib/buildkite-agent/cache:/proc"), binds("/var/lib/buildkite-agent/cache:/"), binds("/var/lib/buildkite-agent/cache:/x:rw,shared"),
		`"Mounts":[{"Type":"volume","Source":"/var/lib/buildkite-agent/cache","Target":"/x"}]`, `"Mounts":[{"Type":"bind","Source":"cache:/x","Target":"/x"}]`,
		binds(many...), binds("/var/lib/buildkite-agent/cache/" + strings.Repeat("x", 300) + ":/x"),
	} {
		if got, _, _, err := caches(t, d, mounts); err == nil {
			t.Errorf("%s: allowed: %q", mounts, got)
		}
	}
	// Without a disk it is a tmpfs, part of the slot's memory.
	_, h, scratch, err := caches(t, &slotDisk{}, binds("/var/lib/buildkite-agent/cache:/cache", "/var/lib/buildkite-agent/cache/pip:/pip:ro"))
	if err != nil || scratch != "" || h.Tmpfs["/cache"] != "exec,mode=0777" || h.Tmpfs["/pip"] != "exec,mode=0777,ro" {
		t.Errorf("without a disk: %+v, %v", h, err)
	}
}

// TestOldCacheOfAJob checks that a slot without a disk mounts a tmpfs in place of the old cache.
func TestOldCacheOfAJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if status, answer := r.ask(t, "POST", "/containers/create?name=job", `{"Image":"img","HostConfig":{"Binds":["/var/lib/buildkite-agent/cache:/cache:rw"]}}`); status != 201 {
		t.Fatal(answer)
	}
	h := r.engine.created[0].HostConfig
	for _, m := range h.Mounts {
		if m.Target == "/cache" || strings.Contains(m.Source, "cache") {
			t.Errorf("a slot without a disk mounts %+v", m)
		}
	}
	if h.Tmpfs["/cache"] == "" {
		t.Errorf("no cache: %+v", h.Tmpfs)
	}
}
