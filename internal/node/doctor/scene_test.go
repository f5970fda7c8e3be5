package doctor

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/node/selftest"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/must"
)

// scene is a machine, and what one check says about it.
type scene struct {
	name, id string
	f        *fake
	files    map[string]string
	want     string // status and summary
	fix      string // of the first finding that is as bad as any
}

// drifts returns a machine like f that differs from the plan.
func drifts(f *fake, changes ...reconcile.Change) *fake {
	drifted := *f
	drifted.changes = changes
	return &drifted
}

// observe reads the slots' run directories, as reconcile does, into a state of the
// machine's own: a scene and its garbage run at the same time on one fake.
func observe(m *Machine) {
	if m.State == nil {
		return
	}
	state := *m.State
	state.Slots = slices.Clone(state.Slots)
	for i := range state.Slots {
		now := state.Slots[i].ReadRunDir(m.Root)
		state.Slots[i].Registered, state.Slots[i].Parked = now.Registered, now.Parked
	}
	m.State = &state
}

// run asks the check, after a change of the machine, if any.
func (s scene) run(t *testing.T, change func(*Machine)) *Result {
	t.Helper()
	m := machineOf(t, s.f, s.files)
	observe(m)
	if change != nil {
		change(m)
	}
	got := answer(t, m, s.id)
	must.Equal(t, s.want, got.Status.String()+": "+got.Summary())
	fix := ""
	if i := slices.IndexFunc(got.Findings, func(f Finding) bool { return f.Status == got.Status }); i >= 0 {
		fix = got.Findings[i].Fix
	}
	must.Equal(t, s.fix, fix)
	if fix != "" {
		s.typeFixes(t, m, got)
	}
	return got
}

// garbled runs the check on garbage in place of each file, which must yield a sentence and no panic.
func (s scene) garbled(t *testing.T) {
	t.Helper()
	files := map[string]string{}
	for name := range s.files {
		files[name] = "\x00{\xff:,|[]- \n99999999999999999999 -1 - \n\n::::\n" + strings.Repeat("a", 70000) + "\n"
	}
	m := machineOf(t, s.f, files)
	observe(m)
	if said := answer(t, m, s.id).Summary(); said == "" || strings.Contains(said, "kbnode crashed") || len(said) > 600 || strings.Contains(said, "\n") {
		t.Errorf("%.700q", said)
	}
}

func play(t *testing.T, scenes []scene) {
	t.Helper()
	for _, s := range scenes {
		if s.f.inv == nil {
			s.f.inv = &inventory.Inventory{}
		}
		if s.f.plan == nil {
			s.f.plan = &plan.Plan{}
		}
		t.Run(s.id+"/"+s.name, func(t *testing.T) {
			t.Parallel()
			s.run(t, nil)
			if len(s.files) > 0 {
				s.garbled(t)
			}
		})
	}
}

// fake is a Source that returns what a test wants.
type fake struct {
	cfg     *config.Config
	inv     *inventory.Inventory
	plan    *plan.Plan
	state   *reconcile.State
	units   []slot.Unit
	slots   []selftest.SlotReport
	docker  docker.Info
	image   docker.Image // the only one in the engine; the zero value means none
	running []docker.Container
	changes []reconcile.Change
	journal map[string][]string // by unit
	err     error               // of every call, if set

	evaluations []image.Evaluation
	killed      func(unit string) error
	observed    func() *reconcile.State // in place of state
}

func (f *fake) Pull(context.Context) (string, error) { return "sha256:abc", f.err }
func (f *fake) Evaluate(context.Context, bool) ([]image.Evaluation, error) {
	return f.evaluations, f.err
}
func (f *fake) Kill(_ context.Context, unit string) error { return f.killed(unit) }

func (f *fake) Config() (*config.Config, error)                         { return f.cfg, f.err }
func (f *fake) Inventory(context.Context) (*inventory.Inventory, error) { return f.inv, f.err }
func (f *fake) Plan() (*plan.Plan, error)                               { return f.plan, f.err }
func (f *fake) Docker(context.Context) (docker.Info, error)             { return f.docker, f.err }
func (f *fake) Observe(context.Context) (*reconcile.State, error) {
	if f.observed != nil {
		return f.observed(), f.err
	}
	return f.state, f.err
}

func (f *fake) Image(context.Context, string) (docker.Image, error) {
	if f.image.ID == "" && f.err == nil {
		return f.image, docker.ErrNotFound
	}
	return f.image, f.err
}

func (f *fake) Running(context.Context) ([]docker.Container, error) { return f.running, f.err }

func (f *fake) Containers(context.Context, *Machine, bool) ([]selftest.SlotReport, error) {
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
		must.Write(t, root, name, text)
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
	if needs := withNeeds(checks, []string{id}); !slices.Contains(needs, "state") {
		m.State, m.Changes = nil, nil
	}
	alone := checks[i]
	alone.Needs = nil
	r, err := Run(t.Context(), m, Options{Checks: []Check{alone}, Only: []string{id}})
	must.Do(t, err)
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

// scenes holds the worst status that the tests got from each check, and advice that fails for
// those who type it as themselves.
var scenes struct {
	sync.Mutex
	worst    map[string]Status
	rootless []string
}

// forRoot matches commands that only root can run.
var forRoot = regexp.MustCompile(`(sudo )?\b(kbnode (install|reconcile|upgrade|drain|resume|uninstall|selftest|doctor|image|status)\b|systemctl (start|stop|restart|enable|disable|edit|reload|unmask|revert)|journalctl|dmesg|docker (ps|rm|system|image|builder|version)|usermod|update-grub|mount -o|modprobe )`)

// rootless returns the first command of an advice that only root can run, and that lacks sudo.
func rootless(advice string) string {
	for _, command := range forRoot.FindAllString(advice, -1) {
		if !strings.HasPrefix(command, "sudo ") {
			return command
		}
	}
	return ""
}

func played(results ...Result) {
	scenes.Lock()
	defer scenes.Unlock()
	if scenes.worst == nil {
		scenes.worst = map[string]Status{}
	}
	for _, r := range results {
		scenes.worst[r.ID] = max(scenes.worst[r.ID], r.Status)
		for _, f := range r.Findings {
			if rootless(f.Advice) != "" {
				scenes.rootless = append(scenes.rootless, r.ID+": "+f.Advice)
			}
		}
	}
}

// TestMain fails if advice lacks sudo, or if no test sees a check find a problem. Only a run of all tests can tell.
func TestMain(m *testing.M) {
	code := m.Run()
	whole := true
	for _, name := range []string{"test.run", "test.skip", "test.list", "test.bench", "test.fuzz"} {
		whole = whole && flag.Lookup(name).Value.String() == ""
	}
	for _, advice := range scenes.rootless {
		fmt.Println("sudo is missing in the advice of", advice)
		code = max(code, 1)
	}
	for _, c := range All() {
		if whole && scenes.worst[c.ID] < Warn && !strings.HasPrefix(c.About, "for information: ") {
			fmt.Printf("no test has a scene in which %s finds a problem\n", c.ID)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}
