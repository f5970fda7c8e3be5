package runner

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestConnectionsAreNoMemory has the pre-run leave connections with which the kernel goes on, between addresses and ports
// that it chose, and such as end with it.
func TestConnectionsAreNoMemory(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip(err)
	}
	const connect = `
import array, os, socket, struct
def connect(family, own):
    to = socket.socket(family); to.bind((own, 0)); to.listen()
    a = socket.socket(family); a.bind((own, 0)); a.connect(to.getsockname())
    return a, to.accept()[0], to
def linger():
    a, *others = connect(socket.AF_INET, "127.1.2.3")
    a.setsockopt(socket.IPPROTO_IP, 21, 255); a.send(b"x")
    a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 30))
    return a, others
def send(to, *sockets): to.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno() for s in sockets]))])
`
	const judge = `
left = [l.split()[3] for name in ("tcp", "tcp6") for l in open("/proc/net/" + name)]
names = open("/proc/net/unix").read().count("@kept")
o("left: %s\ncheck: pass\n" % ([s for s in left if s not in ("st", "06")] + ["unix"] * names)) # 06 is TIME_WAIT, of which a container has none`
	for name, c := range map[string]struct {
		submission string
		left       bool
	}{
		"none":             {"", false},
		"open":             {`sockets = connect(socket.AF_INET, "127.1.2.3")`, false},
		"with unread data": {`sockets = connect(socket.AF_INET6, "::1"); sockets[0].send(b"x" * 1000); sockets[1].send(b"x"); sockets[0].close()`, false},
		"more than fits":   {`sockets = connect(socket.AF_INET, "127.0.0.1"); sockets[0].setblocking(False); sockets[0].send(b"x" * 2**24); sockets[0].close()`, false},
		"deaf":             {`sockets = connect(socket.AF_INET, "127.1.2.3"); sockets[0].setsockopt(socket.IPPROTO_IP, 21, 255); sockets[0].send(b"x")`, true},
		"deaf, IPv6":       {`sockets = connect(socket.AF_INET6, "::1"); sockets[0].setsockopt(socket.IPPROTO_IPV6, 73, 255); sockets[0].send(b"x")`, true},
		"deaf, mapped":     {`sockets = connect(socket.AF_INET6, "::ffff:127.1.2.3"); sockets[0].setsockopt(socket.IPPROTO_IP, 21, 255); sockets[0].send(b"x")`, true},
		// The runner must not be who closes the last descriptor, nor the kernel's own thread, of sockets that only each other have.
		"deaf, sent": {`
a, others = linger()
runner = socket.socket(fileno=os.dup(3)); runner.setblocking(False)
try:
    while True: runner.send(b"k: v\n" * 4000) # to be read before
except BlockingIOError: runner.setblocking(True)
send(runner, a); os.close(a.detach())`, true},
		"deaf, in flight": {`
a, others = linger()
b, c = socket.socketpair()
send(b, a, b, c); os._exit(0)`, true},
		"names in flight": {`
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
for i in range(3000):
    b, c = socket.socketpair(); a = socket.socket(socket.AF_UNIX); a.bind("\0kept%d" % i)
    send(b, a, b, c)
os._exit(0)`, false},
	} {
		for _, landlock := range []string{"", "0"} {
			t.Run(fmt.Sprintf("%s,landlock=%s", name, landlock), func(t *testing.T) {
				t.Parallel()
				j := containerJob(t, connect+c.submission, judge, "KBNODE_TEST_LANDLOCK="+landlock)
				began := time.Now()
				code, doc := j.run(t)
				if took := time.Since(began); took > 25*time.Second {
					t.Errorf("it took %s", took)
				}
				if !c.left {
					passes(t, j, code, doc)
					must.Equal(t, "[]", fmt.Sprint(at(doc, "runs", "test", "run", "result", "left")))
				} else if message, _ := at(doc, "error").(string); code != 1 || !strings.Contains(message, "a program left a TCP connection") || at(doc, "runs", "test") != nil {
					t.Errorf("exit code %d, error %q, run %v", code, message, at(doc, "runs", "test", "run"))
				}
				if t.Failed() {
					t.Log(j.stderr.String())
				}
			})
		}
	}
}

// TestSocketsOfOthers has another process make sockets beside a program, as in a pod: where there is a network, they are not
// taken for the program's.
func TestSocketsOfOthers(t *testing.T) {
	t.Parallel()
	for route, left := range map[string]bool{"": true, "ip route add 10.9.0.0/16 dev lo; ": false} {
		t.Run(route, func(t *testing.T) {
			t.Parallel()
			j := containerJob(t, "import time; time.sleep(1)", `o("check: pass\n")`)
			const other = `python3 -c 'import socket, time; time.sleep(0.5); s = socket.socketpair(); time.sleep(9)' >/dev/null 2>&1 & `
			script := "ip link set lo up; " + route + other + `exec "$0" "$@"`
			j.cmd.Args = slices.Concat([]string{j.cmd.Path, "--net", "sh", "-c", script}, slices.DeleteFunc(j.cmd.Args, func(arg string) bool { return arg == "--net" }))
			code, doc := j.run(t)
			if message, _ := at(doc, "error").(string); left && (code != 1 || !strings.Contains(message, "a program left sockets")) {
				t.Errorf("exit code %d, error %q", code, message)
			} else if !left {
				passes(t, j, code, doc)
			}
			if t.Failed() {
				t.Log(j.stderr.String())
			}
		})
	}
}

// TestIsLoopback reads addresses as the kernel lists them.
func TestIsLoopback(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"0100007F": true, "20796E7F": true, "7F000001": false, "0100000A": false, "00000000": false,
		"00000000000000000000000001000000": true, "0000000000000000FFFF00000302017F": true, "0000000000000000FFFF00000302010A": false,
		"000080FE00000000FF005450B6AD1D7F": false, "00000000000000000000000000000000": false,
	} {
		if isLoopback(address) != want {
			t.Errorf("%s: %t", address, !want)
		}
	}
}
