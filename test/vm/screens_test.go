//go:build vm

package vm_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/examples"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/vm"
)

// recording is what came to a terminal, and when, in the form of asciinema: what
// screens.py draws.
type recording struct {
	mu    sync.Mutex
	began time.Time
	lines bytes.Buffer
	text  strings.Builder
}

func (r *recording) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began.IsZero() {
		r.began = time.Now()
	}
	r.text.Write(p)
	event, err := json.Marshal([]any{time.Since(r.began).Seconds(), "o", string(p)})
	r.lines.Write(append(event, '\n'))
	return len(p), err
}

func (r *recording) save(t *testing.T, name string, cols int) {
	t.Helper()
	dir := cmp.Or(os.Getenv("KBNODE_SCREENS"), t.TempDir())
	head := fmt.Sprintf("{\"version\": 2, \"width\": %d, \"height\": 30}\n", cols)
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".cast"), append([]byte(head), r.lines.Bytes()...), 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}

// api is the environment of those who speak to Buildkite's REST API.
const api = "BUILDKITE_API_URL=http://127.0.0.1:8899 BUILDKITE_ORG=kbnode BUILDKITE_API_TOKEN=" + bktest.DefaultAPIToken + " "

// typeCommand runs a command line on a terminal as wide as that, with its prompt before it.
func typeCommand(t *testing.T, m *vm.Machine, r *recording, cols int, env, command string) {
	t.Helper()
	_, _ = fmt.Fprintf(r, "$ %s\r\n", command)
	sizes := make(chan [2]uint16, 1)
	sizes <- [2]uint16{50, uint16(cols)}
	close(sizes)
	ctx, cancel := context.WithTimeout(t.Context(), m.Limit(vm.Patience))
	defer cancel()
	if _, err := m.VM.Terminal(ctx, strings.NewReader(""), r, sizes, "bash", "-c", "cd /root; export TERM=xterm-256color LANG=C.UTF-8 "+api+env+"; "+command); err != nil {
		t.Error(err)
	}
	_, _ = fmt.Fprint(r, "\r\n")
}

var (
	sequence = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)
	colours  = regexp.MustCompile(`\x1b\[[0-9;]*m`)
)

// fits says of each line that goes over the edge, but for one that is a word.
func fits(t *testing.T, what, text string, cols int) {
	t.Helper()
	_, text, _ = strings.Cut(text, "\n") // what was typed
	for _, line := range strings.FieldsFunc(sequence.ReplaceAllString(text, ""), func(r rune) bool { return r == '\r' || r == '\n' }) {
		if n := utf8.RuneCountInString(line); n > cols && strings.Contains(strings.TrimSpace(line), " ") {
			t.Errorf("%s: %d of %d columns: %q", what, n, cols, line)
		}
	}
}

// screen shows what a command prints at 80 and at 160 columns, and holds it to what
// terminals are promised: color and moving lines where they are wanted, ASCII where the
// locale is, all of it in a pipe.
func screen(t *testing.T, m *vm.Machine, name, command string) {
	t.Run(name, func(t *testing.T) {
		for _, cols := range []int{80, 160} {
			var r recording
			typeCommand(t, m, &r, cols, "", command)
			r.save(t, fmt.Sprintf("%s-%d", name, cols), cols)
			fits(t, command, r.text.String(), cols)
		}
		plain(t, m, command)
	})
}

func plain(t *testing.T, m *vm.Machine, command string) {
	t.Helper()
	bare := strings.TrimPrefix(command, "sudo ") // which keeps no NO_COLOR
	var r recording
	typeCommand(t, m, &r, 80, "NO_COLOR=1 LC_ALL=C", bare)
	said := r.text.String()
	fits(t, "in ASCII: "+command, said, 80)
	if colours.MatchString(said) {
		t.Errorf("%s: colour with NO_COLOR: %q", command, said)
	}
	if i := strings.IndexFunc(said, func(r rune) bool { return r >= utf8.RuneSelf }); i >= 0 {
		t.Errorf("%s: %q is not ASCII", command, said[max(0, i-20):min(len(said), i+20)])
	}
	if piped := m.Try("cd /root; export LANG=C.UTF-8 " + api + "; " + bare + " 2>&1 || true").Stdout; strings.Contains(piped, "\x1b") || len(piped) == 0 {
		t.Errorf("%s: in a pipe: %q", command, piped)
	}
}

// ready is a machine on which nothing is installed yet. The configuration is as an
// earlier install left it, so that what is typed has no address.
func ready(t *testing.T) *vm.Machine {
	t.Helper()
	m := forked(t)
	m.Put("/etc/kbnode/config.yaml", 0o644, "# "+plan.Marker+".\nagent:\n  endpoint: http://127.0.0.1:8899/v3\n")
	m.Sh("cp /root/token /root/token.txt")
	return m
}

// dumb holds a command to a terminal that can only print.
func dumb(t *testing.T, m *vm.Machine, command string) {
	t.Helper()
	var r recording
	typeCommand(t, m, &r, 80, "TERM=dumb", command)
	if strings.Contains(r.text.String(), "\x1b") {
		t.Errorf("%s: an escape sequence on a dumb terminal: %q", command, r.text.String())
	}
}

// TestScreens is how kbnode looks in a terminal. make screenshots draws what it writes.
func TestScreens(t *testing.T) {
	t.Parallel()
	m := ready(t)

	// The main job, once at each width.
	var demo recording
	const install = "sudo kbnode install --queue b200 --token-file token.txt"
	t.Run("install", func(t *testing.T) {
		typeCommand(t, m, &demo, 80, "", "sudo kbnode doctor --preflight")
		var r recording
		typeCommand(t, m, &r, 80, "", install)
		r.save(t, "install-80", 80)
		fits(t, install, r.text.String(), 80)
		demo.append(t, &r)
		m.Wait("a node as planned", "kbnode status >/dev/null")
		typeCommand(t, m, &demo, 80, "", "sudo kbnode status")
		typeCommand(t, m, &demo, 80, "", "kbnode submit --queue b200 --hello")
		demo.save(t, "demo", 80)
		fits(t, "demo", demo.text.String(), 80)
		plain(t, m, install)
		dumb(t, m, install)
	})

	for _, name := range []string{"eval.py", "prefix_python/task.yml", "prefix_python/reference.py", "prefix_python/submission.py", "prefix_python/wrong.py"} {
		text, err := examples.Files.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		m.Put("/root/"+name, 0o644, strings.ReplaceAll(string(text), "_timeout: 60", "_timeout: 600"))
	}
	screen(t, m, "submit", "kbnode submit --queue b200 --eval prefix_python --mode benchmark --run-id r1")
	dumb(t, m, "kbnode submit --queue b200 --hello")
	serveImages(t, m)
	m.Sh("printf 'image:\n  name: " + evalImage + "\n' >>/etc/kbnode/config.yaml; systemctl reload kbnode")
	newImage(m, "true")
	t.Run("image update", func(t *testing.T) {
		var r recording
		typeCommand(t, m, &r, 80, "", "sudo kbnode image update")
		r.save(t, "image-update-80", 80)
		fits(t, "image update", r.text.String(), 80)
	})
	screen(t, m, "image-list", "sudo kbnode image list")

	// A node with a job, a slot that is drained, and one whose GPU is gone.
	m.Sh("kbnode drain 5 --reason 'new fan'; sim-gpu lose 3")
	m.Put("/root/steps.yml", 0o600, fmt.Sprintf(sleeping, 0))
	m.Sh("bkstub submit --queue b200 --steps /root/steps.yml")
	m.Wait("the daemon to see it", "(kbnode status --json || true) | jq -e '.slots[3].agent != \"idle\" and .slots[0].agent == \"busy\" and .slots[5].agent == \"drained\"'")
	screen(t, m, "status", "sudo kbnode status")
	screen(t, m, "queue", "kbnode queue b200")
	screen(t, m, "events", "sudo kbnode events")

	m.Sh("systemctl stop kbnode; chmod 644 /etc/buildkite-agent/token; usermod -aG docker kbnode-gpu1; rm /etc/buildkite-agent/hooks/agent-startup; sed -i 's/^Restart=.*/Restart=no/' /etc/systemd/system/kbnode-guard-gpu1.service")
	screen(t, m, "plan", "sudo kbnode plan")
	screen(t, m, "doctor", "sudo kbnode doctor --fast")

	m.Kill()
	t.Run("install at 160", func(t *testing.T) {
		var r recording
		typeCommand(t, ready(t), &r, 160, "", install)
		r.save(t, "install-160", 160)
		fits(t, install, r.text.String(), 160)
	})
}

// append puts another recording, which began later, into this one.
func (r *recording) append(t *testing.T, other *recording) {
	t.Helper()
	after := other.began.Sub(r.began).Seconds()
	for line := range bytes.Lines(other.lines.Bytes()) {
		var event []any
		if err := json.Unmarshal(line, &event); err != nil {
			t.Fatal(err)
		}
		event[0] = event[0].(float64) + after
		again, err := json.Marshal(event)
		if err != nil {
			t.Fatal(err)
		}
		r.lines.Write(append(again, '\n'))
	}
	r.text.WriteString(other.text.String())
}
