package bktest

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestParsePipeline(t *testing.T) {
	t.Parallel()
	steps, own, err := parsePipeline(`
agents: {queue: "${Q}"}
env: {E: "own $A", A: ignored, Q: top}
steps:
  - name: one
    id: k
    command: [a, "echo $E $$A ${NOT:-word}"]
    env: {N: 1, F: 1.5, B: true, E: }
    plugins:
      - docker#v5.11.0: {gpus: all, "$Q": "$A"}
      - ./local
    retry: {automatic: {exit_status: -1}, manual: {allowed: false}}
    artifact_paths: [a, b]
    timeout_in_minutes: "3"
  - plugins: {solo: {}}
    agents: [gpu=*]
`, map[string]string{"A": "one"})
	must.Do(t, err)
	one, two := steps[0], steps[1]
	plugins, err := json.Marshal(one.Plugins)
	must.Do(t, err)
	want := `one k "a\necho own one $A word" [queue=top] map[B:true E: F:1.5 N:1] [{[-1] * 2}] [a b] 3 ` +
		`[{"github.com/buildkite-plugins/docker-buildkite-plugin#v5.11.0":{"gpus":"all","top":"one"}},{"./local":null}]` +
		` [gpu=* queue=default] map[A:ignored E:own one Q:top]`
	got := fmt.Sprintf("%s %s %q %s %v %v %s %d %s %s %v", one.Label, one.Key, one.Command, one.Agents, one.Env,
		one.Retry.Automatic, one.ArtifactPaths, one.Timeout, plugins, two.Agents, own)
	must.Equal(t, want, got)
}

// TestPriority checks that an agent gets the job with the highest priority, then the oldest, and that a priority is a number.
func TestPriority(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	submit := func(priority string, env map[string]string) error {
		_, err := s.Submit(NewBuild{Env: env, Steps: "steps: [{command: x, label: 'of " + priority + "', agents: {queue: q}, priority: " + priority + "}]"})
		return err
	}
	for _, priority := range []string{"-1", "0", "100", "0", "100"} {
		must.Do(t, submit(priority, nil))
	}
	must.Err(t, submit(`"${P}"`, map[string]string{"P": "7"}), "cannot unmarshal !!str `7` into int")
	var got []string
	for j := s.next(&agent{}); j != nil; j = s.next(&agent{}) {
		t.Fatal("an agent of another queue gets", j.Name)
	}
	a := &agent{}
	a.MetaData = []string{"queue=q"}
	for j := s.next(a); j != nil; j = s.next(a) {
		j.State = "running"
		got = append(got, fmt.Sprint(j.Name, " in build ", j.build.Number))
	}
	must.Equal(t, []string{"of 100 in build 3", "of 100 in build 5", "of 0 in build 2", "of 0 in build 4", "of -1 in build 1"}, got)
}

// TestRetryRules checks that exit status and reason of a rule must both match.
func TestRetryRules(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rule           retryRule
		status, reason string
		want           bool
	}{
		{retryRule{list{"-1"}, "*", 2}, "-1", "cancel", true},
		{retryRule{list{"-1"}, "*", 2}, "1", "", false},
		{retryRule{list{"-1"}, "none", 2}, "-1", "", true},
		{retryRule{list{"-1"}, "none", 2}, "-1", agentLost, true},
		{retryRule{list{"-1"}, "none", 2}, "-1", "process_run_error", false},
		{retryRule{list{"*"}, "cancel", 2}, "143", "cancel", true},
		{retryRule{list{"*"}, "cancel", 2}, "143", "", false},
	} {
		if got := tt.rule.match(tt.status, tt.reason); got != tt.want {
			t.Errorf("%+v and exit status %s for %q: %v", tt.rule, tt.status, tt.reason, got)
		}
	}
}
