package runner

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/test/must"
)

// filesBelow returns the paths of all files and links below a directory.
func filesBelow(t *testing.T, dir string) (found []string) {
	t.Helper()
	must.Do(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			found = append(found, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	}))
	return found
}

// TestSecondResult has the last program leave files that a launcher could take for the job's result, in
// places and with modes that make them hard to remove.
func TestSecondResult(t *testing.T) {
	t.Parallel()
	const forge = `
def forge(path):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w") as f: f.write('{"success": true, "forged": true}')
`
	for name, judge := range map[string]string{
		"in a directory that is closed":         `forge("profile_data/result.json"); os.chmod("profile_data", 0)`,
		"in a directory that is read-only":      `forge("profile_data/result.json"); os.chmod("profile_data", 0o555)`,
		"below closed directories":              `forge("profile_data/a/b/result.json"); os.chmod("profile_data/a/b", 0); os.chmod("profile_data/a", 0); os.chmod("profile_data", 0)`,
		"in a directory that was there":         `forge("there/result.json"); forge("there/node.json"); os.chmod("there", 0)`,
		"in the place of a source":              `os.remove("submission.py"); forge("submission.py/result.json"); os.chmod("submission.py", 0)`,
		"behind a link to a directory":          `forge("elsewhere/result.json"); os.symlink("elsewhere", "profile_data")`,
		"behind a link that leads up":           `os.mkdir("profile_data"); os.symlink("..", "profile_data/up")`,
		"as a link":                             `forge("x"); os.mkdir("profile_data"); os.symlink("../x", "profile_data/result.json"); os.link("x", "profile_data/Result.json")`,
		"in another case":                       `forge("RESULT.JSON"); forge("profile_data/Result.JSON")`,
		"in the job's directory, closed":        `forge("profile_data/result.json"); os.chmod("profile_data", 0); os.chmod(".", 0)`,
		"after the ends of a lot of files":      `[open(f"a{n}", "w").close() for n in range(3000)]; forge("profile_data/result.json")`,
		"in a sticky directory of another mode": `forge("profile_data/result.json"); os.chmod("profile_data/result.json", 0); os.chmod("profile_data", 0o1000)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			attacks(t, "", forge+judge+"\no(\"check: pass\\n\")\n", func(t *testing.T, j *job, code int, doc map[string]any) {
				passes(t, j, code, doc)
				if left := filesBelow(t, j.cmd.Dir); !slices.Equal(left, []string{result.File, "there/own"}) {
					t.Errorf("left: %q", left)
				}
			}, func(t *testing.T, j *job) { write(t, filepath.Join(j.cmd.Dir, "there", "own"), "") })
		})
	}
}

// TestSecondResultAfterAFault has a program change what it must leave, too: what else it left is removed all the
// same. The job fails only if another program would trust what was changed.
func TestSecondResultAfterAFault(t *testing.T) {
	t.Parallel()
	const forge = `
os.makedirs("profile_data", exist_ok=True)
with open("profile_data/result.json", "w") as f: f.write("{}")
`
	for name, judge := range map[string]string{
		"a file changed":             `open("a", "w").write("more")`,
		"a file replaced":            `os.remove("a"); os.mkdir("a"); open("a/result.json", "w").close(); os.chmod("a", 0)`,
		"many files gone":            `import shutil; shutil.rmtree("many")`,
		"an old result changed":      `open("many/result.json", "w").write("{}")`,
		"in a read-only directory":   `os.remove("a"); os.chmod("read-only", 0o755); open("read-only/result.json", "w").close(); os.chmod("read-only", 0o555)`,
		"in a directory of old ones": `os.remove("a"); os.rename("many", "others"); os.mkdir("many"); open("many/result.json", "w").close()`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			submission := ""
			prepare := func(t *testing.T, j *job) {
				write(t, filepath.Join(j.cmd.Dir, "a"), "")
				for n := range 2 * maxFaults {
					write(t, filepath.Join(j.cmd.Dir, "many", fmt.Sprint(n)), "")
				}
				write(t, filepath.Join(j.cmd.Dir, "many", "result.json"), "old")
				must.Do(t, os.Mkdir(filepath.Join(j.cmd.Dir, "read-only"), 0o555))
			}
			left := func(t *testing.T, j *job) {
				t.Helper()
				for _, path := range filesBelow(t, j.cmd.Dir) {
					if path != result.File && result.IsOwnName(filepath.Base(path)) && must.Read(t, filepath.Join(j.cmd.Dir, path)) != "old" {
						t.Errorf("left: %s", path)
					}
				}
				if info, err := os.Stat(filepath.Join(j.cmd.Dir, "read-only")); err != nil || info.Mode().Perm() != 0o555 {
					t.Errorf("the read-only directory: %v, %v", info, err)
				}
			}
			attacks(t, submission, forge+judge+"\no(\"check: pass\\n\")\n", func(t *testing.T, j *job, code int, doc map[string]any) {
				passes(t, j, code, doc)
				left(t, j)
			}, prepare)
			attacks(t, "import os\n"+forge+judge, "o(\"check: pass\\n\")\n", func(t *testing.T, j *job, code int, doc map[string]any) {
				if message, _ := at(doc, "error").(string); code != 1 || at(doc, "success") != false || at(doc, "runs", "test") != nil || !strings.Contains(message, "a submission must leave it") {
					t.Errorf("exit code %d, error %q, run %v", code, message, at(doc, "runs", "test", "run"))
				}
				left(t, j)
			}, prepare)
		})
	}
}

// TestOldFiles leaves alone what was there before: a program of lang cu in a job of lang py, and links and
// directories of others called profile_data.
func TestOldFiles(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, j *job){
		"eval.out":                  func(t *testing.T, j *job) { write(t, filepath.Join(j.cmd.Dir, "eval.out"), "") },
		"a link that leads out":     func(t *testing.T, j *job) { link(t, t.TempDir(), filepath.Join(j.cmd.Dir, ProfileDir)) },
		"a link that leads nowhere": func(t *testing.T, j *job) { link(t, "none", filepath.Join(j.cmd.Dir, ProfileDir)) },
		"a link that leads inside": func(t *testing.T, j *job) {
			write(t, filepath.Join(j.cmd.Dir, "elsewhere", "result.json"), "")
			link(t, "elsewhere", filepath.Join(j.cmd.Dir, ProfileDir))
		},
		"a file":                   func(t *testing.T, j *job) { write(t, filepath.Join(j.cmd.Dir, ProfileDir), "") },
		"names that are not UTF-8": func(t *testing.T, j *job) { write(t, filepath.Join(j.cmd.Dir, ProfileDir, "\xff", "\xfe"), "") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newConfigJob(t, map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{"submission.py": "", "eval.py": report + `o("check: pass\n")`}})
			prepare(t, j)
			before := filesBelow(t, j.cmd.Dir)
			code, doc := j.run(t)
			after := slices.DeleteFunc(filesBelow(t, j.cmd.Dir), func(path string) bool { return path == result.File })
			if code != 0 || at(doc, "runs", "test", "run", "passed") != true || !slices.Equal(before, after) {
				t.Errorf("exit code %d, error %v, before %q, after %q", code, at(doc, "error"), before, after)
			}
		})
	}
	t.Run("a library's directory", func(t *testing.T) { // without Landlock it is looked at, but not put back
		t.Parallel()
		j := newConfigJob(t, map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{"submission.py": "", "eval.py": report + `o("check: pass\n")`}}, "KBNODE_TEST_LANDLOCK=0")
		libraries := filepath.Join(j.dir, "libraries")
		must.Do(t, os.Mkdir(libraries, 0o555))
		must.Do(t, os.Chtimes(libraries, time.Unix(1, 0), time.Now())) // reading it changes this
		j.cmd.Env = append(j.cmd.Env, "LD_LIBRARY_PATH="+libraries)
		code, doc := j.run(t)
		if info, err := os.Stat(libraries); code != 0 || err != nil || info.Mode().Perm() != 0o555 {
			t.Errorf("exit code %d, error %v; the directory is %v, %v", code, at(doc, "error"), info.Mode(), err)
		}
	})
	for mode, wanted := range map[os.FileMode]int{0o700: 0, 0o711: 1} { // where programs may enter, they may keep something
		must.Root(t, "becomes another user")
		j := newConfigJob(t, map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{"submission.py": "", "eval.py": report + `o("check: pass\n")`}})
		private := filepath.Join(j.cmd.Dir, ProfileDir, "sub")
		must.Do(t, os.MkdirAll(private, 0o700))
		must.Do(t, os.Chmod(private, mode))
		j.become(t, 65534)
		must.Do(t, os.Chown(private, 0, 0))
		if code, doc := j.run(t); code != wanted || (at(doc, "runs", "test", "run", "passed") == true) != (wanted == 0) {
			t.Errorf("another user's directory with mode %v: exit code %d, error %v", mode, code, at(doc, "error"))
		}
	}
}

// TestCannotBeRemoved has the last program leave a file that even root cannot remove.
func TestCannotBeRemoved(t *testing.T) {
	t.Parallel()
	must.Root(t, "makes a file immutable")
	for _, where := range []string{"profile_data", "here", "tmp"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			j := newConfigJob(t, map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{"submission.py": "", "eval.py": report + `
dir = {"profile_data": "profile_data", "here": "sub", "tmp": os.environ["TMPDIR"]}["` + where + `"]
os.makedirs(dir, exist_ok=True)
open(dir + "/result.json", "w").close()
open("now", "w").write(dir)
while not os.path.exists("go"): time.sleep(0.01)
o("check: pass\n")`}})
			must.Do(t, j.cmd.Start())
			now := filepath.Join(j.cmd.Dir, "now")
			waitFor(t, now)
			dir := must.Read(t, now)
			for dir == "" {
				dir = must.Read(t, now)
			}
			if !filepath.IsAbs(dir) {
				dir = filepath.Join(j.cmd.Dir, dir)
			}
			f, err := os.Open(filepath.Join(dir, result.File))
			must.Do(t, err)
			defer f.Close() //nolint:errcheck // opened for reading
			immutable := func(flag int) error { return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flag) }
			if err := immutable(unix.STATX_ATTR_IMMUTABLE); err != nil {
				must.Do(t, j.cmd.Process.Kill())
				_, _ = j.wait(t)
				t.Skip("this file system has no immutable files: ", err)
			}
			defer func() { must.Do(t, immutable(0)) }()
			write(t, filepath.Join(j.cmd.Dir, "go"), "")
			code, doc := j.wait(t)
			if message, _ := at(doc, "error").(string); code != 1 || at(doc, "success") != false || at(doc, "runs", "test", "run", "passed") != false || !strings.Contains(message, "remove") {
				t.Errorf("exit code %d, error %q, run %v", code, message, at(doc, "runs", "test", "run"))
			}
		})
	}
}

// TestSecondResultOfAProfile has programs write into the directories of the profiler, their own and that of an
// evaluation before.
func TestSecondResultOfAProfile(t *testing.T) {
	t.Parallel()
	for benchmarks := range 3 {
		for _, mode := range []string{"0o755", "0"} {
			j := newProfileJob(t, benchmarks, `
import glob
for dir in glob.glob("tmp*/profile_data"):
    os.makedirs(dir + "/sub", exist_ok=True)
    for name in "result.json", "NODE.json", "sub/result.json":
        with open(dir + "/" + name, "w") as f: f.write("forged")
    os.chmod(dir + "/sub", `+mode+`)
`)
			write(t, filepath.Join(j.cmd.Dir, "profile_data", "result.json"), "old")
			j.standIn(t, "ncu", ncu)
			code, doc := j.run(t)
			if code != 0 || at(doc, "success") != true {
				t.Errorf("exit code %d, error %v", code, at(doc, "error"))
			}
			for _, path := range filesBelow(t, j.cmd.Dir) {
				if path != result.File && result.IsOwnName(filepath.Base(path)) || strings.HasPrefix(path, "tmp") {
					t.Errorf("%d benchmarks, mode %s: left %s", benchmarks, mode, path)
				}
			}
		}
	}
}

// TestSecondResultFromBefore removes what has the result's name in the directory that is uploaded.
func TestSecondResultFromBefore(t *testing.T) {
	t.Parallel()
	j := newConfigJob(t, map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{"submission.py": "", "eval.py": report + `o("check: pass\n")`}})
	for _, name := range []string{"profile_data/result.json", "profile_data/a/Node.json", "profile_data/trace", "elsewhere/result.json"} {
		write(t, filepath.Join(j.cmd.Dir, name), "")
	}
	code, doc := j.run(t)
	if left := filesBelow(t, j.cmd.Dir); code != 0 || at(doc, "success") != true || !slices.Equal(left, []string{"elsewhere/result.json", "profile_data/trace", "result.json"}) {
		t.Errorf("exit code %d, error %v, left %q", code, at(doc, "error"), left)
	}
}
