package installer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// Step is one command that Packages runs.
type Step struct {
	Args []string
	Why  string
}

// String returns the command as a person would type it.
func (s Step) String() string { return strings.Join(s.Args, " ") }

// Manager returns this machine's package manager: "apt-get" or "dnf", or "" if
// it has neither.
func Manager() string {
	for _, program := range []string{"apt-get", "dnf"} {
		if _, err := exec.LookPath(program); err == nil {
			return program
		}
	}
	return ""
}

// Packages lists the commands that install what is missing, with the package
// manager "apt-get" or "dnf". A Docker that is installed but does not answer is
// only started: what it lacks is unknown, and the distribution's package may
// conflict with it.
func Packages(inv *inventory.Inventory, manager string) ([]Step, error) {
	sw := inv.Software
	silent := sw.Docker.Version == "" && problem(inv, inventory.SubjectDocker) != ""
	gpus := inv.NVIDIA != nil && !silent && !givesGPUs(sw.Docker)
	var names []string
	for _, p := range []struct {
		Prerequisite
		missing bool
	}{
		{Docker, sw.Docker.Version == "" && !silent},
		{Git, sw.Git == ""},
		{MkfsExt4, sw.MkfsExt4 == ""},
		{Toolkit, gpus && sw.Toolkit == ""},
	} {
		if p.missing {
			names = append(names, strings.Fields(find(p.packages, inv.OS, cmp.Or(manager, "apt-get")))...)
		}
	}
	var steps []Step
	add := func(why string, args ...string) { steps = append(steps, Step{Args: args, Why: why}) }
	if len(names) > 0 {
		why := "install " + strings.Join(names, ", ")
		switch manager {
		case "apt-get":
			add("update the package lists", "apt-get", "update")
			add(why, append([]string{"apt-get", "install", "-y", "--no-install-recommends"}, names...)...)
		case "dnf":
			add(why, append([]string{"dnf", "install", "-y"}, names...)...)
		default:
			return nil, fmt.Errorf("not installed: %s; this machine has neither apt-get nor dnf, so install by hand", strings.Join(names, ", "))
		}
	}
	if sw.Docker.Version == "" {
		add("start Docker", "systemctl", "enable", "--now", "docker")
	}
	switch {
	case gpus && sw.Docker.CDI:
		add("describe the GPUs to Docker", strings.Fields(GenerateCDI)...)
	case gpus: // engines before 28 have CDI off by default, and all have runtimes
		add("add the NVIDIA runtime to Docker", "nvidia-ctk", "runtime", "configure", "--runtime=docker")
		add("reload Docker's configuration", "systemctl", "reload", "docker")
	}
	return steps, nil
}

// Run runs the steps in order with their output to w, and stops at the first that fails. When
// ctx ends, it interrupts the step as Ctrl-C would and waits for it.
func Run(ctx context.Context, steps []Step, w io.Writer) error {
	for _, s := range steps {
		cmd := exec.CommandContext(ctx, s.Args[0], s.Args[1:]...)
		cmd.Stdout, cmd.Stderr = w, w
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		// At SIGINT, apt and dnf finish the package at hand; killed, they leave it half installed.
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		err := cmd.Run()
		if ctx.Err() != nil {
			return fmt.Errorf("%s: interrupted; run kbnode install again to continue: %w", s.Why, ctx.Err())
		}
		if err != nil {
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				return fmt.Errorf("%s: %s: exit %d; run it by hand to see why, then kbnode install again", s.Why, s, exit.ExitCode())
			}
			return fmt.Errorf("%s: %w", s.Why, err)
		}
	}
	return nil
}

// Prerequisite is a program that a node needs from the distribution's packages.
//
// Both maps have an entry per package manager, for the distributions that differ also one per
// ID in os-release, and one per ID and major version. The most specific one counts.
type Prerequisite struct {
	packages map[string]string
	service  map[string]string // the unit to enable
}

// Everything that a node needs from packages. Cron is needed for image.auto_update only.
var (
	Docker = Prerequisite{
		// In Debian 13 the command line became a separate package.
		packages: map[string]string{"apt-get": "docker.io", "debian": "docker.io docker-cli", "debian 11": "docker.io", "debian 12": "docker.io", "dnf": "docker-ce", "amzn": "docker"},
		service:  map[string]string{"apt-get": "docker", "dnf": "docker"},
	}
	Git      = Prerequisite{packages: map[string]string{"apt-get": "git", "dnf": "git"}}
	MkfsExt4 = Prerequisite{packages: map[string]string{"apt-get": "e2fsprogs", "dnf": "e2fsprogs"}}
	Toolkit  = Prerequisite{packages: map[string]string{"apt-get": "nvidia-container-toolkit", "dnf": "nvidia-container-toolkit"}}
	Cron     = Prerequisite{
		packages: map[string]string{"apt-get": "cron", "dnf": "cronie"},
		service:  map[string]string{"apt-get": "cron", "dnf": "crond"},
	}
)

// GenerateCDI describes the NVIDIA GPUs to Docker.
const GenerateCDI = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"

// Command returns the command for a root shell that installs and starts a prerequisite on a
// distribution.
func (p Prerequisite) Command(os inventory.OS) string {
	manager := "apt-get"
	if HasDNF(os) {
		manager = "dnf"
	}
	var commands []string
	if manager == "apt-get" {
		commands = append(commands, "apt-get update")
	}
	commands = append(commands, manager+" install -y "+find(p.packages, os, manager))
	if unit := find(p.service, os, manager); unit != "" {
		commands = append(commands, "systemctl enable --now "+unit)
	}
	return strings.Join(commands, " && ")
}

// HasDNF reports whether a distribution is Fedora or one of those that come from it.
func HasDNF(os inventory.OS) bool {
	return slices.Contains([]string{"rhel", "centos", "rocky", "almalinux", "fedora", "ol", "amzn"}, os.ID)
}

// find returns the entry that counts on a distribution.
func find(entries map[string]string, os inventory.OS, manager string) string {
	major, _, _ := strings.Cut(os.VersionID, ".")
	return cmp.Or(entries[os.ID+" "+major], entries[os.ID], entries[manager])
}

// MinSystemd is the oldest systemd that supports what units and slices need.
const MinSystemd = 249

// Unfit is the part of Preflight that no installation changes and no waiting.
func Unfit(inv *inventory.Inventory) (missing []string) {
	say := func(format string, args ...any) { missing = append(missing, fmt.Sprintf(format, args...)) }
	sw := inv.Software
	if v, err := strconv.Atoi(strings.TrimFunc(strings.SplitN(sw.Systemd, ".", 2)[0], func(r rune) bool { return r < '0' || r > '9' })); err == nil && v < MinSystemd {
		say("systemd is version %s; kbnode needs %d or newer (Ubuntu 22.04, Debian 12, RHEL 9)", sw.Systemd, MinSystemd)
	}
	if !sw.CgroupV2 {
		say("cgroup v1 is mounted at /sys/fs/cgroup; boot with systemd.unified_cgroup_hierarchy=1 on the kernel command line")
	}
	return missing
}

// Preflight lists what keeps this machine from being made a node, each with what to
// type. It checks what plan.Build does not need.
func Preflight(inv *inventory.Inventory) []string {
	missing := Missing(inv)
	if inv.NVIDIA != nil && inv.Software.Docker.Version != "" && !givesGPUs(inv.Software.Docker) {
		missing = append(missing, "Docker cannot give NVIDIA GPUs to containers; "+hint(Toolkit.Command(inv.OS)+" && "+GenerateCDI))
	}
	return missing
}

// Missing is the part of Preflight without which a node is not planned again. Slots whose GPUs Docker cannot give to
// containers are parked instead: at a boot, the toolkit may say only later what it can.
func Missing(inv *inventory.Inventory) []string {
	missing := Unfit(inv)
	say := func(format string, args ...any) { missing = append(missing, fmt.Sprintf(format, args...)) }
	sw := inv.Software
	if sw.Systemd == "" {
		say("systemd does not report its version (%s); kbnode needs systemd, so run kbnode on the host, not in a container", cmp.Or(problem(inv, inventory.SubjectSystem), "not found"))
	}
	switch why := problem(inv, inventory.SubjectDocker); {
	case sw.Docker.Version == "" && why != "":
		say("Docker does not answer (%s); %s; if that does not help, sudo kbnode doctor --only docker says why", why, hint("systemctl enable --now docker"))
	case sw.Docker.Version == "":
		say("Docker is not installed; %s", hint(Docker.Command(inv.OS)))
	case sw.Docker.CgroupDriver != "systemd":
		say("Docker uses the %s cgroup driver, with which slices do not limit containers; put {\"exec-opts\": [\"native.cgroupdriver=systemd\"]} into /etc/docker/daemon.json and run systemctl restart docker", cmp.Or(sw.Docker.CgroupDriver, "unknown"))
	}
	if sw.Git == "" {
		say("git is not installed; %s", hint(Git.Command(inv.OS)))
	}
	if sw.MkfsExt4 == "" {
		say("mkfs.ext4 is not installed; %s", hint(MkfsExt4.Command(inv.OS)))
	}
	return missing
}

// hint tells a user to run a command that is for a root shell.
func hint(command string) string {
	return "run: sudo " + strings.ReplaceAll(command, "&& ", "&& sudo ") + " (or kbnode install --install-deps)"
}

// problem returns what the inventory says about a subject that it could not read, or "".
func problem(inv *inventory.Inventory, subject string) string {
	for _, p := range inv.Problems {
		if p.Subject == subject {
			return p.Detail
		}
	}
	return ""
}

// givesGPUs reports whether an engine can give an NVIDIA GPU to a container.
func givesGPUs(d inventory.Docker) bool {
	return slices.Contains(d.Runtimes, "nvidia") ||
		d.CDI && slices.ContainsFunc(d.CDIDevices, func(n string) bool { return strings.HasPrefix(n, "nvidia.com/gpu=") })
}
