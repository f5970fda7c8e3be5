//go:build vm

package vm_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/examples"
	"github.com/gpu-mode/kbnode/internal/operate/e2e"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// proven runs kbnode e2e as the user "nobody", from where it reaches only the API.
func proven(t *testing.T, m *vm.Machine, args string) (r e2e.Report, code int) {
	t.Helper()
	m.Put("/root/api.env", 0o600, "BUILDKITE_API_URL=http://127.0.0.1:8899\nBUILDKITE_ORG=kbnode\nBUILDKITE_API_TOKEN="+bktest.DefaultAPIToken+"\n")
	// It takes longer, emulated, than a command may.
	m.Sh("rm -rf /var/tmp/e2e; install -d -o nobody /var/tmp/e2e")
	m.Sh(fmt.Sprintf(`systemd-run -q --collect --unit proving --property User=nobody --property EnvironmentFile=/root/api.env \
		sh -c 'cd /var/tmp/e2e; kbnode e2e --queue b200 --problem /srv/e2e/prefix_python --queue-timeout 3h --timeout 30m --json %s >out 2>err; echo $? >code'`, args))
	for range 24 {
		if m.Try("timeout 280 sh -c 'until [ -s /var/tmp/e2e/code ]; do sleep 2; done'").Code == 0 {
			break
		}
	}
	code = m.Try("exit $(cat /var/tmp/e2e/code)").Code
	if err := json.Unmarshal([]byte(m.Sh("cat /var/tmp/e2e/out")), &r); err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, m.Sh("cat /var/tmp/e2e/err"))
	}
	for _, c := range r.Checks {
		if c.Verdict != e2e.OK || !strings.HasPrefix(c.Name, "job ") {
			t.Logf("%s, %s: %s on %s (%.0f s + %.0f s, profile %q): %s", c.Part, c.Name, c.Verdict, c.Agent, c.Queue, c.Run, c.Profile, c.Saw)
		}
	}
	return r, code
}

// TestE2E proves a node of eight slots with the real agents, as operators do.
func TestE2E(t *testing.T) {
	t.Parallel()
	m := installed(t)
	m.Sh("docker tag kernelbot-test:latest ghcr.io/gpu-mode/kernelbot:latest") // the node's own, of steps without the plugin
	agentsOf := func(r e2e.Report) map[string]int {
		n := map[string]int{}
		for _, c := range r.Checks {
			if c.Part == e2e.Concurrency && c.Build != 0 {
				n[c.Agent]++
			}
		}
		return n
	}

	// Emulated, with five at once, the time limits of the example are short.
	for _, name := range []string{"eval.py", "prefix_python/task.yml", "prefix_python/reference.py", "prefix_python/submission.py", "prefix_python/wrong.py", "prefix_python/cheat.py"} {
		text, err := examples.Files.ReadFile(name)
		must.Do(t, err)
		m.Put("/srv/e2e/"+name, 0o644, strings.ReplaceAll(string(text), "_timeout: 60", "_timeout: 600"))
	}
	m.Sh("chmod -R a+rX /srv/e2e")
	t.Run("all", func(t *testing.T) {
		r, code := proven(t, m, "--mode leaderboard")
		if !r.OK || code != 0 || len(r.Checks) != 13 {
			t.Errorf("ok %t, exit code %d, %d checks", r.OK, code, len(r.Checks))
		}
		if n := agentsOf(r); len(n) != 8 {
			t.Errorf("jobs ran on %v, want each of eight once", n)
		}
	})

	t.Run("a slot that is drained", func(t *testing.T) {
		m.Sh("kbnode drain 5 --wait --timeout 2m")
		r, code := proven(t, m, "concurrency --hold 5s")
		m.Sh("kbnode resume 5; bkstub wait-agents --count 8 --timeout 5m")
		if n := agentsOf(r); !r.OK || code != 0 || len(n) != 7 {
			t.Errorf("ok %t, exit code %d, jobs ran on %v", r.OK, code, n)
		}
	})
}
