package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

var update = flag.Bool("update", false, "write the golden files again")

// result is the exit code and the output of a command line.
type result struct {
	code     int
	out, err string
}

// kbnode runs a command line.
func kbnode(t testing.TB, args ...string) result {
	t.Helper()
	return fed(t, strings.NewReader(""), args...)
}

// fed runs a command line with a standard input.
func fed(t testing.TB, in io.Reader, args ...string) result {
	t.Helper()
	var out, err bytes.Buffer
	code := run(t.Context(), args, term.Streams{In: in, Out: &out, Err: &err})
	checkJSON(t, args, out.String())
	return result{code, out.String(), err.String()}
}

// golden compares a text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	must.Golden(t, filepath.Join("testdata", name), *update, got)
}

func TestVersion(t *testing.T) {
	t.Parallel()
	v := kbnode(t, "version")
	if v.code != 0 || !strings.HasPrefix(v.out, "kbnode "+Version()) || kbnode(t, "--version") != v {
		t.Errorf("version: %+v", v)
	}
	if v := kbnode(t, "version", "--json"); !strings.Contains(v.out, `"version": "`+Version()+`"`) {
		t.Errorf("version --json: %+v", v)
	}
}

// full is a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestOutputThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	root := machinetest.VM().Dir(t)
	task, encoded := must.Write(t, t.TempDir(), "task.json", payloadDoc), must.Write(t, t.TempDir(), "payload", payload.Encode([]byte(payloadDoc)))
	for _, args := range [][]string{
		{"payload", "encode", task}, {"payload", "decode", encoded}, {"version"}, {"plan", "--root", root}, {"plan", "--root", root, "--json"}, {"inventory", "--root", root}, {"inventory", "--root", root, "--json"},
	} {
		var err bytes.Buffer
		code := run(t.Context(), args, term.Streams{Out: full{}, Err: &err})
		if code != 1 || !strings.Contains(err.String(), "no space left on device") {
			t.Errorf("%v: code %d, err %q", args, code, err.String())
		}
	}
}

func TestDrainReason(t *testing.T) {
	t.Parallel()
	for reason, ok := range map[string]bool{
		"": true, "new fan, slot 3 (ticket 12)": true, "größer": true,
		"two\nlines": false, "\x1b[31mred": false, strings.Repeat("é", maxDrainReason): true, strings.Repeat("é", maxDrainReason+1): false,
	} {
		if err := checkReason(reason); (err == nil) != ok {
			t.Errorf("%q: %v", reason, err)
		}
	}
}

// TestCompleteChecks offers groups and, with a description, checks. testdata/typed.txt has other flags.
func TestCompleteChecks(t *testing.T) {
	t.Parallel()
	must.Contain(t, kbnode(t, "__complete", "doctor", "--only", "").out, "\nbuildkite\n", "\ndocker-config\t")
}

func TestLogUnits(t *testing.T) {
	t.Parallel()
	all := []string{"gpu0", "gpu10"}
	units := func(k string) []string {
		return []string{"buildkite-agent-gpu" + k + ".service", "kbnode-job-gpu" + k + ".socket", "kbnode-job-gpu" + k + "@*.service", `system-kbnode\x2djob\x2dgpu` + k + ".slice", "buildkite-gpu" + k + ".slice"}
	}
	for _, tt := range []struct {
		has, args, want []string
		err             string
	}{
		{has: all, args: []string{"gpu10"}, want: units("10")},
		{has: all, args: []string{"0"}, want: units("0")},
		{has: all, want: append(append([]string{"kbnode.service"}, units("0")...), units("10")...)},
		{has: all, args: []string{"gpu1"}, err: `this node has no slot "gpu1"; it has gpu0, gpu10`},
		{err: "this machine is not set up as a node"},
	} {
		got, err := logUnits(tt.has, tt.args)
		must.Err(t, err, tt.err)
		must.Equal(t, tt.want, got)
	}
}

func TestSlotsOfUnits(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, name := range []string{
		"buildkite-agent-gpu10.service", "buildkite-agent-gpu2.service", "buildkite-agent-gpux.service",
		"kbnode-job-gpu3.socket", "kbnode-job-gpu3@.service", "kbnode.service", "buildkite-agent-gpu2.service.d/mine.conf",
	} {
		must.Write(t, root, name, "")
	}
	spell := func(k int) string { return strings.Repeat("i", k) }
	must.Equal(t, []string{"ii", "iiiiiiiiii"}, slots(root, spell))
	if got := slots(root+"/none", spell); got != nil {
		t.Errorf("without units: %q", got)
	}
}

// TestTyped types each line of testdata/typed.txt and compares all that kbnode prints: a wrong line is
// answered with the right one before the machine is asked anything, and no secret is repeated.
func TestTyped(t *testing.T) {
	for _, name := range []string{"BUILDKITE_AGENT_TOKEN", "BUILDKITE_API_TOKEN", "BUILDKITE_API_URL", "BUILDKITE_ORG", "BUILDKITE_PIPELINE", "GPU_TYPE", "KBNODE_DB", "BUILDKITE_ORGANIZATION_SLUG", "BUILDKITE_TOKEN"} {
		t.Setenv(name, "")
	}
	dir := typedFiles(t)
	var got strings.Builder
	answers := false
	for line := range strings.Lines(must.Read(t, "testdata/typed.txt")) {
		typed, is := strings.CutPrefix(line, "$ kbnode ")
		switch title := strings.HasPrefix(line, "== "); {
		case title && answers:
			got.WriteString("\n" + line + "\n")
		case !is && !answers || title:
			got.WriteString(line)
		}
		answers = answers || is
		if !is {
			continue
		}
		args := strings.Fields(strings.ReplaceAll(typed, "DIR", dir))
		for i, a := range args {
			if word, err := strconv.Unquote(a); err == nil {
				args[i] = word
			}
		}
		r := kbnode(t, args...)
		if r.code != term.ExitDone && r.out != "" && !slices.Contains(args, "--json") || strings.Contains(r.out+r.err, "secret") || strings.Contains(r.err, "hunter2") {
			t.Errorf("kbnode %s: %+v", typed, r)
		}
		got.WriteString(line + strings.ReplaceAll(r.out+r.err, dir, "DIR"))
		if r.code != term.ExitUsage {
			fmt.Fprintf(&got, "exit code %d\n", r.code)
		}
	}
	golden(t, "typed.txt", got.String())
}

// typedFiles writes the files that testdata/typed.txt names.
func typedFiles(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"guide.json": `{"lang": "py", "mode": "test", "files": {"main.py": "print('hello')"}, "tests": [], "benchmarks": []}`,
		"token":      "", "wide": "", "empty/x": "", "broken.json": `{"a": 1,}`, "nojson": payload.Encode([]byte("text")), "task.json": `{"lang": "cu", "arch": "90a"}`,
		"hopper/task.yml":      `{files: [{name: submission.cu, source: "@SUBMISSION@"}], lang: cu, config: {sources: [submission.cu], arch: 90a}}`,
		"hopper/submission.cu": "",
		"vectors/task.yml":     `{files: [{name: submission.py, source: "@SUBMISSION@"}], lang: py, config: {main: submission.py}, tests: []}`,
		"set/a/task.yml":       "", "tok.env": "export NAME=bkua_secret\n",
		"guide.cu": "", "guide.py": "pass\n", "kept.svg": "mine\n", "cuda.json": `{"lang": "cu"}`,
		"Dockerfile":   "ARG BASE=x\nFROM $BASE\nARG NUMPY\n",
		"large":        strings.Repeat(" ", 1<<20+1),
		"text":         "steps:\n",
		"bare.txtar":   "-- proc/version --\nLinux\n",
		"packed.txtar": "\x1f\x8b\x08", "inventory.json": `{"schema": 1}`, "node.txtar/x": "",
		"empty.py": "\n", "mine.ipynb": "{}", "my kernel.py": "", "mi\u200cne.py": "pass\n", "yaml/task.yaml": "",
		"quoted": `"bkua_0123456789"`, "api": "bkua_0123456789", "tok.sh": "", "agent-token.txt": "",

		"tab.yaml": "job:\n\tprofile: strict\n", "equals.yaml": "queue = b200\n", "list.yaml": "- queue: b200\n", "open.yaml": "queue: \"b200\n",
		"deeper.yaml": "queue: b200\n  node: x\n", "star.yaml": "queue: *b\n", "latin.yaml": "queue: \xff\n",
		"place.yaml": "time_limit: 2h\njob:\n  queue: b200\nimage: ghcr.io/x/y:1\nagent:\n  token: bkct_secret\n",

		"toml.yaml": "queue = \"b200\"\n[job]\ntime_limit = \"3h\"\n", "quotes.yaml": "queue: “b200”\n“node”: x\n", "maps.yaml": "agent: {tags: {site: lab1}}\nhealth: {xids: {48: ignore}}\njob: {allowed_images: {a: b}}\n",
		"words.yaml": "cpus: 16\nname: node1\nGPU_TYPE: b200\nagent: {version: 3.1}\njob:\n  timeout: 90m\n  max–minutes: 3\n  image: x\n", "network.yaml": "queue: b200\njob: {network: internet, allowed_networks: [10.0.0.0, '10.1.2.0:80', 10.1.2.0/32]}\n",

		"well.yaml":    "queue: b200\nnode:\nreserve: {cpus: 4, memory: 8GiB}\nagent: {}\n",
		"nothing.yaml": "# nothing\n",
		"faults.yaml":  "queues: b200\ngpus: [x]\njob:\n  max_minutes: 1.5\n  profile: open\n",
		"two.yaml":     "queue: a\n---\nqueue: b\n",

		"template" + plan.ConfigPath: "queue: h100-{index}\n",
		"broken" + plan.ConfigPath:   "queues: h100\n",

		"hostile" + plan.SlotPolicyPath(0):                    `{"slot": 0}`,
		"hostile" + plan.AgentDir(0) + "/buildkite-agent.cfg": "tags=\"queue=${HOME},gpu=x\"\n",
		"cut" + plan.SlotPolicyPath(0):                        `{"slot": 0`,
	} {
		must.Write(t, dir, name, text)
	}
	err := errors.Join(os.Remove(filepath.Join(dir, "empty/x")), os.Remove(filepath.Join(dir, "node.txtar/x")), os.Chmod(filepath.Join(dir, "wide"), 0o640), os.Chmod(filepath.Join(dir, "guide.json"), 0o644), os.Symlink("Dockerfile", filepath.Join(dir, "link")), os.WriteFile(filepath.Join(dir, "huge"), nil, 0o600), os.Truncate(filepath.Join(dir, "huge"), 1<<40))
	must.Do(t, err)
	machinetest.B200x8().Write(t, filepath.Join(dir, "b200"))
	machinetest.NoGPU().Write(t, filepath.Join(dir, "nogpu"))
	return dir
}

// TestAsRootAnnotated compares the commands whose code asks for root with those that are annotated.
func TestAsRootAnnotated(t *testing.T) {
	t.Parallel()
	call := regexp.MustCompile(`\b(?:needRoot|toRead|change|changeLocked)\((?:[\w.]+, )+(?:"(\w+))?`)
	asks := map[string]bool{}
	files, err := filepath.Glob("*.go")
	must.Do(t, err)
	for _, file := range files {
		for _, found := range call.FindAllStringSubmatch(must.Read(t, file), -1) {
			if found[1] == "" && file != "host.go" { // where they call each other
				t.Errorf("%s: %s has no command's name that this test can read", file, found[0])
			}
			asks[found[1]] = true
		}
	}
	delete(asks, "")
	annotated := map[string]bool{}
	for _, cmd := range Commands().Commands() {
		if _, ok := term.NeedsRoot(cmd); ok {
			annotated[cmd.Name()] = true
		}
	}
	must.Equal(t, asks, annotated)
}

// TestPastedAsRoot checks what a line for root repeats besides what was typed.
func TestPastedAsRoot(t *testing.T) {
	const pasted = "sudo kbnode drain gpu3 --reason 'a new fan, and a longer one' --wait --timeout 30m"
	if screen := onTerminal(t, 60, "drain", "gpu3", "--reason", "a new fan, and a longer one", "--wait", "--timeout", "30m"); !strings.HasSuffix(screen, "\n  "+pasted+"\n") {
		t.Errorf("the command is cut: %s", screen)
	}
	t.Setenv("BUILDKITE_AGENT_TOKEN", "bkct_secret")
	t.Setenv("GPU_TYPE", "b200")
	t.Setenv("BUILDKITE_API_TOKEN", "bkua_secret")
	t.Setenv("HTTPS_PROXY", "http://me:secret@127.0.0.1:1")
	t.Setenv("no_proxy", "localhost")
	t.Setenv("SSL_CERT_FILE", "/etc/ca.pem")
	for _, tt := range []struct{ variables, line string }{
		{"BUILDKITE_AGENT_TOKEN,GPU_TYPE,HTTPS_PROXY,no_proxy,SSL_CERT_FILE", "install"},
		{"HTTPS_PROXY,no_proxy,SSL_CERT_FILE", "upgrade --agent-version 3.76.2"},
		{"BUILDKITE_API_TOKEN,HTTPS_PROXY,no_proxy,SSL_CERT_FILE", "doctor"},
	} {
		want := "type sudo --preserve-env=" + tt.variables + " kbnode " + tt.line + "\n"
		if got := kbnode(t, strings.Fields(tt.line)...); !strings.HasSuffix(got.err, want) {
			t.Errorf("%q; want %q", got.err, want)
		}
	}
}

// TestCanceledWhileItReads ends commands that wait for standard input, to which nothing writes.
func TestCanceledWhileItReads(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"config check -", "plan --config -", "payload encode -", "payload decode -", "submit --queue q --payload -"} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			in, w, err := os.Pipe()
			must.Do(t, err)
			defer w.Close() //nolint:errcheck // nothing is written
			ctx, cancel := context.WithCancel(t.Context())
			var errs bytes.Buffer
			code := make(chan int)
			go func() {
				code <- run(ctx, strings.Fields(args), Streams{In: in, Out: io.Discard, Err: &errs})
			}()
			cancel()
			if got := <-code; got != 1 || !strings.Contains(errs.String(), "context canceled") {
				t.Errorf("exit code %d, %q", got, errs.String())
			}
		})
	}
}
