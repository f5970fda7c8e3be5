package runner

import (
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestParsePopcornIsBounded reports as much as may be, and one key more.
func TestParsePopcornIsBounded(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for i := range result.MaxNames {
		fmt.Fprintf(&text, "%d: a\n", i)
	}
	if got, over := parsePopcorn([]byte(text.String() + "0: b\n")); over || len(got) != result.MaxNames || got.Get("0") != "b" {
		t.Errorf("%d keys: over %v, %d kept", result.MaxNames, over, len(got))
	}
	if got, over := parsePopcorn([]byte(text.String() + "check: pass\n0: b\n")); !over || got.Has("check") || got.Get("0") != "b" {
		t.Errorf("one key more: over %v, %d kept", over, len(got))
	}
}

func TestChildEnv(t *testing.T) {
	t.Parallel()
	for env, want := range map[string]bool{
		"": true, "LANG=C": true, "LANG=POSIX": true, "LANG=C.UTF-8": false, "LANG=C.utf8": false, "LC_ALL=xx_YY": false, "LC_ALL= LANG=C": true,
		"LC_CTYPE=C LANG=C.UTF-8": true, "LC_CTYPE= LANG=C.UTF-8": false, "LANG=../locale": true, "LANG=C PYTHONCOERCECLOCALE=0": false, "LC_CTYPE=xx_YY": true,
	} {
		if got := getenv(childEnv(strings.Fields(env)), "LC_CTYPE") == "C.UTF-8"; got != want {
			t.Errorf("%q: coerced is %v", env, got)
		}
	}
}

func TestVisibleGPUs(t *testing.T) {
	t.Parallel()
	gpus := []nvidiaGPU{{"A", "GPU-aa"}, {"B", "GPU-bb"}}
	for visible, want := range map[string]string{
		"0,1": "A B", "1": "B", "GPU-b": "B", "": "", "-1": "", "1,7,0": "B", "MIG-123": "A", "GPU-x,0": "",
	} {
		if got := strings.Join(visibleGPUs(gpus, visible, true), " "); got != want {
			t.Errorf("%q: got %q, want %q", visible, got, want)
		}
	}
	if got := visibleGPUs(gpus, "", false); len(got) != 2 {
		t.Errorf("without the variable: %v", got)
	}
}

func TestTorchIsFoundWithoutImport(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(name, text string) { must.Write(t, root, name, text) }
	write("usr/bin/python3.12", "")
	write("usr/lib/python3.12/os.py", "")
	write("usr/lib/python3.12/site-packages/torch/version.py", `from typing import Optional
__version__ = '2.5.1+cu124'
debug = False
cuda: Optional[str] = '12.4'
hip: Optional[str] = None
`)
	write("venv/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
	write("both/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = true\n")
	for _, dir := range []string{"venv", "both"} {
		link(t, filepath.Join(root, "usr/bin/python3.12"), filepath.Join(root, dir, "bin/python3"))
	}
	link(t, "python3.12", filepath.Join(root, "usr/bin/python3"))
	write("shim/python3", "#!/bin/sh\nexit 1\n")
	for dir, want := range map[string]torchVersion{
		"usr/bin": {"2.5.1+cu124", "12.4", ""}, "both/bin": {"2.5.1+cu124", "12.4", ""}, "venv/bin": {}, "shim": {},
	} {
		dirs, sure := pythonDirs(nil, filepath.Join(root, dir, "python3"))
		if sure == (dir == "shim") {
			t.Errorf("%s: sure is %v", dir, sure)
		}
		var got torchVersion
		for _, d := range dirs {
			if v, ok := torchIn(d); ok {
				got = v
				break
			}
		}
		if got != want {
			t.Errorf("%s: got %v, want %v", dir, got, want)
		}
	}
}

func TestPlatformAgreesWithPython(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "python3", "-c", "import platform; print(platform.platform())").Output()
	if err != nil {
		t.Skip("python3 cannot be asked: ", err)
	}
	if got := platform(); got != strings.TrimSpace(string(out)) {
		t.Errorf("got %s, want %s", got, out)
	}
}

func TestBanner(t *testing.T) {
	t.Parallel()
	const text = "GNU C Library (Debian GLIBC 2.36-9+deb12u10) stable release version 2.36.\nCopyright"
	for library, want := range map[string]string{
		"GNU C Library\x00" + strings.Repeat("x", 100_000) + text + strings.Repeat("x", 10_000): "2.36", text: "2.36",
		strings.Repeat("x", 1000) + text[:20]: "", text[:70]: "", "none": "", "": "",
	} {
		path := filepath.Join(t.TempDir(), "libc.so.6")
		write(t, path, library)
		if got := banner(path); got != want {
			t.Errorf("%.80s: got %q, want %q", library, got, want)
		}
	}
}

func TestCPUModel(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"processor\t: 0\nmodel name\t: First\n\nprocessor\t: 1\nmodel name\t: Last one @ 2.0: GHz\n": "Last one @ 2.0: GHz",
		"vendor_id\t: GenuineIntel\nmodel name\t: unknown\n":                                         "GenuineIntel",
		"processor\t: 0\nBogoMIPS\t: 50.00\n":                                                        "",
	} {
		path := filepath.Join(t.TempDir(), "cpuinfo")
		write(t, path, text)
		must.Equal(t, want, cpuModel(path))
	}
}

func TestCaseAtEnd(t *testing.T) {
	t.Parallel()
	const tests = "fence: kbnode\ntest-count: 2\ntest.0.spec: size: 1; seed: 1\n"
	for report, want := range map[string]string{
		"": "", "fence: kbnode\ntest-count: 2\n": "", "check: pass\n": "",
		tests:                           "in test 0 (size: 1; seed: 1); 0 of 2 had passed",
		tests + "test.0.status: pass\n": "after test 0 (size: 1; seed: 1); 1 of 2 had passed",
		tests + "test.0.status: fail\ntest.0.error: no\n":                                                                           "after test 0 (size: 1; seed: 1); 0 of 2 had passed",
		tests + "test.0.status: pass\ntest.1.spec: size: 2\n":                                                                       "in test 1 (size: 2); 1 of 2 had passed",
		"benchmark-count: 2\nbenchmark.0.spec: n: 1\nbenchmark.0.mean: 5\nbenchmark.0.raw.mean: 5\nbenchmark.1.spec: n: \x1b[2J2\n": "in benchmark 1 (n: 2); 1 of 2 had passed",
	} {
		must.Equal(t, want, caseAtEnd([]byte(report)))
	}
}

func TestDecodeAgreesWithPython(t *testing.T) {
	t.Parallel()
	script := `import itertools
for b in itertools.product((0x41, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc1, 0xc2, 0xe0, 0xe2, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff), repeat=3):
    b = bytes(b) + b"\x80Z"
    print(b.hex(), b.decode("utf-8", "replace"))`
	out, err := exec.CommandContext(t.Context(), "python3", "-X", "utf8", "-c", script).Output()
	if err != nil {
		t.Skip("python3 cannot be asked: ", err)
	}
	for line := range strings.Lines(string(out)) {
		var in []byte
		code, want, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if _, err := fmt.Sscanf(code, "%x", &in); err != nil {
			t.Fatal(err)
		}
		if got := decode(in); got != want {
			t.Errorf("%x: got %q, want %q", in, got, want)
		}
	}
}

// A slot's container sees its node's whole topology, but only the properties of its own
// GPU, and has one render node.
func TestKFDNames(t *testing.T) {
	t.Parallel()
	const nodes = "sys/class/kfd/kfd/topology/nodes/"
	gpu := func(location, render int) string {
		return fmt.Sprintf("cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\nlocation_id %d\ndomain 0\ndrm_render_minor %d\nunique_id 4260130962129551360\n", location, render)
	}
	for name, row := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"none":            {nil, nil},
		"CPUs":            {map[string]string{nodes + "0/properties": "cpu_cores_count 96\nsimd_count 0\n"}, nil},
		"a board's name":  {map[string]string{nodes + "2/properties": gpu(0x500, 128), "dev/dri/renderD128": "", "sys/bus/pci/devices/0000:05:00.0/product_name": "AMD Instinct MI300X OAM\n"}, []string{"AMD Instinct MI300X OAM"}},
		"no board's name": {map[string]string{nodes + "2/properties": gpu(0x500, 128), "dev/dri/renderD128": ""}, []string{"gfx942"}},
		"a partition": {map[string]string{
			nodes + "0/properties": "simd_count 0\n", nodes + "3/properties": gpu(0x503, 131), nodes + "4/gpu_id": "", // hidden
			"dev/dri/renderD131": "", "sys/bus/pci/devices/0000:05:00.0/product_name": "AMD Instinct MI300X OAM",
		}, []string{"AMD Instinct MI300X OAM"}},
		"another slot's node is told": {map[string]string{nodes + "2/properties": gpu(0x500, 128), nodes + "3/properties": gpu(0x2600, 136), "dev/dri/renderD136": ""}, []string{"gfx942"}},
		"in their order": {map[string]string{
			nodes + "10/properties": gpu(0x2600, 136), nodes + "9/properties": gpu(0x500, 128), "dev/dri/renderD128": "", "dev/dri/renderD136": "",
			"sys/bus/pci/devices/0000:05:00.0/product_name": "first", "sys/bus/pci/devices/0000:26:00.0/product_name": "second",
		}, []string{"first", "second"}},
		"rubbish": {map[string]string{nodes + "2/properties": "simd_count x\ndrm_render_minor ../../etc\n", nodes + "x/properties": "simd_count 1\ndrm_render_minor -1\n"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for file, text := range row.files {
				must.Write(t, root, file, text)
			}
			must.Equal(t, row.want, kfdNames(root+"/sys", root+"/dev"))
		})
	}
}

func TestCommandRefuses(t *testing.T) {
	for name, args := range map[string][]string{
		"an unknown option": {"--what"}, "an argument": {"task.json"}, "an empty name": {"--payload="},
		"two payloads": {"--payload", "a", "--config", "b"},
	} {
		if code := Command(t.Context(), args); code != exitUsage {
			t.Errorf("%s: exit code %d", name, code)
		}
	}
	must.Equal(t, 0, Command(t.Context(), []string{"--help"}))
}

func TestQuote(t *testing.T) {
	t.Parallel()
	got := quote([]string{"python3", "", "it's", "a b", "A-z_0@%+=:,./", "é", "$x"})
	if want := `python3 '' 'it'"'"'s' 'a b' A-z_0@%+=:,./ 'é' '$x'`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestParseLimits(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]timeLimit{
		"1": {1, "1"}, "1.50": {1.5, "1.5"}, "1e1": {10, "10.0"}, "-5": {-5, "-5"}, "-0.0": {0, "-0.0"}, "1e22": {1e22, "1e+22"},
		"true": {1, "1"}, "false": {0, "0"}, "null": {math.Inf(1), ""}, "Infinity": {math.Inf(1), "inf"},
	} {
		c := parse(t, `{"lang":"py","mode":"test","main":"a","sources":{"a":""},"test_timeout":`+text+`}`)
		if c.test != want || c.benchmark != (timeLimit{180, "180"}) {
			t.Errorf("%s: got %v, want %v, and %v of what is not given", text, c.test, want, c.benchmark)
		}
	}
}

func TestCompilerFlags(t *testing.T) {
	t.Parallel()
	c := parse(t, `{"lang":"cu","mode":"test","sources":{"a.cu":""},"compile_flags":["-lineinfo"],"include_dirs":["/usr"],"libraries":["cublas"],"defines":{"N":4}}`)
	must.Equal(t, "-lineinfo -I/usr -lcublas -DN=4", strings.Join(c.flags, " "))
}

// TestCheck refuses payloads that no node can run, and says what to write. The first is that of the
// guides for vendors.
func TestCheck(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		`{"lang": "py", "mode": "test", "files": {"main.py": "print('hello')"}, "tests": [], "benchmarks": [], "test_timeout": 180}`: `sources: is missing; write "sources" in place of "files"` + "\n" + `main: is missing; name the file to run, as in "main": "main.py"`,
		`{"lang": "py", "mode": "test", "sources": {"a.txt": "", "eval.py": ""}}`:                                                    `main: is missing; name the file to run, as in "main": "eval.py"`,
		`{"Lang": "py", "mod": "test", "source": {"main.py": ""}}`:                                                                   `lang: is missing; write "lang" in place of "Lang"` + "\n" + `mode: is missing; write "mode" in place of "mod"` + "\n" + `sources: is missing; write "sources" in place of "source"`,
		`{}`: `lang: is missing; write "lang": "py" or "cu"` + "\n" + `mode: is missing; write "mode": "test"` + "\n" + `sources: is missing; write the files, as in "sources": {"main.py": "…"}`,
		`{"lang": "py", "mode": "test", "files": 3, "sources": null, "main": "x"}`:                      "sources: is a null; it must be an object",
		`{"lang": "py", "mode": "test", "sources": {"../a.py": ""}, "main": "../a.py"}`:                 `"../a.py" leads out of the job's directory`,
		`{"lang": "cu", "mode": "test", "sources": {"` + strings.Repeat("a", 255) + `": ""}}`:           "",
		`{"lang": "cu", "mode": "test", "sources": {"b/` + strings.Repeat("a", 256) + `": ""}}`:         `is too long; Linux allows 255 bytes`,
		`{"lang": "cu", "mode": "test", "sources": {"a.cu": ""}, "headers": {"": ""}}`:                  `"" is not a file name`,
		`{"lang": "cu", "mode": "test", "sources": {"dir/a.cu": "", "/workdir/b.cu": ""}}`:              "", // the node's directory decides
		`{"lang": "cu", "mode": "test", "sources": {"a.cu": "", ".": ""}}`:                              `"." is the name of a directory`,
		`{"lang": "cu", "mode": "test", "sources": {"a.cu": "", "b/..": ""}}`:                           `"b/.." is the name of a directory`,
		`{"lang": "cu", "mode": "test", "sources": {"a.cu": ""}, "headers": {"./a.cu/x/y": ""}}`:        `"./a.cu/x/y" is below "a.cu", which is a file as well`,
		`{"lang": "cu", "mode": "test", "sources": {"/w/a": "", "/w/a/b": ""}}`:                         `"/w/a/b" is below "/w/a"`,
		`{"lang": "cu", "mode": "test", "sources": {}, "seed": "` + strings.Repeat("1", 130_000) + `"}`: "seed: has 130000 bytes",
	} {
		o, err := payload.ParseObject(doc)
		must.Do(t, err)
		must.Err(t, Check(o), want)
	}
}

// TestCanonical compares payloads: as a runner reads them, those are equal that differ in their labels and in how their JSON
// is written, and no others.
func TestCanonical(t *testing.T) {
	t.Parallel()
	canonical := func(doc string) string {
		o, err := payload.ParseObject(doc)
		must.Do(t, err)
		return payload.Canonical(o)
	}
	with := func(member string) string {
		return `{"lang": "py", "mode": "test", "main": "a", "sources": {"a": "x"}, "tests": [{"n": 1, "m": 2}], "seed": 1` + member + `}`
	}
	plain := with("")
	for _, label := range payload.Labels {
		for _, value := range []string{`"x"`, `null`, `[{"a": 1}]`, `1e400`} {
			labeled := with(`, "` + label + `": ` + value)
			must.Equal(t, canonical(plain), canonical(labeled))
			must.Equal(t, parse(t, plain), parse(t, labeled), cmp.AllowUnexported(config{}, timeLimit{}))
		}
	}
	// Of the others, no two are equal.
	texts := map[string]string{}
	for _, doc := range []string{
		plain, with(`, "seed": 2`), with(`, "seed": 1.0`), with(`, "seed": "1"`), with(`, "seed": true`), with(`, "seed": null`), with(`, "seed": NaN`), with(`, "seed": Infinity`),
		with(`, "seed": "\u00e9"`), with(`, "seed": "e\u0301"`), with(`, "seed": "\ud83d"`), with(`, "seed": "\ufffd"`), with(`, "seed": "\\ud83d"`), with(`, "seed": -0.0`), with(`, "seed": 0`), with(`, "seed": 0.0`),
		with(`, "seed": 12345678901234567890`), with(`, "seed": 12345678901234567891`), with(`, "seed": 0.1`), with(`, "seed": 0.10000000000000002`), with(`, "seed": []`), with(`, "seed": {}`), with(`, "seed": [[]]`),
		with(`, "tests": [{"m": 2, "n": 1}]`), with(`, "tests": [{"n": 1}, {"m": 2}]`), with(`, "sources": {"a": "x", "user_id": "1"}`), with(`, "sources": {"a": "x", "user_id": "2"}`),
		with(`, "sources": {"a": "x "}`), with(`, "sources": {"a": "x\n"}`), with(`, "sources": {"a": "x\r\n"}`), with(`, "sources": {"a": "", "b": "x"}`), with(`, "sources": {"b": "x", "a": ""}`), with(`, "arch": "90a"`), with(`, "User_id": 1`),
	} {
		text := canonical(doc)
		if other := texts[text]; other != "" {
			t.Errorf("%s is %s, as is %s", doc, text, other)
		}
		texts[text] = doc
	}
	for same, doc := range map[string]string{
		with(`, "seed": "é"`): with(`, "seed": "\u00e9"`), with(`, "seed": 1.50`): with(`, "seed":15e-1`), with(`, "seed": Infinity`): with(`, "seed": 1e999`), with(`, "seed": 2`): with(`, "seed": 3, "seed": 2`),
	} {
		must.Equal(t, canonical(doc), canonical(same))
	}
}

func parse(t *testing.T, doc string) *config {
	t.Helper()
	o, err := payload.ParseObject(doc)
	must.Do(t, err)
	c, err := parseConfig(o)
	must.Do(t, err)
	return c
}

// TestEverywhere finds where else a directory or a part of it is mounted, or what it is a part of.
func TestEverywhere(t *testing.T) {
	t.Parallel()
	mounts := []host.Mount{
		{Point: "/", Device: "0:50", Root: "/"}, {Point: "/dev/shm", Device: "0:60", Root: "/"},
		{Point: "/workdir", Device: "7:3", Root: "/builds/x"}, {Point: "/data", Device: "7:3", Root: "/builds/x/data"},
		{Point: "/src", Device: "7:3", Root: "/builds/x"}, {Point: "/other", Device: "7:3", Root: "/builds/xy"},
		{Point: "/disk", Device: "7:3", Root: "/"}, {Point: "/model", Device: "8:1", Root: "/builds/x"},
	}
	for dir, want := range map[string][]string{
		"/workdir": {"/workdir", "/data", "/src", "/disk/builds/x"}, "/workdir/sub": {"/workdir/sub", "/src/sub", "/disk/builds/x/sub"},
		"/dev/shm": {"/dev/shm"}, "/tmp": {"/tmp"},
	} {
		must.Equal(t, want, everywhere(mounts, []string{dir}))
	}
}
