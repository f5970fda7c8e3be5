package pipeline_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/job/pipeline"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// command returns what an agent gets to run, after the server substituted variables.
func command(t *testing.T, kind string, o pipeline.Options) string {
	t.Helper()
	b := submit(t, string(build(t, kind, o).YAML()), map[string]string{"KERNELBOT_QUEUE": "q", "KERNELBOT_IMAGE": "filled:in"})
	return b.Jobs[0].Command
}

// shell runs a script as an agent or the docker plugin would.
func shell(t *testing.T, sh, dir, script string, env ...string) (out string, code int) {
	t.Helper()
	c := exec.CommandContext(t.Context(), sh, "-e", "-c", script)
	c.Dir, c.Env = dir, append([]string{"PATH=" + dir + ":/usr/bin:/bin"}, env...)
	b, err := c.CombinedOutput()
	if err != nil && c.ProcessState == nil {
		t.Fatal(err)
	}
	return string(b), c.ProcessState.ExitCode()
}

func TestArtifactScript(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if out, code := shell(t, "bash", dir, command(t, pipeline.ArtifactTest, pipeline.Options{})); code != 0 {
		t.Fatalf("exit %d: %s", code, out)
	}
	f, err := os.Open(filepath.Join(dir, "result.json"))
	must.Do(t, err)
	defer f.Close() //nolint:errcheck // opened for reading
	// The runner's own type, except runs, which it only writes.
	var got struct {
		result.Result
		Runs map[string]any `json:"runs"`
	}
	dec := json.NewDecoder(f)
	dec.DisallowUnknownFields()
	must.Do(t, dec.Decode(&got))
	host, err := os.Hostname()
	must.Do(t, err)
	if !got.Success || got.Error != "" || got.System == nil || got.System.Hostname != host || !strings.HasPrefix(got.System.Platform, "Linux ") || got.Runs == nil || len(got.Runs) > 0 {
		t.Errorf("result.json says %+v of %+v", got, got.System)
	}
}

// TestVariables checks the defaults of what a build leaves out, and that it can name the older
// launcher's queue.
func TestVariables(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		queue string
		env   map[string]string
		want  [2]string // queue and image
	}{
		{"", map[string]string{"KERNELBOT_QUEUE": "b200"}, [2]string{"b200", config.DefaultImage}},
		{"", map[string]string{"KERNELBOT_QUEUE": "b200", "KERNELBOT_IMAGE": ""}, [2]string{"b200", config.DefaultImage}},
		{"", map[string]string{"KERNELBOT_QUEUE": "b200", "KERNELBOT_IMAGE": "x:y"}, [2]string{"b200", "x:y"}},
		{"${GPU_QUEUE}", map[string]string{"GPU_QUEUE": "nvidia-h100"}, [2]string{"nvidia-h100", config.DefaultImage}},
		{"${GPU_QUEUE:-h100}", nil, [2]string{"h100", config.DefaultImage}},
	} {
		jobs := work(t, build(t, pipeline.Eval, pipeline.Options{Queue: tt.queue}), tt.want[0], tt.env, func(*bktest.Work, int) {})
		if len(jobs) != 1 || !strings.Contains(jobs[0].Env["BUILDKITE_PLUGINS"], fmt.Sprintf(`"image":%q`, tt.want[1])) {
			t.Errorf("%s of %v: %+v, want image %s", tt.queue, tt.env, jobs, tt.want[1])
		}
	}
}

func TestDockerScript(t *testing.T) {
	t.Parallel()
	allowed, err := exec.CommandContext(t.Context(), "sh", "-c", `grep Cpus_allowed_list: /proc/self/status | tr -d '\t' | cut -d: -f2`).Output()
	must.Do(t, err)
	cpuset := strings.TrimSpace(string(allowed))
	nvidia, amd := []string{"nvidia0", "nvidiactl", "nvidia-uvm"}, []string{"kfd", "dri/renderD128", "dri/card0"}
	for name, tt := range map[string]struct {
		amd     bool
		devices []string
		memory  string // memory.max
		smi     int    // GPUs that nvidia-smi lists; -1 means not installed
		env     string // overrides what fits
		wrong   string // what the script says is wrong; "" passes
	}{
		"NVIDIA":               {devices: nvidia, smi: 1},
		"without nvidia-smi":   {devices: nvidia, smi: -1},
		"two NVIDIA GPUs":      {devices: append([]string{"nvidia1"}, nvidia...), smi: -1, wrong: "GPUs 2, not 1"},
		"no NVIDIA GPU":        {devices: []string{"nvidiactl"}, smi: -1, wrong: "GPUs 0, not 1"},
		"nvidia-smi sees more": {devices: nvidia, smi: 8, wrong: "nvidia-smi 8, not 1"},
		"nvidia-smi is broken": {devices: nvidia, smi: 0, wrong: "nvidia-smi 0, not 1"},
		"no memory limit":      {devices: nvidia, smi: -1, memory: "max", wrong: "memory 0m, not 64m"},
		"other memory":         {devices: nvidia, smi: -1, memory: "68157440", wrong: "memory 65m, not 64m"},
		"other CPUs":           {devices: nvidia, smi: -1, env: "KERNELBOT_CPUS=4", wrong: "CPUs 3, not 4"},
		"other cpuset":         {devices: nvidia, smi: -1, env: "KERNELBOT_CPUSET=7-9", wrong: "cpuset " + cpuset + ", not 7-9"},
		"AMD":                  {amd: true, devices: amd, smi: -1},
		"two AMD GPUs":         {amd: true, devices: append([]string{"dri/renderD129"}, amd...), smi: -1, wrong: "GPUs 2, not 1"},
		"AMD without kfd":      {amd: true, devices: amd[1:], smi: -1, wrong: "kfd"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			put := func(name, text string) {
				must.Do(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
				must.Program(t, filepath.Join(dir, name), text)
			}
			for _, d := range tt.devices {
				put("dev/"+d, "")
			}
			if tt.memory == "" {
				tt.memory = "67108864"
			}
			put("cgroup/memory.max", tt.memory+"\n")
			put("nproc", "#!/bin/sh\necho 3\n")
			if tt.smi >= 0 {
				put("nvidia-smi", "#!/bin/sh\nfor i in $(seq "+fmt.Sprint(tt.smi)+"); do echo \"GPU $i: NVIDIA B200 (UUID: GPU-$i)\"; done\n")
			}
			script := strings.NewReplacer("/dev/null", "/dev/null", "/dev/", dir+"/dev/", "/sys/fs/cgroup/", dir+"/cgroup/").
				Replace(command(t, pipeline.DockerTest, pipeline.Options{AMD: tt.amd}))
			out, code := shell(t, "sh", dir, script, "KERNELBOT_GPU_INDEX=5", "KERNELBOT_CPUS=3", "KERNELBOT_CPUSET="+cpuset, "KERNELBOT_MEMORY=64m", tt.env)
			if (code != 0) != (tt.wrong != "") || !strings.Contains(out, tt.wrong) || !strings.Contains(out, "slot 5\n") {
				t.Errorf("exit %d, want %q in\n%s", code, tt.wrong, out)
			}
		})
	}
	if out, code := shell(t, "sh", t.TempDir(), command(t, pipeline.DockerTest, pipeline.Options{})); code == 0 || !strings.Contains(out, "slot unknown: not a node of kbnode") {
		t.Errorf("elsewhere: exit %d: %s", code, out)
	}
}

// TestRetries counts how often a job is run that ends in one of many ways.
func TestRetries(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what, reason string
		status, runs int
	}{
		{"the submission passed, or its tests failed", "", 0, 1},
		{"the runner could not work", "", 1, 1},
		{"the container ran out of memory", "", 137, 1},
		{"no kbnode in the container", "", 127, 1},
		{"no kbnode on the node", "process_run_error", -1, 2},
		{"a step that kbnode refuses", "", 96, 1},
		{"a signature that does not fit", "signature_rejected", -1, 1},
		{"the time limit", "cancel", 1, 1},
		{"the time limit, killed", "cancel", -1, 1},
		{"the time limit, while kbnode pulled", "cancel", 255, 1},
		{"an agent that was lost", "", -1, 3},
		{"an agent that falls silent", "silent", 0, 2},
		{"an agent that was stopped", "agent_stop", 255, 3},
		{"an agent that was stopped, killed", "agent_stop", -1, 3},
		{"a slot that is not fit", "agent_refused", -1, 2},
		{"the node is at fault", "", 255, 2},
		{"a command like git's", "", 128, 1},
	} {
		for _, kind := range pipeline.Kinds {
			jobs := work(t, build(t, kind, pipeline.Options{Queue: "q", Image: "i"}), "q", nil, func(w *bktest.Work, agent int) {
				w.Exit, w.Reason = tt.status, tt.reason
				if tt.reason == "silent" {
					w.Reason, w.Gone = "", agent == 0
				}
			})
			if len(jobs) != tt.runs {
				t.Errorf("%s: %s runs %d times, want %d", tt.what, kind, len(jobs), tt.runs)
			}
		}
	}
}

// work has two agents of a queue run a pipeline's job as often as Buildkite asks them to. The second one comes
// when the first one may be lost.
func work(t *testing.T, p *pipeline.Pipeline, queue string, env map[string]string, do func(w *bktest.Work, agent int)) (jobs []*bktest.Work) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := bktest.New(bktest.Options{PingSeconds: 30})
		_, err := s.Submit(bktest.NewBuild{Steps: string(p.YAML()), Env: env})
		must.Do(t, err)
		ctx, stop := context.WithCancel(t.Context())
		for i := range 2 {
			must.Do(t, s.Employ(ctx, bktest.Worker{Name: fmt.Sprint(i), Tags: []string{"queue=" + queue}, Do: func(_ context.Context, w *bktest.Work) {
				jobs = append(jobs, w)
				do(w, i)
			}}))
			time.Sleep(4 * time.Minute)
		}
		stop()
		synctest.Wait()
	})
	return jobs
}
