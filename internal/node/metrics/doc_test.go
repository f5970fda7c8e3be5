package metrics

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
)

func repository(t *testing.T, name string) string {
	t.Helper()
	text := must.Read(t, filepath.Join("../../..", name))
	return text
}

// described returns "TYPE LABELS" of kbnode's own metrics by name.
func described(t *testing.T) map[string]string {
	t.Helper()
	e := New(Options{Images: images})
	e.Publish(full())
	types := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\w+) (\w+)$`).FindAllStringSubmatch(scrape(t, e), -1) {
		types[m[1]] = m[2]
	}
	descs := make(chan *prometheus.Desc)
	go func() { e.registry.Describe(descs); close(descs) }()
	all := map[string]string{}
	form := regexp.MustCompile(`^Desc\{fqName: "(\w+)", .*variableLabels: \{([\w,]*)\}\}$`)
	for d := range descs {
		m := form.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("%s is not as expected", d)
		}
		if strings.HasPrefix(m[1], "process_") {
			continue // Prometheus's own, the same for every program
		}
		if types[m[1]] == "" {
			t.Errorf("%s has no sample in this test", m[1])
		}
		all[m[1]] = types[m[1]] + " " + m[2]
	}
	return all
}

func TestPage(t *testing.T) {
	t.Parallel()
	page := repository(t, "docs/metrics.md")
	rows := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(kbnode_\\w+)` \\| (\\w+) \\| ([^|]*)\\|").FindAllStringSubmatch(page, -1) {
		rows[m[1]] = m[2] + " " + strings.NewReplacer("`", "", " ", "").Replace(m[3])
	}
	must.Equal(t, described(t), rows)
	exist(t, "docs/metrics.md", page)
	for _, word := range slot.Words {
		must.Contain(t, page, "`"+word+"`")
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(page, -1)
	if len(blocks) != 3 {
		t.Fatalf("%d examples", len(blocks))
	}
	for i, m := range blocks {
		var any map[string]any
		err := yaml.Unmarshal([]byte(m[1]), &any)
		if i < 2 {
			_, err = config.Parse("docs/metrics.md", []byte(m[1]))
		}
		if err != nil {
			t.Errorf("example %d: %v", i, err)
		}
	}
}

// exist checks that all metrics that a text names exist.
func exist(t *testing.T, name, text string) (found int) {
	t.Helper()
	known := described(t)
	for _, m := range regexp.MustCompile(`\bkbnode_[a-z_]+\b`).FindAllString(text, -1) {
		if known[m] == "" {
			t.Errorf("%s names %s, and there is no such metric", name, m)
		}
		found++
	}
	return found
}

func TestDashboard(t *testing.T) {
	t.Parallel()
	const name = "packaging/grafana/kbnode.json"
	text := repository(t, name)
	must.Do(t, json.Unmarshal([]byte(text), new(any)))
	if found := exist(t, name, text); found < 20 {
		t.Errorf("%s names %d metrics; are its panels gone?", name, found)
	}
	for _, word := range slot.Words {
		must.Contain(t, text, `"text": "`+word+`"`)
	}
	for _, m := range regexp.MustCompile(`state=~?\\"([a-z|]+)\\"`).FindAllStringSubmatch(text, -1) {
		for word := range strings.SplitSeq(m[1], "|") {
			if !slices.Contains(slot.Words, word) {
				t.Errorf("%s asks for the state %s, and there is none", name, word)
			}
		}
	}
}

// TestRules reads the alerts. make rules runs them.
func TestRules(t *testing.T) {
	t.Parallel()
	const name = "packaging/prometheus/kbnode.rules.yml"
	text, page := repository(t, name), repository(t, "docs/metrics.md")
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	must.Do(t, yaml.Unmarshal([]byte(text), &file))
	known := described(t)
	alerts := 0
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			alerts++
			severity := r.Labels["severity"]
			must.Contain(t, page, "| `"+r.Alert+"` | "+severity+" |")
			must.Contain(t, repository(t, "packaging/prometheus/kbnode.rules.test.yml"), "alertname: "+r.Alert+"\n")
			for what, value := range map[string]string{"label node": r.Labels["node"], "summary": r.Annotations["summary"], "description": r.Annotations["description"]} {
				if !strings.Contains(value, "or $labels.node $labels.instance") {
					t.Errorf("%s: its %s does not name the node: %q", r.Alert, what, value)
				}
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, severity) {
				t.Errorf("%s has the severity %q", r.Alert, severity)
			}
			for _, m := range regexp.MustCompile(`(kbnode_\w+)\{(\w+)[=!]`).FindAllStringSubmatch(r.Expr, -1) {
				_, labels, _ := strings.Cut(known[m[1]], " ")
				if !slices.Contains(strings.Split(labels, ","), m[2]) {
					t.Errorf("%s asks for the label %s of %s, which has %s", r.Alert, m[2], m[1], labels)
				}
			}
		}
	}
	if found := exist(t, name, strings.ReplaceAll(text, "job=\"kbnode\"", "")); found < 6 || alerts < 7 {
		t.Errorf("%s has %d alerts with %d metrics", name, alerts, found)
	}
}
