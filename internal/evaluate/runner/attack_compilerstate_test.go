package runner

import (
	"strings"
	"testing"
)

// TestCompilersSeeNoPrograms has a program put a message where a compiler's plugin finds it, which is in no file: in locks of
// a file of the image, and in the limits and the priority of its own process. The product has it, and would be that of the next
// program, too.
func TestCompilersSeeNoPrograms(t *testing.T) {
	t.Parallel()
	needCompilers(t, "gcc")
	const build = builder + `
import fcntl, resource, struct
source = put(home + "/x.c", r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>
int plugin_is_GPL_compatible;
int plugin_init(void *a, void *b) {
	char text[32] = "";
	int in = open("/etc/passwd", O_RDONLY), out = open(getenv("OUT"), O_WRONLY | O_CREAT, 0644);
	for (int i = 0; i < 8; i++) {
		struct flock at = { .l_type = F_WRLCK, .l_start = i << 8, .l_len = 256 };
		if (!fcntl(in, getenv("OPEN") ? F_OFD_GETLK : F_GETLK, &at) && at.l_type != F_UNLCK) text[i] = at.l_start & 255;
	}
	for (int pid = getpid(); pid > 1 && pid > getpid() - 4000 && getenv("LIMITS"); pid--) {
		struct rlimit mark, value;
		if (!prlimit(pid, RLIMIT_RSS, 0, &mark) && mark.rlim_cur == 471147114711 && !prlimit(pid, RLIMIT_LOCKS, 0, &value)) memcpy(text, &value.rlim_cur, 8);
	}
	for (int pid = getpid(); pid > 1 && pid > getpid() - 4000 && getenv("NICE"); pid--) {
		if (getpriority(PRIO_PROCESS, pid) == 17) strcpy(text, "nice");
	}
	if (getenv("FLOCK")) strcpy(text, flock(in, LOCK_SH | LOCK_NB) ? "locked" : "free");
	dprintf(out, "%s", text);
	_exit(0);
}
""")
assert sh(os.path.realpath(os.environ["KBNODE_COMPILERS"] + "/.real/gcc"), "-shared", "-fPIC", "-frandom-seed=1", "-o", home + "/x.so", source).returncode == 0
def ask(message, how):
    file = os.open("/etc/passwd", os.O_RDONLY)
    if message:
        for i, c in enumerate(message): fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, i << 8 | c, 1, 0))
        resource.setrlimit(resource.RLIMIT_RSS, (471147114711, -1)); resource.setrlimit(10, (int.from_bytes(message, "little"), -1))
        fcntl.flock(file, fcntl.LOCK_EX)
        os.setpriority(os.PRIO_PROCESS, 0, 17)
    p = sh("gcc", "-S", "-fplugin=" + home + "/x.so", "-o", home + "/x.s", source, env={v: os.environ[v] for v in ("PATH", "HOME", "KBNODE_COMPILERS")} | {"OUT": home + "/out", how: ""})
    os.close(file)
    got = open(home + "/out").read(); os.remove(home + "/out")
    return got
def all(message): return {how: ask(message, how) for how in ("FILE", "OPEN", "LIMITS", "NICE", "FLOCK")}
`
	_, result := runPy(t, map[string]string{
		"submission.py": build + `print("-DTORCH_EXTENSION_NAME", all(b"message"), flush=True)`,
		"eval.py":       build + report + `o("got: %s\ncheck: pass\n" % all(b""))`,
	})
	if out, _ := at(result, "runs", "test", "compilation", "stdout").(string); !strings.Contains(out, "message") {
		t.Errorf("the submission's compilers did not run: %v", at(result, "runs", "test", "compilation"))
	}
	if got := at(result, "runs", "test", "run", "result", "got"); got != "{'FILE': '', 'OPEN': '', 'LIMITS': '', 'NICE': '', 'FLOCK': 'free'}" {
		t.Errorf("the next program got %v: %v", got, at(result, "runs", "test", "run", "stderr"))
	}
}

// TestCompilersExecuteNothingOfPrograms has a plugin change a path after the runner has looked at it, from a program of the image
// to one of the submission's.
func TestCompilersExecuteNothingOfPrograms(t *testing.T) {
	t.Parallel()
	needCompilers(t, "gcc")
	const build = `
import shutil
source = put(home + "/x.c", r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
int plugin_is_GPL_compatible;
static char path[4096];
static volatile long delay;
static long now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000 + t.tv_nsec; }
static void *change(void *mine) {
	for (;;) {
		while (!delay);
		for (long end = now() + delay; now() < end;);
		strcpy(path, mine);
		delay = 0;
	}
}
int plugin_init(void *a, void *b) {
	char *argv[] = {path, 0};
	int codes[3] = {0};
	pthread_t thread;
	struct statfs fs;
	if (!statfs("/", &fs)) { fprintf(stderr, "alone"); _exit(0); } // the submission's own process
	pthread_create(&thread, 0, change, getenv("MINE"));
	for (long d = 5000000; d > 1000 && !codes[1] && !codes[2]; d -= d / 100) {
		strcpy(path, "/bin/true");
		int status, pid = vfork();
		if (!pid) { delay = d; execv(path, argv); _exit(2); }
		waitpid(pid, &status, 0);
		while (delay);
		if (WIFEXITED(status)) codes[WEXITSTATUS(status) % 3]++;
	}
	fprintf(stderr, "refused %d, submission's %d", codes[2], codes[1]);
	_exit(0);
}
""")
assert sh(os.path.realpath(os.environ["KBNODE_COMPILERS"] + "/.real/gcc"), "-shared", "-fPIC", "-frandom-seed=1", "-o", home + "/x.so", source, "-lpthread").returncode == 0
shutil.copy("/bin/false", home + "/mine")
got = "alone"
for i in range(20): # it changed the path too early
    if got != "alone": break
    env = {v: os.environ[v] for v in ("PATH", "HOME", "KBNODE_COMPILERS")} | {"MINE": home + "/mine", "TRY": str(i)}
    got = sh("gcc", "-S", "-fplugin=" + home + "/x.so", "-o", home + "/x.s", source, env=env).stderr
`
	for _, got := range sharedJob(t, 0, build, nil) {
		if got != "refused 1, submission's 0" {
			t.Errorf("executed: %s", got)
		}
	}
}
