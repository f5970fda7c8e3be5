// Package guard runs the jobs of a slot, as root. Each is one process that makes a container from the slot's policy and the
// job's spec, gives its output, its end and its files to the agent, and ends. Before the next agent starts, another process
// clears away what is left: containers, processes, checkouts, and what the job keeps on the GPU. It parks a slot that it
// cannot clear.
package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/noise"
	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/job/checkout"
	"github.com/gpu-mode/kbnode/internal/machine/confine"
	"github.com/gpu-mode/kbnode/internal/machine/disk"
	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// guard is what a process needs to change what a slot runs.
type guard struct {
	policy     plan.JobPolicy
	facts      facts
	cgroupRoot string
	log        *slog.Logger
	disk       *slotDisk
	api        *docker.Engine
	mirrors    func() (checkout.Mirrors, error)
	engineTime time.Duration // how long the engine may take for a step of a job's start
	stopGrace  time.Duration // how long a canceled job has to end by itself
	handover   time.Duration // how long the holder of the slot before may take to end
	uid, gid   int           // of the agent
	jobUID     int           // of the checkout, and of strict containers; also the group
	root       int           // the user ID of root, except in tests
	network    *slotNetwork
	confiner   *confiner
	registries registries
	room       func(dir string) (int64, error) // host.Room, except in tests
	views      views
	procs      slotProcs
	gpu        gpuWatches
	noise      noise.Config
	hooks      siteHooks
	token      func() (string, error)      // with which agents register
	remove     func(context.Context) error // removes the slot's containers
	tidy       func() error                // removes its checkouts
	signal     func(lock *os.File, h holder, signal syscall.Signal)
}

// open connects to the engine for a slot. The caller calls api.Close.
func open(p plan.JobPolicy, log *slog.Logger) (*guard, error) {
	if err := checkPolicy(p); err != nil {
		return nil, err
	}
	uid, gid, err := slot.LookupUser(p.User)
	if err != nil {
		return nil, err
	}
	engine, err := docker.New(p.DockerSocket)
	if err != nil {
		return nil, err
	}
	return newGuard(p, uid, gid, host.CgroupRoot, engine, log), nil
}

func newGuard(p plan.JobPolicy, uid, gid int, cgroupRoot string, engine *docker.Engine, log *slog.Logger) *guard {
	log = log.With("slot", p.Slot)
	kernel := confine.NewKernel()
	procs := newSlotProcs(cgroupRoot, p)
	g := &guard{
		policy:     p,
		facts:      facts{gids: nodeGroups, named: numbers("video", "render"), present: nodesPresent, user: fmt.Sprintf("%[1]d:%[1]d", plan.JobUID(p.Slot))},
		cgroupRoot: cgroupRoot,
		log:        log,
		disk:       newDisk(p),
		api:        engine,
		mirrors:    nodeMirrors,
		engineTime: engineTime,
		stopGrace:  stopGrace,
		handover:   handoverOf(p),
		uid:        uid,
		gid:        gid,
		jobUID:     plan.JobUID(p.Slot),
		network:    newNetwork(p, engine),
		room:       host.Room,
		views:      views{filepath.Join(filepath.Dir(filepath.Dir(p.Socket)), "images")},
		procs:      procs,
		gpu:        newGPUWatches(p, procs, log),
		noise:      noiseConfig(p, procs),
		hooks:      newHooks(),
		token:      func() (string, error) { return agent.ReadToken(plan.TokenPath) },
		signal:     signalHolder,
	}
	g.registries = newRegistries(p.Registries, func(ctx context.Context, registry string) bool {
		engine, err := g.engineInfo(ctx)
		return err == nil && engine.Proxies(registry)
	})
	g.remove = g.removeContainers
	g.tidy = func() error { return ignoreAbsent(disk.Wipe(p.WorkRoot)) }
	g.confiner = &confiner{ensure: kernel.Ensure, confines: kernel.EngineConfines, sys: "/sys"}
	return g
}

// runDir is the slot's directory below /run, in which only root can write.
func (g *guard) runDir() string { return filepath.Dir(g.policy.Socket) }

// checkPolicy returns what a policy lacks. Zero would mean "no limit" to the engine.
func checkPolicy(p plan.JobPolicy) error {
	var errs []error
	for lack, missing := range map[string]bool{
		"name":          p.Name == "",
		"user":          p.User == "",
		"slice":         !strings.HasSuffix(p.Slice, ".slice") || strings.Contains(p.Slice, "/"),
		"cpus":          p.CPUs == "",
		"memory_nodes":  p.MemoryNodes == "",
		"memory_bytes":  p.MemoryBytes <= slot.PageSlack,
		"pids_limit":    p.PidsLimit <= 0,
		"shm_bytes":     p.ShmBytes <= 0,
		"work_root":     !filepath.IsAbs(p.WorkRoot) || filepath.Clean(p.WorkRoot) == "/",
		"docker_socket": !filepath.IsAbs(p.DockerSocket),
		"socket":        !filepath.IsAbs(p.Socket),
	} {
		if missing {
			errs = append(errs, fmt.Errorf("the policy of slot %s has no %s", p.Name, lack))
		}
	}
	return errors.Join(errs...)
}

// endTogether makes the kernel end all of a container's processes when its slot is out of
// memory. Otherwise the largest one dies and the rest go on, wrongly. Docker has no option for
// it. A container that has ended is not an error.
func (s slotProcs) endTogether(id string) error {
	return writeCgroup(filepath.Join(s.container(id), "memory.oom.group"))
}

// engineInfo returns what the engine says of itself, and an error if containers would not run below the
// slot's slice: with the cgroupfs driver they run in the engine's own cgroup. It is patient: eight jobs that
// begin together keep an engine busy, and waiting is better for a job than being refused.
func (g *guard) engineInfo(ctx context.Context) (docker.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, g.engineTime)
	defer cancel()
	info, err := g.api.Info(ctx)
	if err == nil && (info.CgroupDriver != "systemd" || info.CgroupVersion != "2") {
		err = fmt.Errorf(`the Docker engine uses the cgroup driver %q with cgroup version %q, so a job would have no limits; it must be "systemd" and "2"`, info.CgroupDriver, info.CgroupVersion)
	}
	return info, err
}

// hangUp closes what was read to its end or is given up, so that an error no longer matters.
func hangUp(c io.Closer) { _ = c.Close() }

// chown does nothing without root, as in tests.
func chown(path string, uid, gid int) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Lchown(path, uid, gid)
}
