package slot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestLimits(t *testing.T) {
	t.Parallel()
	const cgroup = "/buildkite.slice/buildkite-gpu0.slice"
	good := map[string]string{FileCPUs: "0-1,3", fileNodes: "0", fileMemory: "1048576", fileSwap: "0", filePids: "9"}
	want := plan.Slice{Unit: "buildkite-gpu0.slice", CPUs: "0,1,3", MemoryNodes: "0", MemoryBytes: 1<<20 + PageSlack - 1, TasksMax: 9}
	policy := plan.JobPolicy{Name: "gpu0", Slice: want.Unit, CPUs: want.CPUs, MemoryNodes: want.MemoryNodes, MemoryBytes: want.MemoryBytes}
	for _, tt := range []struct{ file, text, want, refusal string }{
		{},
		{FileCPUs, "0-3", "cpuset.cpus.effective is 0-3, should be 0,1,3", `cpuset.cpus.effective of buildkite-gpu0.slice is "0-3", planned is "0,1,3"`},
		{fileNodes, "", "cpuset.mems.effective does not exist, should be 0", `cpuset.mems.effective of buildkite-gpu0.slice is "", planned is "0"`},
		{fileMemory, "1048575", "memory.max is 1048575, should be 1114111", "memory.max of buildkite-gpu0.slice is 1048575, planned is 1114111"},
		{fileMemory, "1114112", "memory.max is 1114112, should be 1114111", "memory.max of buildkite-gpu0.slice is 1114112"},
		{fileMemory, "max", "memory.max is max, should be 1114111", "memory.max of buildkite-gpu0.slice is max"},
		{fileSwap, "max", "memory.swap.max is max, should be 0", "memory.swap.max of buildkite-gpu0.slice is max"},
		{fileSwap, "", "", ""}, // a kernel without swap accounting
		{filePids, "max", "pids.max is max, should be 9", ""},
	} {
		root := t.TempDir()
		dir := filepath.Join(root, cgroup)
		must.Do(t, os.MkdirAll(dir, 0o755))
		for file, text := range good {
			if file == tt.file {
				text = tt.text
			}
			if text == "" {
				continue
			}
			must.Do(t, os.WriteFile(filepath.Join(dir, file), []byte(text+"\n"), 0o600))
		}
		files, err := ReadLimits(dir)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, m := range Compare(want, Slice{Cgroup: cgroup, Files: files}) {
			got += strings.TrimPrefix(m.String(), CgroupRoot+cgroup+"/")
		}
		must.Equal(t, tt.want, got)
		if err := CheckLimits(root, policy); (err == nil) != (tt.refusal == "") || err != nil && !strings.Contains(err.Error(), tt.refusal) {
			t.Errorf("%s: %v, want %q", tt.text, err, tt.refusal)
		}
	}
	must.Err(t, CheckLimits(t.TempDir(), policy), "no such file")
}
