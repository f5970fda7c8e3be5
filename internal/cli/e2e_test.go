package cli

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/bktest"
)

const resultArtifact = `{"success":true,"error":"","system":{"gpu":"","device_count":0,"platform":"Linux","hostname":"n"},"runs":{}}`

// proving runs kbnode e2e against a fake Buildkite whose agent leaves this with each job.
func proving(t *testing.T, left string, args ...string) (result, *bktest.Server) {
	t.Helper()
	s := bktest.New(bktest.Options{PingSeconds: 1})
	err := s.Employ(t.Context(), bktest.Worker{Name: "n-gpu3", Tags: []string{"queue=b200"}, Do: func(_ context.Context, w *bktest.Work) {
		w.Files["result.json"] = left
	}})
	if err != nil {
		t.Fatal(err)
	}
	useBuildkite(t, s)
	return kbnode(t, append([]string{"e2e"}, args...)...), s
}

func TestE2E(t *testing.T) {
	for _, tt := range []struct {
		name string
		left string
		args []string
		code int
		out  []string
		err  []string
	}{
		{"well", resultArtifact, []string{"artifact", "--queue", "b200"}, 0,
			[]string{"ok  artifact  artifact-test  ", "n-gpu3", "/kbnode/kernelbot/builds/1", "result.json came back intact: 108 bytes from n", "Queue b200: 1 check, all OK."},
			[]string{"  artifact, artifact-test: waiting, build 1\n", "  artifact, artifact-test: passed, build 1\n"}},
		{"not well", resultGood, []string{"artifact", "--queue", "b200"}, 1,
			[]string{"FAIL  artifact  artifact-test", "is not what the job wrote", "Queue b200: 1 of 1 checks failed, 0 were not tried."}, nil},
		{"as JSON", strings.Replace(resultArtifact, `"hostname":"n"`, `"hostname":"\u001b[31m"`, 1), []string{"artifact", "--gpu", "b200_bk", "--json"}, 0, []string{`"run_id": "kbnode-e2e-`, `bytes from \u001b[31m"`}, nil},
		{"escapes", strings.Replace(resultArtifact, `"hostname":"n"`, `"hostname":"\u001b[31m"`, 1), []string{"artifact", "--gpu", "b200_bk"}, 0, []string{"bytes from\n"}, nil},
		{"no agents", resultGood, []string{"--queue", "b2000"}, 1, nil, []string{"no agent is connected in queue b2000; there are agents in b200; --force"}},
		{"no database", resultGood, []string{"--queue", "b200", "--db", "host=/nowhere dbname=x user=y"}, 1, nil, []string{`connect to PostgreSQL at "/nowhere": no such file or directory`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, s := proving(t, tt.left, tt.args...)
			if r.code != tt.code {
				t.Errorf("exit code %d", r.code)
			}
			contain(t, r.out, tt.out...)
			contain(t, r.err, tt.err...)
			if made := len(s.Builds()); (made == 0) != (tt.out == nil) {
				t.Errorf("%d builds", made)
			}
			if strings.Contains(r.out+r.err, bktest.DefaultAPIToken) || strings.ContainsAny(r.out+r.err, "\x1b\r") {
				t.Errorf("%s%s", r.out, r.err)
			}
			if tt.name == "as JSON" && !json.Valid([]byte(r.out)) {
				t.Error(r.out)
			}
		})
	}
}

// TestE2EDryRun checks that --dry-run sends no request.
func TestE2EDryRun(t *testing.T) {
	t.Setenv("BUILDKITE_API_URL", "")
	t.Setenv("BUILDKITE_API_TOKEN", "bkua_secret")
	t.Setenv("BUILDKITE_ORG", "")
	r := kbnode(t, "e2e", "--queue", "b200", "--dry-run", "--org", "gpu-mode", "--jobs", "3")
	for want, times := range map[string]int{
		"POST https://api.buildkite.com/v2/organizations/gpu-mode/pipelines/kernelbot/builds\nAuthorization: Bearer (hidden)\n": 9,
		`"KERNELBOT_QUEUE": "b200"`: 9, `"run_id": "kbnode-e2e-`: 9, `"steps": [`: 1, `"message": "kbnode e2e: evaluation, cheat_input.py"`: 1,
	} {
		if got := strings.Count(r.out, want); got != times {
			t.Errorf("%q is %d times in %s", want, got, r.out)
		}
	}
	if r.code != 0 || strings.Contains(r.out, "secret") {
		t.Errorf("%+v", r)
	}
	r = kbnode(t, "e2e", "--queue", "b200", "--dry-run", "--inline-steps", "--json")
	var all []struct {
		Method, URL string
		Body        struct{ Steps []any }
	}
	if err := json.Unmarshal([]byte(r.out), &all); err != nil || len(all) != 7 || !strings.Contains(r.err, "one of these for each agent") {
		t.Errorf("%v, %d, %s", err, len(all), r.err)
	}
	for _, one := range all {
		if one.Method != "POST" || !strings.Contains(one.URL, "/ORG/") || len(one.Body.Steps) != 1 {
			t.Errorf("%+v", one)
		}
	}
}
