package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
)

const (
	bootIDPath = "/proc/sys/kernel/random/boot_id"
	// maxTries is how many times per boot a setting is tried that cannot be made for now, or
	// is made again after another program changed it. Two programs that undo each other
	// disturb every job.
	maxTries = 20
)

// tuning is what is known of the machine's settings.
type tuning struct {
	originals *originals // of this boot; nil if it cannot be read
	exists    bool       // the file exists, of this boot or another
	drift     []tuned    // planned, but with another value
	back      []tuned    // changed by kbnode, and no longer planned
}

// tuned is one setting. Its Name is not a pattern. Of one that is no longer planned, Value
// is the original value.
type tuned struct {
	plan.Tunable
	now     string // its value, in the form in which it is written; "" if it is lost
	session string // of the driver that keeps it; see Host.session
	ours    bool   // kbnode has set the value that it has now
}

// restores reports whether a setting that is no longer planned gets its original value.
func (t tuned) restores() bool { return t.ours && !t.original() }

// foreign reports whether another program has changed the setting since kbnode did.
func (t tuned) foreign() bool { return !t.ours && !t.original() && t.now != "" }

func (t tuned) original() bool { return sameValue(t.Form, t.now, t.Value) }

// tunables reads the settings that are planned or were changed. A setting that cannot be
// read is absent.
func (o *observer) tunables(context.Context) error {
	t := &o.s.tune
	text, err := readSmall(o.h.path(plan.TunablesPath))
	t.exists = !errors.Is(err, fs.ErrNotExist)
	boot, _ := readSmall(o.h.path(bootIDPath)) // it is missing only in a tree
	r := &originals{boot: strings.TrimSpace(string(boot)), settings: map[string]*saved{}}
	if t.exists {
		if err == nil {
			err = r.parse(text)
		}
		if err != nil {
			o.s.Warnings = append(o.s.Warnings, fmt.Sprintf("the machine's settings are left alone: %s cannot be read (%v); delete it to start over", plan.TunablesPath, err))
			return nil
		}
	}
	// As after a boot, a driver that was loaded again has lost what was set.
	maps.DeleteFunc(r.settings, func(_ string, s *saved) bool { return s.Session != "" && s.Session != o.h.session(s.PCI) })
	t.originals = r
	o.s.Warnings = append(o.s.Warnings, r.warnings()...)
	planned := map[string]bool{}
	for _, p := range o.p.Tunables {
		planned[p.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(r.settings)) {
		if pattern, _ := cutNumber(name); planned[name] || planned[pattern] {
			continue
		}
		if b, ok := o.back(*r.settings[name]); ok {
			t.back = append(t.back, b)
		}
	}
	for _, p := range o.p.Tunables {
		if err := o.drift(t, p); err != nil {
			return err
		}
	}
	return nil
}

// drift finds planned settings that have another value.
func (o *observer) drift(t *tuning, p plan.Tunable) error {
	d := tuned{Tunable: p}
	if uuid, setting, ok := p.GPU(); ok {
		if mode, _ := o.h.persistence(uuid); mode == "off" && o.outOfService(p.PCI) {
			return nil // an operator may have turned it off to reset the GPU
		}
		d.session = o.h.session(p.PCI)
		d.now = o.h.gpuSetting(t.originals, p.Name, uuid, setting)
		t.add(d)
		return nil
	}
	dir, rest, isPattern := strings.Cut(p.Name, "*")
	if !isPattern {
		d.now = o.h.readSetting(p.Name, p.Form)
		t.add(d)
		return nil
	}
	entries, err := o.list(path.Clean(dir))
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		d.Name = dir + e.Name() + rest
		if d.now = o.h.readSetting(d.Name, p.Form); !met(p.Form, d.now, p.Value) && o.h.writable(d.Name) {
			t.add(d)
		}
	}
	return err
}

// add adds a planned setting to those that are to change.
func (t *tuning) add(d tuned) {
	if d.now != "" && !met(d.Form, d.now, d.Value) && !t.originals.gaveUp(d) {
		t.drift = append(t.drift, d)
	}
}

// outOfService reports whether none of a GPU's slots takes jobs.
func (o *observer) outOfService(pci string) bool {
	return !slices.ContainsFunc(o.p.Slots, func(s plan.Slot) bool {
		return s.Serves() && slices.ContainsFunc(s.GPUs, func(g plan.SlotGPU) bool { return g.PCI == pci })
	})
}

// back returns a setting that is no longer planned; ok is false if its value is unknown for
// now.
func (o *observer) back(s saved) (b tuned, ok bool) {
	b = tuned{Tunable: plan.Tunable{Name: s.Name, Value: s.Was, Form: s.Form, PCI: s.PCI, Slots: s.Slots}}
	uuid, setting, isGPU := b.GPU()
	switch persistence, known := o.h.persistence(uuid); {
	case !isGPU:
		b.now = o.h.readSetting(s.Name, s.Form)
	case !known && !empty(o.p):
		return b, false // later: not every pass reads GPUs
	case known && setting == plan.Clocks:
		b.now = s.newest() // it cannot be read
	default:
		b.now = persistence
	}
	b.ours = b.now != "" && slices.ContainsFunc(s.Set, func(set string) bool { return sameValue(s.Form, b.now, set) })
	return b, true
}

// persistence returns the persistence mode of a GPU; known reports whether NVML gave it in
// this pass.
func (h *Host) persistence(uuid string) (mode string, known bool) {
	i := slices.IndexFunc(h.GPUs, func(g inventory.GPU) bool { return g.UUID == uuid && g.PersistenceMode != "" })
	if i < 0 {
		return "", false
	}
	return h.GPUs[i].PersistenceMode, true
}

// gpuSetting returns the value of a GPU's setting, "" if unknown. Locked clocks cannot be
// read: they are what the originals say was set, unless the GPU has lost its persistence
// mode, as after a reset.
func (h *Host) gpuSetting(r *originals, name, uuid, setting string) string {
	mode, known := h.persistence(uuid)
	if !known || setting == plan.Persistence {
		return mode
	}
	persistence := r.settings[plan.GPUTunable(uuid, plan.Persistence)]
	lost := mode != "on" && persistence != nil && persistence.Done
	if s := r.settings[name]; s != nil && s.Done && !lost {
		return s.newest()
	}
	return "default"
}

// session identifies one load of a PCI device's driver. It changes when the driver is
// loaded again or the device is taken from it: sysfs makes the link again. It is ""
// without a driver.
func (h *Host) session(pci string) string {
	info, err := os.Lstat(h.path("/sys/bus/pci/devices", pci, "driver"))
	if err != nil {
		return ""
	}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		return strconv.FormatUint(sys.Ino, 10)
	}
	return ""
}

// readSetting returns the value of a file in the form in which it is written, "" if it
// has none. Each look reads hundreds.
func (h *Host) readSetting(name string, form plan.Form) string {
	fd, err := unix.Open(h.path(name), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = unix.Close(fd) }()
	var buf [4096]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil || n == len(buf) {
		return ""
	}
	text := strings.TrimSpace(string(buf[:n]))
	if _, chosen, ok := strings.Cut(text, "["); ok && form == plan.Choice {
		text, _, _ = strings.Cut(chosen, "]")
	}
	return text
}

// writable reports whether a file's mode allows writing. The kernel denies that for an
// interrupt that it manages itself; older kernels do not.
func (h *Host) writable(name string) bool {
	info, err := os.Lstat(h.path(name))
	return err == nil && info.Mode().Perm()&0o200 != 0
}

// errNotTaken means that the kernel made something else of a value.
var errNotTaken = errors.New("the kernel does not accept it")

// writeSetting writes a value and checks whether the kernel took it.
func (h *Host) writeSetting(name string, form plan.Form, value string) error {
	f, err := os.OpenFile(h.path(name), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value + "\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if now := h.readSetting(name, form); !met(form, now, value) {
		return fmt.Errorf("%w: it is %q after it was set to %q", errNotTaken, now, value)
	}
	return nil
}

// met reports whether a setting is as planned.
func met(form plan.Form, now, planned string) bool {
	if form != plan.Least {
		return sameValue(form, now, planned)
	}
	n, err1 := strconv.ParseUint(now, 10, 64)
	least, err2 := strconv.ParseUint(planned, 10, 64)
	return err1 == nil && err2 == nil && n >= least
}

func sameValue(form plan.Form, a, b string) bool {
	if a == b {
		return true
	}
	parse := map[plan.Form]func(string) (cpuset.Set, error){plan.List: cpuset.Parse, plan.Mask: cpuset.ParseMask}[form]
	if parse == nil {
		return false
	}
	x, errA := parse(a)
	y, errB := parse(b)
	return errA == nil && errB == nil && x.Equal(y)
}
