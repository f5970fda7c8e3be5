package runner

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestScriptGoesOnAsItWas has the last program change the script that started the runner, which the shell goes on
// with, and what the script uses then.
func TestScriptGoesOnAsItWas(t *testing.T) {
	t.Parallel()
	const script = "\"$RUNNER\"\necho $? >after\n. ./link\n"
	const add = `
forge = "\necho forged >result.json; exit 0\n"
`
	for name, c := range map[string]struct{ submission, judge string }{
		"appended":              {"", `open("run.sh", "a").write(forge)`},
		"rewritten":             {"", `open("run.sh", "w").write(forge * 9)`},
		"truncated":             {"", `os.truncate("run.sh", 20)`},
		"in its place, unnamed": {"", `open("run.sh", "a").write(forge); os.remove("run.sh")`},
		"in its place, renamed": {"", `open("run.sh", "a").write(forge); os.rename("run.sh", "x"); os.mkdir("run.sh")`},
		"closed":                {"", `open("run.sh", "a").write(forge); os.chmod("run.sh", 0); os.chmod(".", 0)`},
		"what it runs":          {"", `open("post/post.sh", "a").write(forge)`},
		"another file":          {"", `os.remove("post/post.sh"); open("post/post.sh", "w").write(forge)`},
		"another directory":     {"", `os.rename("post", "x"); os.mkdir("post"); open("post/post.sh", "w").write(forge)`},
		"a directory gone":      {"", `import shutil; shutil.rmtree("post")`},
		"where a link leads":    {"", `os.remove("link"); os.symlink("run.sh", "link")`},
		"a link":                {"", `os.remove("post/post.sh"); open("x", "w").write(forge); os.symlink("../x", "post/post.sh")`},
		"another's name":        {"", `os.remove("post/post.sh"); os.link("run.sh", "post/post.sh")`},
		"by the pre-run":        {"import os" + add + `open("run.sh", "a").write(forge); open("post/post.sh", "a").write(forge)`, ""},
	} {
		for _, landlock := range []string{"", "0"} {
			t.Run(name+",landlock="+landlock, func(t *testing.T) {
				t.Parallel()
				j := newConfigJob(t, map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{
					"submission.py": c.submission, "eval.py": report + add + c.judge + "\no(\"check: fail\\n\")\n",
				}}, "KBNODE_TEST_LANDLOCK="+landlock)
				j.cmd.Env = append(j.cmd.Env, "RUNNER="+j.cmd.Path)
				j.cmd.Path, j.cmd.Args = "/bin/sh", []string{"sh", "run.sh"}
				files := map[string]string{"run.sh": script, "post/post.sh": "echo done >>after\nexit 7\n"}
				for name, text := range files {
					write(t, filepath.Join(j.cmd.Dir, name), text)
				}
				link(t, "post/post.sh", filepath.Join(j.cmd.Dir, "link"))
				must.Do(t, os.Chmod(filepath.Join(j.cmd.Dir, "post/post.sh"), 0o640))
				code, doc := j.run(t)
				wanted, message := "0\ndone\n", ""
				if c.submission != "" {
					wanted, message = "1\ndone\n", "a program changed"
				}
				if got, _ := doc["error"].(string); code != 7 || !strings.Contains(got, message) || at(doc, "runs", "test", "run", "passed") == true || must.Read(t, filepath.Join(j.cmd.Dir, "after")) != wanted {
					t.Errorf("exit code %d, result %v\n%s", code, doc, j.stderr.String())
				}
				for name, text := range files {
					must.Equal(t, text, must.Read(t, filepath.Join(j.cmd.Dir, name)))
				}
				if info, err := os.Stat(filepath.Join(j.cmd.Dir, "post/post.sh")); err != nil || info.Mode() != 0o640 {
					t.Errorf("%v, %v", info, err)
				}
				if left := filesBelow(t, j.cmd.Dir); len(left) != 5 {
					t.Errorf("left %v, wanted these, a link, after and %s", left, result.File)
				}
			})
		}
	}
}

// TestOwnersAndClosedDirectories has the last program change the owner of a file, and remove a directory in which no file may
// be made. The step goes on with both.
func TestOwnersAndClosedDirectories(t *testing.T) {
	t.Parallel()
	for _, user := range []int{0, 65534} {
		t.Run(fmt.Sprint(user), func(t *testing.T) {
			t.Parallel()
			j := newConfigJob(t, map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{
				"submission.py": "", "eval.py": report + "import os, shutil\n" + `os.chmod("closed", 0o755); shutil.rmtree("closed")
if os.geteuid() == 0: os.chown("tool", 4711, 4711); os.remove("theirs")
o("check: fail\n")`,
			}})
			in := func(name string) string { return filepath.Join(j.cmd.Dir, name) }
			must.Do(t, os.Mkdir(in("closed"), 0o755))
			for _, name := range []string{"closed/x", "tool", "theirs"} {
				write(t, in(name), name)
			}
			must.Do(t, os.Chmod(in("tool"), 0o755|fs.ModeSetuid))
			j.become(t, user)
			must.Do(t, os.Chmod(in("tool"), 0o755|fs.ModeSetuid))
			must.Do(t, os.Lchown(in("theirs"), 815, 815))
			old := time.Unix(1e9, 0)
			must.Do(t, os.Chtimes(in("closed"), old, old))
			must.Do(t, os.Chmod(in("closed"), 0o555))
			describe := func() (all []string) {
				for _, name := range []string{"closed", "closed/x", "tool", "theirs"} {
					info, err := os.Lstat(in(name))
					must.Do(t, err)
					st := info.Sys().(*syscall.Stat_t)
					line := fmt.Sprint(name, info.Mode(), " ", st.Uid)
					if info.IsDir() {
						line += info.ModTime().String()
					}
					all = append(all, line)
				}
				return all
			}
			before := describe()
			j.cmd.Env = append(j.cmd.Env, "RUNNER="+j.cmd.Path)
			j.cmd.Path, j.cmd.Args = "/bin/sh", []string{"sh", "-c", `"$RUNNER"; exit $?`}
			code, doc := j.run(t)
			if code != 0 || at(doc, "runs", "test", "run", "passed") != false {
				t.Errorf("exit code %d, result %v\n%s", code, doc, j.stderr.String())
			}
			must.Equal(t, before, describe())
		})
	}
}

// TestScriptBesideTheRunner has the last program change the script of a shell that reads the runner's log.
func TestScriptBesideTheRunner(t *testing.T) {
	t.Parallel()
	j := newConfigJob(t, map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{
		"submission.py": "", "eval.py": report + `open("filter.sh", "a").write("echo forged >result.json\n"); os.remove("filter.sh"); o("check: fail\n")`,
	}})
	j.cmd.Env = append(j.cmd.Env, "RUNNER="+j.cmd.Path)
	j.cmd.Path, j.cmd.Args = "/bin/sh", []string{"sh", "-c", `"$RUNNER" | sh filter.sh`}
	write(t, filepath.Join(j.cmd.Dir, "filter.sh"), "cat\n")
	if code, doc := j.run(t); code != 0 || at(doc, "runs", "test", "run", "passed") != false {
		t.Errorf("exit code %d, result %v\n%s", code, doc, j.stderr.String())
	}
}

// TestOthersFilesStay has a shell above the runner read files that are not the job's, and change by themselves.
func TestOthersFilesStay(t *testing.T) {
	t.Parallel()
	j := newConfigJob(t, map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{
		"submission.py": "", "eval.py": report + `open("../outside", "a").write("more"); o("check: pass\n")`,
	}}, "KBNODE_TEST_LANDLOCK=0")
	j.cmd.Env = append(j.cmd.Env, "RUNNER="+j.cmd.Path)
	j.cmd.Path, j.cmd.Args = "/bin/sh", []string{"sh", "-c", `exec 8</proc/uptime 9<../outside; "$RUNNER"; exit $?`}
	write(t, filepath.Join(j.dir, "outside"), "some and ")
	code, doc := j.run(t)
	passes(t, j, code, doc)
	must.Equal(t, "some and more", must.Read(t, filepath.Join(j.dir, "outside")))
}

// TestLogInTheJobsDirectory has the runner write its log into a file there, to which a program gives another name.
func TestLogInTheJobsDirectory(t *testing.T) {
	t.Parallel()
	for _, command := range []string{`"$RUNNER" >own.log 2>&1; exit $?`, `exec 7>own.log; "$RUNNER" 2>&1 | cat >&7`} {
		for _, submission := range []string{"", `import os; os.rename("own.log", "planted.py")`} {
			j := newConfigJob(t, map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{
				"submission.py": submission, "eval.py": report + `o("planted: %s\ncheck: pass\n" % os.path.exists("planted.py"))`,
			}})
			j.cmd.Env = append(j.cmd.Env, "RUNNER="+j.cmd.Path)
			j.cmd.Path, j.cmd.Args = "/bin/sh", []string{"sh", "-c", command}
			code, doc := j.run(t)
			log, err := os.ReadFile(filepath.Join(j.cmd.Dir, "own.log"))
			passes(t, j, code, doc)
			if at(doc, "runs", "test", "run", "result", "planted") != "False" || submission == "" && (err != nil || !strings.Contains(string(log), "test: compile\n") || !strings.Contains(string(log), "Passed")) {
				t.Errorf("%s, %s: result %v, log %q, %v", command, submission, doc, log, err)
			}
			if _, err := os.Lstat(filepath.Join(j.cmd.Dir, "planted.py")); err == nil {
				t.Error("the log has another name")
			}
		}
	}
}

// TestTooLargeToGoOnWith has the last program change a file that is too large to be kept. The step goes on with it.
func TestTooLargeToGoOnWith(t *testing.T) {
	t.Parallel()
	j := newConfigJob(t, map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{
		"submission.py": "", "eval.py": report + `open("large", "a").write("x"); o("check: pass\n")`,
	}})
	write(t, filepath.Join(j.cmd.Dir, "large"), strings.Repeat("x", originalLimit+1))
	code, doc := j.run(t)
	if message, _ := at(doc, "error").(string); code != 1 || at(doc, "runs", "test", "run", "passed") != false || !strings.Contains(message, "too large to be put back") {
		t.Errorf("exit code %d, result %v", code, doc)
	}
}

// TestGoneOnWithOutside has the last program change what is not in the job's directory, and the step go on with it: it
// may be the next command, or what that is made of.
func TestGoneOnWithOutside(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ judge, landlock, changed string }{
		"a program of the image":       {`open("/opt/post", "a").write("echo forged >result.json\n")`, "0", "/opt/post"},
		"another in its place":         {`os.remove("/opt/post"); os.symlink("/bin/true", "/opt/post")`, "0", "/opt/post"},
		"a temporary program":          {`os.remove("/tmp/post")`, "", "/tmp/post"},
		"what is a cache's may change": {`open("/dev/shm/lock", "a").write("x")`, "0", ""},
	} {
		for command, goes := range map[string]bool{"/runner; sh /opt/post": true, "exec /runner": false} {
			t.Run(name+","+command, func(t *testing.T) {
				t.Parallel()
				j := containerJob(t, "", "import os\n"+c.judge+`; o("check: pass\n")`, "KBNODE_TEST_LANDLOCK="+c.landlock)
				for i, arg := range j.cmd.Args {
					arg = strings.Replace(arg, "exec chroot", `for f in opt/post tmp/post dev/shm/lock; do echo exit >$f; done; exec chroot`, 1)
					j.cmd.Args[i] = strings.Replace(arg, "sh -c 'cd /work && exec /runner'", "sh -e -c 'cd /work; "+command+"'", 1)
				}
				code, doc := j.run(t)
				if !goes || c.changed == "" {
					passes(t, j, code, doc)
					return
				}
				if message, _ := at(doc, "error").(string); code != 1 || at(doc, "runs", "test", "run", "passed") != false || !strings.Contains(message, fmt.Sprintf("d %s, which cannot be put back", c.changed)) {
					t.Errorf("exit code %d, result %v\n%s", code, doc, j.stderr.String())
				}
			})
		}
	}
}
