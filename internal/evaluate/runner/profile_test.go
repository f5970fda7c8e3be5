package runner

import (
	"archive/zip"
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/test/must"
)

const (
	// ncu is a fake of NVIDIA's profiler that records the program's name.
	ncu = `if [ "$1" = --import ]; then
	echo "report of $2" >&2
	[ "$3 $4" = "--page details" ] && { echo "${5:-text} of $(sed -n '3s/ *//p' "$2")"; exit; }
	cat "$2"; exit
fi
while [ "$1" != -- ]; do [ "$1" = -o ] && out=$2; shift; done; shift
printf '  kernel (1,1)\n    Table Name : GPU Throughput\n    %s\n' "$2" >"$out"
ln -s /etc/passwd "${out%/*}/link"; mkfifo "${out%/*}/fifo"
"$@"
`
	// rocprof is a fake of AMD's profiler that leaves two traces and a table.
	rocprof = `while [ "$1" != -- ]; do [ "$1" = -d ] && out=$2; shift; done; shift
"$@"; code=$?
printf one >"$out/1.pftrace"; printf two >"$out/2.pftrace"; echo a,b >"$out/1_kernel.csv"
mkdir "$out/a" && printf below >"$out/a/b"
[ "$GPU_DUMP_CODE_OBJECT" = 1 ] && echo code >_code_object1.o
exit $code
`
)

func newProfileJob(t *testing.T, benchmarks int, more string) *job {
	t.Helper()
	config := map[string]any{
		"lang": "py", "mode": "profile", "main": "eval.py", "seed": 7, "ranking_by": "mean",
		"sources": map[string]string{"submission.py": "", "eval.py": report + `
print(sys.argv[1], open(sys.argv[2]).read(), os.environ.get("POPCORN_NCU"), os.environ["POPCORN_SEED"], end="")
o("check: pass\nbenchmark.0.report: own\n")
` + more},
	}
	list := []any{}
	for i := range benchmarks {
		list = append(list, map[string]any{"size": i})
	}
	config["benchmarks"] = list
	return newConfigJob(t, config)
}

// unzip returns the files of a trace.
func unzip(t *testing.T, trace any) map[string]string {
	t.Helper()
	text, _ := trace.(string)
	archive, err := base64.StdEncoding.DecodeString(text)
	must.Do(t, err)
	z, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	must.Do(t, err)
	files := map[string]string{}
	for _, f := range z.File {
		r, err := f.Open()
		must.Do(t, err)
		content, err := io.ReadAll(r)
		must.Do(t, err)
		files[f.Name] = string(content)
	}
	return files
}

// files returns the files in a directory with their contents.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must.Do(t, err)
	found := map[string]string{}
	for _, e := range entries {
		text := e.Type().String()
		if e.Type().IsRegular() {
			text = must.Read(t, filepath.Join(dir, e.Name()))
		}
		found[e.Name()] = text
	}
	return found
}

// TestProfileNCU looks at the files that it leaves; the cases have the results.
func TestProfileNCU(t *testing.T) {
	t.Parallel()
	j := newProfileJob(t, 12, `
if not os.path.exists("profile_data"): os.mkdir("profile_data")
open("profile_data/planted", "w").write("x")
`)
	j.standIn(t, "ncu", ncu)
	j.cmd.Env = append(j.cmd.Env, "BUILDKITE=true")
	code, doc := j.run(t)
	if log := j.stdout.String(); code != 0 || !strings.Contains(log, "--- :mag: profile.10: run\n") {
		t.Fatalf("exit code %d\n%s%s", code, log, j.stderr.String())
	}
	delivered := map[string]string{}
	for i := range 12 {
		name := fmt.Sprintf("profile.%d", i)
		recorded := "  kernel (1,1)\n    Table Name : GPU Throughput\n    eval.py\n"
		want := map[string]string{"profile.ncu-rep": recorded, "ncu-details.txt": "text of eval.py\n", "ncu-details.csv": "--csv of eval.py\n"}
		must.Equal(t, want, unzip(t, at(doc, "runs", name, "profile", "trace")))
		for file, text := range want {
			delivered[name+"-"+file] = text
		}
	}
	must.Equal(t, delivered, files(t, filepath.Join(j.cmd.Dir, ProfileDir)))
	text, err := os.ReadFile(filepath.Join(j.cmd.Dir, result.File))
	if err != nil || bytes.Index(text, []byte(`"profile.10"`)) < bytes.Index(text, []byte(`"profile.9"`)) {
		t.Error("profile.10 comes before profile.9")
	}
	if entries, err := os.ReadDir(j.cmd.Dir); err != nil || len(entries) != 2 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// TestProfileTexts has ncu fail to print what it recorded, and programs leave files of the same names.
func TestProfileTexts(t *testing.T) {
	t.Parallel()
	const (
		rep  = "  kernel (1,1)\n    Table Name : GPU Throughput\n    eval.py\n"
		txt  = "text of eval.py\n"
		csv  = "--csv of eval.py\n"
		dirs = `import glob
[dir] = glob.glob("tmp*/profile_data")
`
	)
	type texts = map[string]string
	for _, row := range []struct {
		name, ncu, judge string
		trace, left      texts
		note             string
	}{
		{"both", "", "", texts{"profile.ncu-rep": rep, "ncu-details.txt": txt, "ncu-details.csv": csv}, nil, ""},
		{"ncu fails", `[ "$3" = --page ] && { echo part; exit 1; }`, "", texts{"profile.ncu-rep": rep}, nil, "ncu-details.csv is left out: ncu ended with 1"},
		{"ncu fails for one", `[ "$5" = --csv ] && kill -9 $$`, "", texts{"profile.ncu-rep": rep, "ncu-details.txt": txt}, nil, "ncu-details.csv is left out: ncu ended with -9"},
		{
			"a long text", `[ "$5" = --csv ] && { yes 0123456 | head -c 20000000; exit; }`, "",
			texts{"profile.ncu-rep": rep, "ncu-details.txt": txt, "ncu-details.csv": strings.Repeat("0123456\n", ncuTextLimit/8)}, nil, "ncu-details.csv ends after 16777216 bytes",
		},
		{
			"a report over the limit", "", dirs + `open(dir + "/big", "wb").write(os.urandom(40 << 20))`,
			texts{"ncu-details.txt": txt, "ncu-details.csv": csv}, texts{"profile.ncu-rep": rep, "ncu-details.txt": txt, "ncu-details.csv": csv, "big": ""}, "over 33554432 bytes",
		},
		{
			"files in their place", "", dirs + `
os.makedirs(dir + "/ncu-details.txt/deep"); os.symlink("/etc/passwd", dir + "/ncu-details.csv")
os.mkdir(dir + "/ncu"); open(dir + "/ncu/details.csv", "w").write("planted"); os.mkdir(dir + "/profile.ncu"); open(dir + "/profile.ncu/rep", "w").write("planted")
`,
			texts{"profile.ncu-rep": rep, "ncu-details.txt": txt, "ncu-details.csv": csv, "ncu/": "", "ncu/details.csv": "planted", "profile.ncu/": "", "profile.ncu/rep": "planted"},
			texts{"profile.ncu-rep": rep, "ncu-details.txt": txt, "ncu-details.csv": csv}, "ncu/details.csv of profile.0 is omitted: profile_data/ncu-details.csv is there already",
		},
		{
			"a link in the directory's place", "", dirs + `
os.rename(dir, "elsewhere"); os.symlink("../kept", dir)`, nil, texts{}, "is no longer a directory",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			j := newProfileJob(t, 1, row.judge)
			j.standIn(t, "nvidia-smi", "exit 0")
			j.standIn(t, "ncu", row.ncu+"\n"+ncu)
			kept := filepath.Join(j.cmd.Dir, "kept", "ncu-details.txt")
			write(t, kept, "of the job")
			code, doc := j.run(t)
			must.Equal(t, "of the job", must.Read(t, kept))
			ev := at(doc, "runs", "profile.0")
			if code != 0 || at(ev, "run", "passed") != true || !strings.Contains(j.stderr.String(), row.note) {
				t.Fatalf("exit code %d, %v\n%s", code, ev, j.stderr.String())
			}
			if trace := at(ev, "profile", "trace"); row.trace != nil {
				must.Equal(t, row.trace, unzip(t, trace))
			} else if trace != "" {
				t.Error("there is a trace")
			}
			if row.left == nil {
				row.left = row.trace
			}
			left := files(t, filepath.Join(j.cmd.Dir, ProfileDir))
			if _, big := row.left["big"]; big {
				left["big"] = ""
			}
			must.Equal(t, row.left, left)
		})
	}
}

func TestProfileROCm(t *testing.T) {
	t.Parallel()
	j := newProfileJob(t, 1, "")
	j.standIn(t, "nvidia-smi", "exit 9")
	j.standIn(t, "rocm-smi", `echo '{"card0": {"Card Series": "Test MI"}}'`)
	j.standIn(t, "rocprofv3", rocprof)
	code, result := j.run(t)
	ev := at(result, "runs", "profile.0")
	if code != 0 || at(ev, "run", "passed") != true || at(ev, "run", "result", "benchmark.0.report") != "own" || at(ev, "profile", "profiler") != "rocPROF" {
		t.Fatalf("exit code %d, evaluation %v\n%s", code, ev, j.stderr.String())
	}
	want := map[string]string{"combined.pftrace": "onetwo", "1_kernel.csv": "a,b\n", "_code_object1.o": "code\n", "a/": "", "a/b": "below"}
	must.Equal(t, want, unzip(t, at(ev, "profile", "trace")))
	delete(want, "a/b")
	delete(want, "a/")
	want["a-b"] = "below"
	must.Equal(t, want, files(t, filepath.Join(j.cmd.Dir, ProfileDir)))
}

func TestProfileRefused(t *testing.T) {
	t.Parallel()
	for smi, want := range map[string]string{"exit 9": "needs a GPU", "echo GPU": "ncu is not on the PATH; install it"} {
		j := newProfileJob(t, 1, "")
		j.standIn(t, "nvidia-smi", smi)
		code, result := j.run(t)
		if message, _ := at(result, "error").(string); code != 1 || !strings.Contains(message, want) {
			t.Errorf("nvidia-smi that does %q: exit code %d, error %q", smi, code, message)
		}
	}
}

func TestPlantedProfileDataIsNotDelivered(t *testing.T) {
	t.Parallel()
	j, _ := runPy(t, map[string]string{"eval.py": report + `os.mkdir("profile_data"); open("profile_data/big", "w").write("x"); o("check: pass")`})
	if _, err := os.Lstat(filepath.Join(j.cmd.Dir, ProfileDir)); err == nil {
		t.Error("what the submission planted would be uploaded")
	}
}

// TestJudgeUnderAProfiler has the judge and its child, below a profiler, reach for the runner and the verdict.
func TestJudgeUnderAProfiler(t *testing.T) {
	t.Parallel()
	j := newProfileJob(t, 1, `
def reach(pid):
    for what in (lambda: os.kill(pid, 0), lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)), lambda: os.setpriority(os.PRIO_PROCESS, pid, 19)):
        try: what(); return "done"
        except PermissionError: pass
    return "as it should"
up = os.getppid()
while open("/proc/%d/comm" % up).read() != "runner.test\n":
    up = int(open("/proc/%d/stat" % up).read().rsplit(")")[1].split()[1])
o("reach: %s\n" % reach(up))
subprocess.run([sys.executable, "-c", "import os; os.write(3, b'reach: forged\\n')"], pass_fds=[3])
subprocess.Popen([sys.executable, "-c", "import os, time\nos.setsid()\nif os.fork(): os._exit(0)\ntime.sleep(60)", os.getcwd()])
time.sleep(0.3)
`)
	j.standIn(t, "nvidia-smi", "exit 0")
	j.standIn(t, "ncu", ncu)
	code, result := j.run(t)
	if got := at(result, "runs", "profile.0", "run", "result", "reach"); code != 0 || got != "as it should" {
		t.Errorf("exit code %d, %v, result %v\n%s", code, got, result, j.stderr.String())
	}
	if left := processesWith(t, j.dir); left != nil {
		t.Errorf("left: %v", left)
	}
}

// TestProfilesAreKeptApart has each program leave something beside and among the profiler's files, look for what the
// one before left, and change that.
func TestProfilesAreKeptApart(t *testing.T) {
	t.Parallel()
	j := newProfileJob(t, 2, `
import glob
out = max(glob.glob("tmp*/profile_data"), key=os.path.getmtime)
o("found: %s\n" % sorted(glob.glob("tmp*/carry") + glob.glob("**/note", recursive=True)))
for path in glob.glob("tmp*/profile_data/*"):
    if not path.startswith(out): open(path, "w").write("changed")
open(out + "/../carry", "w").close(); open(out + "/note", "w").write(sys.argv[2])
os.mkfifo(out + "/fifo"); os.chmod(out + "/note", 0o400)
`)
	j.standIn(t, "ncu", ncu)
	code, doc := j.run(t)
	for _, name := range []string{"profile.0", "profile.1"} {
		if got := at(doc, "runs", name, "run", "result", "found"); code != 0 || got != "[]" {
			t.Errorf("exit code %d, %s found %v\n%s", code, name, got, j.stderr.String())
		}
	}
	got := files(t, filepath.Join(j.cmd.Dir, ProfileDir))
	for name, text := range got {
		if strings.HasSuffix(name, "-note") && !strings.Contains(text, "/tmp") || text == "changed" {
			t.Errorf("%s has %q", name, text)
		}
	}
	if len(got) != 4 || strings.Contains(j.stderr.String(), "created by a program") {
		t.Errorf("delivered %v, log %q", got, j.stderr.String())
	}
}

// TestProfileArchiveIsBounded packs files that take no space, and files that take much.
func TestProfileArchiveIsBounded(t *testing.T) {
	t.Parallel()
	root, err := os.OpenRoot(t.TempDir())
	must.Do(t, err)
	defer root.Close() //nolint:errcheck // opened for reading
	e := &engine{submission: &submission{src: &sources{root: root}}}
	for name, text := range map[string]string{"zeros/a": string(make([]byte, 600)), "zeros/b": string(make([]byte, 600)), "noise/a": rand.Text() + rand.Text()} {
		write(t, filepath.Join(root.Name(), name), text)
	}
	for _, c := range []struct {
		dir         string
		limit, room int
		full        bool
	}{{"zeros", 1000, 1200, false}, {"zeros", 1000, 1199, true}, {"noise", 1000, 52, false}, {"noise", 100, 52, true}} {
		if archive, err := e.archive(c.dir, c.limit, int64(c.room), func(string) bool { return true }); errors.Is(err, errFull) != c.full || !c.full && (err != nil || len(archive) == 0) {
			t.Errorf("%+v: %d bytes, %v", c, len(archive), err)
		}
	}
}

// TestProfileIsBounded has a recording with directories in each other, one of them in the place of a trace.
func TestProfileIsBounded(t *testing.T) {
	t.Parallel()
	j := newProfileJob(t, 1, `
import glob
out = max(glob.glob("tmp*/profile_data"), key=os.path.getmtime)
for name in ("0.pftrace", "z"):
    at = os.open(out, os.O_RDONLY)
    for n in range(300): os.mkdir(name, dir_fd=at); next = os.open(name, os.O_RDONLY, dir_fd=at); os.close(at); at = next
    os.close(at)
`)
	j.standIn(t, "nvidia-smi", "exit 9")
	j.standIn(t, "rocm-smi", `echo '{"card0": {"Card Series": "Test MI"}}'`)
	j.standIn(t, "rocprofv3", rocprof)
	j.cmd.Env = append(j.cmd.Env, "KBNODE_TEST_FILES=100")
	code, _ := j.run(t)
	log := j.stderr.String()
	if code != 0 || strings.Contains(log, "too many open files") || !strings.Contains(log, "profile_data holds more than 16 directories in each other") {
		t.Errorf("exit code %d, log %s", code, log)
	}
	must.Equal(t, "onetwo", files(t, filepath.Join(j.cmd.Dir, ProfileDir))["combined.pftrace"])
}

// TestNamesOfProfiles has a program name the profiler's files as if they were lines of the log, or the result.
func TestNamesOfProfiles(t *testing.T) {
	t.Parallel()
	j := newProfileJob(t, 1, `
import glob
out = max(glob.glob("tmp*/profile_data"), key=os.path.getmtime).encode()
for name in (b"x\n+++ :trophy: passed", b"\x1b[2Jx", b"\xff", b"a\xe2\x80\xaeb", b"\xc2\xb5", b"result.json\r", b"\nresult.json"): open(out + b"/" + name, "w").close()
`)
	j.standIn(t, "ncu", ncu)
	code, _ := j.run(t)
	left := files(t, filepath.Join(j.cmd.Dir, ProfileDir))
	for _, own := range []string{"profile.ncu-rep", "ncu-details.txt", "ncu-details.csv"} {
		delete(left, own)
	}
	must.Equal(t, map[string]string{"x_+++ :trophy: passed": "", "_[2Jx": "", "_": "", "a_b": "", "µ": "", "result.json_": "", "_result.json": ""}, left)
	if code != 0 {
		t.Errorf("exit code %d\n%s", code, j.stderr.String())
	}
}
