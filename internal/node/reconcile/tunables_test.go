package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

const (
	bootID   = "/proc/sys/kernel/random/boot_id"
	newIRQs  = "/proc/irq/default_smp_affinity"
	irq24    = "/proc/irq/24/smp_affinity_list"
	irq25    = "/proc/irq/25/smp_affinity_list"
	pages    = "/sys/kernel/mm/transparent_hugepage/enabled"
	governor = "/sys/devices/system/cpu/cpufreq/policy2/scaling_governor"
	gpu0     = "GPU-00000000-0000-4000-8000-000000000000"
	gpu0PCI  = "0000:1a:00.0"
)

// asFound are settings of a machine that kbnode has never changed.
var asFound = map[string]string{
	newIRQs: "ffffffff,ffffffff,ffffffff,ffffffff", irq24: "0-127", irq25: "64-127", pages: "always", governor: "powersave",
}

// asPlanned are the same settings after kbnode has set them.
var asPlanned = map[string]string{newIRQs: "3", irq24: "0-1", irq25: "0-1", pages: "madvise", governor: "performance"}

// tuned returns the plan of n slots with settings.
func tuned(t testing.TB, n int) *plan.Plan {
	t.Helper()
	p := slots(n).plan(t)
	p.Tunables = []plan.Tunable{
		{Name: newIRQs, Value: "3", Form: plan.Mask},
		{Name: "/proc/irq/*/smp_affinity_list", Value: "0-1", Form: plan.List},
		{Name: pages, Value: "madvise", Form: plan.Choice},
		{Name: governor, Value: "performance", Form: plan.Word},
		{Name: "/proc/sys/kernel/numa_balancing", Value: "0", Form: plan.Word}, // this kernel has none
	}
	return p
}

func newTunedMachine(t testing.TB) *machine {
	t.Helper()
	m := newMachine(t)
	m.write(bootID, "boot-1\n")
	m.write("/proc/irq/24/node", "0\n")
	for name, value := range asFound {
		m.write(name, value+"\n")
	}
	m.write(pages, "[always] madvise never\n")
	return m
}

func (m *machine) settings() map[string]string {
	m.t.Helper()
	out := map[string]string{}
	for name := range asFound {
		out[name] = m.read(name)
	}
	if _, chosen, ok := strings.Cut(out[pages], "["); ok {
		out[pages], _, _ = strings.Cut(chosen, "]")
	}
	return out
}

func TestTuneAndUntune(t *testing.T) {
	t.Parallel()
	m := newTunedMachine(t)
	p := tuned(t, 1)
	_, changes := m.diff(p)
	i := slices.IndexFunc(changes, func(c reconcile.Change) bool { return c.Kind == reconcile.Tune })
	want := `/proc/irq/default_smp_affinity: 0-127 -> 0-1
/proc/irq/*/smp_affinity_list: 0-127 -> 0-1
/proc/irq/*/smp_affinity_list: 64-127 -> 0-1
/sys/kernel/mm/transparent_hugepage/enabled: always -> madvise
/sys/devices/system/cpu/cpufreq/policy*/scaling_governor: powersave -> performance
`
	equal(t, "change", want, changes[i].Diff)
	equal(t, "why", "tune settings of the machine (5 of them)", changes[i].String())
	m.apply(p)
	equal(t, "settings", asPlanned, m.settings())
	equal(t, "record", `{"written_by":"kbnode","boot_id":"boot-1","saved":{`+
		`"/proc/irq/*/smp_affinity_list":{"name":"/proc/irq/*/smp_affinity_list","value":"0-1","form":"list","was":{"`+irq24+`":"0-127","`+irq25+`":"64-127"},"done":true},`+
		`"/proc/irq/default_smp_affinity":{"name":"/proc/irq/default_smp_affinity","value":"3","form":"mask","was":{"/proc/irq/default_smp_affinity":"ffffffff,ffffffff,ffffffff,ffffffff"},"done":true},`+
		`"`+governor+`":{"name":"`+governor+`","value":"performance","form":"word","was":{"`+governor+`":"powersave"},"done":true},`+
		`"`+pages+`":{"name":"`+pages+`","value":"madvise","form":"choice","was":{"`+pages+`":"always"},"done":true}}}`, m.read(plan.TunablesPath))

	// Nothing is left to do, and nothing is written.
	before := m.tree()
	m.settled(p)
	m.apply(p)
	equal(t, "tree", before, m.tree())

	// An interrupt that the kernel manages itself, and marks as such, is left alone.
	m.write("/proc/irq/27/smp_affinity_list", "3\n")
	must.Do(t, os.Chmod(filepath.Join(m.h.Root, "/proc/irq/27/smp_affinity_list"), 0o444))
	m.settled(p)

	// One that is requested later has the default.
	m.write("/proc/irq/26/smp_affinity_list", "0-1\n")
	m.settled(p)

	r, _ := m.apply(slots(1).plan(t)) // disabled
	equal(t, "applied", []string{"untune settings of the machine"}, brief(r.Applied))
	equal(t, "settings", asFound, m.settings())
	m.wantAbsent(plan.TunablesPath)
}

func TestUninstallPutsSettingsBack(t *testing.T) {
	t.Parallel()
	for _, now := range []bool{false, true} {
		m := newTunedMachine(t)
		m.apply(tuned(t, 1))
		m.write(irq25, "7\n") // someone else's now
		m.run(0)
		m.h.Now = now
		want := maps.Clone(asFound)
		want[irq25] = "7"
		m.h.Sleep = func(context.Context, time.Duration) error {
			equal(t, "while a job runs", "madvise", m.read(pages))
			m.finish(0)
			return nil
		}
		r, err := m.h.Uninstall(t.Context(), nil)
		must.Do(t, err)
		equal(t, "settings", want, m.settings())
		i := slices.IndexFunc(r.Applied, func(c reconcile.Change) bool { return c.Kind == reconcile.Untune })
		if text := r.Applied[i].Diff; !strings.Contains(text, "/proc/irq/*/smp_affinity_list: left as another program set it\n") {
			t.Errorf("it says %q", text)
		}
		m.wantAbsent("/var/lib/kbnode")
	}
}

// TestLimitsAreOnlyRaised leaves a larger value as it is.
func TestLimitsAreOnlyRaised(t *testing.T) {
	t.Parallel()
	const aio, ptys, tcp = "/proc/sys/fs/aio-max-nr", "/proc/sys/kernel/pty/max", "/proc/sys/net/ipv4/tcp_mem"
	for name, row := range map[string]struct{ found, planned, back string }{
		"fewer digits": {"999999", "1048576", "999999"},
		"the same":     {"1048576", "1048576", "1048576"},
		"the most":     {"18446744073709551615", "18446744073709551615", "18446744073709551615"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.write(bootID, "boot-1\n")
			m.write(aio, row.found+"\n")
			m.write(ptys, "4096\n")
			m.write(tcp, "900\t500\t800\n")
			p := slots(1).plan(t)
			p.Tunables = []plan.Tunable{{Name: aio, Value: "1048576", Form: plan.Least}, {Name: ptys, Value: "36864", Form: plan.Least}, {Name: tcp, Value: "600 600 600", Form: plan.Least}}
			m.apply(p)
			equal(t, "planned", row.planned, m.read(aio))
			equal(t, "all of several", "600 600 600", m.read(tcp))
			m.write(tcp, "600\t600\t600\n") // as the kernel shows it
			m.settled(p)
			// Someone raises one further: that is as planned, and stays theirs.
			m.write(ptys, "50000\n")
			m.settled(p)
			m.apply(slots(1).plan(t))
			equal(t, "put back", row.back, m.read(aio))
			equal(t, "several put back", "900\t500\t800", m.read(tcp))
			equal(t, "the operator's", "50000", m.read(ptys))
			m.apply(p)
			m.write(aio, "4096\n") // lowered limits isolate no slot
			m.apply(p)
			equal(t, "raised again", "1048576", m.read(aio))
		})
	}
}

// Killed anywhere, the next run ends with the same settings, and restoring ends with
// those that were found.
func TestTuneInterrupted(t *testing.T) {
	t.Parallel()
	prepare := func() (*machine, *plan.Plan) {
		m := newTunedMachine(t)

		m.apply(slots(1).plan(t))
		return m, tuned(t, 1)
	}
	whole, p := prepare()
	steps := 0
	whole.h.OnStep(func(string) error { steps++; return nil })
	whole.apply(p)
	if steps < 5+4 {
		t.Fatalf("only %d steps to interrupt", steps)
	}
	for n := range steps {
		for _, then := range []string{"on", "off", "off and killed"} {
			m, p := prepare()
			interrupt(t, m, p, "killed", n)
			if then == "on" {
				m.apply(p)
				equal(t, "settings", asPlanned, m.settings())
				equal(t, "names", slices.Sorted(maps.Keys(whole.tree())), slices.Sorted(maps.Keys(m.tree())))
			}
			if then == "off and killed" && m.exists(plan.TunablesPath) {
				m.killAt(1, func() { m.apply(slots(1).plan(t)) })
			}
			m.apply(slots(1).plan(t))
			if diff := cmp.Diff(asFound, m.settings()); diff != "" {
				t.Fatalf("killed at step %d, then %s (-want +got):\n%s", n, then, diff)
			}
			if m.exists(plan.TunablesPath) {
				t.Fatalf("killed at step %d, then %s: the record is left", n, then)
			}
		}
	}
}

// Another value is planned, and the run is killed before it is set: the value that kbnode
// set before is not taken for someone else's.
func TestTuneInterruptedAtAnotherValue(t *testing.T) {
	t.Parallel()
	m := newTunedMachine(t)
	m.apply(tuned(t, 1))
	next := tuned(t, 1)
	next.Tunables[1].Value = "0"
	m.killAt(2, func() { m.apply(next) }) // after the record is written and renamed
	equal(t, "record", true, strings.Contains(m.read(plan.TunablesPath), `"value":"0"`))
	equal(t, "interrupt", "0-1", m.read(irq24))
	m.apply(slots(1).plan(t))
	equal(t, "interrupt", "0-127", m.read(irq24))
}

func TestFullDiskChangesNoSetting(t *testing.T) {
	t.Parallel()
	m := newTunedMachine(t)
	m.apply(slots(1).plan(t))
	m.h.OnStep(failing("rename "+plan.TunablesPath, syscall.ENOSPC))
	if err := m.try(tuned(t, 1)); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "write "+plan.TunablesPath) {
		t.Errorf("error is %v", err)
	}
	equal(t, "settings", asFound, m.settings())
}

// Original values of an earlier boot do not count.
func TestTuneAfterReboot(t *testing.T) {
	t.Parallel()
	m := newTunedMachine(t)
	m.apply(tuned(t, 1))
	m.write(bootID, "boot-2\n")
	for name, value := range asFound {
		m.write(name, value+"\n")
	}
	m.write(governor, "ondemand\n")
	r, _ := m.apply(tuned(t, 1))
	equal(t, "applied", []string{"tune settings of the machine"}, brief(r.Applied))
	m.apply(slots(1).plan(t))
	equal(t, "governor", "ondemand", m.read(governor))

	// If it was disabled while the machine was off, there is nothing to restore.
	m.apply(tuned(t, 1))
	m.write(bootID, "boot-3\n")
	r, _ = m.apply(slots(1).plan(t))
	equal(t, "applied", []string{"untune settings of the machine (kbnode no longer changes any)"}, []string{r.Applied[0].String()})
	equal(t, "governor", "performance", m.read(governor))
	if _, changes := m.diff(slots(1).plan(t)); len(changes) > 0 || m.exists(plan.TunablesPath) {
		t.Errorf("left: %v", changes)
	}
}

// What cannot be set is a warning until the next boot, and is not tried again. An interrupt that
// the kernel manages is not even a warning.
func TestSettingsThatCannotBeMade(t *testing.T) {
	t.Parallel()
	for refused, managed := range map[syscall.Errno]syscall.Errno{syscall.EBUSY: syscall.EIO, syscall.EPERM: syscall.EPERM} {
		t.Run(refused.Error(), func(t *testing.T) {
			t.Parallel()
			warning := []string{governor + " is not set: " + refused.Error()}
			m := newTunedMachine(t)
			p := tuned(t, 1)
			m.apply(slots(1).plan(t))
			m.h.OnStep(func(words string) error {
				switch words {
				case "tune " + irq25:
					return &os.PathError{Op: "write", Path: irq25, Err: managed} // depends on the kernel's version
				case "tune " + governor:
					return &os.PathError{Op: "open", Path: governor, Err: refused}
				}
				return nil
			})
			r, _ := m.apply(p)
			equal(t, "warnings", warning, r.Warnings)
			s, changes := m.diff(p)
			equal(t, "changes", nil, changes)
			equal(t, "warnings", warning, s.Warnings)
			want := maps.Clone(asPlanned)
			want[irq25], want[governor] = "64-127", "powersave"
			equal(t, "settings", want, m.settings())

			// Another value is tried again, and so is another boot.
			p.Tunables[3].Value = "schedutil"
			if _, changes := m.diff(p); len(changes) != 1 {
				t.Errorf("with another value: %v", changes)
			}
			m.write(bootID, "boot-2\n")
			if _, changes := m.diff(tuned(t, 1)); len(changes) != 1 || changes[0].Why != "/proc/irq/*/smp_affinity_list: 64-127 -> 0-1; /sys/devices/system/cpu/cpufreq/policy*/scaling_governor: powersave -> performance" {
				t.Errorf("after a boot: %v", changes)
			}
			m.write(bootID, "boot-1\n")
			m.h.OnStep(nil)
			m.apply(slots(1).plan(t))
			equal(t, "settings", asFound, m.settings())
		})
	}
}

// What the kernel makes something else of is set back.
func TestSettingThatIsNotTaken(t *testing.T) {
	t.Parallel()
	m := newTunedMachine(t)
	m.apply(slots(1).plan(t))
	p := tuned(t, 1)
	p.Tunables[3].Value = " fast" // read without the blank
	r, _ := m.apply(p)
	equal(t, "warnings", []string{governor + ` is not set: the kernel does not accept it: it is "fast" after it was set to " fast"`}, r.Warnings)
	equal(t, "governor", "powersave", m.read(governor))
}

// What another program changes after kbnode set it is a warning.
func TestTuneGivesWay(t *testing.T) {
	t.Parallel()
	m := newTunedMachine(t)
	p := tuned(t, 1)
	m.apply(p)
	m.write(irq24, "5\n")
	m.write(pages, "always\n")
	s, changes := m.diff(p)
	equal(t, "changes", nil, changes)
	equal(t, "warnings", []string{"/proc/irq/*/smp_affinity_list is left as another program set it", pages + " is left as another program set it"}, s.Warnings)
	m.apply(slots(1).plan(t))
	equal(t, "interrupt of somebody else", "5", m.read(irq24))
	equal(t, "interrupt", "64-127", m.read(irq25))
}

// TestUnreadableRecord leaves everything alone where a record cannot be read. One without settings counts as none.
func TestUnreadableRecord(t *testing.T) {
	t.Parallel()
	m := newTunedMachine(t)
	m.apply(slots(1).plan(t))
	m.write(plan.TunablesPath, "{")
	s, changes := m.diff(tuned(t, 1))
	equal(t, "changes", nil, changes)
	equal(t, "warnings", []string{"the machine's settings are left alone: " + plan.TunablesPath + " cannot be read (unexpected end of JSON input); delete it to start over"}, s.Warnings)
	m.write(plan.TunablesPath, `{"written_by": "kbnode", "boot_id": "boot-1"}`)
	m.apply(tuned(t, 1))
	equal(t, "settings", asPlanned, m.settings())
}

// gpus is a driver that keeps settings.
type gpus struct {
	m    *machine
	mode string // persistence
	set  []string
	err  error
}

func (g *gpus) read() {
	g.m.h.GPUs = []inventory.GPU{{UUID: gpu0, PCI: gpu0PCI, PersistenceMode: g.mode}}
	g.m.h.SetGPU = func(_ context.Context, s nvml.Setting) error {
		g.set = append(g.set, s.Name+"="+s.Value)
		if s.Name == plan.Persistence && g.err == nil {
			g.mode = s.Value
		}
		return g.err
	}
}

// load makes the driver take the GPU.
func (g *gpus) load() {
	g.m.t.Helper()
	link := filepath.Join(g.m.h.Root, "/sys/bus/pci/devices", gpu0PCI, "driver")
	must.Do(g.m.t, os.MkdirAll(filepath.Dir(link), 0o755))
	// Remove the old link only when the new one exists, so that its inode differs.
	must.Do(g.m.t, os.Symlink("../nvidia", link+".new"))
	must.Do(g.m.t, os.Rename(link+".new", link))
	g.mode = "off"
}

func clocked(t testing.TB, clocks string) *plan.Plan {
	t.Helper()
	p := slots(1).plan(t)
	p.Slots[0].GPUs = []plan.SlotGPU{{UUID: gpu0, PCI: gpu0PCI}}
	p.Tunables = []plan.Tunable{{Name: plan.GPUTunable(gpu0, plan.Persistence), Value: "on", Form: plan.Word, PCI: gpu0PCI}}
	if clocks != "" {
		p.Tunables = append(p.Tunables, plan.Tunable{Name: plan.GPUTunable(gpu0, plan.Clocks), Value: clocks, Form: plan.Word, PCI: gpu0PCI, Slots: []int{0}})
	}
	return p
}

func TestSettingsOfGPUs(t *testing.T) {
	t.Parallel()
	m := newTunedMachine(t)
	g := &gpus{m: m}
	g.load()
	g.read()
	expect := func(what string, p *plan.Plan, want ...string) {
		t.Helper()
		g.set = nil
		g.read()
		m.apply(p)
		equal(t, what, want, g.set)
		g.set = nil
		m.h.GPUs = nil // a look, which reads no GPUs
		m.settled(p)
	}
	expect("first", clocked(t, "1410"), "persistence=on", "clocks=1410")
	expect("again", clocked(t, "1410"))
	g.mode = "off"
	expect("it was reset", clocked(t, "1410"), "persistence=on", "clocks=1410")
	g.mode = "off"
	p := clocked(t, "1410")
	p.Slots[0].Drains = []plan.Drain{{By: plan.ByOperator}}
	expect("an operator resets it", p)
	p.Slots[0].Drains = nil
	expect("it was resumed", p, "persistence=on", "clocks=1410")
	g.load()
	g.mode = "on" // of another program
	expect("the driver was loaded again, with persistence mode", clocked(t, "1410"), "clocks=1410")
	g.load()
	expect("the driver was loaded again", clocked(t, "1410"), "persistence=on", "clocks=1410")
	expect("another clock", clocked(t, "base"), "clocks=base")
	expect("clocks as they are", clocked(t, ""), "clocks=default")
	expect("locked again", clocked(t, "base"), "clocks=base")
	expect("disabled", slots(1).plan(t), "persistence=off", "clocks=default")
	m.wantAbsent(plan.TunablesPath)
	g.mode = "on"
	expect("on already", clocked(t, ""))
	expect("it was on before", slots(1).plan(t))

	// A GPU that does not answer keeps nothing else from being done, nor a slot's agent
	// from starting.
	g.mode, g.err = "off", errors.New("GPU is lost")
	g.read()
	p = clocked(t, "base")
	must.Do(t, m.sd.Fail(plan.AgentUnit(0)))
	r, words := m.apply(p)
	equal(t, "warnings", []string{"nvml/" + gpu0 + "/persistence is not set: GPU is lost", "nvml/" + gpu0 + "/clocks is not set: GPU is lost"}, r.Warnings)
	equal(t, "words", []string{"start agent-gpu0"}, words)
}

// A driver that did not answer in time is asked again by the next pass, and an AMD GPU whose driver was
// loaded again has its performance level set again. One that another program set since is left.
func TestSettingsAgain(t *testing.T) {
	t.Parallel()
	m := newTunedMachine(t)
	g := &gpus{m: m, err: fmt.Errorf("another NVML probe is still running: %w", context.DeadlineExceeded)}
	g.load()
	g.read()
	p := clocked(t, "")
	m.apply(p)
	g.err, g.set = nil, nil
	m.apply(p)
	equal(t, "asked again", []string{"persistence=on"}, g.set)

	m = newTunedMachine(t)
	g = &gpus{m: m}
	level := "/sys/bus/pci/devices/" + gpu0PCI + "/power_dpm_force_performance_level"
	amd := clocked(t, "")
	amd.Tunables = []plan.Tunable{{Name: level, Value: "high", Form: plan.Word, PCI: gpu0PCI, Slots: []int{0}}}
	g.load()
	m.write(level, "auto\n")
	m.apply(amd)
	equal(t, "at first", "high", m.read(level))
	m.write(level, "low\n")
	m.apply(amd)
	equal(t, "another program's", "low", m.read(level))
	g.load()
	m.write(level, "auto\n")
	m.apply(amd)
	equal(t, "loaded again", "high", m.read(level))
}

// TestSettingsInterrupted: what an interrupted pass did not get to is set by the next.
func TestSettingsInterrupted(t *testing.T) {
	t.Parallel()
	m := newTunedMachine(t)
	g := &gpus{m: m}
	g.load()
	g.read()
	set := m.h.SetGPU
	ctx, interrupt := context.WithCancel(t.Context())
	m.h.SetGPU = func(context.Context, nvml.Setting) error { interrupt(); return ctx.Err() }
	p := clocked(t, "1410")
	s, err := m.h.Observe(t.Context(), p)
	must.Do(t, err)
	_, err = m.h.Apply(ctx, p, s, reconcile.Diff(p, s))
	must.Err(t, err, "context canceled")
	m.h.SetGPU = set
	m.apply(p)
	equal(t, "set by the next", []string{"persistence=on", "clocks=1410"}, g.set)
}

// TestRestoringAgain: what an uninstall did not restore, because it was interrupted or the driver did
// not answer, it restores when it runs again, also where NVML no longer reports the GPU.
func TestRestoringAgain(t *testing.T) {
	t.Parallel()
	busy := fmt.Errorf("another NVML probe is still running: %w", context.DeadlineExceeded)
	for name, fail := range map[string]func(context.CancelFunc) error{
		"context canceled":                    func(interrupt context.CancelFunc) error { interrupt(); return context.Canceled },
		"persistence to off: " + busy.Error(): func(context.CancelFunc) error { return busy },
	} {
		m := newTunedMachine(t)
		g := &gpus{m: m}
		g.load()
		g.read()
		m.apply(clocked(t, "1410"))
		g.read()
		set := m.h.SetGPU
		ctx, interrupt := context.WithCancel(t.Context())
		m.h.SetGPU = func(context.Context, nvml.Setting) error { return fail(interrupt) }
		_, err := m.h.Uninstall(ctx, nil)
		must.Err(t, err, name)
		m.h.SetGPU, m.h.GPUs, g.set = set, nil, nil
		r, err := m.h.Uninstall(t.Context(), nil)
		must.Do(t, err)
		equal(t, name, []string{"persistence=off", "clocks=default"}, g.set)
		equal(t, "warnings", nil, r.Warnings)
		m.wantAbsent(plan.TunablesPath)
	}
}

func TestClocksWaitForTheJob(t *testing.T) {
	t.Parallel()
	for _, now := range []bool{false, true} {
		m := newTunedMachine(t)
		g := &gpus{m: m}
		g.load()
		m.apply(slots(1).plan(t))
		m.run(0)
		m.h.Now = now
		p := clocked(t, "1410")
		p.Tunables = append(p.Tunables, tuned(t, 1).Tunables...)
		g.read()
		r, words := m.apply(p)
		equal(t, "set while the job runs", []string{"persistence=on"}, g.set)
		equal(t, "interrupt", "0-1", m.read(irq24))
		waits := "tune clocks of gpu0 (nvml/*/clocks: default -> 1410), waits for job job-gpu0 of slot gpu0"
		if now {
			equal(t, "words", nil, words)
		} else {
			equal(t, "words", []string{"drain agent-gpu0"}, words)
		}
		if !slices.ContainsFunc(r.Deferred, func(c reconcile.Change) bool { return c.String() == waits }) {
			t.Errorf("deferred: %v", r.Deferred)
		}
		m.finish(0)
		g.set = nil
		g.read()
		m.apply(p)
		equal(t, "set", []string{"clocks=1410"}, g.set)
		equal(t, "jobs killed", nil, m.sd.Killed())
	}
}
