// Package guard is a slot's service. It runs one job at a time, in one container that it makes from the
// slot's policy and the job's spec, and gives its output, its end and its files to the agent.
package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/gpu-mode/kbnode/internal/checkout"
	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/confine"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/keeper"
	"github.com/gpu-mode/kbnode/internal/noise"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// Bounds on what clients can hold open.
const (
	maxConnections = 16
	maxHeader      = 64 << 10 // bytes
	headerDeadline = 10 * time.Second
	idleDeadline   = 2 * time.Minute
	// stopTime is how long a service that is to stop waits for its answers.
	stopTime = 5 * time.Second
)

// Config configures a guard.
type Config struct {
	Policy     plan.JobPolicy
	Listener   *net.UnixListener // nil makes the run directory and listens on Policy.Socket
	CgroupRoot string            // "" means /sys/fs/cgroup
	Log        *slog.Logger

	network  *slotNetwork                     // nil uses the node's own
	disk     *slotDisk                        // nil uses the one that the policy gives
	confiner *confiner                        // nil uses the node's own
	keeper   slotKeeper                       // nil uses the real one
	mirrors  func() (checkout.Mirrors, error) // nil uses the node's
	uid, gid int                              // of the slot's user, 0 if unknown
	root     int                              // user ID

	engineTime, stopGrace time.Duration // 0 uses the default
}

// Serve answers on the slot's socket until ctx is done. Requests to run a job then end at once: the
// job goes on, and the next service takes it up. Serve notifies systemd when it is ready.
func Serve(ctx context.Context, c Config) error {
	if err := checkPolicy(c.Policy); err != nil {
		return err
	}
	engine, err := docker.New(c.Policy.DockerSocket)
	if err != nil {
		return err
	}
	defer hangUp(engine)
	uid, gid, err := lookupUser(c.Policy.User)
	if err != nil {
		return err
	}
	c.uid, c.gid = uid, gid
	g := newGuard(c, engine)
	g.stopping = ctx
	g.facts.user = fmt.Sprintf("%d:%d", uid, gid)
	listener := c.Listener
	if listener == nil {
		if listener, err = listen(c.Policy.Socket, uid, gid); err != nil {
			return err
		}
	}
	if err := removeOldMirrors(filepath.Dir(c.Policy.Socket)); err != nil {
		return err
	}
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
	go g.keeper.Watch(ctx)
	go g.connect(ctx)
	go g.collectImages(ctx)
	g.log.Info("guard ready", "path", listener.Addr().String())
	g.notify(daemon.SdNotifyReady)
	err = server.Serve(&peers{UnixListener: listener, allowed: []int{0, uid}, slots: make(chan struct{}, maxConnections), log: g.log, root: c.root})
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

// slotKeeper clears away what the slot's jobs leave: a *keeper.Keeper, except in tests.
type slotKeeper interface {
	Ready(ctx context.Context, pid int) (parked string, err error)
	Registered(ctx context.Context, pid int) error
	Begin(ctx context.Context, pid int) (parked string, err error)
	Record(ctx context.Context, pid int) (noise.Record, error)
	Made(profile string)
	Started(id string)
	Watch(ctx context.Context)
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
	preparing  sync.Mutex
	stopping   context.Context // done when the service is to stop
	engineTime time.Duration   // how long the engine may take for a step of a job's start
	stopGrace  time.Duration   // how long a canceled job has to end by itself
	uid, gid   int             // of the slot's user
	engine     engineCheck
	network    *slotNetwork
	confiner   *confiner
	registries registries
	pulled     pulledImages
	accounts   accounts
	keeper     slotKeeper
	specs      chan struct{} // one place
}

func newGuard(c Config, engine *docker.Engine) *guard {
	p := c.Policy
	g := &guard{
		policy:     p,
		facts:      facts{gids: nodeGroups, named: numbers("video", "render"), present: nodesPresent},
		cgroupRoot: c.CgroupRoot,
		log:        c.Log.With("slot", p.Slot),
		api:        engine,
		uid:        c.uid,
		gid:        c.gid,
		engine:     engineCheck{ask: engine.Info},
		registries: newRegistries(p.Registries),
		pulled:     newPulledImages(p, engine),
		specs:      make(chan struct{}, 1),
		mirrors:    c.mirrors,
		stopping:   context.Background(),
		engineTime: cmp.Or(c.engineTime, engineTime),
		stopGrace:  cmp.Or(c.stopGrace, stopGrace),
	}
	if g.disk = c.disk; g.disk == nil {
		g.disk = newDisk(p, g.log)
	}
	if g.mirrors == nil {
		g.mirrors = nodeMirrors
	}
	if g.network = c.network; g.network == nil {
		g.network = newNetwork(p, engine)
	}
	if g.confiner = c.confiner; g.confiner == nil {
		kernel := confine.NewKernel()
		g.confiner = &confiner{ensure: kernel.Ensure, confines: kernel.EngineConfines, sys: "/sys"}
	}
	g.confiner.armored = g.engine.armored
	if g.cgroupRoot == "" {
		g.cgroupRoot = slot.CgroupRoot
	}
	label := slotLabel + "=" + strconv.Itoa(p.Slot)
	g.disk.used = func(ctx context.Context) (map[string]bool, error) {
		ctx, cancel := context.WithTimeout(ctx, g.engineTime)
		defer cancel()
		used := map[string]bool{}
		list, err := engine.Containers(ctx, docker.Filter{Slice: p.Slice, Label: label})
		for _, c := range list {
			used[c.Labels[diskLabel]] = true
		}
		return used, err
	}
	g.keeper = keeper.New(keeper.Config{
		Policy: p, UID: c.uid, GID: c.gid, CgroupRoot: g.cgroupRoot, Log: g.log,
		Containers: func(ctx context.Context) (int, error) { return engine.CleanSlot(ctx, p.Slice, label) },
		Tidy:       g.disk.tidy,
	})
	if c.keeper != nil {
		g.keeper = c.keeper
	}
	return g
}

func (g *guard) notify(state string) {
	// Outside systemd there is no one to notify.
	if _, err := daemon.SdNotify(false, state); err != nil {
		g.log.Warn("systemd not notified", "err", err)
	}
}
