package runner

import (
	"strings"
	"testing"
	"time"
)

// TestProductsHoldNoRunner has compilers make many large files of holes in temporary directories, the names of which must
// be in none: to look takes no longer than a program that ends at once.
func TestProductsHoldNoRunner(t *testing.T) {
	t.Parallel()
	needCompilers(t, "truncate")
	j := newConfigJob(t, map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py", "tests": []map[string]int{{"a": 1}},
		"sources": map[string]string{"submission.py": builder + `
import time
for i in range(8):
    d = tempfile.mkdtemp()
    subprocess.Popen(["cc", d + "/x"], cwd=d, stdin=subprocess.DEVNULL)
print("-DTORCH_EXTENSION_NAME done", flush=True)
time.sleep(3)
os._exit(0)
`, "eval.py": report + "o('check: pass\\n')"},
	})
	j.standIn(t, "cc", `for i in 0 1 2 3 4 5 6 7 8 9; do truncate -s 256M $i$i $i.0 $i.1 $i.2 $i.3 $i.4 $i.5 $i.6 $i.7 $i.8 $i.9; done`)
	start := time.Now()
	_, result := j.run(t)
	if took := time.Since(start); took > 25*time.Second || at(result, "success") != true {
		t.Errorf("it took %v: %v\n%s", took, result, j.stderr.String())
	}
}

// TestCompilersGiveNothingAway has a plugin send a program the descriptor of what it makes. A program that could write to
// what the runner keeps would leave a message to the next one, and fill memory.
func TestCompilersGiveNothingAway(t *testing.T) {
	t.Parallel()
	needCompilers(t, "gcc")
	const build = builder + `
import socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.settimeout(1)
os.chdir(home); s.bind("s")
source = put(home + "/x.c", r"""
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
int plugin_is_GPL_compatible;
int plugin_init(void *a, void *b) {
	struct sockaddr_un to = { AF_UNIX };
	struct iovec data = { "x", 1 };
	union { struct cmsghdr head; char room[CMSG_SPACE(sizeof(int))]; } rights = { 0 };
	struct msghdr message = { &to, sizeof to, &data, 1, &rights, sizeof rights };
	int ends[2], out = open(getenv("OUT"), O_RDWR | O_CREAT, 0644);
	if (write(out, "first", 5) != 5 || socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)) _exit(0);
	strcat(strcpy(to.sun_path, getenv("HOME")), "/s");
	rights.head.cmsg_level = SOL_SOCKET, rights.head.cmsg_type = SCM_RIGHTS, rights.head.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&rights.head), &out, sizeof(int));
	sendmsg(ends[0], &message, 0);
	_exit(0);
}
""")
def ask():
    assert sh("gcc", "-shared", "-fPIC", "-o", home + "/x.so", source).returncode == 0
    p = sh("gcc", "-S", "-fplugin=" + home + "/x.so", "-o", home + "/x.s", source, env={v: os.environ[v] for v in ("PATH", "HOME", "KBNODE_COMPILERS")} | {"OUT": home + "/out"})
    assert p.returncode == 0, p.stderr
`
	j := newConfigJob(t, map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py", "tests": []map[string]int{{"a": 1}},
		"sources": map[string]string{"submission.py": build + `ask()
try: os.pwrite(socket.recv_fds(s, 10, 1)[1][0], b"later", 0)
except OSError: pass
print("-DTORCH_EXTENSION_NAME done")
`, "eval.py": build + `ask(); o("got: " + open(home + "/out").read() + "\ncheck: pass\n")`},
	})
	_, result := j.run(t)
	first, _ := at(result, "runs", "test", "compilation", "stdout").(string)
	if got := at(result, "runs", "test", "run", "result", "got"); got != "first" || !strings.Contains(first, "done") {
		t.Errorf("the next program got %v: %v\n%s", got, at(result, "runs", "test"), j.stderr.String())
	}
}

// TestCompilersPassNoMessage has a plugin change a path after the runner has read it, to a file that is no fact: its product is
// a message for the next program. What the runner reads at first is another name, a path that is empty in a call that could be
// about a descriptor, were it not open(2), or a file that the runner lets each compiler read.
func TestCompilersPassNoMessage(t *testing.T) {
	t.Parallel()
	needCompilers(t, "gcc")
	for name, first := range map[string]string{"name": "?dev/shm/secret-n", "empty": "", "steady": "/dev/null"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			secret := "/dev/shm/secret-" + name[:1]
			build := builder + `
print('-DTORCH_EXTENSION_NAME')
source = put(home + "/x.c", r"""
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <unistd.h>
int plugin_is_GPL_compatible;
static char path[4096], to[32]; static volatile int stop;
static void set(const char *text) { memcpy(path, text, 32); __sync_synchronize(); }
static void *flip(void *first) { while (!stop) { set(first); for (volatile int i = 0; i < 3000; i++); set(to); for (volatile int i = 0; i < 300; i++); } return 0; }
int plugin_init(void *a, void *b) {
	static char first[32]; char text[100]; int n = 0, f;
	strcpy(to, getenv("SECRET")); strcpy(first, getenv("FIRST")); set(first);
	pthread_t t; pthread_create(&t, 0, flip, first);
	for (int i = 0; i < 20000 && n <= 0; i++) if ((f = open(path, O_RDONLY | O_DSYNC)) >= 0) { n = read(f, text, sizeof text); close(f); }
	stop = 1; pthread_join(t, 0);
	f = open(getenv("OUT"), O_WRONLY | O_CREAT, 0644);
	if (write(f, text, n) != n) _exit(1);
	_exit(0);
}
""")
assert sh(os.path.realpath(os.environ["KBNODE_COMPILERS"] + "/.real/gcc"), "-O1", "-shared", "-fPIC", "-frandom-seed=1", "-o", home + "/x.so", source).returncode == 0
def ask(text, i):
    secret = "` + secret + `"
    put(secret, text)
    p = sh("gcc", "-S", f"-DN={i}", "-fplugin=" + home + "/x.so", "-o", home + "/x.s", source,
        env={v: os.environ[v] for v in ("PATH", "HOME", "KBNODE_COMPILERS")} | {"OUT": home + "/out", "SECRET": secret, "FIRST": "` + first + `"})
    r = open(home + "/out").read(); os.remove(home + "/out"); os.remove(secret); return r
`
			j := newConfigJob(t, map[string]any{
				"lang": "py", "mode": "test", "main": "eval.py", "tests": []map[string]int{{"a": 1}},
				"sources": map[string]string{"submission.py": build + `
for i in range(20): ask("the first", i)
`, "eval.py": build + `o(f"got: {[i for i in range(20) if ask('the second', i) == 'the first']}" + "\ncheck: pass\n")`},
			})
			_, result := j.run(t)
			if got := at(result, "runs", "test", "run", "result", "got"); got != "[]" {
				t.Errorf("the next program got %v: %v\n%s", got, at(result, "runs", "test"), j.stderr.String())
			}
		})
	}
}

// TestCompilersSeeTheirOwn has a plugin make calls that the runner answers in the kernel's place, and the answers are the kernel's.
func TestCompilersSeeTheirOwn(t *testing.T) {
	t.Parallel()
	needCompilers(t, "gcc")
	j := newConfigJob(t, map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py", "tests": []map[string]int{{"a": 1}},
		"sources": map[string]string{"submission.py": "", "eval.py": builder + `
source = put(home + "/x.c", r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
int plugin_is_GPL_compatible;
#define SAY(call) do { errno = 0; long r = (call); fprintf(out, "%s %s;", r < 0 ? "no" : "ok", r < 0 ? strerrorname_np(errno) : ""); } while (0)
int plugin_init(void *a, void *b) {
	FILE *out = fopen(getenv("OUT"), "w");
	struct stat s, by; char link[4096] = {0}, line[9] = {0};
	int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), maps = open("/proc/self/maps", O_RDONLY);
	SAY(syscall(SYS_newfstatat, self, "", &by, AT_EMPTY_PATH)); SAY(syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/exe", &s, 0));
	fprintf(out, "%d%d;", s.st_ino == by.st_ino && s.st_size == by.st_size && S_ISREG(s.st_mode), read(maps, line, 8) == 8 && line[0] != 0);
	SAY(syscall(SYS_newfstatat, 99, "", &s, AT_EMPTY_PATH)); SAY(syscall(SYS_faccessat2, self, "", R_OK, AT_EMPTY_PATH));
	SAY(open("", O_RDONLY)); SAY(open("", O_RDONLY | O_DSYNC)); SAY(syscall(SYS_newfstatat, AT_FDCWD, "", &s, AT_EMPTY_PATH));
	fprintf(out, "%d;", S_ISDIR(s.st_mode)); SAY(readlink("/proc/self/exe", link, sizeof link)); fprintf(out, "%s;", strrchr(link, '/'));
	SAY(open("/dev/null", O_WRONLY | O_CREAT | O_TRUNC, 0666)); SAY(open("/dev/zero", O_WRONLY)); SAY(access("/dev/null", W_OK));
	SAY(mkdir("/usr", 0700)); SAY(mkdir("/usr/none", 0700)); SAY(mkdir("/none/none", 0700)); SAY(unlink("/usr/none")); SAY(rmdir("/usr/lib"));
	SAY(chmod("/etc/passwd", 0644)); SAY(chmod("/etc/none", 0600)); SAY(rename("/etc/none", "/etc/nothing")); SAY(open("/sys/devices/system/cpu", O_RDONLY | O_DIRECTORY));
	SAY(unlink("/dev/null"));
	fclose(out);
	_exit(0);
}
""")
assert sh(os.path.realpath(os.environ["KBNODE_COMPILERS"] + "/.real/gcc"), "-shared", "-fPIC", "-o", home + "/x.so", source).returncode == 0
p = sh("gcc", "-S", "-fplugin=" + home + "/x.so", "-o", home + "/x.s", source, env={v: os.environ[v] for v in ("PATH", "HOME", "KBNODE_COMPILERS")} | {"OUT": home + "/out"})
o("got: " + open(home + "/out").read() + "\ncheck: pass\n")
`},
	})
	_, result := j.run(t)
	const want = "ok ;ok ;11;no EBADF;ok ;no ENOENT;no ENOENT;ok ;1;ok ;/cc1;ok ;no EACCES;ok ;" +
		"no EEXIST;no EACCES;no ENOENT;no ENOENT;no EACCES;no EACCES;no ENOENT;no ENOENT;ok ;no EACCES;"
	if got := at(result, "runs", "test", "run", "result", "got"); got != want {
		t.Errorf("it got %v: %v\n%s", got, at(result, "runs", "test"), j.stderr.String())
	}
}
