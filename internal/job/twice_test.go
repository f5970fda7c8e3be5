package job_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/jobtest"
)

// TestTwice tests that what a step says twice means what docker makes of it: equal mounts, groups and
// capabilities are one, and of limits, tmpfs and variables the last one holds.
func TestTwice(t *testing.T) {
	t.Parallel()
	const cache = "/var/lib/buildkite-agent/cache"
	for _, tt := range []struct{ twice, once string }{
		{`"workdir":"/workdir","volumes":[".:/workdir"]`, `"workdir":"/workdir"`},
		{`"volumes":[".:/workdir"]`, ``},
		{`"volumes":["./:/workdir"]`, ``},
		{`"volumes":["././/.:/workdir"]`, ``},
		{`"volumes":[".:/workdir/"]`, ``},
		{`"volumes":[".://workdir/."]`, ``},
		{`"volumes":[".:/workdir:rw"]`, ``},
		{`"volumes":[".:/workdir:z"]`, ``},
		{`"volumes":[".:/workdir:rw,Z"]`, ``},
		{`"volumes":[".:/workdir:cached",".:/workdir"]`, ``},
		{`"volumes":["$DOT:/workdir"],"expand-volume-vars":true`, ``},
		{`"workdir":"/src/","volumes":[".:/src"]`, `"workdir":"/src"`},
		{`"workdir":"/src","volumes":[".:/workdir",".:/workdir"]`, `"workdir":"/src","volumes":[".:/workdir"]`},
		{`"mount-checkout":false,"workdir":"/w","volumes":[".:/w"],"mounts":["./:/w/"]`, `"mount-checkout":false,"workdir":"/w","volumes":[".:/w"]`},
		{`"mounts":[".:/workdir"]`, ``},
		{`"volumes":["./a:/a","./b:/b","./a/:/a:rw"]`, `"volumes":["./a:/a","./b:/b"]`},
		{`"volumes":["./a:/a:ro"],"mounts":["./a:/a/:ro,z"]`, `"volumes":["./a:/a:ro"]`},
		{`"volumes":["` + cache + `/pip:/p","` + cache + `//pip/:/p:rw"]`, `"volumes":["` + cache + `/pip:/p"]`},
		{`"volumes":["` + cache + `:/p","` + cache + `/.:/p"]`, `"volumes":["` + cache + `:/p"]`},
		{`"volumes":["/var/lib/./buildkite-agent//cache/pip:/p","//var/lib/buildkite-agent/cache/pip:/p"]`, `"volumes":["` + cache + `/pip:/p"]`},
		{`"tmpfs":["/t","/t"]`, `"tmpfs":["/t"]`},
		{`"tmpfs":["/t:size=1g","/u","/t/:size=2g"]`, `"tmpfs":["/t:size=2g","/u"]`},
		{`"additional-groups":["video","44","video"]`, `"additional-groups":["video","44"]`},
		{`"drop-caps":["CHOWN","cap_chown","ALL","all"]`, `"drop-caps":["CHOWN","ALL"]`},
		{`"ulimits":["nofile=1","nofile=1:1"]`, `"ulimits":["nofile=1"]`},
		{`"ulimits":["nofile=1:2","stack=1","nofile=3"]`, `"ulimits":["nofile=3","stack=1"]`},
		{`"environment":["A=1","A=1"]`, `"environment":["A=1"]`},
		{`"environment":["A=1","A","A=2"]`, `"environment":["A=2"]`},
		{`"environment":["SENT=1","SENT"]`, `"environment":["SENT"]`},
		{`"environment":["SENT"],"env-propagation-list":"LIST"`, `"environment":["SENT"]`},
	} {
		step := func(options string) map[string]string {
			vars := jobtest.Options(strings.TrimSuffix(`"image":"a",`+options, ","))
			vars["DOT"], vars["SENT"], vars["LIST"] = ".", "sent", "SENT SENT"
			return vars
		}
		want := read(t, attack(step(tt.once)))
		got, err := job.Read(attack(step(tt.twice)))
		if err != nil {
			t.Errorf("%s: %v", tt.twice, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s is not %s (-want +got):\n%s", tt.twice, tt.once, diff)
		}
		same(t, got)
	}
}

// TestContradictions tests that a step that mounts two things at one place learns which one to remove.
func TestContradictions(t *testing.T) {
	t.Parallel()
	const (
		checkout = " is mounted already, for the checkout; remove this mount, or set mount-checkout to false"
		another  = " is mounted already, from another source or in another mode; remove one of the two mounts"
		cache    = "/var/lib/buildkite-agent/cache"
	)
	for options, want := range map[string]string{
		`"volumes":["./data:/workdir"]`:                                     `volumes: "/workdir"` + checkout,
		`"volumes":[".:/workdir:ro"]`:                                       `volumes: "/workdir"` + checkout,
		`"volumes":["` + cache + `:/workdir"]`:                              `volumes: "/workdir"` + checkout,
		`"workdir":"/w","tmpfs":["/w/"]`:                                    `tmpfs: "/w"` + checkout,
		`"volumes":["./a:/x","./b:/x"]`:                                     `volumes: "/x"` + another,
		`"volumes":["./a:/x","./a:/x:ro"]`:                                  `volumes: "/x"` + another,
		`"volumes":["./a:/x:ro"],"mounts":[".:/x:ro"]`:                      `volumes: "/x"` + another,
		`"volumes":["` + cache + `/a:/x","` + cache + `/b:/x"]`:             `volumes: "/x"` + another,
		`"volumes":["` + cache + `:/x","` + cache + `:/x:ro"]`:              `volumes: "/x"` + another,
		`"volumes":["./a:/x"],"tmpfs":["/x"]`:                               `tmpfs: "/x"` + another,
		`"volumes":["./x:/usr/local/bin/kbnode"]`:                           `volumes: "/usr/local/bin/kbnode" is mounted already; choose another directory`,
		`"volumes":["./x:/sbin/docker-init"]`:                               `volumes: "/sbin/docker-init" is mounted already; choose another directory`,
		`"mount-buildkite-agent":true,"tmpfs":["/usr/bin/buildkite-agent"]`: `tmpfs: "/usr/bin/buildkite-agent" is mounted already; choose another directory`,
	} {
		_, err := job.Read(attack(jobtest.Options(`"image":"a",` + options)))
		if got := fmt.Sprint(err); got != want {
			t.Errorf("%s: %s, want %s", options, got, want)
		}
	}
}
