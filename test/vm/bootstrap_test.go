//go:build vm

package vm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/pipeline"
)

// TestBootstrap runs jobs in one container each, by the real agent and kbnode bootstrap.
func TestBootstrap(t *testing.T) {
	t.Parallel()
	m := installed(t)
	p := pipelines{evaluations{m: m}}
	m.Sh("docker tag kernelbot-test:latest ghcr.io/gpu-mode/kernelbot:latest") // the node's own
	const image = "kernelbot-test:latest"
	plain := func(slot int, command, options string) string {
		return fmt.Sprintf("steps:\n  - command: |\n      %s\n    agents: {queue: b200, gpu-index: \"%d\"}\n%s", strings.ReplaceAll(command, "\n", "\n      "), slot, options)
	}
	// What runs as a slot's user, or below its agent, while its job runs.
	census := func(slot int) string {
		return m.Sh(fmt.Sprintf("ps -o comm= -u kbnode-gpu%d --no-headers | sort | uniq -c | tr -s ' '", slot))
	}

	right := config(t, "submission.py", map[string]any{"mode": "leaderboard", "seed": 7, "benchmarks": []any{map[string]int{"size": 64}}})
	builds := map[string]string{
		"eval":          p.submit(0, pipeline.Eval, image, right),
		"compatible":    p.submit(1, pipeline.Eval, image+" --profile compatible", right),
		"docker-test":   p.submit(2, pipeline.DockerTest, image, nil),
		"artifact-test": p.submit(3, pipeline.ArtifactTest, image, nil),
		"no image":      p.submit(4, pipeline.Eval, "kernelbot-test:missing", right),
	}
	for _, kind := range []string{"eval", "compatible"} {
		t.Run(kind, func(t *testing.T) {
			r := p.wait(t, builds[kind], "passed")
			if !r.Result.Success || len(r.Result.Runs) != 3 {
				t.Errorf("success %v, %d runs\n%s", r.Result.Success, len(r.Result.Runs), r.Log)
			}
			p.profiled(t, builds[kind], map[string]string{"eval": "strict", "compatible": "compatible"}[kind])
		})
	}
	t.Run("docker-test", func(t *testing.T) {
		r := p.wait(t, builds["docker-test"], "passed")
		for _, want := range []string{"slot 2\n", "devices /dev/nvidia2\n", "ok    GPUs 1\n", "ok    CPUs ", "ok    memory "} {
			if !strings.Contains(r.Log, want) {
				t.Errorf("the log does not say %q\n%s", want, r.Log)
			}
		}
	})
	t.Run("artifact-test", func(t *testing.T) { p.wait(t, builds["artifact-test"], "passed") })
	t.Run("no image", func(t *testing.T) {
		p.wait(t, builds["no image"], "failed")
		if tries := p.tries(t, builds["no image"]); tries[0].ExitStatus == nil || *tries[0].ExitStatus != 255 {
			t.Errorf("%+v", tries)
		}
	})

	t.Run("a step without the plugin has the checkout", func(t *testing.T) {
		r := runStep(m, 0, plain(0, "ls -a; id -u; pwd; exit 3", ""))
		if r.Code == 0 || !strings.Contains(r.Stdout, "README.md") || strings.Contains(r.Stdout, ".git\n") {
			t.Errorf("exit %d: %s", r.Code, r.Stdout)
		}
	})
	t.Run("a refused step", func(t *testing.T) {
		r := runStep(m, 1, step(1, image, "true", ", privileged: true"))
		if r.Code == 0 || !strings.Contains(r.Stdout, "kbnode does not run this step") {
			t.Errorf("exit %d: %s", r.Code, r.Stdout)
		}
	})

	t.Run("the service is killed, and the job goes on", func(t *testing.T) {
		m.Put("/root/on.yml", 0o600, step(2, image, "echo before; until [ -e go ]; do sleep 1; done; echo after; echo '{}' >out.json", "")+"    artifact_paths: [out.json]\n")
		build := m.Sh("bkstub submit --queue b200 --steps /root/on.yml")
		m.Wait("the job's output", "bkstub log "+build+" | grep -q ^before")
		if got := census(2); strings.Contains(got, "bash") || strings.Contains(got, "git") || strings.Contains(got, "docker") {
			t.Errorf("what runs as the slot's user: %s", got)
		}
		m.Sh("systemctl kill -s KILL kbnode-guard-gpu2; cd /var/lib/buildkite-agent/gpu-2/builds/kbnode-*/checkout; touch go")
		r := p.wait(t, build, "passed")
		if strings.Count(r.Log, "\nbefore\n") != 1 || strings.Count(r.Log, "\nafter\n") != 1 {
			t.Errorf("the log: %s", r.Log)
		}
		m.Sh("bkstub artifact " + build + " out.json")
	})
	t.Run("canceled", func(t *testing.T) {
		build := p.submit(3, pipeline.Eval, image, config(t, "sleeper.py", nil))
		m.Wait("the program's child", "pgrep -x sleep")
		m.Sh("bkstub cancel " + build)
		r := p.wait(t, build, "canceled")
		if tries := p.tries(t, build); tries[0].SignalReason != "cancel" || r.Result.Success {
			t.Errorf("%+v, %+v", tries, r.Result)
		}
	})
	t.Run("nothing is left", func(t *testing.T) {
		m.Wait("the containers to go", "test -z \"$(docker ps -aq)\"")
		for k := range 5 {
			if r := runStep(m, k, step(k, image, "echo next job", "")); r.Code != 0 {
				t.Errorf("slot %d: %s", k, r.Stdout)
			}
		}
	})
}
