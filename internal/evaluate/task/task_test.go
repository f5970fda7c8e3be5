package task

import (
	"bufio"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/std/yamlfile"
	"github.com/gpu-mode/kbnode/test/must"
)

// problem writes a problem's files to their own directory.
func problem(t *testing.T, archive string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range txtar.Parse([]byte(archive)).Files {
		name := filepath.Join(dir, f.Name)
		must.Do(t, os.MkdirAll(filepath.Dir(name), 0o755))
		must.Do(t, os.WriteFile(name, f.Data, 0o600))
	}
	return dir
}

const pythonTask = `
-- eval.py --
import submission
-- sum/task.yml --
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "eval.py", "source": "../eval.py"}
lang: py
description: |
  Adds.
config: {main: eval.py}
templates: {Python: start.py, Triton: start.py}
tests:
  - {"size": 12345678901234567890, "seed": -8, "a": 1.50, b: [1, x, ~], "on": on}
  - {z: 90, a: "1e3"}
benchmarks: [{z: 90, a: 1.0e+999, m: 2}]
test_timeout: 90
ranked_timeout: 0.5
seed: ~
gpus: [B200, H100]
libraries: []
-- sum/start.py --
pass
`

func TestPython(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(problem(t, pythonTask), "sum")
	must.Do(t, os.WriteFile(filepath.Join(dir, "../eval.py"), []byte("a\r\nb\rc\n"), 0o600))
	p, err := Find(dir)
	must.Do(t, err)
	doc, err := p.Config("x = \"é\"\r\n", "", "leaderboard")
	must.Do(t, err)
	want := `{"main":"eval.py","sources":{"submission.py":"x = \"é\"\u000d\n","eval.py":"a\nb\nc\n"},"lang":"py","arch":null,` +
		`"benchmarks":[{"z":90,"a":Infinity,"m":2}],` +
		`"tests":[{"size":12345678901234567890,"seed":-8,"a":1.5,"b":[1,"x",null],"on":true},{"z":90,"a":"1e3"}],` +
		`"mode":"leaderboard","test_timeout":90,"benchmark_timeout":180,"ranked_timeout":0.5,"ranking_by":"last","seed":null,"multi_gpu":false}`
	must.Equal(t, want, doc)
	got := []any{p.Dir, p.Lang, p.Templates, p.Tests, p.Benchmarks, p.RankingBy, p.Submission, p.TestTimeout, p.BenchmarkTimeout, p.RankedTimeout}
	must.Equal(t, []any{
		dir, Python, map[string]string{"Python": "pass\n", "Triton": "pass\n"}, 2, 1, "last", "submission.py", 90 * time.Second, 3 * time.Minute, 500 * time.Millisecond,
	}, got)
}

func TestCUDA(t *testing.T) {
	t.Parallel()
	p, err := Find(problem(t, `
-- task.yml --
lang: cu
files:
  - {name: b.h, source: b.h}
  - {name: main.cu, source: main.cu}
  - {name: sub.cu, source: "@SUBMISSION@"}
  - {name: a.h, source: a.h}
config:
  sources: [sub.cu, main.cu]
  defines: {N: 3, CHECKED: , S: x}
  compile_flags: [-lineinfo, ""]
  headers: [a.h, b.h]
  arch: 80
tests: [{}]
seed: 7
multi_gpu: no
ranking_by: geom
-- a.h --
-- b.h --
1
-- main.cu --
2
`))
	must.Do(t, err)
	doc, err := p.Config("3", "90a", "benchmark")
	must.Do(t, err)
	want := `{"sources":{"main.cu":"2\n","sub.cu":"3"},"headers":{"b.h":"1\n","a.h":""},"defines":{"N":3,"CHECKED":null,"S":"x"},"compile_flags":["-lineinfo",""],"include_dirs":[],` +
		`"lang":"cu","arch":"90a","benchmarks":[],"tests":[{}],"mode":"benchmark","test_timeout":180,"benchmark_timeout":180,"ranked_timeout":180,"ranking_by":"geom","seed":7,"multi_gpu":false}`
	must.Equal(t, want, doc)
	must.Equal(t, "80", p.Arch)
}

// TestComparison puts both submissions into one payload.
func TestComparison(t *testing.T) {
	t.Parallel()
	p, err := Find(problem(t, `
-- task.yml --
lang: py
files: [{name: sub.py, source: "@SUBMISSION@"}, {name: eval.py, source: eval.py}]
config: {main: eval.py}
benchmarks: [{a: 1}]
-- eval.py --
x
`))
	must.Do(t, err)
	doc, err := p.Comparison([2]string{"1", "2"}, "90a", 5)
	must.Do(t, err)
	must.Equal(t, `{"main":"eval.py","sources":{"sub.py":"1","eval.py":"x\n"},"lang":"py","arch":"90a","benchmarks":[{"a":1}],"tests":[],"mode":"compare","test_timeout":180,`+
		`"benchmark_timeout":180,"ranked_timeout":180,"ranking_by":"last","seed":null,"multi_gpu":false,"rounds":5,"other_sources":{"sub.py":"2"}}`, doc)
	for want, both := range map[string][2]string{
		"the submission is not UTF-8; save it as UTF-8":                  {"", "\xff"},
		"bytes of JSON and may have 16777216; send a smaller submission": {strings.Repeat("x", 10<<20), strings.Repeat("x", 10<<20)},
	} {
		if doc, err := p.Comparison(both, "", 5); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %.40q, %v; want %q", doc, err, want)
		}
	}
	p.Benchmarks = 0
	_, err = p.Comparison([2]string{"1", "2"}, "", 5)
	must.Err(t, err, p.Dir+"/task.yml has no benchmarks, by which submissions are compared; write one there")
}

func TestConfigRefuses(t *testing.T) {
	t.Parallel()
	p, err := Find(problem(t, `
-- task.yml --
lang: py
files: [{name: a.py, source: "@SUBMISSION@"}]
config: {main: a.py}
`))
	must.Do(t, err)
	for want, c := range map[string][2]string{
		`"script" is not a mode; write test, benchmark, leaderboard, private, profile`:       {"", "script"},
		"the submission is not UTF-8; save it as UTF-8":                                      {"\xff", "test"},
		p.Dir + "/task.yml has no benchmarks, which mode private needs; write one there, or": {"", "private"},
		"bytes of JSON and may have 16777216; send a smaller submission":                     {strings.Repeat("\x01", 3<<20), "test"},
	} {
		if doc, err := p.Config(c[0], "", c[1]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %.40q, %v; want %q", doc, err, want)
		}
	}
}

// TestFaults gives files with many faults. Each is named, in the order of lines.
func TestFaults(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/faults/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases: ", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			text := must.Read(t, file)
			dir := problem(t, text)
			want, err := os.ReadFile(filepath.Join(dir, "errors"))
			must.Do(t, err)
			must.Do(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
			for name, bytes := range map[string]string{"latin1.py": "\xe9", "large.py": strings.Repeat(" ", maxFile+1), "half.py": strings.Repeat(" ", maxFile)} {
				must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(bytes), 0o600))
			}
			_, err = Find(dir)
			if err == nil {
				t.Fatal("was accepted")
			}
			must.Equal(t, string(want), strings.ReplaceAll(err.Error(), dir+"/", "")+"\n")
		})
	}
}

// kernelbot reads a leaderboard's task into these fields, and refuses others.
func TestDefinition(t *testing.T) {
	t.Parallel()
	keys := []string{"benchmark_timeout", "benchmarks", "config", "files", "lang", "libraries", "multi_gpu", "ranked_timeout", "ranking_by", "seed", "test_timeout", "tests"}
	for dir, config := range map[string][]string{
		"../../../examples/prefix_python": {"main"}, "testdata/copy_cuda": {"compile_flags", "defines", "include_dirs", "sources"},
	} {
		p, err := Find(dir)
		must.Do(t, err)
		var all map[string]json.RawMessage
		var some struct {
			Files  map[string]string
			Config map[string]any
			Tests  []map[string]any
		}
		text := []byte(p.Definition())
		must.Do(t, json.Unmarshal(text, &all))
		must.Do(t, json.Unmarshal(text, &some))
		must.Equal(t, keys, slices.Sorted(maps.Keys(all)))
		must.Equal(t, config, slices.Sorted(maps.Keys(some.Config)))
		if len(some.Files) != 3 || some.Files[p.Submission] != Submission || len(some.Tests) != p.Tests {
			t.Errorf("%s: %s", dir, text)
		}
	}
}

// read converts a document like a value of a task.yml.
func read(text string) (string, error) {
	d := definition{Faults: yamlfile.Faults{File: "x.yml"}}
	var v payload.Value
	if root := d.parse([]byte(text)); root != nil {
		v = d.value(root)
	}
	if err := d.Err(shownMost); err != nil {
		return "", err
	}
	return payload.JSON(v), nil
}

// TestPyYAML checks that what is read has the value that PyYAML recorded. Dates, sets and
// binary data, for which Python has types that JSON lacks, are null there, as are
// documents that PyYAML refuses. What people would read differently may be refused.
// pyyaml.py made the record.
func TestPyYAML(t *testing.T) {
	t.Parallel()
	f, err := os.Open("testdata/pyyaml.jsonl")
	must.Do(t, err)
	defer f.Close() //nolint:errcheck // opened for reading
	lines := bufio.NewScanner(f)
	n, same := 0, 0
	for ; lines.Scan(); n++ {
		var pair [2]*string
		must.Do(t, json.Unmarshal(lines.Bytes(), &pair))
		got, err := read(*pair[0])
		switch {
		case pair[1] == nil && err == nil:
			t.Errorf("%q: got %s where PyYAML has nothing for a payload", *pair[0], got)
		case err == nil:
			same++
			if d := cmp.Diff(*pair[1], got); d != "" {
				t.Errorf("%q: PyYAML (-): %s", *pair[0], d)
			}
		}
	}
	if err := lines.Err(); err != nil || n < 200 || same < 100 {
		t.Errorf("%d documents, %d read, %v", n, same, err)
	}
}

// TestRefuses reads documents that are too large, or that people and PyYAML read differently.
func TestRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"deep":    {strings.Repeat("[", 500000), "x.yml:1: is not YAML"},
		"large":   {strings.Repeat("# \n", 400000), "x.yml:1: is over 1048576 bytes"},
		"digits":  {"a: " + strings.Repeat("1", 5000), "x.yml:1: "},
		"alias":   {"a: &a [*a]", "x.yml:1: anchors and aliases (&name, *name) are not read"},
		"merge":   {"a: {b: 1}\nc: {<<: {d: 1}}", `x.yml:2: key: "<<" means something else in YAML`},
		"tag":     {"a: !!float 3", `x.yml:1: the tag "!!float" is not read`},
		"octal":   {"a: 0644", `x.yml:1: "0644" is not a plain number such as 1024 or 0.5`},
		"base 60": {"a: 1:30", `x.yml:1: "1:30" is not a plain number`},
		"power":   {"a: 1e6", `x.yml:1: "1e6" is not a plain number`},
		"date":    {"a: 2024-01-01 10:00:00", "is not a plain number"},
		"key":     {"1: a", `x.yml:1: key "1" is not a word`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := read(c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %.100q, %.300v; want %q", got, err, c.want)
			}
		})
	}
}
