//go:build vm

package vm_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/examples"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
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

// save writes the recording. No line goes over the edge, but one that is a word, or was or should be typed.
func (r *recording) save(t *testing.T, name string, cols int) {
	t.Helper()
	dir := cmp.Or(os.Getenv("KBNODE_SCREENS"), t.TempDir())
	head := fmt.Sprintf("{\"version\": 2, \"width\": %d, \"height\": 30}\n", cols)
	must.Write(t, dir, name+".cast", head+r.lines.String())
	typed := func(line string) bool {
		return strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "      type  ")
	}
	for _, line := range strings.FieldsFunc(sequence.ReplaceAllString(r.text.String(), ""), func(r rune) bool { return r == '\r' || r == '\n' }) {
		if n := utf8.RuneCountInString(line); n > cols && strings.Contains(strings.TrimSpace(line), " ") && !typed(line) {
			t.Errorf("%s: %d of %d columns: %q", name, n, cols, line)
		}
	}
}

var sequence = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)

// api is the environment of those who speak to Buildkite's REST API. What kbnode queue remembers stays out of the home that
// an uninstall must leave as it was.
const api = "XDG_STATE_HOME=/tmp BUILDKITE_API_URL=http://127.0.0.1:8899 BUILDKITE_ORG=kbnode BUILDKITE_API_TOKEN=" + bktest.DefaultAPIToken + " "

// typeCommand runs a command line on a terminal as wide as that, with its prompt before it.
func typeCommand(t *testing.T, m *vm.Machine, r io.Writer, cols int, command string) {
	t.Helper()
	_, _ = fmt.Fprintf(r, "$ %s\r\n", command)
	sizes := make(chan [2]uint16, 1)
	sizes <- [2]uint16{50, uint16(cols)}
	close(sizes)
	ctx, cancel := context.WithTimeout(t.Context(), m.Limit(vm.Patience))
	defer cancel()
	if _, err := m.VM.Terminal(ctx, strings.NewReader(""), r, sizes, "bash", "-c", "cd /root; export TERM=xterm-256color LANG=C.UTF-8 "+api+"; "+command); err != nil {
		t.Error(err)
	}
	_, _ = fmt.Fprint(r, "\r\n")
}

// screen shows what a command prints at 80 and at 160 columns.
func screen(t *testing.T, m *vm.Machine, name, command string) {
	t.Run(name, func(t *testing.T) {
		for _, cols := range []int{80, 160} {
			var r recording
			typeCommand(t, m, &r, cols, command)
			r.save(t, fmt.Sprintf("%s-%d", name, cols), cols)
		}
	})
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

// TestScreens is how kbnode looks in a terminal. make screenshots draws what it writes.
func TestScreens(t *testing.T) {
	t.Parallel()
	// The main job, once at each width.
	const install = "sudo kbnode install --queue b200 --token-file token.txt"
	t.Run("install at 160", func(t *testing.T) {
		var r recording
		typeCommand(t, ready(t), &r, 160, install)
		r.save(t, "install-160", 160)
	})
	m := ready(t)
	var demo recording
	t.Run("install", func(t *testing.T) {
		typeCommand(t, m, &demo, 80, "sudo kbnode doctor --preflight")
		var r recording
		typeCommand(t, m, io.MultiWriter(&r, &demo), 80, install)
		r.save(t, "install-80", 80)
		m.Wait("a node as planned", "kbnode status >/dev/null")
		typeCommand(t, m, &demo, 80, "sudo kbnode status")
		typeCommand(t, m, &demo, 80, "kbnode submit --queue b200 --hello")
		demo.save(t, "demo", 80)
	})

	for _, name := range []string{"eval.py", "prefix_python/task.yml", "prefix_python/reference.py", "prefix_python/submission.py", "prefix_python/wrong.py"} {
		text, err := examples.Files.ReadFile(name)
		must.Do(t, err)
		m.Put("/root/"+name, 0o644, strings.ReplaceAll(string(text), "_timeout: 60", "_timeout: 600"))
	}
	screen(t, m, "submit", "kbnode submit --queue b200 --problem prefix_python --mode benchmark --run-id r1")
	serveImages(t, m)
	m.Sh("printf 'image:\n  name: " + evalImage + "\n' >>/etc/kbnode/config.yaml; systemctl reload kbnode")
	newImage(m, "true")
	t.Run("image update", func(t *testing.T) {
		var r recording
		typeCommand(t, m, &r, 80, "sudo kbnode image update")
		r.save(t, "image-update-80", 80)
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

	m.Sh("systemctl stop kbnode; chmod 644 /etc/buildkite-agent/token; usermod -aG docker kbnode-gpu1; rm /etc/buildkite-agent/hooks/agent-startup; sed -i 's/^TasksMax=.*/TasksMax=1/' /etc/systemd/system/kbnode-job-gpu1@.service")
	screen(t, m, "plan", "sudo kbnode plan")
	screen(t, m, "doctor", "sudo kbnode doctor --fast")
}
