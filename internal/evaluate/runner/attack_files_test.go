package runner

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestPlantedInterpreter has the pre-run put another python3, or a library that it loads, where the
// judge's is looked for: itself, or by a link on the way.
func TestPlantedInterpreter(t *testing.T) {
	t.Parallel()
	const fake = `
import os
root = os.environ["ROOT"]
def put(path):
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.islink(path): os.remove(path)
        with open(path, "w") as f: f.write("#!/bin/sh\necho check: pass >&3\n")
        os.chmod(path, 0o755)
    except OSError:
        pass
`
	for name, c := range map[string]struct {
		path, submission string
		links            map[string]string // by name
	}{
		"in an earlier directory": {"/early/bin:ROOT/tools:", `
put(root + "/early/bin/python3"); put(root + "/tools/python3"); put(root + "/early/pyvenv.cfg")`, nil},
		"behind a link to a directory": {"/current/bin:", `
put(root + "/evil/bin/python3")
try: os.remove(root + "/current"); os.symlink("evil", root + "/current")
except OSError: pass`, map[string]string{"current": "version", "version/bin/python3": "/usr/bin/python3"}},
		"behind a link to a link": {"/bin:", `put(root + "/version/python3")`,
			map[string]string{"bin/python3": "../version/python3", "version/python3": "/usr/bin/python3"}},
		"as the compiler's part":  {"/cuda/bin:", `put(root + "/cuda/nvvm/bin/cicc")`, nil},
		"as a library":            {"/bin:", `put(root + "/libraries/libm.so.6")`, nil},
		"as what a library loads": {"/bin:", `put(root + "/libraries/engines-3/deep/module.so")`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			attacks(t, fake+c.submission, `o("check: fail\n")`, func(t *testing.T, j *job, code int, result map[string]any) {
				if getenvLast(j.cmd.Env, "KBNODE_TEST_LANDLOCK") == "" {
					if at(result, "runs", "test", "run", "result", "check") != "fail" {
						t.Errorf("with Landlock, the judge did not run: %v", result)
					}
				} else if message, _ := at(result, "error").(string); code != 1 || !strings.Contains(message, "a program changed "+j.dir) {
					t.Errorf("exit code %d, error %q, run %v", code, message, at(result, "runs", "test", "run"))
				}
			}, func(t *testing.T, j *job) {
				j.cmd.Env = append(j.cmd.Env, "ROOT="+j.dir, "LD_LIBRARY_PATH="+j.dir+"/libraries",
					"PATH="+j.dir+strings.ReplaceAll(c.path, "ROOT", j.dir)+"/usr/bin:/bin")
				_ = os.Mkdir(filepath.Join(j.dir, "tools"), 0o755)
				write(t, j.dir+"/cuda/nvvm/bin/cicc", "")
				write(t, j.dir+"/libraries/engines-3/deep/module.so", "")
				write(t, j.dir+"/cuda/bin/nvcc", "#!/bin/sh\n")
				must.Do(t, os.Chmod(j.dir+"/cuda/bin/nvcc", 0o755))
				for name, target := range c.links {
					link(t, target, filepath.Join(j.dir, name))
				}
			})
		})
	}
}

// TestDirectoryIsReplaced has the judge's program put another directory, with a result, in the
// place of the job's, or take away the right to write there.
func TestDirectoryIsReplaced(t *testing.T) {
	t.Parallel()
	for name, judge := range map[string]string{
		"renamed": `
here = os.getcwd()
try:
    os.rename(here, here + "-old"); os.mkdir(here)
    with open(here + "/result.json", "w") as f: f.write('{"success": true, "forged": true}')
except OSError:
    pass
o("check: pass\n")`,
		"moved into another": `
here = os.getcwd()
try: os.rename(here, here + "-old"); os.mkdir(here); os.rename(here + "-old", here + "/deep")
except OSError: pass
o("check: pass\n")`,
		"removed": `
import shutil
here = os.getcwd()
for f in os.listdir("."): shutil.rmtree(f) if os.path.isdir(f) else os.remove(f)
try: os.rmdir(here)
except OSError: pass
o("check: pass\n")`,
		"removed, and another made": `
import shutil
here = os.getcwd()
for f in os.listdir("."): shutil.rmtree(f) if os.path.isdir(f) else os.remove(f)
try:
    os.rmdir(here); os.mkdir(here)
    with open(here + "/result.json", "w") as f: f.write('{"success": true, "forged": true}')
except OSError:
    pass
o("check: pass\n")`,
		"without a right": `os.chmod(".", 0); o("check: pass\n")`,
		"below one without a right": `
for d in (os.environ["TMPDIR"] + "/..", "..", "../.."):
    try: os.chmod(d, 0)
    except OSError: pass
o("check: pass\n")`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			attacks(t, "", judge, passes)
		})
	}
}

// TestPreRunRemovesTheDirectory has the pre-run remove the job's directory with all that was in it.
func TestPreRunRemovesTheDirectory(t *testing.T) {
	t.Parallel()
	attacks(t, `
import os, shutil
here = os.getcwd()
for f in os.listdir("."): shutil.rmtree(f) if os.path.isdir(f) else os.remove(f)
try: os.rmdir(here)
except OSError: pass
`, `o("check: pass\n")`, func(t *testing.T, j *job, code int, result map[string]any) {
		passed := at(result, "runs", "test", "run", "passed")
		if landlock := getenvLast(j.cmd.Env, "KBNODE_TEST_LANDLOCK") == ""; result == nil || landlock && (code != 0 || passed != true) || !landlock && (code != 1 || passed != nil) {
			t.Errorf("exit code %d, result %v", code, result)
		}
	})
}

// TestDeepDirectories has programs make trees that are deeper than there may be open files, with
// directories that no one may read.
func TestDeepDirectories(t *testing.T) {
	t.Parallel()
	deep := `
import os
def deep(base):
    at = os.open(base, os.O_RDONLY)
    for n in range(400):
        os.mkdir("d" * 200, dir_fd=at); os.close(os.open("f", os.O_CREAT, dir_fd=at))
        next = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        if n % 100 == 99: os.fchmod(at, 0)
        os.close(at); at = next
    os.close(at)
deep(os.environ["TMPDIR"])
`
	attacks(t, deep+`os.mkdir("deep"); deep("deep")`, deep+`
o("left: %s\n" % os.path.exists("deep"))
os.mkdir("result.json"); deep("result.json")
o("check: pass\n")`, func(t *testing.T, j *job, code int, result map[string]any) {
		run := at(result, "runs", "test", "run")
		if code != 0 || at(run, "passed") != true || at(run, "result", "left") != "False" {
			t.Errorf("exit code %d, run %v", code, run)
		}
		if left, err := os.ReadDir(filepath.Join(j.dir, "tmp")); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}, func(_ *testing.T, j *job) { j.cmd.Env = append(j.cmd.Env, "KBNODE_TEST_FILES=100") })
}

// TestNotesOnDirectories has the pre-run keep numbers where no file is needed: in the attributes, the times,
// the owner, the mode and the generation of directories that stay.
func TestNotesOnDirectories(t *testing.T) {
	t.Parallel()
	attacks(t, `
import fcntl, os, struct
def tries(f, *args, **more):
    try: f(*args, **more)
    except OSError: pass
for d in (".", "kept"):
    at = os.open(d, os.O_RDONLY)
    tries(os.setxattr, d, "user.note", b"4711"); tries(os.removexattr, d, "user.kept"); tries(fcntl.ioctl, at, 0x40087602, struct.pack("l", 4711))
    tries(os.chmod, d, 0o751); tries(os.utime, d, ns=(2**62, 4711)); tries(os.chown, d, 4711, 4711)
`, `
import fcntl, struct
for d in (".", "kept"):
    s = os.stat(d)
    found = [s.st_atime_ns == 2**62, s.st_mtime_ns == 4711, s.st_uid == 4711, s.st_gid == 4711, s.st_mode & 0o777 == 0o751, os.listxattr(d) not in ([], ["user.kept"]), "user.kept" not in os.listxattr(d) and os.environ["ATTRIBUTES"] == "yes"]
    try: found.append(struct.unpack("l", fcntl.ioctl(os.open(d, os.O_RDONLY), 0x80087601, bytes(8))) == (4711,))
    except OSError: pass
    if any(found): o("%s: %s\n" % (d, found))
o("check: %s\n" % ("pass" if sys.argv[1] == "test" else "fail"))`, func(t *testing.T, j *job, code int, result map[string]any) {
		passes(t, j, code, result)
		must.Equal(t, `map[check:pass]`, fmt.Sprint(at(result, "runs", "test", "run", "result")))
	}, func(t *testing.T, j *job) {
		kept := filepath.Join(j.cmd.Dir, "kept")
		must.Do(t, os.Mkdir(kept, 0o755))
		if errors.Join(unix.Setxattr(kept, "user.kept", nil, 0), unix.Setxattr(j.cmd.Dir, "user.kept", nil, 0)) == nil {
			j.cmd.Env = append(j.cmd.Env, "ATTRIBUTES=yes")
		} else {
			j.cmd.Env = append(j.cmd.Env, "ATTRIBUTES=no")
		}
	})
}

// TestTouchedDirectories has the pre-run do something in one directory of the job and nothing in another: the time of the
// last change, which no one can set, tells nothing of it.
func TestTouchedDirectories(t *testing.T) {
	t.Parallel()
	attacks(t, `
import os
os.chmod("a/touched", os.stat("a/touched").st_mode & 0o7777); open("a/written/x", "w").close(); os.remove("a/written/x")
`, `
later = [d for d in os.listdir("a") if os.stat("a/" + d).st_ctime_ns > os.stat("reference").st_ctime_ns]
o("later: %d\ncheck: pass\n" % len(later))`, func(t *testing.T, j *job, code int, result map[string]any) {
		passes(t, j, code, result)
		if at(result, "runs", "test", "run", "result", "later") != "4" {
			t.Errorf("%v of 4 directories changed later", at(result, "runs", "test", "run", "result", "later"))
		}
	}, func(t *testing.T, j *job) {
		for _, d := range []string{"touched", "written", "untouched", "none"} {
			must.Do(t, os.MkdirAll(filepath.Join(j.cmd.Dir, "a", d), 0o755))
		}
		write(t, filepath.Join(j.cmd.Dir, "reference"), "")
	})
}

// TestReadOnlyDirectory has a file system in the job's directory in which nothing can be put back.
func TestReadOnlyDirectory(t *testing.T) {
	t.Parallel()
	must.Root(t, "mounts a file system")
	j := newConfigJob(t, map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{"submission.py": "", "eval.py": report + `o("check: pass\n")`},
	})
	dir := filepath.Join(j.cmd.Dir, "data")
	must.Do(t, os.Mkdir(dir, 0o755))
	if out, err := exec.CommandContext(t.Context(), "mount", "-t", "tmpfs", "-o", "ro", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("mount: %v\n%s", err, out)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	code, result := j.run(t)
	passes(t, j, code, result)
}

// TestNamesOfSources writes sources under other names of files that are there, and in a directory behind a link,
// beside one that only another user may look into.
func TestNamesOfSources(t *testing.T) {
	t.Parallel()
	must.Root(t, "becomes another user")
	j := newConfigJob(t, map[string]any{
		"lang": "py", "mode": "leaderboard", "main": "./eval.py", "benchmarks": []any{map[string]int{"n": 1}}, "sources": map[string]string{
			"./eval.py": report + `import helper; o("check: %s\n" % helper.verdict)`, "link/../helper.py": `verdict = "pass"`, "link/b.py": "", "submission.py": "",
		},
	})
	dir := j.cmd.Dir
	write(t, dir+"/eval.py", "")
	write(t, dir+"/sub/b.py", "")
	must.Do(t, os.Symlink("sub", dir+"/link"))
	must.Do(t, os.Mkdir(dir+"/private", 0o700))
	j.become(t, 65534)
	must.Do(t, os.Chown(dir+"/private", 0, 0))
	if code, result := j.run(t); code != 0 || at(result, "runs", "leaderboard", "run", "passed") != true || strings.Contains(j.stderr.String(), "created by a program") {
		t.Errorf("exit code %d, %v\n%s", code, result, j.stderr.String())
	}
}

// TestTruncation has a judge's program empty a file that it may not write to, on a kernel whose
// Landlock does not rule that.
func TestTruncation(t *testing.T) {
	t.Parallel()
	if landlockVersion() < landlockRefer {
		t.Skip("this kernel has no Landlock")
	}
	target := filepath.Join(t.TempDir(), "outside")
	write(t, target, "content")
	byHandle := "303, 304"
	if runtime.GOARCH != "amd64" {
		byHandle = "264, 265"
	}
	j, result := runPy(t, map[string]string{"eval.py": report + `
import ctypes, struct
outside = os.environ["OUTSIDE"]
libc = ctypes.CDLL(None, use_errno=True)
def by_handle(flags):
    to, by = ` + byHandle + `
    handle = ctypes.create_string_buffer(struct.pack("I", 128), 136)
    if libc.syscall(to, -100, outside.encode(), handle, ctypes.byref(ctypes.c_int()), 0) or libc.syscall(by, os.open(os.path.dirname(outside), os.O_RDONLY), handle, flags) < 0: raise OSError
def openat2(flags):
    if libc.syscall(437, -100, outside.encode(), struct.pack("QQQ", flags, 0, 0), 24) < 0: raise OSError
for f in (lambda: os.truncate(outside, 0), lambda: os.open(outside, os.O_RDONLY | os.O_TRUNC), lambda: os.open(outside, os.O_WRONLY | os.O_TRUNC),
    lambda: os.open(outside, os.O_ACCMODE | os.O_TRUNC), lambda: os.open(outside, os.O_ACCMODE | os.O_TRUNC | os.O_CREAT | os.O_NONBLOCK),
    lambda: by_handle(os.O_ACCMODE | os.O_TRUNC), lambda: by_handle(os.O_TRUNC), lambda: openat2(os.O_ACCMODE | os.O_TRUNC)):
    try: f(); o("truncated: yes\n")
    except OSError: pass
own = os.open("own", os.O_RDWR | os.O_CREAT | os.O_TRUNC); os.ftruncate(own, 8)
o("own: %d\ncheck: pass\n" % len(open("own").read()))`}, "KBNODE_TEST_LANDLOCK=2", "OUTSIDE="+target)
	run := at(result, "runs", "test", "run")
	if at(run, "passed") != true || at(run, "result", "own") != "8" || at(run, "result", "truncated") != nil {
		t.Errorf("run %v\n%s", run, j.stderr.String())
	}
}

// TestMappedMemory has the pre-run change a file of a tmpfs without changing its times.
func TestMappedMemory(t *testing.T) {
	t.Parallel()
	attacks(t, `
import mmap
f = open("helper.py", "r+b")
m = mmap.mmap(f.fileno(), 0)
m[0]
m[12:16] = b"pass"
`, `
import helper
o("check: %s\n" % helper.verdict)`, func(t *testing.T, _ *job, code int, result map[string]any) {
		message, _ := at(result, "error").(string)
		if code != 1 || !strings.Contains(message, "a program changed") {
			t.Errorf("exit code %d, error %q", code, message)
		}
	}, func(t *testing.T, j *job) {
		dir, err := os.MkdirTemp("/dev/shm", "kbnode-test-") //nolint:usetesting // on a tmpfs
		if err == nil {
			err = os.Chmod(dir, 0o777)
		}
		if err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		j.cmd.Dir = dir
		must.Do(t, os.WriteFile(filepath.Join(dir, "helper.py"), []byte("verdict = \"fail\"\n"), 0o666))
		must.Do(t, os.Chmod(filepath.Join(dir, "helper.py"), 0o666))
	})
}

// TestFullDisk has the judge's program take the space of the sources and all that is left.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	must.Root(t, "mounts a file system")
	attacks(t, "", `
for name in ("submission.py", "eval.py"): os.remove(name)
full = os.open("full", os.O_WRONLY | os.O_CREAT)
try:
    while True: os.write(full, b"x" * 4096)
except OSError: pass
try:
    for n in range(100000): open("f%d" % n, "w").close()
except OSError: pass
os._exit(os.write(fd, b"check: pass\n") - 12)`, passes, func(t *testing.T, j *job) {
		if out, err := exec.CommandContext(t.Context(), "mount", "-t", "tmpfs", "-o", "size=2m,nr_inodes=1k,mode=777", "tmpfs", j.cmd.Dir).CombinedOutput(); err != nil {
			t.Skipf("mount: %v\n%s", err, out)
		}
		dir := j.cmd.Dir
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	})
}

// TestFullDiskAndALongReport has the judge's program fill the disk with a file that no one puts back, and report as much
// as it may.
func TestFullDiskAndALongReport(t *testing.T) {
	t.Parallel()
	j := containerJob(t, "", `
try:
    with open("kept", "ab", buffering=0) as kept:
        while True: kept.write(b"x" * 4096)
except OSError: pass
for n in range(60): o("key%d: %s\n" % (n, "x" * 60000))
o("check: pass\n")`)
	if err := unix.Mount("tmpfs", j.cmd.Dir, "tmpfs", 0, "size=16m,mode=777"); err != nil {
		t.Skip("mount: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(j.cmd.Dir, unix.MNT_DETACH) })
	write(t, filepath.Join(j.cmd.Dir, "kept"), "")
	code, doc := j.run(t)
	passes(t, j, code, doc)
}

// TestByteCodeIsNoMemory has the pre-run change byte code that was there before, which Python would write again, and
// leave some.
func TestByteCodeIsNoMemory(t *testing.T) {
	t.Parallel()
	attacks(t, `
import os, sys
sys.dont_write_bytecode = False
import package.module
for path, f in (("package/__pycache__/gone.pyc", os.remove), ("package/__pycache__/kept.pyc", lambda p: open(p, "a").write("x"))):
    try: f(path)
    except OSError: pass
`, `o("found: %s\ncheck: pass\n" % sorted(os.path.join(at, f) for at, _, files in os.walk("package") for f in files))`, func(t *testing.T, j *job, code int, result map[string]any) {
		passes(t, j, code, result)
		if at(result, "runs", "test", "run", "result", "found") != "['package/module.py']" {
			t.Errorf("found %v", at(result, "runs", "test", "run", "result", "found"))
		}
	}, func(t *testing.T, j *job) {
		for _, name := range []string{"module.py", "__pycache__/gone.pyc", "__pycache__/kept.pyc", "__pycache__/untouched.pyc"} {
			write(t, filepath.Join(j.cmd.Dir, "package", name), "")
		}
	})
}
