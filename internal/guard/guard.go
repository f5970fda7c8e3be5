// Package guard is a slot's service, which runs as root. It runs one job at a time, in one container that
// it makes from the slot's policy and the job's spec, and gives its output, its end and its files to the
// agent. Before the next job it clears away what is left: containers, processes, checkouts, and what the
// job keeps on the GPU. It parks a slot that it cannot clear.
package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/gpu-mode/kbnode/internal/checkout"
	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/confine"
	"github.com/gpu-mode/kbnode/internal/disk"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

const (
	maxHeader      = 64 << 10 // bytes
	headerDeadline = 10 * time.Second
	idleDeadline   = 2 * time.Minute
	// stopTime is how long a service that is to stop waits for its answers.
	stopTime = 5 * time.Second
)

// Serve answers on the slot's socket until ctx is done. Requests to run a job then end at once: the
// job goes on, and the next service takes it up. Serve notifies systemd when it is ready.
func Serve(ctx context.Context, policy plan.JobPolicy, log *slog.Logger) error {
	if err := checkPolicy(policy); err != nil {
		return err
	}
	uid, gid, err := slot.LookupUser(policy.User)
	if err != nil {
		return err
	}
	engine, err := docker.New(policy.DockerSocket)
	if err != nil {
		return err
	}
	defer hangUp(engine)
	listener, err := listen(policy.Socket, uid, gid)
	if err != nil {
		return err
	}
	return newGuard(policy, uid, gid, slot.CgroupRoot, engine, log).serveOn(ctx, listener)
}

func (g *guard) serveOn(ctx context.Context, listener *net.UnixListener) error {
	g.stopping = ctx
	g.runs.over = g.load().Over
	server := &http.Server{
		Handler:           http.HandlerFunc(g.serve),
		ConnContext:       notePeer,
		ReadHeaderTimeout: headerDeadline,
		IdleTimeout:       idleDeadline,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		g.notify(daemon.SdNotifyStopping)
		stopping, cancel := context.WithTimeout(context.Background(), stopTime)
		defer cancel()
		if err := server.Shutdown(stopping); err != nil {
			g.log.Debug("server closed", "err", err)
		}
	})
	go g.cleaner.watch(ctx)
	go g.connect(ctx)
	g.log.Info("guard ready", "path", listener.Addr().String())
	g.notify(daemon.SdNotifyReady)
	err := server.Serve(listener)
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve %s: %w", listener.Addr(), err)
}

// connect makes the slot's network, so that the first job does not wait for it. Each job checks
// the network again.
func (g *guard) connect(ctx context.Context) {
	if g.policy.Network == config.NetworkNone {
		return
	}
	if err := g.network.ready(ctx); err != nil && ctx.Err() == nil {
		g.log.Warn("network not created; the next job tries again", "err", err)
	}
}

// guard serves one slot.
type guard struct {
	policy     plan.JobPolicy
	facts      facts
	cgroupRoot string
	log        *slog.Logger
	disk       *slotDisk
	api        *docker.Engine
	runs       runs
	mirrors    func() (checkout.Mirrors, error)
	stopping   context.Context // done when the service is to stop
	engineTime time.Duration   // how long the engine may take for a step of a job's start
	stopGrace  time.Duration   // how long a canceled job has to end by itself
	uid, gid   int             // of the slot's user
	root       int             // the user ID of root, except in tests
	network    *slotNetwork
	confiner   *confiner
	registries registries
	room       func(dir string) (int64, error) // limit.Room, except in tests
	views      sync.Map                        // by the IDs of images whose accounts the engine can read
	cleaner    *cleaner
}

func newGuard(p plan.JobPolicy, uid, gid int, cgroupRoot string, engine *docker.Engine, log *slog.Logger) *guard {
	log = log.With("slot", p.Slot)
	kernel := confine.NewKernel()
	g := &guard{
		policy:     p,
		facts:      facts{gids: nodeGroups, named: numbers("video", "render"), present: nodesPresent, user: fmt.Sprintf("%d:%d", uid, gid)},
		cgroupRoot: cgroupRoot,
		log:        log,
		disk:       newDisk(p),
		api:        engine,
		mirrors:    nodeMirrors,
		stopping:   context.Background(),
		engineTime: engineTime,
		stopGrace:  stopGrace,
		uid:        uid,
		gid:        gid,
		network:    newNetwork(p, engine),
		room:       limit.Room,
		cleaner:    newCleaner(p, cgroupRoot, log),
	}
	g.registries = newRegistries(p.Registries, func(ctx context.Context, registry string) bool {
		engine, err := g.engineInfo(ctx)
		return err == nil && engine.Proxies(registry)
	})
	g.confiner = &confiner{ensure: kernel.Ensure, confines: kernel.EngineConfines, sys: "/sys"}
	g.cleaner.container = g.removeContainers
	g.cleaner.tidy = func() error { return ignoreAbsent(disk.Wipe(p.WorkRoot)) }
	return g
}

func (g *guard) notify(state string) {
	// Outside systemd there is no one to notify.
	if _, err := daemon.SdNotify(false, state); err != nil {
		g.log.Warn("systemd not notified", "err", err)
	}
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
