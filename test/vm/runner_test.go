//go:build vm

package vm_test

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/test/vm"
)

// task has the programs of the runner's jobs, and stand-ins for NVIDIA's tools.
//
//go:embed runner
var task embed.FS

// evaluating is a step as kernelbot's pipelines have them, on one slot.
const evaluating = `steps:
  - command: %s
    agents: {queue: %s, gpu-index: "%d"}
    plugins:
      - docker#v5.11.0: {image: "kernelbot-test:latest", gpus: all, propagate-environment: true}
    artifact_paths: [result.json, loot, "profile_data/*"]
`

// evaluations are the jobs of one node.
type evaluations struct {
	m     *vm.Machine
	queue string // "" is b200
}

// evaluated is what came of a job.
type evaluated struct {
	Build struct {
		Number int
		State  string
		Jobs   []struct {
			ExitStatus   *int   `json:"exit_status"`
			SignalReason string `json:"signal_reason"`
		}
	}
	Log    string
	Result struct {
		Success bool
		Error   string
		Forged  bool
		System  struct{ GPU, Runtime string }
		Runs    map[string]struct {
			Compilation *struct {
				Success bool
				Command string
				Stdout  string
			}
			Run *struct {
				Success, Passed bool
				ExitCode        int `json:"exit_code"`
				Stdout          string
				Result          map[string]string
			}
			Profile *struct{ Profiler, Trace string }
		}
	}
}

// timestamp is what the agent puts before every line of a log, and what the two
// terminals on the way do.
var timestamp = regexp.MustCompile(`\x1b_bk;t=\d+\a|\r`)

// source is a file of the tasks.
func source(t *testing.T, name string) string {
	t.Helper()
	b, err := task.ReadFile("runner/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// config is a payload for eval.py and a submission, with members added.
func config(t *testing.T, submission string, members map[string]any) []byte {
	t.Helper()
	c := map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py",
		"sources": map[string]string{"eval.py": source(t, "eval.py"), "submission.py": source(t, submission)},
		"tests":   []any{map[string]int{"size": 16}},
	}
	maps.Copy(c, members)
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// submit makes a job for a slot and returns the build's number.
func (e evaluations) submit(slot int, command string, config []byte) string {
	dir, queue := fmt.Sprintf("/root/slot-%d", slot), e.queue
	if queue == "" {
		queue = "b200"
	}
	e.m.Put(dir+"/steps.yml", 0o600, fmt.Sprintf(evaluating, command, queue, slot))
	with := ""
	if config != nil {
		e.m.Put(dir+"/config.json", 0o600, string(config))
		with = "--config " + dir + "/config.json"
	}
	return e.m.Sh("bkstub submit --queue " + queue + " --steps " + dir + "/steps.yml " + with)
}

// wait waits for a build's end, which ought to be passed or failed.
func (e evaluations) wait(t testing.TB, build, state string) (r evaluated) {
	t.Helper()
	out := e.m.Try("bkstub wait --json " + build)
	if err := json.Unmarshal([]byte(out.Stdout), &r); err != nil {
		t.Fatalf("%v in %s%s", err, out.Stdout, out.Stderr)
	}
	r.Log = timestamp.ReplaceAllString(r.Log, "")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("build %s, %+v\n%s", r.Build.State, r.Result, r.Log)
		}
	})
	if r.Build.State != state {
		t.Errorf("the build is %s, want %s", r.Build.State, state)
	}
	return r
}

// profiled says in which job profile a build ran, which should be this one.
func (e evaluations) profiled(t *testing.T, build, want string) {
	t.Helper()
	var node struct{ Profile string }
	text := e.m.Sh("bkstub artifact " + build + " node.json")
	if err := json.Unmarshal([]byte(text), &node); err != nil || node.Profile != want {
		t.Errorf("build %s ran in profile %q, want %q: %v in %s", build, node.Profile, want, err, text)
		return
	}
	t.Logf("build %s ran in profile %s", build, node.Profile)
}

func (r evaluated) exitStatus() int {
	if len(r.Build.Jobs) != 1 || r.Build.Jobs[0].ExitStatus == nil {
		return -1
	}
	return *r.Build.Jobs[0].ExitStatus
}

// table is a text that zlib makes about a quarter of.
func table(lines int) string {
	var b strings.Builder
	x := uint32(1)
	for range lines {
		x = x*1664525 + 1013904223
		fmt.Fprintf(&b, "value = 0x%04x\n", x>>16)
	}
	return b.String()
}

// TestRunner evaluates submissions on a node, in containers that the docker
// plugin starts.
func TestRunner(t *testing.T) {
	t.Parallel()
	m := forked(t)
	e := evaluations{m: m}

	// What a task's repository may bring along: tools, and a payload.
	large := table(560_000)
	sizes := func(text string) []byte {
		return config(t, "submission.py", map[string]any{
			"main": "sizes.py", "sources": map[string]string{"sizes.py": source(t, "sizes.py"), "table.txt": text},
		})
	}
	m.Sh("git clone -q /srv/git/kernelbot.git /root/kernelbot")
	for _, name := range []string{"nvcc", "ncu", "nvidia-smi"} {
		m.Put("/root/kernelbot/tools/"+name, 0o755, source(t, "tools/"+name))
	}
	m.Put("/root/kernelbot/large.payload", 0o644, payload.Encode(sizes(large)))
	m.Sh(`cd /root/kernelbot; git add .
		git -c user.name=rig -c user.email=rig@localhost commit -q -m "a task"; git push -q`)
	m.Sh(installCommand)
	m.Sh("bkstub wait-agents --count 8 --timeout 5m")

	// Slots that do not know of one another: jobs at once.
	leaderboard := e.submit(0, "exec kbnode runner", config(t, "submission.py", map[string]any{
		"mode": "leaderboard", "seed": 7, "benchmarks": []any{map[string]int{"size": 64}, map[string]int{"size": 1024}},
	}))
	hostile := e.submit(1, "exec kbnode runner", config(t, "hostile.py", map[string]any{
		"benchmarks": []any{map[string]string{"note": "for-the-jury-only"}},
	}))
	file := e.submit(3, "exec kbnode runner --payload large.payload", nil)
	profile := e.submit(4, "PATH=/workdir/tools:$$PATH exec kbnode runner", config(t, "submission.py", map[string]any{
		"lang": "cu", "mode": "profile", "main": nil, "sources": map[string]string{"eval.cu": "//", "submission.cu": "//"},
		"benchmarks": []any{map[string]int{"size": 64}, map[string]int{"size": 1024}},
	}))

	t.Run("leaderboard", func(t *testing.T) {
		r := e.wait(t, leaderboard, "passed")
		if !r.Result.Success || len(r.Result.Runs) != 3 || r.exitStatus() != 0 {
			t.Fatalf("success %v, %d runs, exit status %d", r.Result.Success, len(r.Result.Runs), r.exitStatus())
		}
		for _, name := range []string{"test", "benchmark", "leaderboard"} {
			if run := r.Result.Runs[name].Run; run == nil || !run.Passed {
				t.Errorf("%s: %+v", name, run)
			}
		}
		if got := r.Result.Runs["leaderboard"].Run.Result; got["benchmark-count"] != "1" || got["benchmark.0.spec"] != "size: 1024" {
			t.Errorf("the ranked run has %v", got)
		}
		for _, line := range []string{"\n--- :test_tube: test: run\n", "\n--- :stopwatch: benchmark: run\n", "\n--- :trophy: leaderboard: run\n", "\n+++ "} {
			if strings.Count(r.Log, line) != 1 {
				t.Errorf("the log does not have one %q", line)
			}
		}
	})

	t.Run("hostile submission", func(t *testing.T) {
		r := e.wait(t, hostile, "passed")
		run := r.Result.Runs["test"].Run
		if r.Result.Forged || !r.Result.Success || run == nil || run.Passed || strings.Contains(run.Stdout, "forged") {
			t.Errorf("result is %+v, of the test %+v", r.Result, run)
		}
		loot := m.Sh("bkstub artifact " + hostile + " loot")
		if c := r.Result.Runs["test"].Compilation; c != nil {
			loot += c.Stdout
		}
		for _, stage := range []string{"pre-run", "run"} {
			for _, what := range []string{"environ", "memory", "files"} {
				if !strings.Contains(loot, stage+" process 1 "+what+" - Permission denied\n") {
					t.Errorf("in the %s, the %s of process 1 is not denied", stage, what)
				}
			}
		}
		if strings.Contains(loot, "SECRET") || t.Failed() {
			t.Errorf("the submission saw\n%s", loot)
		}
		// Between two agents there is none.
		m.Wait("the next agent, alone in the slot", `cd /sys/fs/cgroup/buildkite.slice/buildkite-gpu1.slice; left=$(find . -name cgroup.procs -exec cat {} + | paste -sd,)
			ps -o cmd= -p "${left:-0}" >/root/left; test "$(wc -l </root/left)" = 1 && grep -q '^buildkite-agent start ' /root/left`)
	})

	t.Run("large payload from a file", func(t *testing.T) { sized(t, e.wait(t, file, "passed"), large) })

	t.Run("profile", func(t *testing.T) {
		r := e.wait(t, profile, "passed")
		if r.Result.System.Runtime != "CUDA" || strings.TrimSpace(r.Result.System.GPU) != "NVIDIA B200" || len(r.Result.Runs) != 2 {
			t.Fatalf("system is %+v; %d runs", r.Result.System, len(r.Result.Runs))
		}
		for i, size := range []string{"64", "1024"} {
			name := fmt.Sprintf("profile.%d", i)
			ev := r.Result.Runs[name]
			if ev.Compilation == nil || !ev.Compilation.Success || !strings.HasPrefix(ev.Compilation.Command, "/workdir/tools/nvcc --std=c++20 ") {
				t.Errorf("%s: compilation %+v", name, ev.Compilation)
			}
			if ev.Run == nil || !ev.Run.Passed || ev.Run.Result["benchmark.0.spec"] != "size: "+size || ev.Run.Stdout != "under ncu: 1\n" {
				t.Fatalf("%s: run %+v", name, ev.Run)
			}
			report, err := base64.StdEncoding.DecodeString(ev.Run.Result["benchmark.0.report"])
			if err != nil || !strings.Contains(string(report), "Compute (SM) [%] 12.5") {
				t.Errorf("%s: report %q (%v)", name, report, err)
			}
			if ev.Profile == nil || ev.Profile.Profiler != "Nsight-Compute" || ev.Profile.Trace == "" {
				t.Errorf("%s: profile %+v", name, ev.Profile)
			}
			artifact := path.Join("profile_data", name+"-profile.ncu-rep")
			if got := m.Sh("bkstub artifact " + profile + " " + artifact); got != "records of ./eval.out profile" {
				t.Errorf("%s holds %q", artifact, got)
			}
		}
	})

	// The agent kills what does not end in 25 seconds: not while others use the machine.
	t.Run("cancelled", func(t *testing.T) {
		sleeping := e.submit(2, "exec kbnode runner", config(t, "sleeper.py", nil))
		m.Wait("the program's child", "pgrep -x sleep")
		cgroup := m.Sh("echo /sys/fs/cgroup$(cut -d: -f3 /proc/$(pgrep -x sleep)/cgroup); test -d /sys/fs/cgroup$(cut -d: -f3 /proc/$(pgrep -x sleep)/cgroup)")
		m.Sh("bkstub cancel " + sleeping)
		r := e.wait(t, sleeping, "canceled")
		if r.Result.Success || !strings.Contains(r.Result.Error, "cancelled") {
			t.Errorf("result.json says success %v, %q", r.Result.Success, r.Result.Error)
		}
		if len(r.Build.Jobs) != 1 || r.exitStatus() == 0 || r.Build.Jobs[0].SignalReason != "cancel" {
			t.Errorf("the job ended with exit status %d, %+v", r.exitStatus(), r.Build.Jobs)
		}
		if got := m.Sh("pgrep -x sleep || true; ls -d " + cgroup + " 2>/dev/null || true"); got != "" {
			t.Errorf("left of the container: %s", got)
		}
	})

	t.Run("payload in pieces, after a cancelled job", func(t *testing.T) {
		part := table(190_000)
		sized(t, e.wait(t, e.submit(2, "exec kbnode runner", sizes(part)), "passed"), part)
	})
}

// sized says whether a run of sizes.py has seen a text.
func sized(t *testing.T, r evaluated, text string) {
	t.Helper()
	run := r.Result.Runs["test"].Run
	if run == nil {
		t.Fatal("there is no run")
	}
	want := map[string]string{"size": fmt.Sprint(len(text)), "sha256": fmt.Sprintf("%x", sha256.Sum256([]byte(text))), "environ": "True", "check": "pass"}
	if diff := cmp.Diff(want, run.Result); diff != "" {
		t.Error(diff)
	}
}
