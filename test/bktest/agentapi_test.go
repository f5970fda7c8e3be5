package bktest_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/bktest"
)

func TestJobFromPingToFinish(t *testing.T) {
	t.Parallel()
	s := listen(t, bktest.Options{Pipelines: []bktest.Pipeline{{Slug: "kernelbot", Repo: "https://example.com/x.git", Steps: `
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
`}}})
	a := register(t, s, "n-gpu3", "queue=b200", "gpu-index=3", "gpu-uuid=GPU-1")
	b := mustSubmit(t, s, bktest.NewBuild{Env: map[string]string{"KERNELBOT_QUEUE": "b200", "SHARED": "build", "BUILDKITE_REPO": "evil"}})
	id, accepted := a.begin()

	want := map[string]string{
		"BUILDKITE": "true", "CI": "true", "SHARED": "step", "KERNELBOT_IMAGE": "own:1", "KERNELBOT_QUEUE": "b200",
		"BUILDKITE_REPO":         "https://example.com/x.git", // a build cannot change what the server sets
		"BUILDKITE_PULL_REQUEST": "false", "BUILDKITE_PIPELINE_PROVIDER": "git", "BUILDKITE_ORGANIZATION_SLUG": "kbnode",
		"BUILDKITE_PIPELINE_SLUG": "kernelbot", "BUILDKITE_COMMIT": "HEAD", "BUILDKITE_BRANCH": "main",
		"BUILDKITE_AGENT_NAME": "n-gpu3", "BUILDKITE_AGENT_ID": a.id, "BUILDKITE_JOB_ID": id, "BUILDKITE_BUILD_ID": b.ID,
		"BUILDKITE_BUILD_NUMBER": "1", "BUILDKITE_SOURCE": "api", "BUILDKITE_COMMAND": "kbnode runner",
		"BUILDKITE_TIMEOUT": "15", "BUILDKITE_LABEL": "Evaluate", "BUILDKITE_RETRY_COUNT": "0",
		"BUILDKITE_ARTIFACT_PATHS":            "result.json;profile_data/**",
		"BUILDKITE_AGENT_META_DATA_QUEUE":     "b200",
		"BUILDKITE_AGENT_META_DATA_GPU_INDEX": "3",
		"BUILDKITE_AGENT_META_DATA_GPU_UUID":  "GPU-1",
		"BUILDKITE_PLUGINS":                   `[{"github.com/buildkite-plugins/docker-buildkite-plugin#v5.11.0":{"environment":["KERNELBOT_PAYLOAD"],"gpus":"all","image":"own:1"}}]`,
	}
	for k, v := range want {
		if got := accepted.text(t, "env", k); got != v {
			t.Errorf("%s is %q; want %q", k, got, v)
		}
	}
	// Without a chunk size the agent sends no log and never finishes the job.
	if n, _ := accepted.get(t, "chunks_max_size_bytes").(float64); n <= 0 {
		t.Error("chunks_max_size_bytes is missing")
	}

	// The job's own token gives access to the job, and to nothing else.
	job := *a
	job.token = accepted.text(t, "token")
	job.do("GET", "/jobs/"+id, nil, http.StatusOK)
	job.do("GET", "/ping", nil, http.StatusUnauthorized)

	// Chunks may come in any order, and twice.
	for _, c := range []struct {
		sequence, offset int
		text             string
	}{{2, 6, "world\n"}, {1, 0, "hallo "}, {1, 0, "hello "}} {
		if got := a.chunk(id, c.sequence, c.offset, c.text); got.status != http.StatusOK {
			t.Fatalf("chunk %d: %d %s", c.sequence, got.status, got.body)
		}
	}
	if got := a.chunk(id, 3, 12, strings.Repeat("x", 1<<20)); got.status != http.StatusBadRequest {
		t.Errorf("a megabyte of zeros as one chunk: %d", got.status)
	}
	if got := s.Log(id); got != "hello world\n" {
		t.Errorf("log is %q", got)
	}
	if got := a.upload(id, "profile_data/../a b.bin", "trace", ""); got.status != http.StatusNoContent {
		t.Errorf("upload: %d %s", got.status, got.body)
	}
	a.finish(id, 0)
	if got := s.Builds()[0]; got.State != "passed" || got.StartedAt == nil || got.FinishedAt == nil {
		t.Errorf("build is %+v", got)
	}
	job.do("GET", "/jobs/"+id, nil, http.StatusUnauthorized)
	a.do("PUT", "/jobs/"+id+"/finish", map[string]string{"exit_status": "0"}, http.StatusUnprocessableEntity)
	if n := s.Requests()["PUT /v3/jobs/{job}/finish"]; n != 2 {
		t.Errorf("%d finish requests counted", n)
	}
}

func TestTheClock(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := listen(t, bktest.Options{Now: c.now})
	a := register(t, s, "a")
	b := mustSubmit(t, s, bktest.NewBuild{Steps: `steps: [{command: x, timeout_in_minutes: 2}, {command: y}]`})
	id, _ := a.begin()
	c.pass(time.Minute)
	if got := a.do("GET", "/jobs/"+id, nil, http.StatusOK).text(t, "state"); got != "running" {
		t.Errorf("after a minute the job is %s", got)
	}
	c.pass(61 * time.Second)
	if got := a.do("GET", "/jobs/"+id, nil, http.StatusOK).text(t, "state"); got != "canceling" {
		t.Errorf("after its time the job is %s", got)
	}
	a.finish(id, -1)
	if got := s.Builds()[0].Jobs[0].State; got != "timed_out" {
		t.Errorf("the job is %s", got)
	}

	id, _ = a.begin()
	c.pass(2 * time.Minute)
	a.do("POST", "/heartbeat", map[string]string{"sent_at": "now"}, http.StatusOK)
	c.pass(2 * time.Minute)
	if got := s.Agents()[0].ConnectionState; got != "connected" {
		t.Errorf("two minutes after a heartbeat the agent is %s", got)
	}
	c.pass(2 * time.Minute)
	if got := s.Agents()[0].ConnectionState; got != "lost" {
		t.Errorf("four minutes after a heartbeat the agent is %s", got)
	}
	a.do("POST", "/heartbeat", map[string]string{"sent_at": "now"}, http.StatusUnauthorized)
	b, err := s.WaitBuild(t.Context(), b.Number)
	if j := b.Jobs[1]; err != nil || j.ID != id || j.State != "failed" || *j.ExitStatus != -1 || j.SignalReason != "agent_lost" {
		t.Errorf("the job of a lost agent is %+v (%v)", j, err)
	}
}
