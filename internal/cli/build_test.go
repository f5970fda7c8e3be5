package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/gpu-mode/kbnode/internal/cli/operator"
	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

const (
	resultGood     = `{"success":true,"error":"","system":{"gpu":"NVIDIA B200","device_count":1},"runs":{"test":{"run":{"success":true,"passed":true,"command":"x","exit_code":0,"duration":1.5,"result":{"test-count":"1","test.0.status":"pass","check":"pass"}}},"benchmark":{"run":{"success":true,"passed":true,"command":"x","exit_code":0,"duration":2,"result":{"benchmark-count":"1","benchmark.0.spec":"size: 64","benchmark.0.mean":"4096000","benchmark.0.err":"1200","benchmark.0.best":"4000000","benchmark.0.worst":"4200000","check":"pass"}}}}}`
	resultArtifact = `{"success":true,"error":"","system":{"gpu":"","device_count":0,"platform":"Linux","hostname":"n"},"runs":{}}`

	resultBad = `{"success":true,"error":"","system":{},"runs":{"test":{"compilation":{"nvcc_found":true,"command":"nvcc a.cu","success":false,"stderr":"a.cu(3): error: \u001b[31mno such thing","exit_code":1},"run":null}}}`
)

// runnerStep is a pipeline's only step.
const runnerStep = `steps: [{command: exec kbnode runner, agents: {queue: $KERNELBOT_QUEUE}, artifact_paths: "*.json"}]`

// useBuildkite makes a fake Buildkite the one that kbnode asks.
func useBuildkite(t *testing.T, s *bktest.Server) {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	t.Setenv("BUILDKITE_API_URL", server.URL)
	t.Setenv("BUILDKITE_API_TOKEN", bktest.DefaultAPIToken)
	t.Setenv("BUILDKITE_ORG", "kbnode")
	t.Setenv("BUILDKITE_PIPELINE", "")
	t.Setenv("XDG_STATE_HOME", t.TempDir())
}

// onQueue runs kbnode against a fake Buildkite whose one agent leaves these files with each job.
func onQueue(t *testing.T, files map[string]string, args ...string) (r result, s *bktest.Server, env map[string]string) {
	t.Helper()
	s = bktest.New(bktest.Options{Steps: runnerStep})
	must.Do(t, s.Employ(t.Context(), bktest.Worker{Name: "n-gpu3", Tags: []string{"queue=b200", "gpu-index=3"}, Do: func(_ context.Context, w *bktest.Work) {
		env, w.Files = w.Env, files
	}}))
	useBuildkite(t, s)
	return kbnode(t, args...), s, env
}

// TestBuilds submits and proves. Every build has ended, and e2e makes none in vain.
func TestBuilds(t *testing.T) {
	problem := filepath.Join("..", "..", "examples", "prefix_python")
	leaves := func(text string) map[string]string { return map[string]string{"result.json": text} }
	controls := leaves(strings.Replace(resultArtifact, `"hostname":"n"`, `"hostname":"\u001b[31m"`, 1))
	for _, tt := range []struct {
		name     string
		files    map[string]string
		args     string
		code     int
		out, err []string
		env      map[string]string
	}{
		{"hello", leaves(resultGood), "submit --queue b200 --hello", 0,
			[]string{"Passed: test and benchmark", "on NVIDIA B200", "4.096 ms ± 1.20 µs  4.000 ms  4.200 ms", "build 1 on n-gpu3, "}, []string{"build 1: http://", "build 1: passed"},
			map[string]string{"KERNELBOT_QUEUE": "b200"}},
		{"a problem", map[string]string{"result.json": resultGood, "node.json": `{"noisy":true,"why":["the GPU was hot"]}`},
			"submit --gpu b200_bk --eval " + problem + " --mode benchmark --image mine:1 --run-id r1 --inline-steps", 0, []string{"noisy: the GPU was hot"}, nil,
			map[string]string{"KERNELBOT_QUEUE": "b200", "KERNELBOT_IMAGE": "mine:1", "KERNELBOT_RUN_ID": "r1"}},
		{"times that cannot be", map[string]string{"result.json": resultGood, "node.json": `{"implausible":[{"evaluation":"leaderboard","case":"benchmark.0","reason":"the mean\u001b[2J is negative"}]}`},
			"submit --queue b200 --hello", 0, []string{"implausible: leaderboard, benchmark.0: the mean is negative\n"}, nil, nil},
		{"times that cannot be, in e2e", map[string]string{"result.json": resultGood, "node.json": `{"implausible":[{"evaluation":"leaderboard","reason":"the mean\u001b[2J is negative"}]}`},
			"e2e evaluation --queue b200 --problem prefix_python --mode test", 1, []string{"implausible: submission.py: leaderboard: the mean is negative\n"}, nil, nil},
		{"a node that is not known", map[string]string{"result.json": resultGood, "node.json": "<html>"}, "submit --queue b200 --hello", 0,
			[]string{"it is unknown whether the node disturbed the timings: read node.json: invalid character"}, nil, nil},
		{"does not compile", leaves(resultBad), "submit --queue b200 --hello", 1,
			[]string{"Compilation: nvcc a.cu", "  a.cu(3): error: no such thing", "Not passed: test: does not compile"}, nil, nil},
		{"no result", nil, "submit --queue b200 --hello", 1, nil, []string{"no result: the job passed but left no result.json; add it to the step's artifact_paths"}, nil},
		{"another queue", nil, "submit --queue b2000 --hello", 1, nil, []string{"no agent is connected in queue b2000; there are agents in b200"}, nil},
		{"another pipeline", nil, "submit --queue b200 --pipeline kernalbot --hello", 1, nil, []string{`sees no pipeline "kernalbot" of organization "kbnode"; check --pipeline`}, nil},
		{"a good queue", leaves(resultArtifact), "e2e artifact --queue b200", 0,
			[]string{"ok  artifact  artifact-test  ", "n-gpu3", "/kbnode/kernelbot/builds/1", "result.json came back intact: 108 bytes from n", "Queue b200: 1 check, all OK."},
			[]string{"  artifact, artifact-test: waiting, build 1\n", "  artifact, artifact-test: passed, build 1\n"}, nil},
		{"a bad queue", leaves(resultGood), "e2e artifact --queue b200", 1,
			[]string{"FAIL  artifact  artifact-test", "is not what the job wrote", "Queue b200: 1 of 1 checks failed, 0 were not tried."}, nil, nil},
		{"as JSON", controls, "e2e artifact --gpu b200_bk --json", 0, []string{`"run_id": "kbnode-e2e-`, `bytes from \u001b[31m"`}, nil, nil},
		{"escapes", controls, "e2e artifact --gpu b200_bk", 0, []string{"bytes from\n"}, nil, nil},
		{"no agents", nil, "e2e --queue b2000", 1, nil, []string{"no agent is connected in queue b2000; there are agents in b200; --force"}, nil},
		{"no database", nil, "e2e --queue b200 --db host=/nowhere", 1, nil, []string{`connect to PostgreSQL: no server answers there`}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, s, env := onQueue(t, tt.files, strings.Fields(tt.args)...)
			must.Equal(t, tt.code, r.code)
			must.Contain(t, r.out, tt.out...)
			must.Contain(t, r.err, tt.err...)
			for k, want := range tt.env {
				if env[k] != want {
					t.Errorf("%s is %q, want %q", k, env[k], want)
				}
			}
			if strings.Contains(r.out+r.err, bktest.DefaultAPIToken) || strings.ContainsAny(r.out+r.err, "\x1b\r") || tt.name == "as JSON" && !json.Valid([]byte(r.out)) {
				t.Errorf("%s%s", r.out, r.err)
			}
			for _, b := range s.Builds() {
				if !b.Finished() || tt.out == nil && strings.HasPrefix(tt.args, "e2e") {
					t.Errorf("build %d is %s", b.Number, b.State)
				}
			}
		})
	}
}

// TestLeft leaves kbnode while its job runs. The build is canceled, or followed to its end.
func TestLeft(t *testing.T) {
	t.Parallel()
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("run under nohup")
	}
	const hello, artifact = "submit --queue b200 --hello", "e2e artifact --queue b200"
	for _, tt := range []struct {
		name, shell, args, result string
		state                     string // of the build
		code                      int
	}{
		{"closed terminal", `exec "$0" "$@"`, hello, resultGood, "canceled", 1},
		{"closed terminal", `exec "$0" "$@"`, artifact, resultArtifact, "canceled", 1},
		{"nohup", `trap "" HUP; exec "$0" "$@"`, hello, resultGood, "passed", 0},
		{"closed pipe", `exec "$0" "$@" 2>&3`, hello, resultGood, "passed", 0},
		{"closed pipe", `exec "$0" "$@" 2>&3`, artifact, resultArtifact, "passed", 0},
	} {
		t.Run(tt.args+", "+tt.name, func(t *testing.T) {
			t.Parallel()
			started := make(chan *os.Process, 1)
			s := bktest.New(bktest.Options{Steps: runnerStep})
			must.Do(t, s.Employ(t.Context(), bktest.Worker{Name: "n-gpu3", Tags: []string{"queue=b200"}, Do: func(ctx context.Context, w *bktest.Work) {
				if tt.name != "closed pipe" {
					_ = (<-started).Signal(syscall.SIGHUP)
				}
				if tt.state == "canceled" {
					<-ctx.Done()
				}
				w.Files = map[string]string{"result.json": tt.result}
			}}))
			server := httptest.NewServer(s)
			defer server.Close()
			in, pipe, err := os.Pipe()
			must.Do(t, errors.Join(err, in.Close()))
			defer pipe.Close() //nolint:errcheck // nothing is written
			ctx, cancel := context.WithTimeout(t.Context(), must.Patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", tt.shell, os.Args[0]}, strings.Fields(tt.args)...)...)
			cmd.Env = append(os.Environ(), asKbnode+"=1", "BUILDKITE_API_URL="+server.URL, "BUILDKITE_API_TOKEN="+bktest.DefaultAPIToken, "BUILDKITE_ORG=kbnode", "BUILDKITE_PIPELINE=")
			cmd.ExtraFiles, cmd.Stderr = []*os.File{pipe}, t.Output()
			must.Do(t, cmd.Start())
			started <- cmd.Process
			err = cmd.Wait()
			if b := s.Builds(); cmd.ProcessState.ExitCode() != tt.code || len(b) != 1 || b[0].State != tt.state {
				t.Errorf("%v, builds %+v", err, b)
			}
		})
	}
}

// TestSubmitPayload checks that a payload is sent unchanged except for the mode.
func TestSubmitPayload(t *testing.T) {
	doc := must.Write(t, t.TempDir(), "task.json", `{"lang": "py", "mode": "test", "tests": [{"size": 1e2}]}`)
	file := filepath.Join(t.TempDir(), "result.json")
	r, _, env := onQueue(t, map[string]string{"result.json": resultGood}, "submit", "--queue", "b200", "--payload", doc, "--mode", "benchmark", "--json", "--result", file)
	text, err := payload.Inflate(env["KERNELBOT_PAYLOAD"])
	if want := `{"lang":"py","mode":"benchmark","tests":[{"size":100.0}]}`; err != nil || text != want {
		t.Errorf("%s, %v", text, err)
	}
	var out struct {
		Verdict string
		Build   int
		Result  struct{ Success bool }
	}
	if err := json.Unmarshal([]byte(r.out), &out); err != nil || out.Verdict != "passed" || out.Build != 1 || !out.Result.Success {
		t.Errorf("%v: %s", err, r.out)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != resultGood {
		t.Errorf("%s, %v", got, err)
	}
}

// TestSubmitResultFile refuses what the result must not replace, and a directory that is closed, before it sends anything.
func TestSubmitResultFile(t *testing.T) {
	dir := t.TempDir()
	closed := filepath.Join(dir, "closed")
	must.Write(t, dir, "mine.py", "import x")
	must.Do(t, errors.Join(syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600), os.Symlink("other", filepath.Join(dir, "link")), os.Mkdir(closed, 0o555)))
	for name, want := range map[string]string{"pipe": "is not a regular file", "link": "is not a regular file", "closed": "is not a regular file", "mine.py": "mine.py has something else", "closed/x": "you may not write to the directory " + closed} {
		if name == "closed/x" && os.Geteuid() == 0 {
			continue
		}
		r, s, _ := onQueue(t, map[string]string{"result.json": resultGood}, "submit", "--queue", "b200", "--hello", "--result", filepath.Join(dir, name))
		if r.code != 2 || !strings.Contains(r.err, want) || len(s.Builds()) > 0 {
			t.Errorf("%s: %+v, %d builds", name, r, len(s.Builds()))
		}
	}
	file := must.Write(t, dir, "result.json", "{}")
	onQueue(t, map[string]string{"result.json": resultGood}, "submit", "--queue", "b200", "--hello", "--result", file)
	must.Equal(t, resultGood, must.Read(t, file))
}

// TestSubmitDryRun checks that --dry-run sends no request.
func TestSubmitDryRun(t *testing.T) {
	t.Setenv("BUILDKITE_API_URL", "")
	t.Setenv("BUILDKITE_API_TOKEN", "bkua_secret")
	r := kbnode(t, "submit", "--queue", "b200", "--hello", "--dry-run", "--inline-steps", "--org", "gpu-mode")
	must.Contain(t, r.out, "POST https://api.buildkite.com/v2/organizations/gpu-mode/pipelines/kernelbot/builds\nAuthorization: Bearer (hidden)\n", `"KERNELBOT_QUEUE": "b200"`, `"run_id": "kbnode-`, `"steps": [`)
	if r.code != 0 || strings.Contains(r.out, "secret") || strings.Contains(r.out, `"priority"`) {
		t.Errorf("%+v", r)
	}
	must.Contain(t, kbnode(t, "submit", "--queue", "b200", "--hello", "--dry-run", "--inline-steps", "--priority", "-3").out, `"priority": -3`)
}

// TestDryRunOnATerminal checks that a screen shows the size of a payload, and a pipe and --json all of it.
func TestDryRunOnATerminal(t *testing.T) {
	t.Setenv("BUILDKITE_ORG", "gpu-mode")
	size := regexp.MustCompile(`_PAYLOAD": "\(\d{1,3}(,\d{3})+ bytes\)"`)
	const whole = `_PAYLOAD": "eN` // zlib's first bytes in base64
	for args, times := range map[string]int{"submit --queue b200 --problem prefix_python --dry-run": 2, "e2e evaluation --queue b200 --dry-run": 12} {
		screen := onTerminal(t, 80, strings.Fields(args)...)
		if n := len(size.FindAllString(screen, -1)); n != times || strings.Contains(screen, whole) || !strings.Contains(screen, `"KERNELBOT_QUEUE": "b200"`) {
			t.Errorf("kbnode %s: %d sizes, want %d, in:\n%.2000s", args, n, times, screen)
		}
		for what, out := range map[string]string{"a pipe": kbnode(t, strings.Fields(args)...).out, "JSON": onTerminal(t, 80, strings.Fields(args+" --json")...)} {
			if n := strings.Count(out, whole); n != times || size.MatchString(out) {
				t.Errorf("kbnode %s: %s has %d payloads, want %d", args, what, n, times)
			}
		}
	}
}

// TestSubmitTemplate checks that a template is printed unchanged, and needs no other flag.
func TestSubmitTemplate(t *testing.T) {
	t.Setenv("BUILDKITE_API_TOKEN", "")
	dir := filepath.Join("..", "..", "examples", "prefix_python")
	text, err := os.ReadFile(filepath.Join(dir, "submission.py"))
	must.Do(t, err)
	if r := kbnode(t, "submit", "--eval", dir, "--template", "python"); r.code != 0 || r.out != string(text) || r.err != "" {
		t.Errorf("%+v", r)
	}
}

// TestSubmitOfALargePayload refuses what fits into no job. testdata/typed.txt has what else is wrong.
func TestSubmitOfALargePayload(t *testing.T) {
	t.Setenv("BUILDKITE_API_TOKEN", "")
	big := must.Write(t, t.TempDir(), "big.json", fmt.Sprintf(`{"x": %q}`, must.Random(3<<20)))
	if r := kbnode(t, "submit", "--queue", "q", "--payload", big); r.code != 2 || !strings.Contains(r.err, "fit into a job's environment; make the submission or the tests smaller") {
		t.Errorf("%d: %s", r.code, r.err)
	}
}

// TestE2EDryRun checks that --dry-run sends no request.
func TestE2EDryRun(t *testing.T) {
	t.Setenv("BUILDKITE_API_URL", "")
	t.Setenv("BUILDKITE_API_TOKEN", "bkua_secret")
	t.Setenv("BUILDKITE_ORG", "")
	r := kbnode(t, "e2e", "--queue", "b200", "--dry-run", "--org", "gpu-mode", "--jobs", "3")
	for want, times := range map[string]int{
		"POST https://api.buildkite.com/v2/organizations/gpu-mode/pipelines/kernelbot/builds\nAuthorization: Bearer (hidden)\n": 10,
		`"KERNELBOT_QUEUE": "b200"`: 10, `"run_id": "kbnode-e2e-`: 10, `"steps": [`: 1, `"message": "kbnode e2e: evaluation, cheat_input.py"`: 1,
	} {
		if got := strings.Count(r.out, want); got != times {
			t.Errorf("%q is %d times in %s", want, got, r.out)
		}
	}
	if r.code != 0 || strings.Contains(r.out, "secret") {
		t.Errorf("%+v", r)
	}
	r = kbnode(t, "e2e", "--queue", "b200", "--dry-run", "--inline-steps", "--json")
	var printed struct {
		Requests []struct {
			Method, URL string
			Body        struct{ Steps []any }
		}
	}
	err := json.Unmarshal([]byte(r.out), &printed)
	all := printed.Requests
	if err != nil || len(all) != 8 || !strings.Contains(r.err, "one of these for each agent") {
		t.Errorf("%v, %d, %s", err, len(all), r.err)
	}
	for _, one := range all {
		if one.Method != "POST" || !strings.Contains(one.URL, "/ORG/") || len(one.Body.Steps) != 1 {
			t.Errorf("%+v", one)
		}
	}
}

// TestAPIFlags checks where the organization and the token come from. testdata/typed.txt has bad files.
func TestAPIFlags(t *testing.T) {
	const token = "bkua_0123456789abcdef"
	good := must.Write(t, t.TempDir(), "good", token+"\n")
	for _, tt := range []struct {
		name, org, env, url string
		flags               operator.APIFlags
		err                 string // "" means none
	}{
		{name: "environment", org: "gpu-mode", env: token},
		{name: "file", flags: operator.APIFlags{Org: "gpu-mode", TokenFile: good}},
		{name: "the file beats the environment", flags: operator.APIFlags{Org: "gpu-mode", TokenFile: good}, env: "two words"},
		{name: "two words", org: "o", env: token + " x", err: "BUILDKITE_API_TOKEN contains no API token"},
		{name: "a line for a shell", org: "o", env: "export TOKEN=" + token, err: "contains more than an API token; leave out quotes, brackets, export and NAME="},
		{name: "a path", org: "o", env: "/none/0123", err: "BUILDKITE_API_TOKEN contains the path of a file, and no API token; write --token-file with that path"},
		{name: "a file beside", org: "o", env: "build_test.go", err: "contains the path of a file"},
		{name: "a variable", org: "o", env: "$BUILDKITE_TOKEN", err: "contains the name of a variable"},
		{name: "an agent's", org: "o", env: "bkct_0123456789abcdef", err: "contains an agent token"},
		{name: "address that is none", org: "o", env: token, url: "here", err: "BUILDKITE_API_URL: the address of Buildkite's API is not a URL"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("BUILDKITE_ORG", tt.org)
			t.Setenv("BUILDKITE_API_TOKEN", tt.env)
			t.Setenv("BUILDKITE_API_URL", tt.url)
			_, err := tt.flags.Client(term.Streams{Err: t.Output()}, nil)
			switch {
			case (err == nil) != (tt.err == "") || err == nil && tt.flags.Org != "gpu-mode":
				t.Errorf("organization %q, %v; want %s", tt.flags.Org, err, tt.err)
			case err != nil && (!strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "0123")):
				t.Errorf("%v; want %s", err, tt.err)
			}
		})
	}
}
