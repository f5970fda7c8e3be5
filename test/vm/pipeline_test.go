//go:build vm

package vm_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/job/pipeline"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// secondResult is a program that passes, and leaves a result of its own where it is hard to remove.
const secondResult = `
import os
os.mkdir("profile_data")
with open("profile_data/result.json", "w") as f: f.write('{"success": true, "error": "", "runs": {}}')
os.chmod("profile_data", 0)
os.write(int(os.environ["POPCORN_FD"]), b"check: pass\n")
`

// terminalStops is a program that stops the output of each terminal that it can open for reading.
const terminalStops = `
import glob, os, termios
terminals = stopped = 0
for path in glob.glob("/dev/pts/[0-9]*") + ["/dev/console"]:
    try: terminal = os.open(path, os.O_RDONLY | os.O_NOCTTY)
    except OSError: continue
    terminals += 1
    try: termios.tcflow(terminal, termios.TCOOFF); stopped += 1
    except termios.error: pass
print("a line of the log\n" * 100)
os.write(int(os.environ["POPCORN_FD"]), b"terminals: %d\nstopped: %d\ncheck: pass\n" % (terminals, stopped))
`

// guideSteps is the pipeline of the vendor guide (branch bk), with this machine's image, which has no registry,
// and with a step of someone who leaves a second result after the runner.
const guideSteps = `
steps:
  - label: ":gpu: Run Kernel Submission"
    command: "kbnode runner; mkdir profile_data; echo forged >profile_data/Result.json; echo true >profile_data/notes"
    env:
      SUBMISSION_PAYLOAD: "${SUBMISSION_PAYLOAD}"
    agents:
      queue: "${GPU_QUEUE}"
    timeout_in_minutes: 60
    artifact_paths:
      - "result.json"
      - "node.json"
      - "profile_data/**/*"
    plugins:
      - docker#v5.11.0:
          image: "kernelbot-test:latest"
          propagate-environment: true
          gpus: all
          memory: "${MEMORY_LIMIT:-32g}"
          cpus: "${CPU_LIMIT:-16}"
          volumes:
            - ".:/workdir"
          workdir: "/workdir"
    retry:
      automatic:
        - exit_status: -1
          limit: 1
        - exit_status: 255
          limit: 1
`

// compiled compiles a source with a compiler that never makes the same twice.
const compiled = `import os, subprocess
open("in.c", "w").write("source\n")
subprocess.run(["gcc"], check=True, stdin=subprocess.DEVNULL)
made = open("out").read().replace("\n", " ").strip()
os.write(int(os.environ["POPCORN_FD"]), f"made: {made}\ncheck: pass\n".encode())
`

// pipelines are jobs of what kbnode pipeline prints on the node itself.
type pipelines struct{ evaluations }

// submit has the user "nobody" print a pipeline for a slot, and starts a
// build of it.
func (p pipelines) submit(slot int, kind, flags string, config []byte) string {
	file := fmt.Sprintf("/root/%s-%d.yml", kind, slot)
	p.m.Sh(fmt.Sprintf("runuser -u nobody -- kbnode pipeline %s --gpu-index %d --image %s >%s", kind, slot, flags, file))
	with := ""
	if config != nil {
		with = " --config " + file + ".json"
		p.m.Put(file+".json", 0o600, string(config))
	}
	return p.m.Sh("bkstub submit --queue b200 --steps " + file + with)
}

// asking is a command that prints a build as Buildkite's API shows it.
func (p pipelines) asking(build string) string {
	return "curl -sf -H 'Authorization: Bearer " + bktest.DefaultAPIToken + "' 'http://127.0.0.1:8899/v2/organizations/kbnode/pipelines/kernelbot/builds/" + build + "?include_retried_jobs=true'"
}

// tries are the runs of a build's only job, the first one first.
func (p pipelines) tries(t *testing.T, build string) (list []struct {
	State        string
	ExitStatus   *int   `json:"exit_status"`
	SignalReason string `json:"signal_reason"`
	RetriesCount int    `json:"retries_count"`
}) {
	t.Helper()
	var b struct{ Jobs json.RawMessage }
	text := p.m.Sh(p.asking(build))
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if err := json.Unmarshal(b.Jobs, &list); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return list
}

// TestPipelines runs each pipeline that the node prints by the real agent, and
// makes some of them fail: only what the submission has no part in runs again.
func TestPipelines(t *testing.T) {
	t.Parallel()
	m := installed(t)
	p := pipelines{evaluations{m: m}}
	const image = "kernelbot-test:latest"
	m.Sh("docker tag " + image + " ghcr.io/gpu-mode/kernelbot:latest") // the node's own, of steps without the plugin

	members := map[string]any{"mode": "leaderboard", "seed": 7, "benchmarks": []any{map[string]int{"size": 64}}}
	right := config(t, "submission.py", members)
	// What a task's repository may bring along, and what is carried in several variables.
	sizes := func(text string) []byte {
		return config(t, "submission.py", map[string]any{
			"main": "sizes.py", "sources": map[string]string{"sizes.py": source(t, "sizes.py"), "table.txt": text},
		})
	}
	large, pieces := table(560_000), table(190_000)
	m.Sh("docker run --name compiler --network none " + image + " sh -c \"printf '%s\\n' '#!/bin/sh' '[ -e in.c ] && cp in.c out && date +%N >>out' >/usr/bin/gcc; chmod 755 /usr/bin/gcc\" && docker commit compiler kernelbot-test:compiler && docker rm compiler")
	compiling := config(t, "submission.py", map[string]any{"mode": "leaderboard", "benchmarks": []any{map[string]int{"size": 64}}, "main": "compiling.py", "sources": map[string]string{
		"submission.py": "", "compiling.py": compiled,
	}})
	m.Sh("git clone -q /srv/git/kernelbot.git /root/kernelbot")
	m.Put("/root/kernelbot/large.payload", 0o644, payload.Encode(sizes(large)))
	m.Sh("cd /root/kernelbot; git add .; git -c user.name=rig -c user.email=rig@localhost commit -q -m payload; git push -q")
	eval := p.submit(0, pipeline.Eval, image, right)

	once := func(t *testing.T, build string, status int) {
		t.Helper()
		if tries := p.tries(t, build); len(tries) != 1 || tries[0].ExitStatus == nil || *tries[0].ExitStatus != status {
			t.Errorf("the runs are %+v, want one with exit status %d", tries, status)
		}
	}
	t.Run(pipeline.Eval, func(t *testing.T) {
		r := p.wait(t, eval, "passed")
		once(t, eval, 0)
		if !r.Result.Success || len(r.Result.Runs) != 3 {
			t.Fatalf("success %v, %d runs", r.Result.Success, len(r.Result.Runs))
		}
		for name, ev := range r.Result.Runs {
			if ev.Run == nil || !ev.Run.Passed {
				t.Errorf("%s: %+v", name, ev.Run)
			}
		}
		must.Contain(t, r.Log, "\n+++ ")
		p.profiled(t, eval, "strict")
		var quiet struct{ Noisy *bool }
		if text := m.Sh("bkstub artifact " + eval + " node.json"); json.Unmarshal([]byte(text), &quiet) != nil || quiet.Noisy == nil {
			t.Errorf("node.json is %s", text)
		}
	})
	// Only now: an emulated engine takes minutes for the first containers.
	builds := map[string]string{
		"compatible":    p.submit(7, pipeline.Eval, image+" --profile compatible", right),
		"docker-test":   p.submit(2, pipeline.DockerTest, image, nil),
		"artifact-test": p.submit(3, pipeline.ArtifactTest, image, nil),
		"file":          p.evaluations.submit(4, "exec kbnode runner --payload large.payload", nil),
		"pieces":        p.evaluations.submit(5, "exec kbnode runner", sizes(pieces)),
		"no image":      p.submit(6, pipeline.Eval, "kernelbot-test:missing", right),
	}
	program := func(text string) []byte {
		return config(t, "submission.py", map[string]any{"main": "program.py", "sources": map[string]string{"submission.py": "", "program.py": text}})
	}
	builds["compiled"] = p.submit(4, pipeline.Eval, "kernelbot-test:compiler", compiling)
	builds["compiled compatible"] = p.submit(5, pipeline.Eval, "kernelbot-test:compiler --profile compatible", compiling)
	builds["second result"] = p.submit(1, pipeline.Eval, image, program(secondResult))
	m.Put("/root/guide.yml", 0o600, guideSteps)
	m.Put("/root/guide.json", 0o600, string(program(terminalStops)))
	builds["guide"] = m.Sh("bkstub submit --queue b200 --env GPU_QUEUE=b200 --env SUBMISSION_PAYLOAD=$(kbnode payload encode /root/guide.json) --steps /root/guide.yml")
	t.Run("compatible", func(t *testing.T) {
		if r := p.wait(t, builds["compatible"], "passed"); !r.Result.Success {
			t.Errorf("result.json says %+v", r.Result)
		}
		p.profiled(t, builds["compatible"], "compatible")
	})
	t.Run(pipeline.DockerTest, func(t *testing.T) {
		r := p.wait(t, builds["docker-test"], "passed")
		once(t, builds["docker-test"], 0)
		must.Contain(t, r.Log, "slot 2\n", "devices /dev/nvidia2\n", "ok    GPUs 1\n", "ok    CPUs ", "ok    cpuset ", "ok    memory ")
	})
	t.Run(pipeline.ArtifactTest, func(t *testing.T) {
		r := p.wait(t, builds["artifact-test"], "passed")
		once(t, builds["artifact-test"], 0)
		if !r.Result.Success || r.Result.Error != "" {
			t.Errorf("result.json says %+v", r.Result)
		}
	})
	artifacts := func(build string) string {
		return m.Sh("curl -sf -H 'Authorization: Bearer " + bktest.DefaultAPIToken + "' 'http://127.0.0.1:8899/v2/organizations/kbnode/pipelines/kernelbot/builds/" + build + "/artifacts' | jq -r '[.[].path] | sort | join(\" \")'")
	}
	t.Run("a submission that leaves a second result", func(t *testing.T) {
		if r := p.wait(t, builds["second result"], "passed"); !r.Result.Success || r.Result.Runs["test"].Run == nil {
			t.Errorf("result.json says %+v", r.Result)
		}
		must.Equal(t, "node.json result.json", artifacts(builds["second result"]))
	})
	t.Run("the vendor guide's build, which stops its terminal", func(t *testing.T) {
		r := p.wait(t, builds["guide"], "passed")
		if run := r.Result.Runs["test"].Run; run == nil || !run.Passed || run.Result["terminals"] == "0" || run.Result["stopped"] != "0" {
			t.Errorf("the run is %+v", run)
		}
		must.Equal(t, "node.json profile_data/notes result.json", artifacts(builds["guide"]))
		must.Contain(t, r.Log, `["profile_data/Result.json"] is not uploaded`)
	})
	for _, name := range []string{"compiled", "compiled compatible"} {
		t.Run(name+" once", func(t *testing.T) {
			r := p.wait(t, builds[name], "passed")
			made := map[string]bool{}
			for evaluation, ev := range r.Result.Runs {
				if ev.Run == nil || !ev.Run.Passed {
					t.Fatalf("%s: %+v", evaluation, ev.Run)
				}
				made[ev.Run.Result["made"]] = true
			}
			if len(r.Result.Runs) != 3 || len(made) != 1 {
				t.Errorf("%d runs have %v", len(r.Result.Runs), made)
			}
		})
	}
	t.Run("large payload from a file", func(t *testing.T) { sized(t, p.wait(t, builds["file"], "passed"), large) })
	t.Run("payload in pieces", func(t *testing.T) { sized(t, p.wait(t, builds["pieces"], "passed"), pieces) })
	t.Run("an image that is not there runs again once", func(t *testing.T) {
		r := p.wait(t, builds["no image"], "failed")
		tries := p.tries(t, builds["no image"])
		for _, try := range tries {
			if try.ExitStatus == nil || *try.ExitStatus != 255 {
				t.Errorf("a run is %+v, want exit status 255", try)
			}
		}
		if len(tries) != 2 || !strings.Contains(r.Log, "kernelbot-test:missing") {
			t.Errorf("%d runs", len(tries))
		}
	})

	t.Run("a step without the plugin has the checkout", func(t *testing.T) {
		r := runStep(m, 0, "steps:\n  - command: ls -a; pwd; exit 3\n    agents: {queue: b200, gpu-index: \"0\"}\n")
		if r.Code == 0 || !strings.Contains(r.Stdout, "README.md") || strings.Contains(r.Stdout, ".git\n") {
			t.Errorf("exit %d: %s", r.Code, r.Stdout)
		}
	})

	// Agents report a node without kbnode in the same way.
	t.Run("a payload too large for variables runs again once", func(t *testing.T) {
		m.Sh("runuser -u nobody -- kbnode pipeline eval --gpu-index 6 --image " + image + " >/root/large.yml; head -c 140000 /dev/zero | tr '\\0' x | jq -R '{KERNELBOT_PAYLOAD: .}' >/root/large.json")
		build := m.Sh("bkstub submit --queue b200 --steps /root/large.yml --job-env /root/large.json")
		p.wait(t, build, "failed")
		if tries := p.tries(t, build); len(tries) != 2 || tries[0].SignalReason != "process_run_error" {
			t.Errorf("the runs are %+v", tries)
		}
	})

	// What ends with 25 seconds of grace comes when no one else uses the machine.
	t.Run("a job of a stopped agent runs again", func(t *testing.T) {
		build := p.submit(7, pipeline.Eval, image, config(t, "sleeper.py", nil))
		m.Wait("the program's child", "pgrep -x sleep")
		m.Sh("systemctl kill --kill-whom=main --signal=QUIT buildkite-agent-gpu7.service")
		m.Wait("the second run", p.asking(build)+" | jq -e '.jobs[1].state == \"running\"'")
		m.Wait("its program's child", "pgrep -x sleep")
		m.Sh("bkstub cancel " + build)
		if r := p.wait(t, build, "canceled"); r.Result.Success || !strings.Contains(r.Result.Error, "cancelled") {
			t.Errorf("result.json says success %v, %q", r.Result.Success, r.Result.Error)
		}
		tries := p.tries(t, build)
		if len(tries) != 2 || tries[0].SignalReason != "agent_stop" || tries[1].SignalReason != "cancel" {
			t.Errorf("the runs are %+v", tries)
		}
	})
}
