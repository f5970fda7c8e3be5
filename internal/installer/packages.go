package installer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
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
	for _, p := range []struct {
		Prerequisite
		missing bool
	}{
		{Docker, sw.Docker.Version == ""},
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
