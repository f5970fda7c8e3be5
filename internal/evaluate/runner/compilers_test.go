package runner

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/test/must"
)

// needCompilers skips a test where compilers are not shared.
func needCompilers(t *testing.T, names ...string) {
	t.Helper()
	if landlockVersion() == 0 || !canAnswer() {
		t.Skip("this kernel has no Landlock, or lets no process answer system calls")
	}
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(err)
		}
	}
}

// builder helps the programs of these tests. mine and theirs build the same in the job's directory and in the program's own.
const builder = report + `
import hashlib, os, subprocess, sys, tempfile
home = os.environ["HOME"]
def sh(*argv, **more): return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", **more)
def digest(path): return hashlib.sha256(open(path, "rb").read()).hexdigest()
def put(path, text):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    open(path, "w").write(text)
    return path
`

// sharedJob runs a job with these stand-ins for compilers, and returns what each of its programs reported of a build: the
// program before the others by its standard output, which must look like torch's.
func sharedJob(t *testing.T, user int, build string, standIns map[string]string, env ...string) []string {
	t.Helper()
	program := builder + build + "\nprint('-DTORCH_EXTENSION_NAME', got)\no('got: ' + got + '\\ncheck: pass\\n')\n"
	j := newConfigJob(t, map[string]any{
		"lang": "py", "mode": "leaderboard", "main": "eval.py", "benchmarks": []map[string]int{{"a": 1}},
		"sources": map[string]string{"submission.py": program, "eval.py": program},
	}, env...)
	for name, script := range standIns {
		j.standIn(t, name, script)
	}
	if user != 0 {
		j.become(t, user)
	}
	_, result := j.run(t)
	first, _ := at(result, "runs", "test", "compilation", "stdout").(string)
	_, first, _ = strings.Cut(first, "-DTORCH_EXTENSION_NAME ")
	got := []string{strings.TrimSpace(first)}
	for _, run := range []string{"test", "benchmark", "leaderboard"} {
		text, _ := at(result, "runs", run, "run", "result", "got").(string)
		if text == "" {
			t.Fatalf("%s is %v\n%s", run, at(result, "runs", run), j.stderr.String())
		}
		got = append(got, text)
	}
	return got
}

// once makes a product that is another one each time.
const once = `
while [ "$1" ]; do [ "$1" = -o ] && out=$2; shift; done
echo "$$ $(date +%s%N)" >"$out"; chmod +x $out`

// TestCompiledOnce builds as libraries do, in each program of a job, and in one that follows.
func TestCompiledOnce(t *testing.T) {
	t.Parallel()
	needCompilers(t)
	const ninja = `put(home + "/.cache/torch_extensions/ext/main.cpp", "#include <vector>\n#include \"x.h\"\nint f() { std::vector<int> v(3); return FOO + v.size() + sizeof(__FILE__); }\n")
put(home + "/.cache/torch_extensions/ext/x.h", "#define FOO 3\n")
d = home + "/.cache/torch_extensions/ext"
put(d + "/build.ninja", f"""ninja_required_version = 1.3
rule compile
  command = c++ -MMD -MF $out.d -g -fPIC -O1 -c $in -o $out
  depfile = $out.d
  deps = gcc
rule link
  command = c++ $in -shared -o $out
build main.o: compile {d}/main.cpp
build ext.so: link main.o
""")
p = sh("ninja", "-v", cwd=d)
assert p.returncode == 0, p.stdout
import ctypes; assert ctypes.CDLL(d + "/ext.so")._Z1fv() > 0
assert "no work" in sh("ninja", cwd=d).stdout
got = digest(d + "/ext.so")`
	for name, c := range map[string]struct {
		build    string
		needs    []string
		standIns map[string]string
	}{
		"load_inline with stubs": {`put(home + "/.cache/torch_extensions/x/main.cpp", "int f;")
d = home + "/.cache/torch_extensions/x"
for c in "c++ -c main.cpp -o main.o", os.environ["PYTORCH_NVCC"] + " -ccbin c++ -c main.cpp -o cuda.o", "c++ main.o cuda.o -shared -o x.so":
    p = sh(*c.split(), cwd=d)
    assert p.returncode == 0, p.stderr
got = open(d + "/x.so").read().strip() + open(d + "/cuda.o").read()`, nil, map[string]string{"c++": once, "nvcc": once}},
		"Triton's launcher": {`with tempfile.TemporaryDirectory() as d:
    put(d + "/__triton_launcher.c", "int launch(void) { return 7; }\n")
    import shutil
    p = sh(shutil.which("gcc"), d + "/__triton_launcher.c", "-O3", "-shared", "-fPIC", "-Wno-psabi", "-o", d + "/l.so", "-L" + d, "-I" + d)
    assert p.returncode == 0, p.stderr
    got = digest(d + "/l.so")`, []string{"gcc"}, nil},
		"Triton's launcher with a stub": {`with tempfile.TemporaryDirectory() as d:
    put(d + "/__triton_launcher.c", "int launch(void) { return 7; }\n")
    p = sh("gcc", d + "/__triton_launcher.c", "-o", d + "/l.so", "-I" + d)
    assert p.returncode == 0, p.stderr
    got = open(d + "/l.so").read()`, nil, map[string]string{"gcc": once}},
		"ninja": {ninja, []string{"c++", "ninja"}, nil},
		"what CC names": {`p = sh("sh", "-c", "$CC -x -o out")
assert "/" in os.environ["CC"], os.environ["CC"]
assert p.returncode == 0, p.stderr
got = open("out").read()`, nil, map[string]string{"cc": once, "c++": once}},
		"messages": {`p = sh("gcc", "-c", put(home + "/x.c", "#warning from here\n"), "-o", home + "/x.o")
assert p.returncode == 0 and home + "/x.c" in p.stderr, p.stderr
got = hashlib.sha256(p.stderr.encode()).hexdigest()`, []string{"gcc"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			needCompilers(t, c.needs...)
			for _, user := range []int{0, 991} { // the runner hides from its own user, too
				got := sharedJob(t, user, c.build, c.standIns, "CC=c++")
				for _, g := range got {
					must.Equal(t, got[0], g)
				}
				if c.standIns != nil { // a job that follows starts empty
					if again := sharedJob(t, user, c.build, c.standIns, "CC=c++"); again[0] == got[0] {
						t.Errorf("another job got %q, too", again[0])
					}
				}
			}
		})
	}
}

// TestCUDAIsCompiledOnce compiles a task in lang cu. What eval.out does shows which compiler made it.
func TestCUDAIsCompiledOnce(t *testing.T) {
	t.Parallel()
	needCompilers(t)
	j := newCUDAJob(t, map[string]any{"mode": "leaderboard", "benchmarks": []map[string]int{{"a": 1}}})
	j.standIn(t, "nvcc", `[ "$1" = --version ] && { echo v; exit 0; }
echo "ptxas info of $$" >&2
cat >eval.out <<END
#!/bin/sh
echo "check: pass
made: $$ $(date +%s%N)" >&3
END
chmod +x eval.out`)
	_, result := j.run(t)
	made, _ := at(result, "runs", "test", "run", "result", "made").(string)
	messages, _ := at(result, "runs", "test", "compilation", "stderr").(string)
	for _, name := range []string{"test", "benchmark", "leaderboard"} {
		ev := at(result, "runs", name)
		if made == "" || at(ev, "run", "result", "made") != made || !strings.HasPrefix(messages, "ptxas info") || at(ev, "compilation", "stderr") != messages {
			t.Errorf("%s is %v\n%s", name, ev, j.stderr.String())
		}
	}
}

// TestNotShared builds what depends on more than files that are looked at, or what another program may not get. Each
// program compiles for itself, and gets what it would have got.
func TestNotShared(t *testing.T) {
	t.Parallel()
	needCompilers(t, "gcc")
	for name, build := range map[string]string{
		"a source from a pipe": `p = subprocess.run(["gcc", "-x", "c", "-", "-c", "-o", home + "/x.o"], input="int x;", text=True)
assert p.returncode == 0 and os.path.exists(home + "/x.o")`,
		"a link to the source": `os.symlink(put(home + "/real.c", "int x;"), home + "/x.c")
assert sh("gcc", "-c", home + "/x.c", "-o", home + "/x.o").returncode == 0`,
		"a compiler of the program's own": `put(home + "/bin/cc1", "#!/bin/sh\nexit 3\n"); os.chmod(home + "/bin/cc1", 0o755)
assert sh("gcc", "-B" + home + "/bin", "-c", put(home + "/x.c", "int x;"), "-o", home + "/x.o").returncode != 0`,
		"a file of the kernel's": `p = sh("gcc", "-E", put(home + "/x.c", "#include \"/proc/self/status\"\n"))
assert p.returncode == 0 and "/proc/self/status" in p.stdout, p`,
		"a wrong option":  `assert "unrecognized" in sh("gcc", "-fnothing", put(home + "/x.c", "int x;")).stderr`,
		"a faulty source": `p = sh("gcc", "-c", put(home + "/x.c", "int 1x;")); assert p.returncode == 1 and home + "/x.c:1:5" in p.stderr, p`,
		"a product by another way": `for way in os.path.relpath(home), os.path.dirname(home) + "//" + os.path.basename(home):
    p = sh("gcc", "-c", put(home + "/x.c", "int x;"), "-o", way + "/x.o"); assert p.returncode == 0 and os.path.exists(home + "/x.o"), p
    os.remove(home + "/x.o")`,
		"modes": `for mask, mode in (0o077, 0o700), (0o002, 0o775), (0, 0o777):
    os.umask(mask); assert sh("gcc", "-shared", put(home + "/x.c", "int x;"), "-o", home + "/x.so").returncode == 0
    assert os.stat(home + "/x.so").st_mode & 0o777 == mode, (mask, oct(os.stat(home + "/x.so").st_mode))`,
		"a full device": `assert subprocess.run(["gcc", "-E", put(home + "/x.c", "int x;")], stdin=subprocess.DEVNULL, stdout=open("/dev/full", "w")).returncode == 1`,
		"messages in their order": `script = put(home + "/x.c", "#warning first\n#warning second\nint x;\n")
p = subprocess.run(["gcc", "-E", "-v", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
assert p.stdout.index("cc1") < p.stdout.index("int x;") < p.stdout.index("COMPILER_PATH"), p.stdout`,
		"names of directories": `with tempfile.TemporaryDirectory() as d:
    for argv in (["-c", "-g"], ["-c", "-g", "-gz"], ["-M"], ["-c", "-DF=__FILE__"], ["-E"]):
        put(d + "/x.c", "#ifdef F\nconst char *f = F;\n#endif\nint x;\n"); put(d + "/real.o", "")
        assert sh("gcc", *argv, d + "/x.c", "-o", d + "/x.o").returncode == 0
        assert sh(os.path.realpath(os.environ["KBNODE_COMPILERS"] + "/.real/gcc"), *argv, d + "/x.c", "-o", d + "/real.o").returncode == 0
        assert digest(d + "/x.o") == digest(d + "/real.o"), argv`,
		"the time of a source": `put(home + "/x.c", "const char *changed = __TIMESTAMP__;"); os.utime(home + "/x.c", (10**9, 10**9))
assert sh("gcc", "-S", home + "/x.c", "-o", home + "/x.s").returncode == 0 and "2001" in open(home + "/x.s").read()`,
		"the time of day": `import time
for made in "__TIME__", "NOW":
    put(home + "/x.c", f"const char *made = {made};"); times = []
    for i in range(2):
        assert sh("gcc", "-S", "-DNOW=__TIME__" if made == "NOW" else "-O1", home + "/x.c", "-o", home + "/x.s").returncode == 0
        times.append(digest(home + "/x.s")); os.remove(home + "/x.s"); time.sleep(1)
    assert times[0] != times[1]`,
		"two sources of the same content": `for answer, d in enumerate("ab"):
    put(home + f"/{d}/x.h", "#pragma once\n#include \"y.h\"\n"); put(home + f"/{d}/y.h", f"#undef ANSWER\n#define ANSWER 410{answer}\n"); os.utime(home + f"/{d}/x.h", (answer, answer))
assert sh("gcc", "-S", put(home + "/x.c", "#include \"a/x.h\"\n#include \"b/x.h\"\nint answer = ANSWER;\n"), "-o", home + "/x.s").returncode == 0
assert "4101" in open(home + "/x.s").read()`,
		"a link of another name": `import shutil
for name, to in ("other", shutil.which("gcc")), ("another", "other"):
    os.symlink(to, home + "/" + name)
    p = sh(home + "/" + name, "-c", put(home + "/x.c", "int x;"), "-o", home + "/x.o"); assert p.returncode == 0 and os.path.exists(home + "/x.o"), p.stderr
    os.remove(home + "/x.o")
os.environ["PATH"] += ":" + home; assert sh("another", "--version").returncode == 0`,
		"another directory":   `os.mkdir(home + "/d"); put(home + "/d/x.c", "int x;"); assert sh("gcc", "-c", "x.c", cwd=home + "/d").returncode == 0 and os.path.exists(home + "/d/x.o")`,
		"no such source":      `assert "No such file" in sh("gcc", "-c", home + "/none.c").stderr`,
		"an argument's bytes": `assert sh("gcc", b"-DX=\xff", "-c", put(home + "/x.c", "int x;"), "-o", home + "/x.o").returncode == 0`,
		"a directory to make": `assert sh("gcc", "-c", put(home + "/x.c", "int x;"), "-o", home + "/none/x.o").returncode != 0`,
		"by its own path":     `import shutil; assert sh(os.path.realpath(os.environ["KBNODE_COMPILERS"] + "/.real/gcc"), "-c", put(home + "/x.c", "int x;"), "-o", home + "/x.o").returncode == 0`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sharedJob(t, 0, build+"\ngot = 'well'", nil)
		})
	}
}

// TestReadOnlyOutput has a compiler write to a file that another user than root may not write to.
func TestReadOnlyOutput(t *testing.T) {
	t.Parallel()
	needCompilers(t, "gcc")
	sharedJob(t, 991, `os.chmod(put(home + "/x.s", ""), 0o444); p = sh("gcc", "-S", put(home + "/x.c", "int x;"), "-o", home + "/x.s")
assert p.returncode == 1 and "denied" in p.stderr, p
got = "well"`, nil)
}

// TestPoisonedCompiler has programs try to make one that follows load what they planted: the last one compiles an honest
// source with the shared compiler and without it, and both must be the same.
func TestPoisonedCompiler(t *testing.T) {
	t.Parallel()
	needCompilers(t, "gcc")
	const honest = `
def honest(*more):
    put("judge.c", "#include \"judge.h\"\nint answer(void) { return ANSWER; }\n")
    put("judge.h", "#define ANSWER 41\n")
    return [*more, "-I.", "-O1", "-shared", "-fPIC", "-o", "judge.so", "judge.c"]
def run(argv, path="gcc"):
    p = sh(path, *argv)
    return p.returncode, digest("judge.so") if os.path.exists("judge.so") else None
`
	const judge = builder + honest + `
for more in [], ["-I" + home], ["-I" + os.path.relpath(home)], ["-I" + os.path.dirname(home) + "//" + os.path.basename(home)], ["-B" + home], ["-L" + home], ["@" + put(home + "/args", "-DX\n")], ["-specs=" + put(home + "/specs", "")], ["-fplugin=" + home + "/none.so"]:
    argv = honest(*more)
    if os.path.exists("judge.so"): os.remove("judge.so")
    shared = run(argv)
    if os.path.exists("judge.so"): os.remove("judge.so")
    alone = run(argv, os.path.realpath(os.environ["KBNODE_COMPILERS"] + "/.real/gcc"))
    if shared != alone: o(f"poisoned: {more[:1]}\n")
o("check: pass\n")
`
	for name, attack := range map[string]string{
		"a header swapped": `
import threading
stop = False
def swap():
    while not stop:
        for text in "#define ANSWER 41\n", "#define ANSWER 66\n":
            open("judge.h", "w").write(text)
            put("other.h", text); os.rename("other.h", "judge.h")
t = threading.Thread(target=swap); t.start()
for i in range(40): run(honest())
stop = True; t.join()
`,
		"a header mapped": `
import mmap, threading
argv = honest()
m = mmap.mmap(os.open("judge.h", os.O_RDWR), 0)
stop = False
def swap():
    while not stop: m[15:17] = b"66"; m[15:17] = b"41"
t = threading.Thread(target=swap); t.start()
for i in range(40): run(argv)
stop = True; t.join()
`,
		"a header ahead of it": `
for where in ".", home:
    argv = honest("-I" + home)
    put(where + "/stdc-predef.h", "#define answer forged\n")
    run(argv)
    os.remove(where + "/stdc-predef.h")
`,
		"a home by another way": `
for way in os.path.relpath(home), os.path.dirname(home) + "//" + os.path.basename(home), os.path.dirname(home) + "/./" + os.path.basename(home):
    argv = honest("-I" + way)
    put(home + "/stdc-predef.h", "#define answer forged\n")
    run(argv)
    os.remove(home + "/stdc-predef.h")
`,
		"a link and back": `
argv = honest()
put("evil.h", "#define ANSWER 66\n")
os.remove("judge.h"); os.symlink("evil.h", "judge.h")
run(argv)
`,
		"a compiler of its own": `
for name in "cc1", "as", "ld", "collect2", "gcc":
    for at in home, ".":
        put(at + "/" + name, "#!/bin/sh\nexec cp /bin/true judge.so\n"); os.chmod(at + "/" + name, 0o755)
for more in ["-B" + home], ["-B."], ["-wrapper", home + "/cc1"], ["--sysroot=" + home], ["-no-canonical-prefixes", "-B" + home + "/"]: run(honest(*more))
os.environ["GCC_EXEC_PREFIX"] = home + "/"; run(honest())
os.environ["COMPILER_PATH"] = home; run(honest())
os.environ["PATH"] = home + ":" + os.environ["PATH"]; sh(os.environ["KBNODE_COMPILERS"] + "/gcc", *honest())
`,
		"a specs file, an argument file": `
put(home + "/specs", "*cc1:\n+ -DANSWER=66 -Wno-all\n\n"); run(honest("-specs=" + home + "/specs"))
put(home + "/args", "-DX -DANSWER=66\n"); run(honest("@" + home + "/args"))
put("specs", "*cc1:\n+ -DANSWER=66\n\n"); run(honest())
`,
		"a plugin, a library before all": `
lib = put(home + "/none.c", '#include <stdlib.h>\n#include <unistd.h>\nint plugin_is_GPL_compatible; int plugin_init(void *a, void *b) { return 0; }\n__attribute__((constructor)) static void f(void) { unsetenv("LD_PRELOAD"); unsetenv("LD_AUDIT"); unsetenv("LD_LIBRARY_PATH"); system("echo forged >judge.so"); }\n')
real = os.path.realpath(os.environ["KBNODE_COMPILERS"] + "/.real/gcc")
assert sh(real, "-shared", "-fPIC", "-o", home + "/none.so", lib).returncode == 0
run(honest("-fplugin=" + home + "/none.so"))
for v in "LD_PRELOAD", "LD_AUDIT":
    os.environ[v] = home + "/none.so"; run(honest()); del os.environ[v]
os.environ["LD_LIBRARY_PATH"] = home
for name in "libc.so.6", "libz.so.1", "libgmp.so.10": sh("cp", home + "/none.so", home + "/" + name)
run(honest())
`,
		"the runner's answers": `
import socket, threading, time
d = os.environ["KBNODE_COMPILERS"]
def ask(text, wait):
    s = socket.socket(socket.AF_UNIX); s.settimeout(wait)
    os.chdir(d)
    try:
        s.connect(".socket"); s.sendall(text)
        return s.recv(100)
    except OSError: return b""
here = os.getcwd()
for i in range(200): threading.Thread(target=ask, args=(b'{"Name":"gcc"', 2), daemon=True).start()
for text in b"", b"{}", b"[" * 100000, b'{"Name":"gcc","Argv":null,"Dir":"/"}', b'{"Name":"../../bin/sh","Argv":["sh"],"Dir":"/"}', b'{"Name":"gcc","Argv":["gcc","--version"],"Dir":"relative"}', b"\xff" * 5000000:
    ask(text, 1)
os.chdir(here)
`,
		"compilers that do not end": `
for i in range(30): subprocess.Popen(["gcc", "-c", "-o", home + f"/{i}.o", "-x", "c", put(f"loop{i}.h", "int x[1000000] = { [0 ... 999999] = 1 };\n#define A(x) x x x x x x x x x x\n A(A(A(A(A(A(A(int f;)))))))\n")], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
import time; time.sleep(1)
`,
		"what compilers write": `
argv = honest()
for out in "/proc/self/fd/1", "/dev/shm/judge.so", "/etc/judge.so", "../judge.so", "judge.h", "judge.c", "/dev/null", home:
    sh("gcc", "-c", "judge.c", "-I.", "-o", out); sh("gcc", "-MD", "-MF", out, "-I.", "-c", "judge.c", "-o", "x.o")
`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newConfigJob(t, map[string]any{
				"lang": "py", "mode": "leaderboard", "main": "eval.py", "benchmarks": []map[string]int{{"a": 1}},
				"sources": map[string]string{"submission.py": builder + honest + attack + "\nprint('-DTORCH_EXTENSION_NAME done')\n", "eval.py": judge},
			})
			_, result := j.run(t)
			if out, _ := at(result, "runs", "test", "compilation", "stdout").(string); !strings.Contains(out, "done") {
				t.Errorf("the attack ended early: %v\n%s", at(result, "runs", "test", "compilation"), j.stderr.String())
			}
			for _, name := range []string{"test", "benchmark", "leaderboard"} {
				if run := at(result, "runs", name, "run"); at(run, "passed") != true || at(run, "result", "poisoned") != nil {
					t.Errorf("%s is %v\n%s", name, run, j.stderr.String())
				}
			}
		})
	}
}

// TestCompilersEnd looks for compilers that outlive the program that asked for them.
func TestCompilersEnd(t *testing.T) {
	t.Parallel()
	needCompilers(t)
	marker := filepath.Base(t.TempDir()) + "-compiler"
	_, result := runPy(t, map[string]string{"submission.py": `import subprocess, time
subprocess.Popen(["gcc", "` + marker + `"], stdin=subprocess.DEVNULL)
time.sleep(1)
`, "eval.py": report + `import glob
for f in glob.glob("/proc/[0-9]*/cmdline"):
    try: text = open(f, "rb").read()
    except OSError: continue
    if b"` + marker + `" in text: o("alive: yes\n")
o("check: pass\n")
`}, "PATH="+os.Getenv("PATH"))
	if run := at(result, "runs", "test", "run"); at(run, "passed") != true || at(run, "result", "alive") != nil {
		t.Errorf("the run is %v", run)
	}
}

// TestReadsWhatWasSeen has a program change a source between a compiler's two looks at it: the second one finds what the
// first did, and no later program gets a product of anything else.
func TestReadsWhatWasSeen(t *testing.T) {
	t.Parallel()
	needCompilers(t)
	const slow = `[ -e in.h ]; sleep 0.6; cat in.h >out`
	j := newConfigJob(t, map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py", "tests": []map[string]int{{"a": 1}},
		"sources": map[string]string{
			"submission.py": builder + `
import time
put("in.h", "honest")
p = subprocess.Popen(["cc"], stdin=subprocess.DEVNULL)
time.sleep(0.3)
put("in.h", "forged")
p.wait()
print("-DTORCH_EXTENSION_NAME", open("out").read())
`,
			"eval.py": builder + `
put("in.h", "honest")
sh("cc")
o("got: " + open("out").read() + "\ncheck: pass\n")
`,
		},
	})
	j.standIn(t, "cc", slow)
	_, result := j.run(t)
	first, _ := at(result, "runs", "test", "compilation", "stdout").(string)
	if got := at(result, "runs", "test", "run", "result", "got"); got != "honest" || !strings.Contains(first, "honest") {
		t.Errorf("got %v, the program before %q\n%s", got, first, j.stderr.String())
	}
}

// BenchmarkLeaderboard times a leaderboard job whose submission is a C++ extension, as ninja builds those of torch, with
// and without the runner's products. They take turns.
func BenchmarkLeaderboard(b *testing.B) {
	if landlockVersion() == 0 || !canAnswer() {
		b.Skip("this kernel has no Landlock, or lets no process answer system calls")
	}
	if _, err := exec.LookPath("g++"); err != nil {
		b.Skip(err)
	}
	self, err := os.Executable()
	must.Do(b, err)
	const submission = `import os, subprocess
d = os.environ["HOME"] + "/.cache/torch_extensions/ext"
os.makedirs(d)
open(d + "/main.cpp", "w").write("#include <iostream>\n#include <regex>\nbool f(const char *s) { return std::regex_match(s, std::regex(\"a+\")); }\n")
for argv in (["c++", "-fPIC", "-O2", "-std=c++17", "-c", "main.cpp", "-o", "main.o"], ["c++", "main.o", "-shared", "-o", "ext.so"]):
    subprocess.run(argv, cwd=d, check=True, stdin=subprocess.DEVNULL)
`
	config, err := json.Marshal(map[string]any{
		"lang": "py", "mode": "leaderboard", "main": "eval.py", "benchmarks": []map[string]int{{"a": 1}},
		"sources": map[string]string{"submission.py": submission, "eval.py": "import submission\n" + report + `o("check: pass\n")`},
	})
	must.Do(b, err)
	run := func(more ...string) float64 {
		cmd := exec.CommandContext(b.Context(), self)
		cmd.Dir = b.TempDir()
		cmd.Env = append(append(os.Environ(), "KBNODE_TEST_RUNNER=1", "BUILDKITE=", "KERNELBOT_PAYLOAD="+payload.Encode(config)), more...)
		start := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "not passed") {
			b.Fatalf("run: %v\n%s", err, out)
		}
		return time.Since(start).Seconds()
	}
	var alone, shared float64
	rounds := 0
	for b.Loop() {
		alone += run("KBNODE_TEST_COMPILERS=0")
		shared += run()
		rounds++
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(alone/float64(rounds), "alone-s")
	b.ReportMetric(shared/float64(rounds), "once-s")
	b.ReportMetric(alone/shared, "ratio")
}

// TestLargeProduct makes files of holes, which take no room as they are made: they are not kept.
func TestLargeProduct(t *testing.T) {
	t.Parallel()
	needCompilers(t, "truncate")
	// cp compares what it opens with what it looked at.
	sharedJob(t, 0, "put('in', 'x'); assert sh('cc').returncode == 0 and open('out').read() == 'x'\ngot = 'well'", map[string]string{"cc": "cp in out"})
	build := "p = sh('cc'); assert p.returncode == 0, p\ngot = open('out').read(100).strip(chr(0)); assert os.path.getsize('out') == 300 << 20; os.remove('out')"
	got := sharedJob(t, 0, build, map[string]string{"cc": "echo $$ $(date +%N) >out; truncate -s 300M out"})
	if got[1] == got[2] || got[2] == got[3] {
		t.Errorf("programs got %q", got)
	}
}

// TestCompilerInReach has programs find a compiler where they can write: it is not shared, because one could have changed it.
func TestCompilerInReach(t *testing.T) {
	t.Parallel()
	needCompilers(t)
	j := newConfigJob(t, map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py", "tests": []map[string]int{{"a": 1}},
		"sources": map[string]string{
			"submission.py": builder + "sh('g++', '-o', home + '/x'); print('-DTORCH_EXTENSION_NAME', open(home + '/x').read())",
			"eval.py":       builder + "sh('g++', '-o', home + '/x'); o('got: ' + open(home + '/x').read() + 'check: pass\\n')",
		},
	})
	must.Do(t, os.Mkdir(filepath.Join(j.cmd.Dir, "bin"), 0o755))
	must.Program(t, filepath.Join(j.cmd.Dir, "bin", "g++"), "#!/bin/sh\n"+once)
	j.cmd.Env = append(j.cmd.Env, "PATH="+filepath.Join(j.cmd.Dir, "bin")+":"+getenvLast(j.cmd.Env, "PATH"))
	_, result := j.run(t)
	first, _ := at(result, "runs", "test", "compilation", "stdout").(string)
	if got, _ := at(result, "runs", "test", "run", "result", "got").(string); got == "" || strings.Contains(first, got) {
		t.Errorf("both programs got %q\n%s", got, j.stderr.String())
	}
}

// TestPathsToTheHome has programs name their home in ways that do not begin as its path does. A later one must not get what was
// made of another's header, and each gets its product there.
func TestPathsToTheHome(t *testing.T) {
	t.Parallel()
	needCompilers(t, "gcc")
	const build = builder + `
def build(answer, way):
    put(home + "/inc/answer.h", f"#define ANSWER {answer}\n")
    p = sh("gcc", "-S", "-I" + way + "/inc", "-o", way + "/x.s", put("x.c", '#include "answer.h"\nint answer(void) { return ANSWER; }\n'))
    assert p.returncode == 0, p.stderr
    return str(answer) in open(home + "/x.s").read()
ways = os.path.relpath(home), os.path.dirname(home) + "//" + os.path.basename(home), home + "/../" + os.path.basename(home), home
`
	for name, job := range map[string]func(t *testing.T, submission, judge string) *job{
		"in a job": func(t *testing.T, submission, judge string) *job {
			return newConfigJob(t, map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{"submission.py": submission, "eval.py": judge}})
		},
		"in a container": func(t *testing.T, submission, judge string) *job { return containerJob(t, submission, report+judge) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := job(t, build+`for way in ways: build(4166, way)
print("-DTORCH_EXTENSION_NAME done")
`, build+`o(f"honest: {[build(4141, way) for way in ways]}\ncheck: pass\n")`)
			_, result := j.run(t)
			first, _ := at(result, "runs", "test", "compilation", "stdout").(string)
			if got := at(result, "runs", "test", "run", "result", "honest"); got != "[True, True, True, True]" || !strings.Contains(first, "done") {
				t.Errorf("got %v, the program before %v\n%s", got, at(result, "runs", "test", "compilation"), j.stderr.String())
			}
		})
	}
}

// TestCompilerReachesNoMore has a compiler list its TMPDIR, where the program that asks put links to files of the runner.
func TestCompilerReachesNoMore(t *testing.T) {
	t.Parallel()
	needCompilers(t, "gcc")
	j := containerJob(t, builder+`
d = os.environ["KBNODE_COMPILERS"]
source = put(home + "/x.c", r"""
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
int plugin_is_GPL_compatible;
int plugin_init(void *a, void *b) {
	static char text[4096];
	int in = open(getenv("TMPDIR"), O_RDONLY), out = open(getenv("OUT"), O_WRONLY | O_CREAT, 0644);
	if (write(out, "seen:", 5) != 5 || in < 0) _exit(0);
	long n = read(in, text, sizeof text);
	if (n > 0 && write(out, text, n) != n) _exit(1);
	_exit(0);
}
""")
assert sh(os.path.realpath(d + "/.real/gcc"), "-shared", "-fPIC", "-o", home + "/x.so", source).returncode == 0
for name in os.listdir(d):
    at = d + "/" + name
    if name.startswith(".") and os.path.isdir(at) and name != ".real":
        os.rmdir(at); os.symlink("/proc/self/status", at)
if not os.path.exists(d + "/.empty"): os.symlink("/proc/self/status", d + "/.empty")
p = sh("gcc", "-S", "-fplugin=" + home + "/x.so", "-o", home + "/x.s", source, env={**os.environ, "OUT": home + "/out"})
print("-DTORCH_EXTENSION_NAME", p.returncode, open(home + "/out").read())
`, report+`o("check: pass\n")`)
	_, result := j.run(t)
	if out, _ := at(result, "runs", "test", "compilation", "stdout").(string); !strings.Contains(out, "0 seen:") || strings.Contains(out, "Pid:") {
		t.Errorf("the compiler has %v\n%s", at(result, "runs", "test", "compilation"), j.stderr.String())
	}
}

// TestKilledClient kills clients that put a product in its place: there is a whole one, or none.
func TestKilledClient(t *testing.T) {
	t.Parallel()
	needCompilers(t, "truncate")
	sharedJob(t, 0, `import time
os.mkdir("built")
for i in range(12):
    p = subprocess.Popen(["cc"], stdin=subprocess.DEVNULL, cwd="built")
    while not os.listdir("built") and p.poll() is None: pass
    time.sleep(0.003 * i); p.terminate(); p.wait()
    assert not os.path.exists("built/out") or os.path.getsize("built/out") == 200 << 20, os.path.getsize("built/out")
    for name in os.listdir("built"): os.remove("built/" + name)
os.rmdir("built")
got = "well"`, map[string]string{"cc": "truncate -s 200M out"})
}
