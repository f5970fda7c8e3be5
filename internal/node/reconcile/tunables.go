package reconcile

import (
	"context"
	"encoding/json"
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

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

const bootIDPath = "/proc/sys/kernel/random/boot_id"

// savedSettings is the content of plan.TunablesPath: what kbnode has set since the boot, and the
// values before.
type savedSettings struct {
	WrittenBy string                   `json:"written_by"`
	Boot      string                   `json:"boot_id"`
	Settings  map[string]*savedSetting `json:"saved"` // by plan.Tunable.Name
}

// savedSetting is a setting as kbnode set it.
type savedSetting struct {
	plan.Tunable
	Was     map[string]string `json:"was"`               // values before, by file or name
	Done    bool              `json:"done,omitempty"`    // it was set as far as the kernel takes it
	Why     string            `json:"why,omitempty"`     // the kernel did not take it everywhere
	Session string            `json:"session,omitempty"` // see Host.session
}

// tuning is what is known of the machine's settings.
type tuning struct {
	saved   *savedSettings // of this boot; nil if it cannot be read
	exists  bool           // the file exists, of this boot or another
	set     []tuned        // planned, and not set since the boot
	restore []tuned        // changed by kbnode, and no longer planned
}

// tuned is a setting that is to change.
type tuned struct {
	plan.Tunable
	now     map[string]string // current values, by file or name
	session string
	others  bool // restore leaves what another program has set since
}

// tunables reads the settings that are planned or were changed. kbnode sets each once after a boot,
// or after its driver was loaded: two programs that undo each other disturb every job. Limits that
// isolate slots are raised again.
func (o *observer) tunables(context.Context) error {
	t := &o.s.tune
	text, err := readSmall(o.h.path(plan.TunablesPath))
	t.exists = !errors.Is(err, fs.ErrNotExist)
	var r savedSettings
	if t.exists {
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		if err != nil {
			o.s.Warnings = append(o.s.Warnings, fmt.Sprintf("the machine's settings are left alone: %s cannot be read (%v); delete it to start over", plan.TunablesPath, err))
			return nil
		}
	}
	id, _ := readSmall(o.h.path(bootIDPath)) // it is missing only in a tree
	if boot := strings.TrimSpace(string(id)); r.Settings == nil || r.Boot != boot {
		r = savedSettings{Boot: boot, Settings: map[string]*savedSetting{}} // a boot has undone them
	}
	r.WrittenBy = "kbnode"
	t.saved = &r
	kept := maps.Clone(r.Settings)
	maps.DeleteFunc(kept, func(_ string, s *savedSetting) bool { return o.forgotten(&r, s) })
	r.Settings = kept
	for _, name := range slices.Sorted(maps.Keys(r.Settings)) {
		if s := r.Settings[name]; !slices.ContainsFunc(o.p.Tunables, func(p plan.Tunable) bool { return p.Name == name }) {
			o.restorable(s)
		} else if s.Why != "" {
			o.s.Warnings = append(o.s.Warnings, name+" "+s.Why)
		}
	}
	for _, p := range o.p.Tunables {
		if err := o.settable(p); err != nil {
			return err
		}
	}
	return nil
}

// forgotten reports whether a GPU's driver has lost a setting: it was loaded again, or the GPU was
// reset and lost its persistence mode.
func (o *observer) forgotten(r *savedSettings, s *savedSetting) bool {
	uuid, _, ok := s.GPU()
	if !ok { // a file
		return s.PCI != "" && s.Session != o.h.session(s.PCI)
	}
	persistence := r.Settings[plan.GPUTunable(uuid, plan.Persistence)]
	mode, known := o.h.persistence(uuid)
	reset := known && mode == "off" && persistence != nil && persistence.Done && persistence.Why == ""
	return reset || s.Session != o.h.session(s.PCI)
}

// settable adds a planned setting to those that are to be set. One that was set and has another
// value now is only reported.
func (o *observer) settable(p plan.Tunable) error {
	t, s := &o.s.tune, o.s.tune.saved.Settings[p.Name]
	isSet := s != nil && s.Done && s.Value == p.Value && (p.Form != plan.Least || s.Why != "")
	d := tuned{Tunable: p, now: map[string]string{}}
	if p.PCI != "" {
		d.session = o.h.session(p.PCI)
	}
	if uuid, setting, ok := p.GPU(); ok {
		mode, known := o.h.persistence(uuid)
		if isSet || !known || mode == "off" && o.outOfService(p.PCI) {
			return nil // an operator may have turned it off to reset the GPU
		}
		switch {
		case setting == plan.Persistence && mode != p.Value:
			d.now[p.Name] = mode
		case setting == plan.Clocks: // they cannot be read
			d.now[p.Name] = "default"
			if s != nil {
				d.now[p.Name] = s.Value
			}
		}
	} else {
		files, err := o.matching(p.Name)
		if err != nil {
			return err
		}
		for _, name := range files {
			if now := o.h.readSetting(name, p.Form); now != "" && !met(p.Form, now, p.Value) && o.h.writable(name) {
				d.now[name] = now
			}
		}
	}
	switch {
	case len(d.now) == 0:
	case !isSet:
		t.set = append(t.set, d)
	case s.Why == "":
		for name := range d.now {
			if _, ours := s.Was[name]; ours {
				o.s.Warnings = append(o.s.Warnings, p.Name+" is left as another program set it")
				break
			}
		}
	}
	return nil
}

// matching returns the files of a setting, in which * stands for a number.
func (o *observer) matching(name string) (files []string, err error) {
	dir, rest, isPattern := strings.Cut(name, "*")
	if !isPattern {
		return []string{name}, nil
	}
	entries, err := o.list(path.Clean(dir))
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			files = append(files, dir+e.Name()+rest)
		}
	}
	return files, err
}

// restorable adds a setting that is no longer planned to those that are to be restored: all values
// that are still as kbnode set them.
func (o *observer) restorable(s *savedSetting) {
	d := tuned{Tunable: s.Tunable, now: map[string]string{}}
	uuid, setting, isGPU := s.GPU()
	persistence, known := o.h.persistence(uuid)
	if isGPU && !known && !empty(o.p) {
		return // later: not every pass reads GPUs
	}
	for name, was := range s.Was {
		now := persistence
		switch {
		case !isGPU:
			now = o.h.readSetting(name, s.Form)
		case !known || setting == plan.Clocks:
			now = s.Value // it cannot be read
		}
		switch {
		case now == "" || sameValue(s.Form, now, was):
		case !s.Done || sameValue(s.Form, now, s.Value):
			d.now[name] = now
		default:
			d.others = true
		}
	}
	o.s.tune.restore = append(o.s.tune.restore, d)
}

// outOfService reports whether none of a GPU's slots takes jobs.
func (o *observer) outOfService(pci string) bool {
	return !slices.ContainsFunc(o.p.Slots, func(s plan.Slot) bool {
		return s.Serves() && slices.ContainsFunc(s.GPUs, func(g plan.SlotGPU) bool { return g.PCI == pci })
	})
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
