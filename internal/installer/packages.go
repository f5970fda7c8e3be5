package installer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/inventory"
)

// Step is one command that Packages runs.
type Step struct {
	Args []string
	Why  string
}

// String is the command as a person would type it.
func (s Step) String() string { return strings.Join(s.Args, " ") }

// Packages lists the commands that install what is missing, on distributions
// with apt or dnf.
func Packages(inv *inventory.Inventory) ([]Step, error) {
	sw := inv.Software
	toolkit := inv.NVIDIA != nil && sw.Toolkit == "" && !slices.Contains(sw.Docker.Runtimes, "nvidia") && len(sw.Docker.CDIDevices) == 0
	var names []string
	if sw.Docker.Version == "" {
		names = append(names, "docker")
	}
	if sw.Git == "" {
		names = append(names, "git")
	}
	if toolkit {
		names = append(names, "nvidia-container-toolkit")
	}
	if len(names) == 0 {
		return nil, nil
	}
	var steps []Step
	switch {
	case have("apt-get"):
		for i, n := range names {
			if n == "docker" {
				names[i] = "docker.io"
			}
		}
		if slices.Contains(names, "docker.io") && inv.OS.ID == "debian" && inv.OS.VersionID >= "13" {
			names = append(names, "docker-cli") // a package of its own there
		}
		steps = []Step{
			{Args: []string{"apt-get", "update"}, Why: "read the package lists"},
			{Args: append([]string{"apt-get", "install", "-y", "--no-install-recommends"}, names...), Why: "install " + strings.Join(names, ", ")},
		}
	case have("dnf"):
		for i, n := range names {
			if n == "docker" {
				names[i] = "docker-ce"
			}
		}
		steps = []Step{{Args: append([]string{"dnf", "install", "-y"}, names...), Why: "install " + strings.Join(names, ", ")}}
	default:
		return nil, fmt.Errorf("%s are missing and this machine has neither apt-get nor dnf; install them by hand", strings.Join(names, ", "))
	}
	if sw.Docker.Version == "" {
		steps = append(steps, Step{Args: []string{"systemctl", "enable", "--now", "docker"}, Why: "start Docker"})
	}
	if toolkit {
		steps = append(steps, Step{Args: []string{"nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml"}, Why: "describe the GPUs to Docker"})
	}
	return steps, nil
}

func have(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

// Run runs the steps in order, their output to w, and stops at the first that
// fails.
func Run(ctx context.Context, steps []Step, w io.Writer) error {
	for _, s := range steps {
		cmd := exec.CommandContext(ctx, s.Args[0], s.Args[1:]...)
		cmd.Stdout, cmd.Stderr = w, w
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if err := cmd.Run(); err != nil {
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				return fmt.Errorf("%s: %s: exit %d; run it by hand to see why, then kbnode install again", s.Why, s, exit.ExitCode())
			}
			return fmt.Errorf("%s: %w", s.Why, err)
		}
	}
	return nil
}
