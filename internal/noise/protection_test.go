package noise

import (
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestNodeProtection(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  Protection
	}{
		{"all", map[string]string{"osrelease": "6.12.0-13-amd64\n", "yama/ptrace_scope": "1\n", "seccomp/actions_avail": "errno\n"},
			Protection{Kernel: "6.12.0-13-amd64", Ptrace: new(1), Seccomp: new(true)}},
		{"neither Yama nor seccomp", map[string]string{"osrelease": "5.10.0\n"}, Protection{Kernel: "5.10.0", Seccomp: new(false)}},
		{"garbage", map[string]string{"osrelease": "x\n", "yama/ptrace_scope": "?\n", "seccomp/actions_avail": ""}, Protection{Kernel: "x", Seccomp: new(true)}},
		{"nothing", nil, Protection{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			proc := t.TempDir()
			for name, text := range tt.files {
				must.Write(t, proc, "sys/kernel/"+name, text)
			}
			got := NodeProtection(proc)
			got.Landlock = nil // of the kernel that runs this test
			must.Equal(t, tt.want, got)
		})
	}
}

func TestReadContainer(t *testing.T) {
	t.Parallel()
	const init = "Name:\tUid: 0\nUid:\t1000\t1001\t0\t0\nNSpid:\t70\t1\nCapEff:\t0000000000000000\nNoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n"
	full := Container{UID: new(1001), Capabilities: "0000000000000000", NoNew: new(false), Seccomp: new(false), PIDs: new(true)}
	for _, tt := range []struct {
		name, procs string
		status      map[string]string
		want        Container
	}{
		{"the first process", "70\n", map[string]string{"70": init}, full},
		{"behind others", "69\n71\n70\n", map[string]string{"71": "Uid:\t0\t0\t0\t0\nNSpid:\t71\t2\nSeccomp:\t2\n", "70": init}, full},
		{"before that of a namespace in the container", "71\n70\n", map[string]string{"71": "Uid:\t0\t0\t0\t0\nNSpid:\t71\t2\t1\nSeccomp:\t2\n", "70": init}, full},
		{"in the node's namespace", "70\n", map[string]string{"70": "Uid:\t0\nNSpid:\t70\nSeccomp:\t2\n"}, Container{Error: "its first process was not found"}},
		{"a value that is none", "70\n", map[string]string{"70": "Uid:\tx\nNSpid:\t70\t1\nSeccomp:\t1\n"}, Container{Seccomp: new(false), PIDs: new(true)}},
		{"ended", "70\n71\n", map[string]string{"71": "NSpid:\t71\t2\n"}, Container{Error: "its first process was not found"}},
		{"an empty status", "70\n", map[string]string{"70": ""}, Container{Error: "its first process was not found"}},
		{"no cgroup", "", nil, Container{Error: "it had ended"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if tt.procs != "" {
				must.Write(t, dir, "cgroup.procs", tt.procs)
			}
			for pid, status := range tt.status {
				must.Write(t, dir, pid+"/status", status)
			}
			must.Equal(t, tt.want, ReadContainer(dir, dir))
		})
	}
}
