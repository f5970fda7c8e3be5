package notify

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/test/must"
)

// program writes a program of this test's user into a directory that no one else can write to.
func program(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "page")
	must.Program(t, file, "#!/bin/sh\n"+text)
	return file
}

func TestCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const left = `sh -c 'echo up >"$1"; sleep 300; :' x "$2" & until test -s "$2"; do sleep 0.01; done`
	for name, c := range map[string]struct{ script, err, wrote string }{
		"reads":            {`{ echo "$1"; cat; } >$2`, "", "a b\n{}"},
		"knows little":     {`env | grep -v ^PWD= | sort >$2`, "", "LC_ALL=C.UTF-8\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"},
		"does not read":    {`exit 0`, "", ""},
		"fails":            {`echo secret >&2; exit 3`, "exit status 3", ""},
		"hangs":            {`sh -c 'sleep 300; :' x "$2" & wait`, "did not end within 2s, and was killed", "?"},
		"leaves something": {left, "", "?"},
		"leaves a session": {"setsid " + left, "", "?"},
		"floods":           {`head -c 100000000 /dev/zero; head -c 100000000 /dev/zero >&2`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "leaves a session" {
				must.Root(t, "makes a PID namespace")
			}
			file := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			within := time.Minute
			if name == "hangs" {
				within = 2 * time.Second
			}
			err := command{args: []string{program(t, c.script), "a b", file}, within: within}.send(t.Context(), []byte("{}"))
			must.Err(t, err, c.err)
			text, _ := os.ReadFile(file)
			if c.wrote == "?" { // the file's name is among the arguments of a process that must be gone
				if strings.HasPrefix(name, "leaves") {
					must.Equal(t, "up\n", string(text))
				}
				must.Until(t, "the process is gone", func() bool { return len(namedIn(t, file)) == 0 })
			} else {
				must.Equal(t, c.wrote, string(text))
			}
		})
	}
}

// TestHeld has a process that does not end when it is killed: its tracer is outside of the namespace, and does not reap it.
func TestHeld(t *testing.T) {
	t.Parallel()
	must.Root(t, "makes a PID namespace")
	file := filepath.Join(t.TempDir(), "held")
	c := command{args: []string{program(t, `sh -c 'sleep 300; :' x "$1" & wait`), file}, within: 2 * time.Second}
	sent := make(chan error, 1)
	go func() { sent <- c.send(t.Context(), []byte("{}")) }()
	release := make(chan struct{})
	traced := make(chan error, 2)
	go func() {
		runtime.LockOSThread() // the tracer is a thread
		defer runtime.UnlockOSThread()
		pid := 0
		for late := time.Now().Add(must.Patience); pid == 0 && time.Now().Before(late); {
			for _, at := range namedIn(t, "x\x00"+file) {
				pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(at)))
			}
		}
		traced <- unix.PtraceSeize(pid)
		<-release
		_, err := unix.Wait4(pid, nil, unix.WALL, nil)
		traced <- err
	}()
	must.Do(t, <-traced)
	select {
	case err := <-sent:
		must.Err(t, err, "did not end within 2s, and was killed")
	case <-time.After(must.Patience):
		t.Error("it waits for what does not end")
	}
	must.Err(t, c.send(t.Context(), []byte("{}")), "its last run: no answer in 4s")
	close(release)
	must.Do(t, <-traced)
	c.within = 100 * time.Millisecond
	must.Until(t, "another run", func() bool { return !strings.Contains(c.send(t.Context(), nil).Error(), "last run") })
}

// namedIn returns the processes that have a word among their arguments. A zombie has none.
func namedIn(t *testing.T, word string) (found []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must.Do(t, err)
	for _, file := range all {
		text, _ := os.ReadFile(file) // it may have ended
		if strings.Contains(string(text), word) {
			found = append(found, file)
		}
	}
	return found
}

// TestRootsOnly refuses what others could replace.
func TestRootsOnly(t *testing.T) {
	t.Parallel()
	closed := program(t, "exit 0")
	open := program(t, "exit 0")
	must.Do(t, os.Chmod(open, 0o775))
	inOpen := program(t, "exit 0")
	must.Do(t, os.Chmod(filepath.Dir(inOpen), 0o777))
	link := filepath.Join(t.TempDir(), "link")
	must.Do(t, os.Symlink(inOpen, link))
	good := filepath.Join(t.TempDir(), "good")
	must.Do(t, os.Symlink("../"+filepath.Base(filepath.Dir(closed))+"/page", good))
	circle := filepath.Join(t.TempDir(), "circle")
	must.Do(t, os.Symlink(circle, circle))
	for name, want := range map[string]string{
		closed: "", good: "", open: "mode 0775, which lets others in; type sudo chmod 0755 " + open, inOpen: "mode 0777", link: filepath.Dir(inOpen) + " has mode 0777",
		circle: "too many levels", filepath.Dir(closed): "is not a file", closed + "x": "no such file",
	} {
		must.Err(t, rootsOnly(name, 0o022), want)
	}
	must.Err(t, rootsOnly(closed, 0o077), "has mode 0755, which lets others in; type sudo chmod 0700 "+closed)
	if os.Geteuid() == 0 {
		must.Do(t, os.Chown(closed, 1000, -1))
		must.Err(t, rootsOnly(closed, 0o022), closed+" belongs to user 1000; type sudo chown -h root "+closed)
	}
}

// TestWebhook posts to a real server, whose address is in a file.
func TestWebhook(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ok":
		case "/away":
			http.Redirect(w, r, "/ok", http.StatusTemporaryRedirect)
		default:
			http.NotFound(w, r)
		}
	}))
	defer s.Close()
	file := filepath.Join(t.TempDir(), "url")
	for text, want := range map[string]string{
		s.URL + "/ok\n":               "",
		s.URL + "/away":               "it answers 307 Temporary Redirect",
		s.URL + "/SECRET":             "it answers 404 Not Found",
		"":                            file + " has no https address; write one into it, and nothing else",
		"http://hooks.example/SECRET": file + " has no https address",
		"https://h/%zzSECRET":         "it is not a valid address",
		"https://127.0.0.1:1/SECRET":  "connect: connection refused",
	} {
		must.Do(t, os.WriteFile(file, []byte(text), 0o600))
		err := webhook{address: file}.send(t.Context(), []byte("{}"))
		must.Err(t, err, want)
		if _, refused := errors.AsType[*refusedError](err); refused != strings.HasPrefix(want, "it answers") {
			t.Errorf("%q: refused is %v", text, refused)
		}
		if err != nil && strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%q: the error shows it: %v", text, err)
		}
	}
	must.Do(t, os.Chmod(file, 0o644))
	must.Err(t, webhook{address: file}.send(t.Context(), nil), "has mode 0644, which lets others in; type sudo chmod 0600 "+file)
}
