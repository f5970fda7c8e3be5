package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpu-mode/kbnode/internal/node/daemon"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestWithSettings tells people of what keeps a node from being planned, such as of a key that is too large after a boot with fewer
// CPUs, but forgets no one because of a file that it cannot read.
func TestWithSettings(t *testing.T) {
	t.Parallel()
	const url, notify = "/etc/kbnode/notify-url", "notify: {url: /etc/kbnode/notify-url}\n"
	host, err := os.Hostname()
	must.Do(t, err)
	last := daemon.Snapshot{Plan: &plan.Plan{Node: "planned"}, Notify: config.Notify{URL: "https://last.example"}}
	for name, row := range map[string]struct {
		doc     string // of the configuration; "" is none
		pass    daemon.Snapshot
		name    string // "" if nothing is known
		notify  config.Notify
		metrics config.Metrics
	}{
		"planned":         {"queue: q\n" + notify, last, "planned", last.Notify, config.Metrics{}},
		"not planned yet": {"cpus_per_slot: 4000\nnode: n1\n" + notify, daemon.Snapshot{}, "n1", config.Notify{URL: url}, config.Metrics{}},
		"without a name": {
			"notify: {command: [/bin/page]}\nmetrics: {textfile: /srv}\n", daemon.Snapshot{},
			host, config.Notify{Command: []string{"/bin/page"}}, config.Metrics{Textfile: "/srv"},
		},
		"no one":                 {"node: n1\n", daemon.Snapshot{}, "n1", config.Notify{}, config.Metrics{}},
		"an unknown key":         {"node: n1\nunknown: 1\n" + notify, daemon.Snapshot{}, "n1", config.Notify{URL: url}, config.Metrics{}},
		"no YAML":                {"node: n1\nnotify: {url: " + url + "\n", daemon.Snapshot{}, "", config.Notify{}, config.Metrics{}},
		"no configuration there": {"", daemon.Snapshot{}, "", config.Notify{}, config.Metrics{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			if row.doc != "" {
				file := filepath.Join(root, plan.ConfigPath)
				must.Do(t, os.MkdirAll(filepath.Dir(file), 0o755))
				must.Do(t, os.WriteFile(file, []byte(row.doc), 0o600))
			}
			pass, got, known := WithSettings(root, row.pass)
			must.Equal(t, row.name, got)
			must.Equal(t, row.notify, pass.Notify)
			must.Equal(t, row.metrics, pass.Metrics)
			must.Equal(t, row.name != "", known)
		})
	}
}
