package guard

import (
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestMountTargets follows the links of an image and of a checkout to where runc would mount.
func TestMountTargets(t *testing.T) {
	t.Parallel()
	const dir, file, absent = `{"mode": 2147484141}`, `{"size": 9, "mode": 420}`, ""
	link := func(to string) string { return `{"size": 9, "mode": 134218239, "linkTarget": "` + to + `"}` }
	for name, row := range map[string]struct {
		stats map[string]string // in the image
		links map[string]string // of the checkout
		spec  func(*job.Spec)
		want  string // in the refusal
	}{
		"a link to a directory":          {map[string]string{"/x": link("usr"), "/etc/passwd": file}, nil, mounts("/x"), ""},
		"a link to /etc":                 {map[string]string{"/x": link("etc")}, nil, mounts("/x"), `"/x" leads to another place in the image: "/etc": a job cannot mount over the image's accounts`},
		"by two links":                   {map[string]string{"/x": link("/a/b"), "/a/b": link("../etc/."), "/y": dir}, nil, mounts("/x"), `"/etc": a job cannot mount`},
		"by a directory":                 {map[string]string{"/x": link("/")}, nil, mounts("/x/etc"), `"/etc": a job cannot mount`},
		"to an account file":             {map[string]string{"/x": link("etc")}, nil, mounts("/x/passwd"), `"/etc/passwd": a job cannot mount`},
		"to the root":                    {map[string]string{"/x": link("/.")}, nil, mounts("/x"), "over the container's root"},
		"to /proc":                       {map[string]string{"/x": link("../../proc/sys")}, nil, mounts("/x/y"), "a job cannot mount over /proc"},
		"to /dev":                        {map[string]string{"/x": link("dev")}, nil, mounts("/x"), "a job cannot mount over /dev"},
		"a tmpfs":                        {map[string]string{"/x": link("etc")}, nil, func(s *job.Spec) { s.Tmpfs = []job.Tmpfs{{Target: "/x", Options: []string{}}} }, `"/etc": a job cannot mount`},
		"a loop":                         {map[string]string{"/x": link("y"), "/y": link("x")}, nil, mounts("/x"), "too many links"},
		"through a file":                 {map[string]string{"/x": file}, nil, mounts("/x/y"), `"/x/y" goes through "/x", which is no directory in the image`},
		"what is absent":                 {map[string]string{"/x": absent}, nil, mounts("/x/y/z"), ""},
		"accounts elsewhere":             {map[string]string{"/etc/passwd": link("/data/passwd"), "/data/passwd": file}, nil, mounts("/data"), "over the image's accounts"},
		"/etc elsewhere":                 {map[string]string{"/etc": link("work"), "/work/passwd": file, "/work/group": file}, nil, mounts("/x"), `"/work": a job cannot mount over the image's accounts`},
		"a link of the checkout":         {nil, map[string]string{"x": "../etc"}, mounts("/work/x"), `"/work/x" goes through a symbolic link in the checkout`},
		"hidden by the checkout":         {map[string]string{"/a": link("/work/l/b"), "/work/l": link("/usr")}, map[string]string{"l": "/etc"}, mounts("/a"), "goes through a symbolic link in the checkout"},
		"above a checkout's link":        {map[string]string{"/x": link("/work/l/../passwd"), "/work/l": absent}, map[string]string{"l": "/etc/x"}, mounts("/x"), "with .. in its middle"},
		"a directory to start":           {map[string]string{"/x": link("/proc/self/fd")}, nil, func(s *job.Spec) { s.Workdir = "/x/7" }, `workdir: "/x/7" leads below /proc`},
		"the image's":                    {map[string]string{"/x": link("/proc/self/fd")}, nil, mounts("/y"), ""},
		"one in the checkout":            {map[string]string{"/x": link("/work/l")}, map[string]string{"l": "/proc/self/fd"}, func(s *job.Spec) { s.Workdir = "/x/7" }, "goes through a symbolic link in the checkout"},
		"a loop that the engine follows": {map[string]string{"/x": "evalSymlinksInScope: too many links"}, nil, mounts("/x"), "too many links"},
		"a name that is too long":        {map[string]string{"/x": "lstat /var/lib/x: file name too long"}, nil, mounts("/x"), "(file name too long); choose another path"},
		"over Docker's init":             {nil, nil, withInit(mounts("/sbin")), `"/sbin" would hide Docker's init, /sbin/docker-init`},
		"over it through a link":         {map[string]string{"/sbin": link("usr/sbin"), "/usr/sbin/docker-init": absent}, nil, withInit(mounts("/usr")), `"/usr" would hide Docker's init`},
		"over it by a link":              {map[string]string{"/x": link("sbin")}, nil, withInit(mounts("/x")), `"/x" would hide Docker's init`},
		"beside it":                      {nil, nil, withInit(mounts("/sbin/x", "/usr/sbin")), ""},
		"without it":                     {nil, nil, mounts("/sbin"), ""},
		"a directory in its place":       {map[string]string{"/sbin/docker-init": dir}, nil, withInit(mounts("/y")), "the image has a directory at /sbin/docker-init"},
		"a loop on its way":              {map[string]string{"/sbin": link("sbin")}, nil, withInit(mounts("/y")), `"/sbin/docker-init" goes through too many links`},
		"to start in its place":          {nil, nil, withInit(func(s *job.Spec) { s.Workdir = "/sbin/docker-init/x" }), `where a container has its file "/sbin/docker-init"`},
		"to start in the accounts":       {map[string]string{"/etc/passwd": absent}, nil, func(s *job.Spec) { s.Workdir = "/etc/passwd" }, `workdir: "/etc/passwd" is where a container has its file "/etc/passwd"`},
		"to start there through a link":  {map[string]string{"/x": link("etc")}, nil, func(s *job.Spec) { s.Workdir = "/x/group/y" }, `where a container has its file "/etc/group"`},
		"shared memory":                  {map[string]string{"/dev": link("/etc"), "/dev/shm": link("/etc")}, nil, mounts("/dev/shm/x"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := ready(t)
			maps.Copy(r.engine.stats, row.stats)
			r.engine.onImage = func() {
				made, _ := filepath.Glob(filepath.Join(r.policy.WorkRoot, "*", "checkout"))
				for name, to := range row.links {
					must.Do(t, os.Symlink(to, filepath.Join(made[0], name)))
				}
			}
			o := r.try(t, row.spec)
			if (why(o) == "") != (row.want == "") || !strings.Contains(o.Refused, row.want) || r.engine.started() != (row.want == "") {
				t.Errorf("%+v", o)
			}
			// What was seen is remembered.
			if before := r.engine.asked("HEAD /v"); row.want == "" {
				if o := r.try(t, row.spec); why(o) != "" || r.engine.asked("HEAD /v") != before {
					t.Errorf("the second: %+v, %d looks more", o, r.engine.asked("HEAD /v")-before)
				}
			}
		})
	}
	r := ready(t)
	r.engine.fault = func(req *http.Request) int {
		if strings.HasSuffix(req.URL.Path, "/archive") && req.URL.Query().Get("path") == "/work" {
			return http.StatusInternalServerError
		}
		return 0
	}
	must.Equal(t, "", r.try(t).Refused)
	must.Equal(t, false, r.engine.started())
}

// TestVolumesWithoutDisk refuses an image that declares a volume where no job may mount, also if the engine would make it.
func TestVolumesWithoutDisk(t *testing.T) {
	t.Parallel()
	for volume, want := range map[string]string{
		"/data/": "", "/proc/x": `declares a volume: "/proc/x": a job cannot mount over /proc`, "/a/../dev/shm": "declares a volume", "/sbin": `"/sbin" would hide Docker's init`,
	} {
		r := ready(t)
		r.engine.volumes = map[string]struct{}{volume: {}}
		if o := r.try(t, withInit(func(*job.Spec) {})); (why(o) == "") != (want == "") || !strings.Contains(o.Refused, want) {
			t.Errorf("%s: %+v", volume, o)
		}
	}
}

// TestLongPathsAreForgotten keeps little of an image: a path may have 4 KiB, and there may be a thousand.
func TestLongPathsAreForgotten(t *testing.T) {
	t.Parallel()
	for depth, kept := range map[int]bool{8: true, 16: false} {
		long := strings.Repeat("/"+strings.Repeat("d", 240), depth)
		r := ready(t)
		spec := mounts("/a"+long, "/b"+long, "/c"+long)
		must.Equal(t, "", why(r.try(t, spec)))
		before := r.engine.asked("HEAD /v")
		must.Equal(t, "", why(r.try(t, spec)))
		must.Equal(t, kept, r.engine.asked("HEAD /v") == before)
	}
}

func mounts(targets ...string) func(*job.Spec) {
	return func(s *job.Spec) {
		for _, target := range targets {
			s.Mounts = append(s.Mounts, job.Mount{Target: target})
		}
	}
}

func withInit(change func(*job.Spec)) func(*job.Spec) {
	return func(s *job.Spec) {
		s.Init = true
		change(s)
	}
}

func TestUpLater(t *testing.T) {
	t.Parallel()
	for link, want := range map[string]bool{
		"..": false, "../a": false, "../../a/b": false, "./../a": false, "//../a": false, "a": false, "a..": false, "/a/b..": false, "...": false, "/..": false,
		"a/..": true, "a/../b": true, "/a/b/../c": true, "../a/..": true, ".../../y": true, "..a/../y": true, ".a/..": true, "a//../b": true, "a/./..": true, "/work/\nl/..": true,
	} {
		must.Equal(t, want, upLater(link))
	}
}
