package bktest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestJob has a worker run a job: which variables win, what comes of its files, whatever their names, and of
// its time limit. The test of bkstub does so with a real agent.
func TestJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := bktest.New(bktest.Options{Repo: "https://example.com/x.git", Steps: `
env: {KERNELBOT_IMAGE: "own:1", SHARED: pipeline}
steps:
  - label: Evaluate
    command: kbnode runner
    agents: {queue: "${KERNELBOT_QUEUE}"}
    env: {SHARED: step}
    timeout_in_minutes: 15
    artifact_paths: [result.json, "profile_data/**"]
    plugins:
      - docker#v5.11.0: {image: "${KERNELBOT_IMAGE}", gpus: all, environment: [KERNELBOT_PAYLOAD]}
`})
		b, err := s.Submit(bktest.NewBuild{Env: map[string]string{"KERNELBOT_QUEUE": "b200", "SHARED": "build", "BUILDKITE_REPO": "evil"}})
		must.Do(t, err)
		ctx, stop := context.WithCancel(t.Context())
		var got map[string]string
		const odd = "/abs//a b/../ü?.txt" // a job may choose any names for its files
		must.Do(t, s.Employ(ctx, bktest.Worker{Name: "n-gpu3", Tags: []string{"queue=b200", "gpu-index=3", "gpu-uuid=GPU-1"}, Do: func(ctx context.Context, w *bktest.Work) {
			got, w.Files = w.Env, map[string]string{odd: "odd"}
			<-ctx.Done()
		}}))
		time.Sleep(20 * time.Minute)
		job := s.Builds()[0].Jobs[0]
		if job.State != "timed_out" || job.FinishedAt.Sub(*job.StartedAt).Round(time.Minute) != 15*time.Minute {
			t.Errorf("%+v", job)
		}
		for name, want := range map[string]string{
			"BUILDKITE": "true", "CI": "true", "SHARED": "step", "KERNELBOT_IMAGE": "own:1", "KERNELBOT_QUEUE": "b200",
			"BUILDKITE_REPO":         "https://example.com/x.git", // a build cannot change what the server sets
			"BUILDKITE_PULL_REQUEST": "false", "BUILDKITE_PIPELINE_PROVIDER": "git", "BUILDKITE_ORGANIZATION_SLUG": "kbnode",
			"BUILDKITE_PIPELINE_SLUG": "kernelbot", "BUILDKITE_COMMIT": "HEAD", "BUILDKITE_BRANCH": "main",
			"BUILDKITE_AGENT_NAME": "n-gpu3", "BUILDKITE_JOB_ID": job.ID, "BUILDKITE_BUILD_ID": b.ID,
			"BUILDKITE_BUILD_NUMBER": "1", "BUILDKITE_SOURCE": "api", "BUILDKITE_COMMAND": "kbnode runner",
			"BUILDKITE_TIMEOUT": "15", "BUILDKITE_LABEL": "Evaluate", "BUILDKITE_RETRY_COUNT": "0",
			"BUILDKITE_ARTIFACT_PATHS":            "result.json;profile_data/**",
			"BUILDKITE_AGENT_META_DATA_GPU_INDEX": "3", "BUILDKITE_AGENT_META_DATA_GPU_UUID": "GPU-1",
			"BUILDKITE_PLUGINS": `[{"github.com/buildkite-plugins/docker-buildkite-plugin#v5.11.0":{"environment":["KERNELBOT_PAYLOAD"],"gpus":"all","image":"own:1"}}]`,
		} {
			if got[name] != want {
				t.Errorf("%s is %q, want %q", name, got[name], want)
			}
		}

		client, err := buildkite.New(buildkite.Options{URL: "http://buildkite.test", Token: bktest.DefaultAPIToken, Network: s.Wire()})
		must.Do(t, err)
		files, err := client.Artifacts(ctx, "kbnode", "kernelbot", 1, "")
		must.Do(t, err)
		text, err := client.Download(ctx, files[0], 1000)
		must.Do(t, err)
		must.Equal(t, "odd", string(text))
		stop()
		synctest.Wait()
	})
}
