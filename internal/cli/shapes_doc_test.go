package cli

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/test/machinetest"
)

// example is a machine, a configuration, and the table that kbnode status prints.
var example = regexp.MustCompile("(?s)<!-- ([a-z0-9-]+) -->\n+```yaml\n(.*?)```\n(.*?)```text\n(.*?)```")

// TestShapesPage compares the tables of docs/shapes.md with what kbnode prints for these
// configurations on machines as published.
func TestShapesPage(t *testing.T) {
	t.Parallel()
	const file = "../../docs/shapes.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	examples := example.FindAllStringSubmatch(string(page), -1)
	if len(examples) < 6 {
		t.Fatalf("docs/shapes.md has %d examples", len(examples))
	}
	text := string(page)
	for _, m := range examples {
		got := statusTable(t, m[1], m[2])
		if *update {
			text = strings.Replace(text, m[0], strings.TrimSuffix(m[0], m[4]+"```")+got+"```", 1)
		} else if diff := cmp.Diff(m[4], got); diff != "" {
			t.Errorf("docs/shapes.md, %s; run go test ./internal/cli -run ShapesPage -update and review: %s", m[1], diff)
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// statusTable returns what status prints when all agents wait for jobs, and omits most rows of a
// long table.
func statusTable(t *testing.T, machine, text string) string {
	t.Helper()
	cfg, err := config.Parse(machine, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	all := machinetest.Published()
	i := slices.IndexFunc(all, func(m machinetest.Machine) bool { return m.Name == machine })
	if i < 0 {
		t.Fatalf("there is no machine %s", machine)
	}
	inv, err := inventory.Read(t.Context(), inventory.Options{Root: all[i].Dir(t)})
	if err != nil {
		t.Fatal(err)
	}
	cfg = cfg.WithDefaults()
	p, err := plan.Build(plan.Input{Inventory: inv, Config: &cfg, Binary: "/usr/bin/kbnode", Version: "1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	state := &reconcile.State{}
	for _, s := range p.Slots {
		state.Slots = append(state.Slots, slot.State{Index: s.Index, Agent: agentAt("active", "running")})
	}
	st := node.StatusOf(p, state, nil)
	var b strings.Builder
	printStatus(&b, st, taken)
	lines := strings.SplitAfter(strings.TrimSuffix(b.String(), "\n"), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " \n") + "\n"
	}
	if most := 6; len(lines) > most {
		lines = slices.Concat(lines[:most-2], []string{"…\n"}, lines[len(lines)-1:])
	}
	return strings.Join(lines, "")
}
