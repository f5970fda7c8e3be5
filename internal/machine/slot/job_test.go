package slot

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/gpu-mode/kbnode/test/must"
)

// tree writes a txtar archive below a new directory. A | in a file stands for
// NUL and a ~ for ESC.
func tree(t *testing.T, archive string) string {
	t.Helper()
	root := t.TempDir()
	for _, f := range txtar.Parse([]byte(archive)).Files {
		must.Write(t, root, f.Name, strings.NewReplacer("|", "\x00", "~", "\x1b").Replace(string(f.Data)))
	}
	return root
}

const running = `
-- proc/stat --
cpu  1 2 3
btime 1700000000
-- proc/100/environ --
BUILDKITE_JOB_ID=not-the-agent-itself|
-- proc/100/stat --
100 (buildkite-agent) S 1 100 100 0 -1 0 0 0 0 0 0 0 0 0 20 0 9 0 500 1 1
-- proc/101/environ --
PATH=/bin|BUILDKITE_JOB_ID=0190-aa|BUILDKITE_BUILD_NUMBER=7|BUILDKITE_BUILD_URL=https://buildkite.com/o/p/builds/7|BUILDKITE_PIPELINE_SLUG=p~[31m|
-- proc/101/stat --
101 (a) b)) S 100 100 100 0 -1 0 0 0 0 0 0 0 0 0 20 0 9 0 1250 1 1
-- proc/102/environ --
BUILDKITE_JOB_ID=forged|
-- proc/102/stat --
102 (sh) S 101 100 100 0 -1 0 0 0 0 0 0 0 0 0 20 0 9 0 1300 1 1
`

func TestCurrentJob(t *testing.T) {
	t.Parallel()
	const procs = "-- sys/fs/cgroup/a.slice/agent.service/cgroup.procs --\n"
	job := &Job{
		ID: "0190-aa", Build: "7", BuildURL: "https://buildkite.com/o/p/builds/7", Pipeline: "p",
		PID: 101, Since: time.Unix(1700000012, 500_000_000).UTC(),
	}
	for _, tt := range []struct {
		name, archive string
		want          *Job
	}{
		{"no cgroup", running, nil},
		{"an agent that waits", running + procs + "100\n", nil},
		{"a job and its children", running + procs + "100\n102\n101\n", job},
		{"a process that ended meanwhile", running + procs + "100\n99\n101\n", job},
		{"rubbish in the list", running + procs + "x\n-1\n0\n101\n", job},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := CurrentJob(tree(t, tt.archive), "/a.slice/agent.service", 100)
			must.Do(t, err)
			must.Equal(t, tt.want, got)
		})
	}
}

func TestContainers(t *testing.T) {
	t.Parallel()
	root := tree(t, `
-- sys/fs/cgroup/s.slice/docker-aa.scope/cgroup.events --
populated 1
frozen 0
-- sys/fs/cgroup/s.slice/docker-bb.scope/cgroup.events --
populated 0
frozen 0
-- sys/fs/cgroup/s.slice/agent.service/cgroup.events --
populated 1
`)
	got, err := Containers(root, "/s.slice")
	must.Do(t, err)
	must.Equal(t, []string{"docker-aa.scope"}, got)
	if got, err := Containers(root, "/none.slice"); err != nil || got != nil {
		t.Errorf("containers of no slice: %v, %v", got, err)
	}
}

func TestEnvironKeepsNoToken(t *testing.T) {
	t.Parallel()
	root := tree(t, "-- proc/5/environ --\nBUILDKITE_AGENT_ACCESS_TOKEN=s3cret|KBNODE_GENERATION=abc|HOME=/root|\n")
	got, err := Environ(root, 5)
	must.Do(t, err)
	must.Equal(t, map[string]string{"KBNODE_GENERATION": "abc"}, got)
}
