package cli

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/cli/operator"
	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/arena"
	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/test/must"
)

const judged = "../evaluate/arena/testdata/in-process" // the clock and the submission are in one process

func TestCheats(t *testing.T) {
	t.Parallel()
	r := runs(t, process(t, "e2e", "cheats", "--problem", judged, "--only", "clock_zero,lazy_list,gpu_graph", "--timeout", "5m"))
	if r.code != 1 {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
	must.Contain(t, r.out, "won ", "stopped ", "skipped ", "needs a GPU and torch", "\nWhat would stop the kinds of attacks that won:\n", "clock  Keep the clock in a process ",
		"Problem in-process: of 3 attacks, 1 won, 1 were stopped, 0 are broken, 1 were skipped, 0 were not tried.\n")
	must.Contain(t, r.err, "  honest submission: submission.py\n", "1 of 3: gpu_graph skipped\n", "3 of 3: ")

	dir := t.TempDir()
	mine := must.Write(t, dir, "mine.py", "def custom_kernel(data):\n    total, sums = 0, []\n    for n in data:\n        total += n\n        sums.append(total)\n    return sums\n")
	must.Write(t, dir, "corpus/hasty.py", "# kind: hasty\n# tries: nothing\n# source: mine\nno_name\n")
	r = runs(t, process(t, "e2e", "cheats", "--problem", judged, mine, "--corpus", filepath.Join(dir, "corpus"), "--only", "hasty", "--timeout", "5m", "--json"))
	var report arena.Report
	must.Do(t, json.Unmarshal([]byte(r.out), &report))
	if r.code != 0 || !report.OK || len(report.Attacks) != 1 || report.Attacks[0].Outcome != arena.Broken || report.Attacks[0].Verdict != "NameError: name 'no_name' is not defined" {
		t.Errorf("exit code %d, %+v", r.code, report)
	}
}

// TestCheatsHandover says of which benchmarks calls are too short.
func TestCheatsHandover(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	operator.PrintCheats(term.Streams{Out: &out}, &arena.Report{Problem: "p", Handover: []float64{0.049, 0.654}})
	_, says, _ := strings.Cut(out.String(), "not tried.\n")
	must.Equal(t, "Benchmark 1: the hand-over of data takes 65 % of an honest call, so a faster kernel looks less fast than it is.\n"+
		"Make calls longer, or data smaller, until it is 5 % (docs/problems.md, Choose sizes).\n", says)
}

func TestCheatsRefused(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--image a --force":        "--force, --image: only a queue has a use for it; add --queue or --gpu",
		"--gpu Z9":                 `Z9`,
		"--only clok":              `--only: there is no attack or kind "clok"; see kbnode e2e cheats --list`,
		"--jobs -1":                "--jobs -1: write 1 to 64",
		"--timeout -1s":            "--timeout -1s: a timeout cannot be negative; write one such as 2m",
		"--corpus /nowhere":        "/nowhere is not a directory; name one with attacks, NAME.py",
		"--problem nothing":        `"nothing" is neither an example nor a directory`,
		"--problem identity_cuda":  "it is not in Python, and the attacks are; choose a problem whose submissions are",
		"nothing.py":               "nothing.py does not exist; fix the path, or add the file",
		"--problem . submission a": `"a" is one word too many; write kbnode e2e cheats`,
	} {
		if r := kbnode(t, append([]string{"e2e", "cheats"}, strings.Fields(args)...)...); r.code != 2 || !strings.Contains(r.err, want) {
			t.Errorf("%s: exit code %d, %s", args, r.code, r.err)
		}
	}
	wrong := must.Write(t, t.TempDir(), "wrong.py", "def custom_kernel(data):\n    return [0] * len(data)\n")
	r := runs(t, process(t, "e2e", "cheats", "--problem", judged, wrong, "--timeout", "5m"))
	want := "kbnode: the honest submission gives nothing to compare with: test: output["
	if again := "; fix it, or name another one; to see all of it: kbnode evaluate --problem " + judged + " --mode leaderboard " + wrong + "\n"; r.code != 2 || !strings.Contains(r.err, want) || !strings.Contains(r.err, again) {
		t.Errorf("exit code %d, %s", r.code, r.err)
	}
	if r := kbnode(t, "e2e", "cheats", "--list", "--json"); r.code != 0 || !strings.Contains(r.out, `"name": "clock_c_function"`) {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
	if r := kbnode(t, "e2e", "cheats", "--list"); r.code != 0 || !strings.Contains(r.out, "clock_c_function") {
		t.Errorf("--list: %+v", r)
	}
}

// TestCheatsOnQueue evaluates on a queue whose agents leave the same result with each job, whatever they get.
func TestCheatsOnQueue(t *testing.T) {
	run := `{"run":{"success":true,"passed":true,"command":"x","exit_code":0,"duration":2,"result":{"benchmark.0.mean":"1100","benchmark.0.best":"1000","check":"pass"}}}`
	good := `{"success":true,"error":"","system":{"gpu":"NVIDIA B200","torch":"2.9"},"runs":{"test":` + run + `,"benchmark":` + run + `,"leaderboard":` + run + `}}`
	args := strings.Fields("e2e cheats --queue b200 --problem " + judged + " --only lazy_list,check_code,gpu_event")
	r, s, env := onQueue(t, map[string]string{"result.json": good}, args...)
	if r.code != 1 {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
	must.Contain(t, r.out, "of 3 attacks, 1 won, 2 were stopped,", "check_code  1.1 µs   1 µs    1.100", "passed with a wrong output", "gpu_event")
	must.Contain(t, r.err, "  cheats, honest: passed, build 1\n", "cheats, lazy_list: passed, build")
	doc, err := payload.Inflate(env[payload.Var])
	must.Do(t, err)
	must.Contain(t, doc, `"mode":"leaderboard"`, "kbnode cheats: ")
	if n := len(s.Builds()); n != 4 {
		t.Errorf("%d builds", n)
	}

	r, s, _ = onQueue(t, map[string]string{"result.json": resultBad}, args...)
	if again := "to see all of it: kbnode submit --queue b200 --problem " + judged + " --mode leaderboard\n"; r.code != 2 || !strings.Contains(r.err, again) || len(s.Builds()) != 1 {
		t.Errorf("exit code %d, %d builds: %s", r.code, len(s.Builds()), r.err)
	}
	r, s, _ = onQueue(t, nil, append(args, "--dry-run")...)
	must.Contain(t, r.out, "POST http", `"message": "kbnode e2e cheats: honest"`)
	must.Contain(t, r.err, "one of these for the honest submission, and one for each of 3 attacks\n")
	if r.code != 0 || len(s.Builds()) != 0 {
		t.Errorf("exit code %d, %d builds", r.code, len(s.Builds()))
	}
}
