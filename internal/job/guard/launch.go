package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/machine/confine"
	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
)

// create makes a job's container of an image, which does not run yet.
func (g *guard) create(ctx context.Context, engine docker.Info, wanted *container.CreateRequest, image docker.ImageConfig, r *jobRun) (id string, err error) {
	if err := g.ready(); err != nil {
		return "", err
	}
	if wanted.HostConfig.NetworkMode != job.NetworkNone {
		if err := g.network.readyFor(ctx); err != nil {
			return "", err
		}
	}
	if err := g.confiner.confine(ctx, engine, wanted.HostConfig); err != nil {
		return "", err
	}
	if err := g.checkImage(wanted, image); err != nil {
		return "", forbid("%s", err)
	}
	if err := g.disk.prepare(wanted, slices.Sorted(maps.Keys(image.Volumes)), r.top); err != nil {
		return "", err
	}
	err = g.viewImage(ctx, image, func(v *viewer) error {
		if err := v.checkTargets(wanted); err != nil {
			return err
		}
		if err := v.setUser(&builder{policy: g.policy, facts: g.facts}, wanted, image.User); err != nil {
			return forbid("%s", err)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	for _, gpu := range g.policy.GPUs {
		if err := linkNodes("/dev/char", gpu.Nodes); err != nil {
			g.log.Warn("device not linked", "err", err)
		}
	}
	wanted.Image = image.ID // another job's pull may move the name
	name := g.newName()
	id, err = g.api.CreateContainer(ctx, name, wanted)
	if lacksCPUs(err) {
		// The engine was restarted after the slots' CPUs became a partition, and believes that
		// the machine has only the other CPUs. The container's slice, checked just now, keeps it
		// on the slot's CPUs.
		g.log.Info("engine does not know the slot's cpus", "err", err)
		wanted.HostConfig.CpusetCpus, wanted.HostConfig.CpusetMems = "", ""
		id, err = g.api.CreateContainer(ctx, name, wanted)
	}
	if err != nil {
		return "", err
	}
	g.log.Info("container created", "id", id, "name", name, "image", wanted.Image)
	return id, nil
}

// checkImage checks the architecture, what of the image's configuration no container starts with, the user and directory
// that the image sets if the job does not, and links in the checkout on the way to the directory.
func (g *guard) checkImage(wanted *container.CreateRequest, image docker.ImageConfig) error {
	if why := foreign(wanted.Image, image.Architecture); why != "" {
		return errors.New(why)
	}
	for port := range image.ExposedPorts {
		if _, err := network.ParsePort(port); err != nil {
			return fmt.Errorf("image %.120q exposes %.40q, which is no port; write one such as 8080/tcp", wanted.Image, port)
		}
	}
	for _, v := range image.Env {
		if strings.HasPrefix(v, "=") || strings.Contains(v, "\x00") {
			return fmt.Errorf("image %.120q has a variable %.40q, which no program can have; write NAME=value", wanted.Image, v)
		}
	}
	if set := cmp.Or(wanted.WorkingDir, image.WorkingDir, "/"); !path.IsAbs(set) || strings.Contains(set, "\x00") {
		return fmt.Errorf("workdir: the image's %.80q is not an absolute path; write one, such as workdir: /work", set)
	}
	b := &builder{policy: g.policy, facts: g.facts}
	if wanted.User == "" {
		if err := b.checkUser(image.User, nil); err != nil {
			return fmt.Errorf("image %.120q: %w", wanted.Image, err)
		}
	}
	dir := path.Clean("/" + cmp.Or(wanted.WorkingDir, image.WorkingDir))
	if kernel := job.KernelDir(dir); kernel != "" {
		return fmt.Errorf("%.80q: a job cannot start below %s; choose another directory", dir, kernel)
	}
	for _, m := range wanted.HostConfig.Mounts {
		below, inside := strings.CutPrefix(dir+"/", m.Target+"/")
		if m.Type != mount.TypeBind || !inside {
			continue
		}
		at := m.Source
		for step := range strings.SplitSeq(below, "/") {
			at = filepath.Join(at, step)
			if info, err := os.Lstat(at); err == nil && info.Mode().Type() == fs.ModeSymlink {
				return fmt.Errorf("workdir: %.80q goes through a symbolic link in the checkout; write its target", dir)
			}
		}
	}
	return nil
}

// lacksCPUs reports whether the engine refused a container for its CPUs or memory nodes, by
// the engine's own words.
func lacksCPUs(err error) bool {
	if !errors.Is(err, docker.ErrInvalid) {
		return false
	}
	message := err.Error()
	return strings.Contains(message, "not available") && (strings.Contains(message, "Requested CPUs") || strings.Contains(message, "Requested memory nodes"))
}

// start starts a container that create made, when what the engine made of the request is as it was asked.
func (g *guard) start(ctx context.Context, id string, request *container.CreateRequest, top string) error {
	in, err := g.api.Inspect(ctx, id)
	if err != nil {
		return err
	}
	// An engine that does not use AppArmor ignores the name of a profile.
	if armor := in.AppArmorProfile; !slices.Contains(request.HostConfig.SecurityOpt, armorOption+armor) && request.HostConfig.ReadonlyPaths == nil {
		return fmt.Errorf("the container has the AppArmor profile %.60q, not that of jobs", armor)
	}
	if err := g.onDisk(ctx, in, request.HostConfig.ReadonlyRootfs, top); err != nil {
		return err
	}
	if err := g.api.StartContainer(ctx, id); err != nil {
		return err
	}
	if err := g.procs.endTogether(id); err != nil {
		g.log.Warn("container may outlive its memory limit", "id", id, "err", err)
	}
	if err := g.procs.limitPtys(id); err != nil {
		return fmt.Errorf("limit the container's terminals: %w", err)
	}
	return nil
}

// ready returns why no container of the slot may run now, whatever the engine says.
func (g *guard) ready() error {
	err := slot.CheckLimits(g.cgroupRoot, g.policy)
	if err == nil && g.disk.mounted != nil {
		err = g.disk.mounted()
	}
	return err
}

// armorOption begins the option that gives a container an AppArmor profile.
const armorOption = "apparmor="

// confiner keeps containers away from what /sys and /proc have of other slots' devices: with
// AppArmor if the engine uses it, otherwise by covering each file.
type confiner struct {
	confines func() bool                           // reports whether an engine that lists AppArmor uses it
	ensure   func(context.Context) (string, error) // loads the profile if needed; returns its name
	sys      string                                // where /sys is mounted
}

// confine adds to a container what keeps it away from those files, and fails if nothing would. It also bounds the sockets
// of a job where Docker's own seccomp profile is in use: an operator's stays, and without seccomp no container would start.
func (f *confiner) confine(ctx context.Context, engine docker.Info, h *container.HostConfig) (err error) {
	if slices.Contains(engine.Security, "name=seccomp,profile=builtin") || slices.Contains(engine.Security, "name=seccomp,profile=default") {
		profile, err := confine.Seccomp()
		if err != nil {
			return err
		}
		h.SecurityOpt = append(h.SecurityOpt, "seccomp="+profile)
	}
	// Without AppArmor, the engine silently ignores the name of a profile.
	if slices.ContainsFunc(engine.Security, func(s string) bool { return s == "name=apparmor" || strings.HasPrefix(s, "name=apparmor,") }) && f.confines() {
		name, err := f.ensure(ctx)
		if err != nil {
			return fmt.Errorf("jobs cannot run: %w", err)
		}
		h.SecurityOpt, h.MaskedPaths = append(h.SecurityOpt, armorOption+name), confine.Masked()
		return nil
	}
	h.MaskedPaths, h.ReadonlyPaths, err = confine.Paths("/proc", f.sys)
	return err
}
