package metrics

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/gpu-mode/kbnode/internal/machine/textfile"
	"github.com/gpu-mode/kbnode/internal/node/daemon"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
)

// exporting returns an Exporter of a machine below a new root, and a snapshot that has it write to /srv/metrics.
func exporting(t *testing.T) (*Exporter, *logged, daemon.Snapshot) {
	t.Helper()
	root, log := t.TempDir(), &logged{}
	for _, dir := range []string{"/srv/metrics", "/var/lib/kbnode"} {
		must.Do(t, os.MkdirAll(root+dir, 0o755))
	}
	s := full()
	s.Metrics = config.Metrics{Textfile: "/srv/metrics"}
	return New(Options{Version: "1.2.3", Commit: "abc", Images: images, Root: root, Log: slog.New(slog.NewTextHandler(log, nil))}), log, s
}

func (e *Exporter) path(dir string) string { return filepath.Join(e.Root, dir, textfile.Name) }

// TestTextfile compares the file with /metrics: it has the same, with the same help and types, but for metrics that
// node_exporter has of itself, and it can be parsed as node_exporter does.
func TestTextfile(t *testing.T) {
	t.Parallel()
	e, _, s := exporting(t)
	e.Publish(s)
	got := must.Read(t, e.path("/srv/metrics"))
	want := regexp.MustCompile(`(?m)^(# (HELP|TYPE) )?process_.*\n`).ReplaceAllString(scrape(t, e), "")
	must.Equal(t, want, regexp.MustCompile(`go="[^"]*"`).ReplaceAllString(got, `go="-"`))
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(got))
	must.Do(t, err)
	if len(families) < 20 {
		t.Errorf("%d metrics", len(families))
	}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			if m.TimestampMs != nil { // node_exporter refuses the file
				t.Errorf("%s has a time", name)
			}
		}
		if !strings.HasPrefix(name, "kbnode_") || f.GetHelp() == "" {
			t.Errorf("%s has the help %q", name, f.GetHelp())
		}
	}
}

// TestTextfileWithoutAPlan writes the file also before the first plan, so that an alert fires until there is one.
func TestTextfileWithoutAPlan(t *testing.T) {
	t.Parallel()
	e, _, s := exporting(t)
	e.Publish(daemon.Snapshot{Began: noon, Whole: true, Err: errors.New("git is not installed"), Metrics: s.Metrics})
	text := must.Read(t, e.path("/srv/metrics"))
	must.Contain(t, text, "kbnode_last_good_pass_timestamp_seconds 0\n", `kbnode_passes_total{kind="whole",result="error"} 1`)
	e.Publish(daemon.Snapshot{Began: noon})
	must.Contain(t, must.Read(t, e.path("/srv/metrics")), "kbnode_last_pass_timestamp_seconds ")
}

// TestTextfileFollowsTheConfiguration has one file at most, and none of a daemon that has ended.
func TestTextfileFollowsTheConfiguration(t *testing.T) {
	t.Parallel()
	e, log, s := exporting(t)
	exists := func(dir string, want bool) {
		t.Helper()
		if _, err := os.Lstat(e.path(dir)); (err == nil) != want {
			t.Errorf("%s: %v", dir, err)
		}
	}
	must.Do(t, os.MkdirAll(e.Root+"/srv/other", 0o755))
	none := full()
	e.Publish(none)
	exists("/srv/metrics", false)
	for range 3 {
		e.Publish(s)
	}
	if text := must.Read(t, e.path("/srv/metrics")); !strings.Contains(text, `kbnode_passes_total{kind="whole",result="ok"} 4`) {
		t.Errorf("written:\n%s", text)
	}
	must.Equal(t, 1, log.count("metrics written for node_exporter"))
	s.Metrics.Textfile = "/srv/other"
	e.Publish(s)
	exists("/srv/metrics", false)
	exists("/srv/other", true)
	e.Publish(none)
	exists("/srv/other", false)
	e.Publish(s)
	e.Close()
	exists("/srv/other", false)
	must.Equal(t, 0, log.count("level=WARN"))
}

// TestTextfileBeforeTheFirstPlan leaves the file of a daemon that was killed, as long as the configuration cannot be read.
func TestTextfileBeforeTheFirstPlan(t *testing.T) {
	t.Parallel()
	e, _, s := exporting(t)
	e.Publish(s)
	before := must.Read(t, e.path("/srv/metrics"))
	again := New(e.Options)
	again.Publish(daemon.Snapshot{Whole: true, Err: errors.New("config.yaml: unknown key")})
	must.Equal(t, before, must.Read(t, e.path("/srv/metrics")))
	again.Publish(full()) // which wants none
	if _, err := os.Lstat(e.path("/srv/metrics")); err == nil {
		t.Error("it is left")
	}
}

// TestTextfileFails says a fault once when it begins, and writes again when it is over. The old file stays meanwhile.
func TestTextfileFails(t *testing.T) {
	t.Parallel()
	e, log, s := exporting(t)
	e.Publish(s)
	before := must.Read(t, e.path("/srv/metrics"))
	must.Do(t, os.MkdirAll(e.Root+"/srv/metrics/.kbnode.prom.new", 0o755))
	for range 3 {
		e.Publish(s)
	}
	must.Equal(t, 1, log.count("metrics not written for node_exporter"))
	must.Equal(t, before, must.Read(t, e.path("/srv/metrics")))
	must.Do(t, os.Remove(e.Root+"/srv/metrics/.kbnode.prom.new"))
	e.Publish(s)
	if bytes.Equal([]byte(before), []byte(must.Read(t, e.path("/srv/metrics")))) || log.count("metrics written for node_exporter") != 2 {
		t.Errorf("afterwards: %s", log.b.String())
	}
	must.Do(t, os.RemoveAll(e.Root+"/srv"))
	e.Publish(s)
	e.Publish(s)
	must.Equal(t, 2, log.count("metrics not written for node_exporter"))
	must.Equal(t, 1, log.count("there is no such directory"))
}
