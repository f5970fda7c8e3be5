package doctor

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

// typeFix types a finding's command into a shell below the machine's root, and reports whether
// what it does there can be looked at: files are changed for real, and systemd, Docker and
// sysctl have stand-ins. Everything else is not found, so a command of a new program fails here.
func typeFix(t *testing.T, m *Machine, f *fake, command string) bool {
	t.Helper()
	bin, calls := t.TempDir(), filepath.Join(t.TempDir(), "calls")
	for _, name := range []string{"cat", "chmod", "mkdir", "mv", "rm", "sed", "tee"} {
		real, err := exec.LookPath(name)
		must.Do(t, err)
		must.Do(t, os.Symlink(real, filepath.Join(bin, name)))
	}
	for _, name := range []string{
		"apt-get", "chown", "dkms", "dnf", "docker", "dpkg", "gpasswd", "kbnode", "kill", "modprobe", "nvidia-ctk", "nvidia-modprobe", "nvidia-smi",
		"snap", "swapoff", "sysctl", "systemctl", "umount",
	} {
		must.Write(t, bin, name, "#!/bin/sh\necho "+name+" \"$*\" >>"+calls+"\n")
		must.Do(t, os.Chmod(filepath.Join(bin, name), 0o755))
	}
	dirs := []string{"/etc/modules-load.d", "/etc/sysctl.d", "/root", "/sys/bus/pci/drivers/nouveau"}
	if m.Inventory != nil {
		for _, g := range m.Inventory.GPUs {
			dirs = append(dirs, "/sys/bus/pci/devices/"+g.PCI)
		}
	}
	for _, dir := range dirs {
		must.Do(t, os.MkdirAll(m.Path(dir), 0o755))
	}
	below := regexp.MustCompile(`(^|[\s'">=])/(dev|etc|lib|proc|root|run|sys|usr|var)/`).ReplaceAllString(command, "${1}"+m.Root+"/$2/")
	rest := regexp.MustCompile(regexp.QuoteMeta(m.Root)+`/\S*`).ReplaceAllString(below, "")
	if regexp.MustCompile(`/(bin|boot|dev|etc|home|lib|opt|proc|root|run|sys|usr|var)\b`).MatchString(rest) {
		t.Fatalf("%s: it would leave the test's directory", below)
	}
	shell := exec.CommandContext(t.Context(), "/bin/sh", "-c", "kill() { command \""+bin+"/kill\" \"$@\"; }\n"+below)
	shell.Dir, shell.Env = m.Root, []string{"PATH=" + bin}
	if out, err := shell.CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", command, err, out)
		return false
	}
	typed, _ := os.ReadFile(calls)
	known := true
	for line := range strings.Lines(strings.ReplaceAll(string(typed), m.Root, "")) {
		known = simulate(t, m, f, strings.Fields(line)) && known
	}
	return known && !regexp.MustCompile(`(>|tee )/sys/`).MatchString(command) // the inventory has read those
}

// simulate does to the machine what a program does, or reports that nothing here does it.
func simulate(t *testing.T, m *Machine, f *fake, call []string) bool {
	t.Helper()
	args := slices.DeleteFunc(slices.Clone(call[1:]), func(s string) bool { return s == "--now" })
	set := func(line string) {
		if key, value, is := strings.Cut(line, "="); is {
			must.Write(t, m.Root, "/proc/sys/"+strings.ReplaceAll(key, ".", "/"), value)
		}
	}
	switch strings.Join(call[:min(2, len(call))], " ") {
	case "systemctl daemon-reload", "chown root:root", "chown -R":
		return true
	case "sysctl -w":
		set(args[1])
	case "sysctl -p":
		for line := range strings.Lines(m.Value(args[1])) {
			set(line)
		}
	case "gpasswd -d":
		text := must.Read(t, m.Path("/etc/group"))
		text = regexp.MustCompile(`(?m)^(`+args[2]+`:.*[:,])`+args[1]+`\b,?`).ReplaceAllString(text, "$1")
		must.Write(t, m.Root, "/etc/group", text)
	case "kbnode reconcile":
		m.Changes = nil
		return m.State != nil && len(m.State.Units) > 0 // what it would write is reconcile's own test
	default:
		known := call[0] == "systemctl" && len(args) > 1
		for _, unit := range args[1:] {
			known = known && systemctl(t, m, f, args[0], unit, len(call) > 2 && call[2] == "--now")
		}
		return known
	}
	return true
}

// systemctl does one thing to one unit. What a unit does that runs already, or that ends when
// it has worked, nothing here does.
func systemctl(t *testing.T, m *Machine, f *fake, verb, name string, now bool) (known bool) {
	t.Helper()
	if !strings.Contains(name, ".") {
		name += ".service"
	}
	known = name == dockerUnit && m.Exists(host.DaemonJSON)
	change := func(u slot.Unit) slot.Unit {
		known = known || !strings.HasPrefix(name, "nvidia-") && (verb != "restart" || u.Active != "active")
		switch verb {
		case "enable", "disable":
			u.Enabled = verb == "enable"
		case "unmask":
			u.Load = "loaded"
		}
		if slices.Contains([]string{"start", "restart"}, verb) || now && verb == "enable" {
			u.Active, u.Sub, u.Result, u.ExitStatus = "active", "running", "success", 0
		} else if now {
			u.Active, u.Sub = "inactive", "dead"
		}
		return u
	}
	for i, u := range f.units {
		if u.Name == name {
			f.units[i] = change(u)
		}
	}
	if m.State != nil && m.State.Units[name].Name != "" {
		m.State.Units[name] = change(m.State.Units[name])
		for i := range m.State.Slots {
			if m.State.Slots[i].Agent.Name == name {
				m.State.Slots[i].Agent = m.State.Units[name]
			}
		}
	}
	if verb == "enable" {
		must.Write(t, m.Root, "/etc/systemd/system/multi-user.target.wants/"+name, "")
		known = true
	}
	if verb == "disable" {
		for _, link := range m.List("/etc/systemd/system/*.wants/" + name) {
			must.Do(t, os.Remove(m.Path(link)))
			known = true
		}
	}
	if name == dockerUnit {
		m.Docker = configured(t, m, f.docker)
	}
	return known
}

// configured returns what the engine says of itself when it has read daemon.json again.
func configured(t *testing.T, m *Machine, info docker.Info) *docker.Info {
	t.Helper()
	text, err := m.Read(host.DaemonJSON)
	if err != nil {
		return &info
	}
	var file struct {
		Features      map[string]bool `json:"features"`
		Exec          []string        `json:"exec-opts"`
		StorageDriver string          `json:"storage-driver"`
		LiveRestore   bool            `json:"live-restore"`
	}
	if err := json.Unmarshal([]byte(text), &file); err != nil {
		t.Errorf("dockerd would not start: %v: %s", err, text)
	}
	info.LiveRestoreEnabled = file.LiveRestore
	for _, opt := range file.Exec {
		if driver, is := strings.CutPrefix(opt, "native.cgroupdriver="); is {
			info.CgroupDriver = driver
		}
	}
	if file.Features["cdi"] && m.Inventory != nil {
		inv := *m.Inventory
		inv.Software.Docker.CDI, m.Inventory = true, &inv
	}
	if file.StorageDriver != "" {
		info.StorageDriver, info.Snapshotter = file.StorageDriver, file.Features["containerd-snapshotter"]
	}
	return &info
}

// typeFixes types the commands of the findings in an answer and looks at the machine again: none
// of them may be found once more.
func (s scene) typeFixes(t *testing.T, m *Machine, first *Result) {
	t.Helper()
	f := *s.f
	f.units = slices.Clone(f.units)
	m.Source = &f
	if m.State != nil {
		state := *m.State
		state.Units = maps.Clone(state.Units)
		m.State = &state
	}
	for _, found := range first.Findings {
		if found.Status > Skip && found.Fix != "" && !typeFix(t, m, &f, found.Fix) {
			return
		}
	}
	again := answer(t, m, s.id)
	for _, found := range again.Findings {
		if found.Fix != "" && slices.ContainsFunc(first.Findings, func(o Finding) bool { return o.Fix == found.Fix && o.Detail == found.Detail }) {
			t.Errorf("%s was typed, and is still to type: %s", found.Fix, found.Detail)
		}
	}
}
