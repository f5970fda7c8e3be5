package task

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpu-mode/kbnode/examples"
	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/test/must"
)

const smallTask = `
-- task.yml --
files: [{name: sub.py, source: "@SUBMISSION@"}, {name: e.py, source: e.py}]
lang: py
config: {main: e.py}
-- e.py --
pass
`

// TestFindExamples reads each example by its name and by its directory: the payloads are the same.
func TestFindExamples(t *testing.T) {
	t.Parallel()
	all := Examples()
	if len(all) != 4 {
		t.Errorf("examples: %q", all)
	}
	for _, name := range all {
		there, err := Find(filepath.Join("../../examples", name))
		must.Do(t, err)
		here, err := Find(name)
		must.Do(t, err)
		for _, mode := range Modes {
			want, err := there.Config("x", "", mode)
			must.Do(t, err)
			if got, err := here.Config("x", "", mode); err != nil || got != want {
				t.Errorf("%s, mode %s: %v, another payload than from the directory", name, mode, err)
			}
		}
		text, err := fs.ReadFile(here.FS(), here.Submission)
		if want, _ := fs.ReadFile(examples.Files, name+"/"+here.Submission); err != nil || string(text) != string(want) {
			t.Errorf("%s: submission: %v", name, err)
		}
	}
}

func TestFind(t *testing.T) {
	dir := problem(t, smallTask)
	t.Chdir(filepath.Dir(dir))
	base := filepath.Base(dir)
	// A directory wins over an example of the same name, even if it is no problem.
	must.Do(t, os.Symlink(dir, "prefix_python"))
	t.Cleanup(func() { _ = os.Remove("prefix_python") })
	for name, in := range map[string]string{"prefix_python": "prefix_python", dir: dir, base: base, base + "/": base, filepath.Join(base, FileName): base} {
		if got, err := Find(name); err != nil || got.Submission != "sub.py" || got.Dir != in {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	must.Do(t, os.MkdirAll(filepath.Join(dir, "odd", FileName), 0o755))
	must.Do(t, os.Mkdir(filepath.Join(dir, "identity_cuda"), 0o755))
	t.Chdir(dir)
	if got, err := Find("."); err != nil || got.Name() != base {
		t.Errorf("the name of .: %+v, %v", got, err)
	}
	const list = "the examples are identity_cuda, prefix_python, vectoradd_cuda_inline, vectoradd_triton"
	for name, want := range map[string]string{
		"identity_cuda":          "identity_cuda/task.yml does not exist; add it, or work in another directory to use the example identity_cuda",
		"prefix_pyton":           `"prefix_pyton" is neither an example nor a directory; write prefix_python; ` + list,
		"Prefix-Python":          `write prefix_python; `,
		"prefix":                 "write prefix_python; ",
		"py":                     "name a directory that has a task.yml, or an example: ",
		"vectoradd":              "write vectoradd_cuda_inline or vectoradd_triton; " + list,
		"vectoradd_triton.py":    "write vectoradd_triton; ",
		"examples/prefix_python": "write prefix_python; ",
		"":                       "name a directory that has a task.yml, or an example: identity_cuda, ",
		"../../../..":            "task.yml does not exist; ",
		"a\x00b":                 `invalid argument`,
		strings.Repeat("x", 300): "file name too long",
		"\x1b[2Jnone":            `"\x1b[2Jnone" is neither`,
		"testdata":               "name a directory that has a task.yml, or an example: ",
		"odd":                    "odd/task.yml is not a file; name a regular file",
		os.DevNull:               os.DevNull + " is not a file; name a regular file",
	} {
		if got, err := Find(name); err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 4000 {
			t.Errorf("%.40q: %+v, %v; want %s", name, got, err, want)
		}
	}
}

// TestReadSubmission reads what may lie beside a task.yml: never without end, and never waiting.
func TestReadSubmission(t *testing.T) {
	t.Parallel()
	dir := problem(t, smallTask+"-- a/right.py --\n1\n")
	must.Do(t, os.WriteFile(filepath.Join(dir, "large.py"), []byte(strings.Repeat(" ", maxFile+1)), 0o600))
	must.Do(t, syscall.Mkfifo(filepath.Join(dir, "pipe.py"), 0o600))
	must.Do(t, os.Symlink("/dev/zero", filepath.Join(dir, "zero.py")))
	must.Do(t, os.Symlink("a/right.py", filepath.Join(dir, "link.py")))
	p, err := Find(dir)
	must.Do(t, err)
	for name, want := range map[string]string{
		"a/right.py": "", "link.py": "", "large.py": "is over 8388608 bytes; make it smaller", "pipe.py": "is not a file; name a regular file",
		"zero.py": "is not a file; name a regular file", "a": "is not a file; name a regular file", "none.py": "does not exist; fix the path, or add the file",
	} {
		if want != "" {
			want = filepath.Join(dir, name) + " " + want
		}
		got, err := p.ReadSubmission(name)
		if must.Err(t, err, want); err == nil && got != "1\n" {
			t.Errorf("%s: got %q", name, got)
		}
	}
	p, err = Find("prefix_python")
	must.Do(t, err)
	if text, err := p.ReadSubmission(p.Submission); err != nil || !strings.Contains(text, "custom_kernel") {
		t.Errorf("of an example: %q, %v", text, err)
	}
}

// TestReadFS checks that a problem among other files reads nothing else.
func TestReadFS(t *testing.T) {
	t.Parallel()
	dir := problem(t, smallTask)
	escaping := strings.Replace(smallTask, "source: e.py", "source: ../"+filepath.Base(dir)+"/e.py", 1)
	inner := problem(t, escaping)
	if _, err := ReadFS(os.DirFS(inner), "."); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("a file outside: %v", err)
	}
	got, err := ReadFS(os.DirFS(dir), ".")
	must.Do(t, err)
	doc, err := got.Config("", "", "test")
	must.Do(t, err)
	if _, err := payload.ParseObject(doc); err != nil {
		t.Error(err)
	}
}
