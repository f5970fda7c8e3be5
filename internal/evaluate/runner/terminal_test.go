package runner

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestTerminalStaysAsItIs has programs open the runner's terminal, which they may read, and try every command of
// ioctl that is for terminals. The runner's log goes there, too.
func TestTerminalStaysAsItIs(t *testing.T) {
	t.Parallel()
	change := `
import fcntl, os, struct, termios
allowed = []
def tries(what, *args):
    try:
        fcntl.ioctl(terminal, what, *args)
        allowed.append(hex(what))
    except OSError as e:
        if e.errno != 1: allowed.append(hex(what))
terminal = os.open(os.environ["TERMINAL"], os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
for what in (0x5407, 0x540a): tries(what, 0)  # TCSETAF would read, TCXONC
try: termios.tcflow(terminal, termios.TCOOFF)
except termios.error: pass
for command, value in ((fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC), (fcntl.F_SETSIG, 9), (fcntl.F_SETSIG, 19), (fcntl.F_SETOWN, os.getppid()), (1024, 0), (1036, 0), (1038, 0)):
    try:
        fcntl.fcntl(terminal, command, value)
        allowed.append("fcntl %d" % command)
    except OSError as e:
        if e.errno != 1: allowed.append("fcntl %d" % command)
fcntl.fcntl(terminal, fcntl.F_SETFL, os.O_NONBLOCK); fcntl.fcntl(terminal, fcntl.F_GETFL)
for direction in (0, 1, 2, 3):
    for size in (0, 4, 8, 18, 44, 60):
        for number in range(256):
            tries(direction << 30 | size << 16 | 0x5400 | number, bytes(64))
`
	attacks(t, change, change+`
o("allowed: %s\n" % sorted(set(allowed)))
print("one line\n" * 20000)
o("check: pass\n")`, func(t *testing.T, j *job, code int, doc map[string]any) {
		passes(t, j, code, doc)
		if got := at(doc, "runs", "test", "run", "result", "allowed"); got != "['0x40045431', '0x5401', '0x5405', '0x540f', '0x5411', '0x5413', '0x541b', '0x5421', '0x5424', '0x5429', '0x5441', '0x5450', '0x5451', '0x5460', '0x80045430', '0x80045440', '0x802c542a']" {
			t.Errorf("allowed: %v", got)
		}
	}, func(t *testing.T, j *job) {
		onTerminal(t, j)
		j.cmd.Stdout = j.cmd.Stdin.(*os.File)
		before := settings(t, j.terminal)
		shown := make(chan string, 1)
		go func() { shown <- read(j.terminal) }()
		t.Cleanup(func() {
			if after := settings(t, j.terminal); before != after {
				t.Errorf("the terminal was %v, and is %v", before, after)
			}
			_ = j.cmd.Stdin.(*os.File).Close() // the last one ends read
			if text := <-shown; !strings.Contains(text, "one line") || !strings.Contains(text, "Passed") {
				t.Errorf("the terminal shows %q", text)
			}
		})
	})
}

// settings returns what the terminal keeps.
func settings(t *testing.T, terminal int) string {
	t.Helper()
	modes, err := unix.IoctlGetTermios(terminal, unix.TCGETS)
	must.Do(t, err)
	size, err := unix.IoctlGetWinsize(terminal, unix.TIOCGWINSZ)
	must.Do(t, err)
	return fmt.Sprint(*modes, *size)
}

// read reads what a terminal shows until no one has it open.
func read(terminal int) string {
	var text []byte
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(terminal, buf)
		switch {
		case err == unix.EAGAIN:
			time.Sleep(time.Millisecond)
		case n <= 0:
			return string(text)
		default:
			text = append(text, buf[:n]...)
		}
	}
}

// TestLogWithoutAReader has no one read the log, which the programs make longer than a pipe holds.
func TestLogWithoutAReader(t *testing.T) {
	t.Parallel()
	config := map[string]any{"lang": "py", "mode": "leaderboard", "main": "eval.py", "ranking_by": "geom", "test_timeout": 2, "sources": map[string]string{
		"submission.py": "", "eval.py": report + `print("one line\n" * 20000); o("check: pass\n")`,
	}}
	j := newConfigJob(t, config)
	unread, writer, err := os.Pipe()
	must.Do(t, err)
	defer unread.Close() //nolint:errcheck // opened for reading
	_, err = unix.FcntlInt(writer.Fd(), unix.F_SETPIPE_SZ, 4096)
	must.Do(t, err)
	j.cmd.Stdout = writer
	must.Do(t, j.cmd.Start())
	must.Do(t, writer.Close())
	waitFor(t, filepath.Join(j.cmd.Dir, result.File))
	log, err := io.ReadAll(unread)
	must.Do(t, err)
	code, doc := j.wait(t)
	if code != 0 || at(doc, "runs", "leaderboard", "run", "passed") != true || !strings.Contains(string(log), "Passed") {
		t.Errorf("exit code %d, result %v, log %q", code, doc, log)
	}
}

// TestCanceledWithStoppedTerminal ends a job whose terminal shows nothing any more.
func TestCanceledWithStoppedTerminal(t *testing.T) {
	t.Parallel()
	j := newConfigJob(t, map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{
		"submission.py": "", "eval.py": `import time; print("so far", flush=True); open("now", "w").close(); time.sleep(60)`,
	}})
	onTerminal(t, j)
	terminal := j.cmd.Stdin.(*os.File)
	j.cmd.Stdout = terminal
	must.Do(t, unix.IoctlSetInt(int(terminal.Fd()), unix.TCXONC, 0)) // TCOOFF
	must.Do(t, j.cmd.Start())
	waitFor(t, filepath.Join(j.cmd.Dir, "now"))
	must.Do(t, j.cmd.Process.Signal(unix.SIGTERM))
	code, doc := j.wait(t)
	if message, _ := at(doc, "error").(string); code != 1 || !strings.Contains(message, "cancelled") || at(doc, "runs", "test", "run", "stdout") != "so far\n" {
		t.Errorf("exit code %d, result %v", code, doc)
	}
	must.Do(t, unix.IoctlSetInt(int(terminal.Fd()), unix.TCXONC, 1)) // TCOON
}

// slowWriter takes what it is given when it is told to.
type slowWriter struct {
	sync.Mutex // held while it takes nothing
	bytes.Buffer
}

func (w *slowWriter) Write(p []byte) (int, error) {
	w.Lock()
	defer w.Unlock()
	return w.Buffer.Write(p)
}

// TestOutlet keeps what was written, in its order, as far as there is room, and says where something is missing.
func TestOutlet(t *testing.T) {
	t.Parallel()
	var w slowWriter
	o := newOutlet()
	a, b := o.writer(&w), o.writer(&w)
	o.flush(t.Context(), time.Hour) // nothing waits
	w.Lock()
	_, _ = a.Write([]byte("1\n"))
	o.flush(t.Context(), 10*time.Millisecond)
	_, _ = b.Write([]byte("2\n"))
	_, _ = a.Write(make([]byte, outletRoom))
	_, _ = b.Write([]byte("3\n"))
	w.Unlock()
	o.flush(t.Context(), time.Hour)
	w.Lock()
	_, _ = a.Write([]byte("4\n"))
	canceled, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	o.flush(canceled, time.Hour) // a job that is to end does not wait as long
	w.Unlock()
	o.flush(t.Context(), time.Hour)
	must.Equal(t, fmt.Sprintf("1\n2\nkbnode runner: %d bytes of the log are missing: no one read it\n3\n4\n", outletRoom), w.String())
}
