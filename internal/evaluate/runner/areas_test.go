package runner

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/test/must"
)

// container makes a root directory like a container's, in name spaces of its own, and runs the runner in it:
// $0 is the directory, and $1 the program. It has an image's layer, libraries with what they load by their
// configuration, and file systems that are not for files.
const container = `set -e
mount --make-rprivate /
mount -t tmpfs none "$0"; cd "$0"
mkdir -p usr etc/ssl opt/lib/engines-3 opt/lib/gconv dev proc run tmp var/tmp var/lib root work layer all
chmod 1777 tmp var/tmp
mount --bind /usr usr; mount -o remount,bind,ro usr
for d in bin sbin lib lib64; do
	if [ -L /$d ]; then cp -P /$d .; elif [ -d /$d ]; then mkdir $d; mount --bind /$d $d; mount -o remount,bind,ro $d; fi
done
cp /etc/ld.so.cache /etc/passwd etc
mount -t tmpfs none layer; mkdir -p layer/upper layer/work layer/lower/deep
for f in etc/ssl/openssl.cnf opt/lib/engines-3/a.so opt/lib/gconv/gconv-modules layer/lower/deep/file; do echo old >$f; done
echo keep >opt/lib/mapped
mkdir opt/lib/__pycache__; echo "n = 1" >opt/lib/stale.py
for v in 39 310 311 312 313 314 315; do echo old >opt/lib/__pycache__/stale.cpython-$v.pyc; done
ln -s engines-3 opt/lib/engines
mount -t overlay -o lowerdir=layer/lower,upperdir=layer/upper,workdir=layer/work none all; umount -l layer
mount -t tmpfs none dev; mkdir dev/shm dev/mqueue dev/pts
for f in null zero urandom; do touch dev/$f; mount --bind /dev/$f dev/$f; done
mount -t tmpfs none dev/shm; mount -t mqueue none dev/mqueue; mount -t tmpfs none run
mount -t proc none proc
cp "$1" runner; touch .dockerenv
exec chroot . sh -c 'cd /work && exec /runner'
`

// containerJob returns a job in such a container.
func containerJob(t *testing.T, submission, judge string, env ...string) *job {
	t.Helper()
	must.Root(t, "mounts file systems")
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip(err)
	}
	j := newConfigJob(t, map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{"submission.py": submission, "eval.py": report + judge},
	}, append(env, "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR=", "HOME=/root", "PYTHONDONTWRITEBYTECODE=")...)
	root := filepath.Join(j.dir, "root")
	must.Do(t, os.Mkdir(root, 0o755))
	// The result is on a file system that only the runner's processes see.
	script := strings.Replace(container, "exec chroot", `mkdir -p work; mount --bind "$2" work; ! command -v ip >/dev/null || ip link set lo up; exec chroot`, 1)
	j.cmd.Args = []string{unshare, "--mount", "--pid", "--ipc", "--net", "--fork", "--kill-child", "sh", "-c", script, root, j.cmd.Path, j.cmd.Dir}
	j.cmd.Path = unshare
	return j
}

// TestNothingStaysInTheContainer has the pre-run leave something wherever root can in its container. Without
// Landlock it is removed, or put back, before the judge's program: whatever reads it, and whatever it is for.
func TestNothingStaysInTheContainer(t *testing.T) {
	t.Parallel()
	const submission = `
import os, sys
def tries(f, *args, **more):
    try: return f(*args, **more)
    except OSError: pass
for d in ("/", "/etc", "/etc/ssl", "/opt/lib", "/opt/lib/engines-3", "/root", "/var/lib", "/run", "/dev", "/dev/mqueue", "/dev/shm", "/tmp", "/all", "/all/deep", "/work"):
    tries(os.close, tries(os.open, d + "/note", os.O_CREAT | os.O_WRONLY) or 9999)
    tries(os.mkdir, d + "/notes"); tries(os.symlink, "x", d + "/notes/link")
    if d.startswith(("/opt", "/all/deep", "/run")):
        tries(os.chmod, d, 0o751); tries(os.chown, d, 4711, 4711); tries(os.utime, d, ns=(4711, 4711))
sys.path.append("/opt/lib"); import stale # whose byte code Python would write again
tries(os.makedirs, "/opt/lib/ossl-modules/deep"); tries(os.link, "/runner", "/var/lib/linked/x")
`
	const judge = `
found = []
for top in ("/etc", "/opt", "/root", "/var", "/run", "/dev", "/tmp", "/all", "/work"):
    for at, dirs, files in os.walk(top):
        s = os.stat(at)
        if 4711 in (s.st_uid, s.st_gid, s.st_mtime_ns, s.st_atime_ns) or s.st_mode & 0o777 == 0o751: found.append(at)
        found += [at + "/" + n for n in dirs + files if "note" in n or n == "ossl-modules"]
if os.path.exists("/note"): found.append("/note")
o("found: %s\ncheck: pass\n" % found)`
	for _, landlock := range []string{"", "0"} {
		t.Run("landlock="+landlock, func(t *testing.T) {
			t.Parallel()
			j := containerJob(t, submission, judge, "KBNODE_TEST_LANDLOCK="+landlock)
			code, result := j.run(t)
			passes(t, j, code, result)
			if at(result, "runs", "test", "run", "result", "found") != "[]" && landlock == "0" {
				t.Errorf("found %v", at(result, "runs", "test", "run", "result", "found"))
			}
			if t.Failed() {
				t.Log(j.stdout.String(), j.stderr.String())
			}
		})
	}
}

// TestChangesInTheContainer has the pre-run change what the judge's program could load, anywhere and in any way.
func TestChangesInTheContainer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ submission, path string }{
		"a library's configuration":       {`open("/etc/ssl/openssl.cnf", "w").write("evil")`, "/etc/ssl/openssl.cnf"},
		"below a library directory":       {`open("/opt/lib/engines-3/a.so", "a").write("evil")`, "/opt/lib/engines-3/a.so"},
		"of the same size and time":       {`s = os.stat(p := "/opt/lib/gconv/gconv-modules"); open(p, "r+").write("new"); os.utime(p, ns=(s.st_atime_ns, s.st_mtime_ns))`, "/opt/lib/gconv/gconv-modules"},
		"in an image's layer":             {`open("/all/deep/file", "a").write("x")`, "/all/deep/file"},
		"through mapped memory":           {`import mmap; f = open("/opt/lib/mapped", "r+b"); m = mmap.mmap(f.fileno(), 0); m[0]; m[0:4] = b"evil"`, "/opt/lib/mapped"},
		"the mode":                        {`os.chmod("/opt/lib/engines-3/a.so", 0)`, "/opt/lib/engines-3/a.so"},
		"the times":                       {`os.utime("/all/deep/file", ns=(1, 4711))`, "/all/deep/file"},
		"a file is gone":                  {`os.remove("/opt/lib/engines-3/a.so")`, "/opt/lib/engines-3/a.so"},
		"byte code is gone":               {`os.remove("/opt/lib/__pycache__/stale.cpython-39.pyc")`, "/opt/lib/__pycache__/stale.cpython-39.pyc"},
		"other byte code":                 {`open("/opt/lib/__pycache__/stale.cpython-39.pyc", "w").close()`, "/opt/lib/__pycache__/stale.cpython-39.pyc"},
		"another directory":               {`os.rename("/opt/lib/engines-3", "/opt/lib/x"); os.mkdir("/opt/lib/engines-3")`, "/opt/lib/engines-3/a.so"},
		"no directory of temporary files": {`os.rename("/var/tmp", "/var/x"); os.symlink("/etc", "/var/tmp")`, "/var/tmp"},
		"another link":                    {`os.remove("/opt/lib/engines"); os.symlink("gconv", "/opt/lib/engines")`, "/opt/lib/engines"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := containerJob(t, "import os\n"+c.submission, `o("check: pass\n")`, "KBNODE_TEST_LANDLOCK=0")
			code, doc := j.run(t)
			message, _ := at(doc, "error").(string)
			if code != 1 || !strings.Contains(message, fmt.Sprintf("d %s, which", c.path)) || at(doc, "runs", "test") != nil {
				t.Errorf("exit code %d, error %q\n%s", code, message, j.stderr.String())
			}
		})
	}
}

// TestPipedLog pipes the runner's log into a program that writes it to files of the container: it is no stranger, so
// that nothing stays for the judge, and its files are its own.
func TestPipedLog(t *testing.T) {
	t.Parallel()
	for _, landlock := range []string{"", "0"} {
		t.Run("landlock="+landlock, func(t *testing.T) {
			t.Parallel()
			j := containerJob(t, `open("/tmp/note", "w"); print("from the submission", flush=True)`,
				`o("found: %s\ncheck: pass\n" % os.path.exists("/tmp/note"))`, "KBNODE_TEST_LANDLOCK="+landlock)
			for i, arg := range j.cmd.Args {
				j.cmd.Args[i] = strings.Replace(arg, "exec /runner", "/runner 2>&1 | tee /tmp/log /root/log | cat; cat /tmp/log /root/log >/work/logs", 1)
			}
			code, result := j.run(t)
			passes(t, j, code, result)
			must.Equal(t, "False", fmt.Sprint(at(result, "runs", "test", "run", "result", "found")))
			logs := must.Read(t, filepath.Join(j.cmd.Dir, "logs"))
			if n := strings.Count(logs, "/tmp/note was created by a program"); n != 2 {
				t.Errorf("%d logs:\n%s", n, logs)
			}
		})
	}
}

// TestLatePipe has the program that takes the log begin after the runner, as under load.
func TestLatePipe(t *testing.T) {
	t.Parallel()
	j := containerJob(t, `open("/tmp/note", "w")`, `o("found: %s\ncheck: pass\n" % os.path.exists("/tmp/note"))`, "KBNODE_TEST_LANDLOCK=0")
	write(t, filepath.Join(j.cmd.Dir, "late.py"), `
import os, time
end, begin = os.pipe()
if os.fork() == 0:
    os.close(begin); time.sleep(0.1); os.dup2(end, 0); os.execlp("cat", "cat")
runner = os.fork()
if runner == 0:
    os.dup2(begin, 1); os.execl("/runner", "/runner")
os.close(end); os.close(begin)
code = os.waitstatus_to_exitcode(os.waitpid(runner, 0)[1]); os.wait()
os._exit(code)
`)
	for i, arg := range j.cmd.Args {
		j.cmd.Args[i] = strings.Replace(arg, "exec /runner", "exec python3 late.py", 1)
	}
	code, doc := j.run(t)
	passes(t, j, code, doc)
	if at(doc, "runs", "test", "run", "result", "found") != "False" {
		t.Errorf("result %v\n%s", doc, j.stderr.String())
	}
}

// TestStrangersInTheContainer has a process run beside the runner: the log says what that takes away.
func TestStrangersInTheContainer(t *testing.T) {
	t.Parallel()
	for command, wanted := range map[string]bool{"sleep 60 & /runner; kill $!": true, "exec /runner": false} {
		j := containerJob(t, "", `o("check: pass\n")`)
		for i, arg := range j.cmd.Args {
			j.cmd.Args[i] = strings.Replace(arg, "cd /work && exec /runner", "cd /work; "+command, 1)
		}
		code, result := j.run(t)
		passes(t, j, code, result)
		if got := strings.Contains(j.stderr.String(), "other processes run in this container"); got != wanted {
			t.Errorf("%s: %v %s", command, result, j.stderr.String())
		}
	}
}

// TestOtherSharedMemory has another file system than usual in the place of /dev/shm, to which programs may write.
func TestOtherSharedMemory(t *testing.T) {
	t.Parallel()
	for _, landlock := range []string{"", "0"} {
		j := containerJob(t, `open("/dev/shm/note", "w").close()`,
			`o("found: %s\ncheck: pass\n" % sorted(os.listdir("/dev/shm")))`, "KBNODE_TEST_LANDLOCK="+landlock)
		for i, arg := range j.cmd.Args {
			j.cmd.Args[i] = strings.Replace(arg, "mount -t tmpfs none dev/shm", "mount --bind all dev/shm", 1)
		}
		code, result := j.run(t)
		passes(t, j, code, result)
		if at(result, "runs", "test", "run", "result", "found") != "['deep']" {
			t.Errorf("landlock %q: result %v\n%s", landlock, result, j.stderr.String())
		}
	}
}

// TestLinkedTemporaryDirectories has images whose directories for temporary files are links.
func TestLinkedTemporaryDirectories(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{
		"rmdir var/tmp tmp; mkdir -m 1777 data; ln -s data tmp; ln -s ../tmp var/tmp", "rmdir var/tmp; mkdir -m 1777 data; ln -s /data var/tmp",
		"rmdir tmp; ln -s var/tmp tmp", "rmdir var/tmp; mkdir -m 1777 tmp/more; ln -s /tmp/more var/tmp", "rmdir tmp; mkdir -p work/tmp; ln -s work/tmp tmp",
	} {
		for _, landlock := range []string{"", "0"} {
			j := containerJob(t, `open("/tmp/note", "w").close(); open("/var/tmp/note2", "w").close(); open("/dev/shm/note", "w").close()`,
				`o("found: %s\ncheck: pass\n" % [d for d in ("/tmp", "/var/tmp", "/dev/shm") for n in os.listdir(d) if "note" in n])`, "KBNODE_TEST_LANDLOCK="+landlock)
			for i, arg := range j.cmd.Args {
				j.cmd.Args[i] = strings.Replace(arg, "exec chroot", layout+"; exec chroot", 1)
			}
			code, result := j.run(t)
			passes(t, j, code, result)
			if at(result, "runs", "test", "run", "result", "found") != "[]" {
				t.Errorf("%s, landlock %q: result %v\n%s", layout, landlock, result, j.stderr.String())
			}
		}
	}
}

// TestChangesOfTemporaryFiles has the pre-run change what a step put into a directory for temporary files: it may be what
// the judge's program is made of. What caches and shared memory hold may change, and so may a log.
func TestChangesOfTemporaryFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ submission, changed string }{
		"a changed module":   {`open("/tmp/lib/module.py", "a").write("x = 1")`, "/tmp/lib/module.py"},
		"a removed module":   {`os.remove("/tmp/lib/module.py")`, "/tmp/lib/module.py"},
		"a removed link":     {`os.remove("/var/tmp/link")`, "/var/tmp/link"},
		"an empty directory": {`os.rmdir("/var/tmp/empty")`, "/var/tmp/empty"},
		"another kind":       {`os.remove("/tmp/lib/module.py"); os.mkdir("/tmp/lib/module.py")`, "/tmp/lib/module.py"},
		"a mode":             {`os.chmod("/tmp/lib/module.py", 0)`, "/tmp/lib/module.py"},
		"what may change": {`open("/tmp/cache/kernel", "a").write("x"); os.remove("/tmp/cache/old"); open("/dev/shm/lock", "a").write("x")
open("/tmp/lib/new", "w").close(); os.chmod("/tmp/lib", 0o700)`, ""},
	} {
		for _, landlock := range []string{"", "0"} {
			t.Run(name+",landlock="+landlock, func(t *testing.T) {
				t.Parallel()
				j := containerJob(t, "import os\n"+c.submission, `o("found: %s\ncheck: pass\n" % sorted(os.listdir("/tmp/lib")))`,
					"KBNODE_TEST_LANDLOCK="+landlock, "TRITON_CACHE_DIR=/tmp/cache")
				for i, arg := range j.cmd.Args {
					j.cmd.Args[i] = strings.Replace(arg, "exec /runner", `mkdir /tmp/lib /tmp/cache /var/tmp/empty; ln -s empty /var/tmp/link
						for f in /tmp/lib/module.py /tmp/cache/kernel /tmp/cache/old /dev/shm/lock; do echo >$f; done; exec /runner >>/tmp/log`, 1)
				}
				code, doc := j.run(t)
				if message, _ := at(doc, "error").(string); c.changed != "" {
					if code != 1 || !strings.Contains(message, fmt.Sprintf("d %s, which", c.changed)) || at(doc, "runs", "test") != nil {
						t.Errorf("exit code %d, error %q\n%s", code, message, j.stderr.String())
					}
					return
				}
				passes(t, j, code, doc)
				if at(doc, "runs", "test", "run", "result", "found") != "['module.py']" {
					t.Errorf("%v\n%s", doc, j.stderr.String())
				}
			})
		}
	}
}

// TestBlindDirectory has an image with directories that its user may enter but not list: the log says what that means.
func TestBlindDirectory(t *testing.T) {
	t.Parallel()
	for landlock, wanted := range map[string]bool{"": false, "0": true} {
		j := containerJob(t, "", `o("check: pass\n")`, "KBNODE_TEST_LANDLOCK="+landlock)
		for i, arg := range j.cmd.Args {
			j.cmd.Args[i] = strings.Replace(arg, "exec chroot .", `mkdir -m 1733 var/lib/blind; mkdir -m 0711 var/lib/way; mkdir -m 0700 var/lib/closed; chown 65534 work
exec chroot . setpriv --reuid 65534 --regid 65534 --clear-groups`, 1)
		}
		code, doc := j.run(t)
		passes(t, j, code, doc)
		log := j.stderr.String()
		for name, wanted := range map[string]bool{"blind": wanted, "way": wanted, "closed": false} {
			if strings.Contains(log, "may enter /var/lib/"+name+" but not list it") != wanted {
				t.Errorf("landlock %q, %s: %s", landlock, name, log)
			}
		}
	}
}

// TestOpenPipes has a shell above the runner, whose pipes programs of the same user may open without Landlock: the log says so.
func TestOpenPipes(t *testing.T) {
	t.Parallel()
	for user, open := range map[string]bool{"0": false, "0 --bounding-set -setfcap": true, "65534": true} {
		for _, landlock := range []string{"", "0"} {
			for _, command := range []string{"exec /runner", "/runner; true"} {
				j := containerJob(t, "", `o("check: pass\n")`, "KBNODE_TEST_LANDLOCK="+landlock)
				for i, arg := range j.cmd.Args {
					arg = strings.Replace(arg, "exec /runner", command, 1)
					j.cmd.Args[i] = strings.Replace(arg, "exec chroot .", "chmod 777 work; exec chroot . setpriv --clear-groups --regid 65534 --reuid "+user, 1)
				}
				code, doc := j.run(t)
				passes(t, j, code, doc)
				wanted := open && landlock == "0" && command != "exec /runner"
				if got := strings.Contains(j.stderr.String(), "programs may open the environment and the pipes"); got != wanted {
					t.Errorf("user %s, landlock %q, %s: %s", user, landlock, command, j.stderr.String())
				}
			}
		}
	}
}

// TestTimesOfOthers leaves no program's time in a directory of root's in which everyone may write, as /dev/shm is.
func TestTimesOfOthers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to act as another user")
	}
	dir := t.TempDir()
	program := time.Now().Add(-time.Hour)
	must.Do(t, errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o777|os.ModeSticky), os.Chtimes(dir, program, program)))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Setfsuid(65534)
	err := stamp{times: [2]syscall.Timespec{{Sec: 1}, {Sec: 1}}}.setTimes(dir)
	_ = unix.Setfsuid(0)
	must.Err(t, err, "operation not permitted")
	info, err := os.Stat(dir)
	must.Do(t, err)
	if age := time.Since(info.ModTime()); age > time.Minute {
		t.Errorf("the last write was %v ago, when the program wrote", age)
	}
}
