package doctor

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/check"
	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/host"
	"github.com/gpu-mode/kbnode/internal/image"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/selftest"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/internal/systemd"
)

// fake is a Source that returns what a test wants.
type fake struct {
	cfg     *config.Config
	inv     *inventory.Inventory
	plan    *plan.Plan
	state   *reconcile.State
	units   []slot.Unit
	program func(systemd.Program) ([]byte, error)
	slots   []selftest.SlotReport
	docker  docker.Info
	image   docker.Image // the only one in the engine; the zero value means none
	running []docker.Container
	changes []reconcile.Change
	journal map[string][]string // by unit
	err     error               // of every call, if set
}

func (f *fake) Config() (*config.Config, error)                         { return f.cfg, f.err }
func (f *fake) Inventory(context.Context) (*inventory.Inventory, error) { return f.inv, f.err }
func (f *fake) Plan() (*plan.Plan, error)                               { return f.plan, f.err }
func (f *fake) Observe(context.Context) (*reconcile.State, error)       { return f.state, f.err }
func (f *fake) Docker(context.Context) (docker.Info, error)             { return f.docker, f.err }
func (f *fake) Image(context.Context, string) (docker.Image, error) {
	if f.image.ID == "" && f.err == nil {
		return f.image, docker.ErrNotFound
	}
	return f.image, f.err
}

func (f *fake) Running(context.Context) ([]docker.Container, error) { return f.running, f.err }

func (f *fake) Program(_ context.Context, p systemd.Program) ([]byte, error) {
	if f.program == nil {
		return nil, errors.New("no program runs in this test")
	}
	return f.program(p)
}

func (f *fake) Containers(context.Context, *Machine) ([]selftest.SlotReport, error) {
	return f.slots, f.err
}

func (f *fake) Journal(_ context.Context, unit string) ([]string, error) {
	return f.journal[unit], f.err
}

func (f *fake) Units(_ context.Context, pattern string) ([]slot.Unit, error) {
	return slices.DeleteFunc(slices.Clone(f.units), func(u slot.Unit) bool {
		is, _ := path.Match(pattern, u.Name)
		return !is
	}), f.err
}

// machineOf returns a machine with these files that no check has read yet.
func machineOf(t *testing.T, f *fake, files map[string]string) *Machine {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m := &Machine{Tree: host.Tree{Root: root}, Source: f, Now: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), Config: f.cfg, Inventory: f.inv, Plan: f.plan, State: f.state, Changes: f.changes, Docker: &f.docker}
	m.Images, _ = image.Read(m.Path(plan.ImageDir))
	if m.Config == nil {
		full := config.Config{}.WithDefaults()
		m.Config = &full
	}
	return m
}

// answer runs one check on a machine as those that it needs have read it.
func answer(t *testing.T, m *Machine, id string) *Result {
	t.Helper()
	checks := All()
	i := slices.IndexFunc(checks, func(c Check) bool { return c.ID == id })
	if i < 0 {
		t.Fatalf("there is no check %s", id)
	}
	if needs := check.WithNeeds(checks, []string{id}); !slices.Contains(needs, "state") {
		m.State, m.Changes = nil, nil
	}
	alone := checks[i]
	alone.Needs = nil
	r, err := Run(t.Context(), m, Options{Checks: []Check{alone}, Only: []string{id}})
	if err != nil {
		t.Fatal(err)
	}
	played(r.Checks...)
	for _, f := range r.Checks[0].Findings {
		if f.Status > Skip && f.Fix == "" && f.Advice == "" {
			t.Errorf("%s does not say what to do: %s", id, f.Detail)
		}
	}
	return &r.Checks[0]
}

// group returns the checks of a group.
func group(name string) []Check {
	return slices.DeleteFunc(All(), func(c Check) bool { return c.Group != name })
}
