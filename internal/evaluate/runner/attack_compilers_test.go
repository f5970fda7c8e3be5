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
// a message for the next program.
func TestCompilersPassNoMessage(t *testing.T) {
	t.Parallel()
	needCompilers(t, "gcc")
	const build = builder + `
print('-DTORCH_EXTENSION_NAME')
source = put(home + "/x.c", r"""
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <unistd.h>
int plugin_is_GPL_compatible;
static char path[4096]; static volatile int stop;
static void *flip(void *a) { while (!stop) { path[1] = '?'; for (volatile int i = 0; i < 3000; i++); path[1] = *(char *)a; for (volatile int i = 0; i < 300; i++); } return 0; }
int plugin_init(void *a, void *b) {
	char c, text[100]; int n = 0, f;
	strcpy(path, getenv("SECRET")); c = path[1]; path[1] = '?';
	pthread_t t; pthread_create(&t, 0, flip, &c);
	for (int i = 0; i < 20000 && !n; i++) if ((f = open(path, O_RDONLY)) >= 0) { n = read(f, text, sizeof text); close(f); }
	stop = 1; pthread_join(t, 0);
	f = open(getenv("OUT"), O_WRONLY | O_CREAT, 0644);
	if (write(f, text, n) != n) _exit(1);
	_exit(0);
}
""")
assert sh(os.path.realpath(os.environ["KBNODE_COMPILERS"] + "/.real/gcc"), "-shared", "-fPIC", "-frandom-seed=1", "-o", home + "/x.so", source).returncode == 0
def ask(secret, i):
    put("/dev/shm/secret", secret)
    p = sh("gcc", "-S", f"-DN={i}", "-fplugin=" + home + "/x.so", "-o", home + "/x.s", source, env={v: os.environ[v] for v in ("PATH", "HOME", "KBNODE_COMPILERS")} | {"OUT": home + "/out", "SECRET": "/dev/shm/secret"})
    r = open(home + "/out").read(); os.remove(home + "/out"); os.remove("/dev/shm/secret"); return r
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
}
