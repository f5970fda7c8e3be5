package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/arena"
	"github.com/gpu-mode/kbnode/internal/evaluate/noise"
	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/operate/e2e"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/doctest"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

// TestJSONDocuments compares the examples of the pages with the types.
func TestJSONDocuments(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		page, heading string
		typ           reflect.Type
	}{
		{"docs/plan.md", "## kbnode plan --json", reflect.TypeFor[planOutput]()},
		{"docs/plan.md", "## kbnode status --json", reflect.TypeFor[node.Status]()},
		{"docs/operators.md", "### kbnode queue --json", reflect.TypeFor[buildkite.QueueReport]()},
		{"docs/operators.md", "### kbnode e2e --json", reflect.TypeFor[e2e.Report]()},
		{"docs/arena.md", "## kbnode e2e cheats --json", reflect.TypeFor[arena.Report]()},
		{"docs/results.md", "## node.json", reflect.TypeFor[noise.Record]()},
	} {
		t.Run(tt.heading, func(t *testing.T) {
			t.Parallel()
			_, section, _ := strings.Cut(must.Read(t, "../../"+tt.page), "\n"+tt.heading+"\n")
			section, _, _ = strings.Cut(section, "\n## ")
			section, _, _ = strings.Cut(section, "\n### ")
			_, example, _ := strings.Cut(section, "```json\n")
			example, _, _ = strings.Cut(example, "```")
			if first := "  \"schema\": 1,\n"; !term.HasSchema(tt.typ) {
				if !strings.Contains(example, "{\n"+first) {
					t.Errorf("the example of %s does not begin with schema", tt.page)
				}
				example = strings.Replace(example, first, "", 1)
			}
			v := reflect.New(tt.typ)
			dec := json.NewDecoder(strings.NewReader(example))
			dec.DisallowUnknownFields()
			if err := dec.Decode(v.Interface()); err != nil {
				t.Fatalf("the example of %s: %v", tt.page, err)
			}
			for _, name := range fieldsOf(v) {
				if !strings.Contains(section, `"`+name+`"`) && !strings.Contains(section, "`"+name+"`") {
					t.Errorf("the section does not have %s", name)
				}
			}
		})
	}
}

// fieldsOf returns the names of all fields in the JSON of a value, as if all that is optional were there.
func fieldsOf(v reflect.Value) (names []string) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v = reflect.New(v.Type().Elem())
		}
		return fieldsOf(v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			names = append(names, fieldsOf(v.Index(i))...)
		}
	case reflect.Struct:
		for f := range v.Type().Fields() {
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if !f.IsExported() || tag == "-" || v.Type() == reflect.TypeFor[time.Time]() {
				continue
			}
			if !f.Anonymous {
				names = append(names, tag)
			}
			names = append(names, fieldsOf(v.FieldByIndex(f.Index))...)
		}
	}
	return names
}

// TestSubmitPage types what docs/submit.md says, and compares what it shows.
func TestSubmitPage(t *testing.T) {
	t.Parallel()
	blocks, err := doctest.Parse(must.Read(t, "../../docs/submit.md"))
	must.Do(t, err)
	self, err := os.Executable()
	must.Do(t, err)
	dir, bin := t.TempDir(), t.TempDir()
	must.Do(t, os.Symlink(self, filepath.Join(bin, "kbnode")))
	typed := 0
	for _, b := range blocks {
		if b.Kind != doctest.Machine {
			continue
		}
		typed++
		cmd := process(t, "-ec", b.Text)
		cmd.Path, cmd.Args[0], cmd.Dir = "/bin/sh", "sh", dir
		cmd.Env = slices.Insert(cmd.Env, len(cmd.Env)-1, "PATH="+bin+":"+os.Getenv("PATH"))
		r := runs(t, cmd)
		if r.code != b.Exit {
			t.Fatalf("docs/submit.md:%d: exit code %d, want %d\n%s%s", b.Line, r.code, b.Exit, r.out, r.err)
		}
		if b.Output == nil {
			continue
		}
		if differs := doctest.Differ(b.Output.Text, r.out); differs != "" {
			t.Errorf("docs/submit.md:%d: %s\n%s", b.Output.Line, differs, r.out)
		}
	}
	if typed < 4 {
		t.Errorf("only %d blocks are typed", typed)
	}
}

// example is a machine, a configuration, and the table that kbnode status prints.
var example = regexp.MustCompile("(?s)<!-- ([a-z0-9-]+) -->\n+```yaml\n(.*?)```\n(.*?)```text\n(.*?)```")

// TestShapesPage compares the tables of docs/shapes.md with what kbnode prints for these
// configurations on machines as published.
func TestShapesPage(t *testing.T) {
	t.Parallel()
	const file = "../../docs/shapes.md"
	page := must.Read(t, file)
	examples := example.FindAllStringSubmatch(page, -1)
	if len(examples) < 6 {
		t.Fatalf("docs/shapes.md has %d examples", len(examples))
	}
	text := page
	for _, m := range examples {
		text = strings.Replace(text, m[0], strings.TrimSuffix(m[0], m[4]+"```")+statusTable(t, m[1], m[2])+"```", 1)
	}
	must.Golden(t, file, *update, text)
}

// statusTable returns what status prints when all agents wait for jobs, and omits most rows of a
// long table.
func statusTable(t *testing.T, machine, text string) string {
	t.Helper()
	cfg, err := config.Parse(machine, []byte(text))
	must.Do(t, err)
	all := machinetest.Published()
	i := slices.IndexFunc(all, func(m machinetest.Machine) bool { return m.Name == machine })
	if i < 0 {
		t.Fatalf("there is no machine %s", machine)
	}
	inv, err := detect.Read(t.Context(), detect.Options{Root: all[i].Dir(t)})
	must.Do(t, err)
	cfg = cfg.WithDefaults()
	p, err := plan.Build(plan.Input{Inventory: inv, Config: &cfg, Binary: "/usr/bin/kbnode", Version: "1.2.3"})
	must.Do(t, err)
	state := &reconcile.State{}
	for _, s := range p.Slots {
		state.Slots = append(state.Slots, slot.State{Index: s.Index, Agent: systemdtest.Agent("active", "running")})
	}
	st := node.StatusOf(p, state, nil)
	var b strings.Builder
	statusList(&b, st, taken).Print()
	lines := strings.SplitAfter(strings.TrimSuffix(b.String(), "\n"), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " \n") + "\n"
	}
	if most := 6; len(lines) > most {
		lines = slices.Concat(lines[:most-2], []string{"…\n"}, lines[len(lines)-1:])
	}
	return strings.Join(lines, "")
}
