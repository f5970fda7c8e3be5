package installer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/inventory"
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
// manager "apt-get" or "dnf".
func Packages(inv *inventory.Inventory, manager string) ([]Step, error) {
	sw := inv.Software
	gpus := inv.NVIDIA != nil && !givesGPUs(sw.Docker)
	var names []string
	if sw.Docker.Version == "" {
		names = append(names, dockerPackages(inv.OS, manager)...)
	}
	if sw.Git == "" {
		names = append(names, "git")
	}
	if gpus && sw.Toolkit == "" {
		names = append(names, "nvidia-container-toolkit")
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
		add("describe the GPUs to Docker", "nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml")
	case gpus: // engines before 28 have CDI off by default, and all have runtimes
		add("add the NVIDIA runtime to Docker", "nvidia-ctk", "runtime", "configure", "--runtime=docker")
		add("reload Docker's configuration", "systemctl", "reload", "docker")
	}
	return steps, nil
}

// givesGPUs reports whether an engine can give an NVIDIA GPU to a container.
func givesGPUs(d inventory.Docker) bool {
	return slices.Contains(d.Runtimes, "nvidia") ||
		d.CDI && slices.ContainsFunc(d.CDIDevices, func(n string) bool { return strings.HasPrefix(n, "nvidia.com/gpu=") })
}

// dockerPackages returns the packages of the engine and its command line.
func dockerPackages(os inventory.OS, manager string) []string {
	if manager == "dnf" {
		return []string{"docker-ce"}
	}
	// In Debian 13 the command line became a separate package.
	if v, err := strconv.Atoi(os.VersionID); os.ID == "debian" && (err != nil || v >= 13) {
		return []string{"docker.io", "docker-cli"}
	}
	return []string{"docker.io"}
}

// Run runs the steps in order with their output to w, and stops at the first that fails.
func Run(ctx context.Context, steps []Step, w io.Writer) error {
	for _, s := range steps {
		cmd := exec.CommandContext(ctx, s.Args[0], s.Args[1:]...)
		cmd.Stdout, cmd.Stderr = w, w
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if err := cmd.Run(); err != nil {
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				return fmt.Errorf("%s: %s: exit %d; run it by hand to see why, then kbnode install again", s.Why, s, exit.ExitCode())
			}
			return fmt.Errorf("%s: %w", s.Why, err)
		}
	}
	return nil
}
