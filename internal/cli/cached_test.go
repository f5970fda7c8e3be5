package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

const (
	resultTest   = `{"success":true,"error":"","system":{"gpu":"NVIDIA B200","device_count":1},"runs":{"test":{"run":{"success":true,"passed":true,"command":"x","exit_code":0,"duration":1.5,"result":{"test-count":"1","test.0.status":"pass","check":"pass"}}}}}`
	resultFailed = `{"success":true,"error":"","system":{},"runs":{"test":{"run":{"success":true,"passed":false,"command":"x","exit_code":112,"duration":1.5,"result":{"test-count":"1","test.0.status":"fail","test.0.error":"wrong \u001b[31m","check":"fail"}}}}}`
	nodeQuiet    = `{"schema":2,"noisy":false,"image":{"name":"ghcr.io/gpu-mode/kernelbot:latest","id":"sha256:1212121212121212121212121212121212121212121212121212121212121212","kept":true},"memory":{"oom_kills":0}}`
)

// TestCached submits again and again: what is identical to an earlier submission is answered without a build.
func TestCached(t *testing.T) {
	s := bktest.New(bktest.Options{Steps: runnerStep})
	files := map[string]string{"result.json": resultTest, "node.json": nodeQuiet}
	tags := []string{"queue=b200", "gpu-index=3", "kbnode=1.2.3", "image=121212121212", "gpu-model=NVIDIA-B200"}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	must.Do(t, s.Employ(ctx, bktest.Worker{Name: "n-gpu3", Tags: tags, Do: func(_ context.Context, w *bktest.Work) { w.Files = files }}))
	useBuildkite(t, s)
	mine := must.Write(t, t.TempDir(), "mine.py", "def custom_kernel(data): pass\n")
	cached := []string{"submit", "--queue", "b200", "--inline-steps", "--problem", "prefix_python", "--cached", mine}
	submits := func(builds int, more ...string) result {
		t.Helper()
		r := kbnode(t, slices.Concat(cached, more)...)
		if n := len(s.Builds()); n != builds {
			t.Errorf("%v: %d builds, want %d: %+v", more, n, builds, r)
		}
		return r
	}

	first := submits(1)
	must.Contain(t, first.out, "build 1 on n-gpu3, ")
	if first.code != 0 || strings.Contains(first.err, "warning") {
		t.Errorf("%+v", first)
	}
	file := filepath.Join(t.TempDir(), "result.json")
	again := submits(1, "--result", file)
	must.Contain(t, again.out, "Passed: test\n", "cached: build 1 on n-gpu3, of "+time.Now().Format("2006-01-02"), "/builds/1; --refresh evaluates it again\n")
	must.Equal(t, strings.Split(first.out, "build 1 on")[0], strings.Split(again.out, "cached: ")[0])
	if again.code != 0 || again.err != "" {
		t.Errorf("%+v", again)
	}
	must.Equal(t, resultTest, must.Read(t, file))
	var out submit.Outcome
	must.Do(t, json.Unmarshal([]byte(submits(1, "--json").out), &out))
	if out.Cached.IsZero() || out.Build != 1 || out.RunID == "" || out.Result == nil || !strings.HasSuffix(out.URL, "/builds/1") || !slices.Contains(out.Tags, "kbnode=1.2.3") {
		t.Errorf("%+v", out)
	}
	must.Contain(t, submits(1, "--priority", "5").out, "cached: build 1")

	// Other modes are never.
	ranked := must.Write(t, t.TempDir(), "payload.json", `{"lang":"py","main":"a.py","sources":{"a.py":""},"mode":"test","benchmarks":[{}],"mode":"leaderboard"}`)
	if got := kbnode(t, "submit", "--queue", "b200", "--inline-steps", "--cached", "--payload", ranked); got.code != 2 || !strings.Contains(got.err, "--cached answers only mode test: mode leaderboard") {
		t.Errorf("%+v", got)
	}

	// Nor is a comparison, whether of two files or in a payload.
	both := must.Write(t, t.TempDir(), "payload.json", `{"lang":"py","mode":"compare","rounds":3,"main":"a.py","sources":{"a.py":""},"other_sources":{"a.py":"1"},"benchmarks":[{}]}`)
	for _, args := range [][]string{{"--problem", "prefix_python", mine, must.Write(t, t.TempDir(), "copy.py", must.Read(t, mine))}, {"--payload", both}} {
		got := kbnode(t, slices.Concat([]string{"submit", "--queue", "b200", "--inline-steps", "--cached"}, args)...)
		if got.code != 2 || !strings.Contains(got.err, "--cached answers only mode test, and a comparison measures times; leave out --cached") || len(s.Builds()) != 1 {
			t.Errorf("%v: %+v", args, got)
		}
	}

	// A failed one is an answer, too. What differs, is evaluated.
	files = map[string]string{"result.json": resultFailed, "node.json": nodeQuiet}
	must.Equal(t, 1, submits(2, "--image", "img:2").code)
	failed := submits(2, "--image", "img:2")
	must.Contain(t, failed.out, "cached: build 2")
	if failed.code != 1 || strings.Contains(failed.out+failed.err, "\x1b") {
		t.Errorf("%+v", failed)
	}
	// Without --cached, nothing is kept or answered.
	other := must.Write(t, t.TempDir(), "mine.py", "def custom_kernel(data): pass # other\n")
	if got := kbnode(t, "submit", "--queue", "b200", "--inline-steps", "--problem", "prefix_python", other); strings.Contains(got.out, "cached") || len(s.Builds()) != 3 {
		t.Errorf("%+v", got)
	}
	cached[len(cached)-1] = other
	must.Contain(t, submits(4).out, "build 4 on n-gpu3")
	cached[len(cached)-1] = mine

	// A refresh replaces it, or else leaves none.
	must.Contain(t, submits(5, "--refresh").out, "Not passed: test: 1 of 1 test failed", "build 5 on")
	must.Contain(t, submits(5).out, "Not passed: test: 1 of 1 test failed", "cached: build 5")
	files = map[string]string{"result.json": resultTest, "node.json": strings.Replace(nodeQuiet, ":12", ":21", 1)}
	must.Contain(t, submits(6, "--refresh").err, "warning: the result is not kept for --cached: the job's image is not the one that its agent's tags name")
	files["node.json"] = nodeQuiet
	must.Contain(t, submits(7).out, "build 7 on")

	// What cannot be read is replaced.
	dir := filepath.Join(os.Getenv("XDG_STATE_HOME"), "kbnode", "results")
	entries, err := os.ReadDir(dir)
	must.Do(t, err)
	for _, e := range entries {
		must.Do(t, os.WriteFile(filepath.Join(dir, e.Name()), []byte("{"), 0o600))
	}
	must.Contain(t, submits(8).err, "warning: nothing is answered from the cache: read cached result "+dir)
	must.Equal(t, "", submits(8).err)

	// A refresh leaves none either if it is not known before which agents there are.
	s.Inject(bktest.Fault{Route: "GET /v2/organizations/{org}/agents", Status: 403, Times: -1})
	files["node.json"] = strings.Replace(nodeQuiet, "false", "true", 1)
	must.Contain(t, submits(9, "--refresh").err, "warning: nothing is answered from the cache: list agents: ", "warning: the result is not kept for --cached: the node disturbed the job")
	s.Recover()
	files["node.json"] = nodeQuiet
	must.Contain(t, submits(10).out, "build 10 on")

	// Agents that differ, or that may not be seen, answer nothing.
	must.Do(t, s.Employ(ctx, bktest.Worker{Name: "n-gpu4", Tags: append(slices.Clone(tags[:3]), "image=343434343434", "gpu-model=NVIDIA-B200"), Do: func(_ context.Context, w *bktest.Work) { w.Files = files }}))
	must.Contain(t, submits(11).err, "warning: nothing is answered from the cache: the agents of queue b200 differ in image: n-gpu3 has 121212121212, and n-gpu4 has 343434343434")
	s.Inject(bktest.Fault{Route: "GET /v2/organizations/{org}/agents", Status: 403, Times: -1})
	must.Contain(t, submits(12).err, "warning: nothing is answered from the cache: list agents: the API token may not do this; give it the scope read_agents")
}
