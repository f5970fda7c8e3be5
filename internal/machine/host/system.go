package host

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// User is a line of /etc/passwd.
type User struct {
	Name     string
	UID, GID int
}

// Users returns the users by name. A tree without the file has none.
func (t Tree) Users() (map[string]User, error) {
	text, err := limit.ReadFile(t.Path("/etc/passwd"), maxLong)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read users: %w", err)
	}
	users := map[string]User{}
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 4 {
			continue
		}
		uid, errU := strconv.Atoi(f[2])
		gid, errG := strconv.Atoi(f[3])
		if errU == nil && errG == nil {
			users[f[0]] = User{f[0], uid, gid}
		}
	}
	return users, nil
}

// Group is a line of /etc/group.
type Group struct {
	Name    string
	Members []string
}

// Groups returns the groups of users.
func (t Tree) Groups() (list []Group, err error) {
	text, err := t.Read("/etc/group")
	for line := range strings.Lines(text) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) >= 4 {
			list = append(list, Group{f[0], strings.FieldsFunc(f[3], func(r rune) bool { return r == ',' })})
		}
	}
	return list, err
}

// Package is a package of dpkg. State is like "install ok installed".
type Package struct{ Name, Version, State string }

// Packages returns those of the named packages that dpkg has installed, if only in part. It
// returns false if there is no dpkg.
func (t Tree) Packages(names ...string) (list []Package, ok bool) {
	var p Package
	end := func() {
		removed := strings.HasSuffix(p.State, " config-files") || strings.HasSuffix(p.State, " not-installed")
		if slices.Contains(names, p.Name) && p.Version != "" && !removed {
			list = append(list, p)
		}
		p = Package{}
	}
	ok = t.Lines("/var/lib/dpkg/status", func(line string) {
		switch key, value, _ := strings.Cut(line, ": "); key {
		case "":
			end()
		case "Package":
			p.Name = value
		case "Version":
			p.Version = value
		case "Status":
			p.State = value
		}
	})
	end()
	return list, ok
}

// Modules returns the names of the modules that a kernel has, loaded or not, and false if
// its directory has no list of them.
func (t Tree) Modules(kernel string) (known map[string]bool, ok bool) {
	known = map[string]bool{}
	for _, file := range []string{"modules.dep", "modules.builtin"} {
		ok = t.Lines("/lib/modules/"+kernel+"/"+file, func(line string) {
			name, _, _ := strings.Cut(line, ":")
			name, _, _ = strings.Cut(path.Base(name), ".ko")
			known[strings.ReplaceAll(name, "-", "_")] = true
		}) || ok
	}
	return known, ok
}

// NVIDIAKernels returns the first eight kernels that have NVIDIA's module.
func (t Tree) NVIDIAKernels() (kernels []string) {
	for _, dir := range []string{"updates", "updates/dkms", "extra", "extra/nvidia", "weak-updates", "kernel/drivers/video", "kernel/nvidia-*", "kernel/nvidia-*/bits"} {
		for _, file := range t.List("/lib/modules/*/" + dir + "/nvidia.ko*") {
			kernels = append(kernels, strings.Split(file, "/")[3])
		}
	}
	slices.Sort(kernels)
	kernels = slices.Compact(kernels)
	return kernels[:min(len(kernels), 8)]
}

// NVIDIALibrary returns the version in the name of the library that programs load, or "" if
// there is not exactly one.
func (t Tree) NVIDIALibrary() string {
	var versions []string
	for _, dir := range []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"} {
		for _, file := range t.List(dir + "/libnvidia-ml.so.*.*") {
			_, v, _ := strings.Cut(filepath.Base(file), ".so.")
			versions = append(versions, v[:min(len(v), 32)])
		}
	}
	slices.Sort(versions)
	versions = slices.Compact(versions)
	if len(versions) != 1 {
		return ""
	}
	return versions[0]
}

// SecureBoot reports whether the firmware starts only signed kernels. Its variable has four
// bytes of attributes, then 1 for on.
func (t Tree) SecureBoot() bool {
	text, _ := t.Read("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c")
	return len(text) == 5 && text[4] == 1
}

// PCI returns the path of a PCI device in sysfs.
func PCI(address string) string { return "/sys/bus/pci/devices/" + address }

// PCIDriver returns the kernel driver that a PCI device is bound to.
func (t Tree) PCIDriver(address string) string {
	_, after, _ := strings.Cut("\n"+t.Value(PCI(address)+"/uevent"), "\nDRIVER=")
	name, _, _ := strings.Cut(after, "\n")
	name = strings.TrimSpace(name)
	other := func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' && r != '-' }
	if strings.ContainsFunc(name, other) { // people paste it into commands, and a recording is someone else's
		return ""
	}
	return name
}

// NVSwitches counts NVIDIA's bridges on the PCI bus: up to Hopper, these are NVSwitches.
func (t Tree) NVSwitches() (n int) {
	for _, dir := range t.List(PCI("*")) {
		if t.Value(dir+"/vendor") == "0x10de" && strings.HasPrefix(t.Value(dir+"/class"), "0x0680") {
			n++
		}
	}
	return n
}

// IsBridge reports whether a network device is a bridge, and whether a network card or a
// bond is in it.
func (t Tree) IsBridge(device string) (is, connected bool) {
	dir := "/sys/class/net/" + filepath.Base(device)
	return t.Exists(dir + "/bridge"), len(t.List(dir+"/lower_*/device"))+len(t.List(dir+"/lower_*/lower_*")) > 0
}

// StartsAtBoot reports whether a systemd target wants or requires a unit.
func (t Tree) StartsAtBoot(unit string) bool {
	return len(t.List("/etc/systemd/system/*.wants/"+unit))+len(t.List("/etc/systemd/system/*.requires/"+unit)) > 0
}

// unitDirs are where systemd looks for units, the first one first.
var unitDirs = []string{
	"/etc/systemd/system", "/run/systemd/transient", "/run/systemd/system", "/run/systemd/generator",
	"/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system",
}

// UnitValues returns the values of a unit's keys that begin with a text, such as "ExecStart=", from its file
// and its drop-ins. It returns false if there is no file.
func (t Tree) UnitValues(unit, prefix string) (values []string, there bool, err error) {
	names := []string{unit}
	if name, instance, is := strings.Cut(unit, "@"); is {
		names = append(names, name+"@"+path.Ext(instance))
	}
	var files, dropIns []string
	for _, name := range names {
		for _, dir := range unitDirs {
			if file := dir + "/" + name; t.Exists(file) && len(files) == 0 {
				files = append(files, file)
			}
			for _, file := range t.List(dir + "/" + name + ".d/*.conf") {
				if !slices.ContainsFunc(dropIns, func(has string) bool { return path.Base(has) == path.Base(file) }) {
					dropIns = append(dropIns, file)
				}
			}
		}
	}
	there = len(files) > 0
	slices.SortFunc(dropIns, func(a, b string) int { return strings.Compare(path.Base(a), path.Base(b)) })
	type setting struct{ key, value string }
	var settings []setting
	for _, file := range append(files, dropIns...) {
		text, errRead := t.Read(file)
		err = errors.Join(err, errRead)
		for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
			key, value, is := strings.Cut(line, "=")
			key, value = strings.TrimSpace(key), strings.TrimSpace(value)
			switch {
			case !is || !strings.HasPrefix(key+"=", prefix):
			case value == "": // the earlier ones of this key do not count
				settings = slices.DeleteFunc(settings, func(s setting) bool { return s.key == key })
			default:
				settings = append(settings, setting{key, value})
			}
		}
	}
	for _, s := range settings {
		values = append(values, s.value)
	}
	return values, there, err
}
