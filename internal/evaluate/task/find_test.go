package task

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpu-mode/kbnode/examples"
	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
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
		there, err := Find(filepath.Join("../../../examples", name))
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
		"zero.py": "leads out of " + filepath.Dir(dir), "a": "is not a file; name a regular file", "none.py": "does not exist; fix the path, or add the file",
	} {
		if want != "" {
			want = filepath.Join(dir, name) + " " + want
		}
		got, err := p.ReadSubmission(name)
		must.Err(t, err, want)
		if err == nil && got != "1\n" {
			t.Errorf("%s: got %q", name, got)
		}
	}
	p, err = Find("prefix_python")
	must.Do(t, err)
	if text, err := p.ReadSubmission(p.Submission); err != nil || !strings.Contains(text, "custom_kernel") {
		t.Errorf("of an example: %q, %v", text, err)
	}
}

// TestScope has problems by others, which want files of their user. What is in the scope may be shared.
func TestScope(t *testing.T) {
	const (
		secret = "token"
		shared = "shared\n"
		task   = `{files: [{name: s.py, source: "@SUBMISSION@"}, {name: e.py, source: "SOURCE"}], lang: py, config: {main: e.py}}`
		hidden = `source "SOURCE" is hidden, as private files are; give it a name that does not begin with a dot`
	)
	leads := func(top string) string {
		return `source "SOURCE" leads out of DIR/home/` + top + `, where all files of a problem must be; copy it there`
	}
	for name, c := range map[string]struct{ mark, source, link, want string }{ // a mark with - is a file
		"beside":                          {source: "e.py"},
		"of the set":                      {source: "../e.py"},
		"above the set":                   {source: "../../e.py", want: leads("all/set")},
		"a token above":                   {source: "../../../token", want: leads("all/set")},
		"of a set with a list":            {mark: "-home/all/set.yaml", source: "../../other/e.py"},
		"above sets with lists":           {mark: "-home/all/set.yaml", source: "../../../token", want: leads("all")},
		"of a repository":                 {mark: "home/all/.git", source: "../../other/e.py"},
		"above a repository":              {mark: "home/all/.git", source: "../../../token", want: leads("all")},
		"above a problem's repository":    {mark: "home/all/set/sum/.git", source: "../e.py", want: leads("all/set/sum")},
		"of a worktree":                   {mark: "-home/all/.git", source: "../../other/e.py"},
		"a link to the set":               {source: "link", link: "../e.py"},
		"a full link to the set":          {source: "link", link: "DIR/home/all/set/e.py"},
		"a link to a token":               {source: "link", link: "../../../token", want: leads("all/set")},
		"a link to a directory":           {source: "link/token", link: "DIR/home", want: leads("all/set")},
		"a name that begins like the set": {source: "../../set2/e.py", want: leads("all/set")},
		"hidden":                          {source: ".env", want: hidden},
		"hidden in the set":               {source: "../.env", want: hidden},
		"the repository's settings":       {mark: "home/all/.git", source: "../../.git/config", want: hidden},
		"a link to what is hidden":        {source: "link", link: "../.env", want: hidden},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := filepath.EvalSymlinks(t.TempDir())
			must.Do(t, err)
			for _, name := range []string{"set/sum/e.py", "set/e.py", "set2/e.py", "other/e.py", "e.py"} {
				must.Write(t, dir, "home/all/"+name, shared)
			}
			for _, name := range []string{"token", "all/set/sum/.env", "all/set/.env"} {
				must.Write(t, dir, "home/"+name, secret)
			}
			if file, is := strings.CutPrefix(c.mark, "-"); is {
				must.Write(t, dir, file, "")
			} else if c.mark != "" {
				must.Write(t, dir, c.mark+"/config", secret)
			}
			sum := filepath.Join(dir, "home/all/set/sum")
			must.Write(t, sum, FileName, strings.ReplaceAll(task, "SOURCE", c.source))
			if c.link != "" {
				must.Do(t, os.Symlink(strings.ReplaceAll(c.link, "DIR", dir), filepath.Join(sum, "link")))
			}
			want := strings.NewReplacer("SOURCE", c.source, "DIR", dir).Replace(c.want)
			p, err := Find(sum)
			must.Err(t, err, want)
			if err == nil {
				must.Equal(t, shared, p.files[1].text)
			}

			must.Write(t, sum, FileName, strings.ReplaceAll(task, "SOURCE", "e.py"))
			must.Do(t, os.Symlink(sum, filepath.Join(dir, "elsewhere")))
			t.Chdir(filepath.Join(dir, "elsewhere"))
			for _, where := range []string{sum, filepath.Join(dir, "elsewhere"), ".", "../sum"} {
				p, err := Find(where)
				must.Do(t, err)
				_, want, _ := strings.Cut(want, `" `)
				if text, err := p.ReadSubmission(c.source); err == nil && text != shared {
					t.Errorf("%s: the submission is %q", where, text)
				} else {
					must.Err(t, err, want)
				}
			}
		})
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
