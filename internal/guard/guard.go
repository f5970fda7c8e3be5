// Package guard is the Docker socket that the jobs of one slot see. It lets them run and manage
// their own containers, each built from the slot's policy and the few options of a job, and
// refuses everything else. It keeps nothing on disk and changes nothing but its run directory
// and containers.
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
	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/keeper"
	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/noise"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// Bounds on what clients can hold open.
const (
	maxConnections = 128
	maxHeader      = 64 << 10 // bytes
	// maxWhole bounds concurrent requests with a body or answer in memory, here or in the engine.
	maxWhole       = 4
	maxPulls       = 2 // concurrent pulls
	headerDeadline = 10 * time.Second
	idleDeadline   = 2 * time.Minute
)

// Config configures a guard.
type Config struct {
	Policy     plan.JobPolicy
	Listener   *net.UnixListener // nil makes the run directory and listens on Policy.Socket
	CgroupRoot string            // "" means /sys/fs/cgroup
	Log        *slog.Logger

	binder   *binder                          // nil uses real mounts
	network  *slotNetwork                     // nil uses the node's own
	disk     *slotDisk                        // nil uses the one that the policy gives
	confiner *confiner                        // nil uses the node's own
	keeper   slotKeeper                       // nil uses the real one
	mirrors  func() (checkout.Mirrors, error) // nil uses the node's
	uid, gid int                              // of the slot's user, 0 if unknown
	root     int                              // user ID

	engineTime, stopGrace time.Duration // 0 uses the default
}

// Serve answers on the slot's socket until ctx is done, and then until no request is in flight,
// so that a job whose output is being read is not cut off. Requests to run a job end at once: the
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
	defer g.up.transport.CloseIdleConnections()
	g.facts.user = fmt.Sprintf("%d:%d", uid, gid)
	listener := c.Listener
	if listener == nil {
		if listener, err = listen(c.Policy.Socket, uid, gid); err != nil {
			return err
		}
	}
	if err := errors.Join(g.binder.clear(), removeOldMirrors(filepath.Dir(c.Policy.Socket))); err != nil {
		return err
	}
	g.runs.over = g.load().Over
	server := &http.Server{
		Handler:           &g.inFlight,
		ConnContext:       notePeer,
		ReadHeaderTimeout: headerDeadline,
		IdleTimeout:       idleDeadline,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
	}
	g.inFlight.next = http.HandlerFunc(g.serve)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		g.notify(daemon.SdNotifyStopping)
		g.inFlight.wait()
		if err := server.Close(); err != nil {
			g.log.Debug("server closed", "err", err)
		}
	})
	go g.keeper.Watch(ctx)
	go g.connect(ctx)
	go g.collectImages(ctx)
	g.log.Info("guard ready", "path", listener.Addr().String())
	g.notify(daemon.SdNotifyReady)
	g.trim()
	err = server.Serve(&peers{UnixListener: listener, allowed: []int{0, uid}, slots: make(chan struct{}, maxConnections), log: g.log, root: c.root})
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve %s: %w", listener.Addr(), err)
}

// trim gives back memory that the guard no longer needs.
func (g *guard) trim() {
	if err := lazy.Trim(); err != nil {
		g.log.Debug("memory not returned", "err", err)
	}
}

// frugal unmaps what only this request needed. It is for the requests that need most.
func (g *guard) frugal(handle func(*call) error) func(*call) error {
	return func(c *call) error {
		defer g.trim()
		return handle(c)
	}
}

// few bounds how many requests of a kind run at once. The others wait.
func few(places chan struct{}, handle func(*call) error) func(*call) error {
	return func(c *call) error {
		select {
		case places <- struct{}{}:
		case <-c.r.Context().Done():
			return c.r.Context().Err()
		}
		defer func() { <-places }()
		return handle(c)
	}
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
	table      []route
	own        owners
	binder     *binder
	disk       *slotDisk
	up         *upstream
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
	inFlight   inFlight
	whole      chan struct{} // maxWhole places
	pulls      chan struct{} // maxPulls places
	specs      chan struct{} // one place
}

func newGuard(c Config, engine *docker.Engine) *guard {
	p := c.Policy
	g := &guard{
		policy:     p,
		facts:      facts{resolve: resolver(p.WorkRoot), gids: nodeGroups, named: numbers("video", "render"), present: nodesPresent},
		cgroupRoot: c.CgroupRoot,
		log:        c.Log.With("slot", p.Slot),
		binder:     newBinder(filepath.Dir(p.Socket)),
		up:         newUpstream(p.DockerSocket),
		api:        engine,
		uid:        c.uid,
		gid:        c.gid,
		engine:     engineCheck{ask: engine.Info},
		registries: newRegistries(p.Registries),
		pulled:     newPulledImages(p, engine),
		whole:      make(chan struct{}, maxWhole),
		pulls:      make(chan struct{}, maxPulls),
		specs:      make(chan struct{}, 1),
		mirrors:    c.mirrors,
		stopping:   context.Background(),
		engineTime: cmp.Or(c.engineTime, engineTime),
		stopGrace:  cmp.Or(c.stopGrace, stopGrace),
	}
	if c.binder != nil {
		g.binder = c.binder
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
	g.own.prefix = "kbnode-" + p.Name + "-"
	g.own.list = func(ctx context.Context) ([]docker.Container, error) {
		ctx, cancel := context.WithTimeout(ctx, g.engineTime) // others wait for the answer, too
		defer cancel()
		return engine.Containers(ctx, docker.Filter{Slice: p.Slice, Label: slotLabel + "=" + strconv.Itoa(p.Slot), Known: g.own.has})
	}
	g.keeper = keeper.New(keeper.Config{
		Policy: p, UID: c.uid, GID: c.gid, CgroupRoot: g.cgroupRoot, Log: g.log,
		Containers: func(ctx context.Context) (int, error) {
			n, err := engine.CleanSlot(ctx, p.Slice, slotLabel+"="+strconv.Itoa(p.Slot))
			if err != nil {
				return n, err
			}
			// Once the containers are gone, the paths held for them are free.
			g.own.clear()
			return n, g.binder.clear()
		},
		Tidy: func(ctx context.Context) error { return g.disk.tidy(ctx, &g.own) },
	})
	if c.keeper != nil {
		g.keeper = c.keeper
	}
	g.table = g.routes()
	return g
}

func (g *guard) notify(state string) {
	// Outside systemd there is no one to notify.
	if _, err := daemon.SdNotify(false, state); err != nil {
		g.log.Warn("systemd not notified", "err", err)
	}
}

func cpuCount(p plan.JobPolicy) int {
	set, err := cpuset.Parse(p.CPUs)
	if err != nil {
		return 0
	}
	return set.Len()
}

// inFlight counts requests, including attached streams.
type inFlight struct {
	next http.Handler
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n falls to 0; nil if no one waits
}

func (f *inFlight) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.n++
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.n--; f.n == 0 && f.idle != nil {
			close(f.idle)
			f.idle = nil
		}
	}()
	f.next.ServeHTTP(w, r)
}

// wait returns as soon as no request is in flight.
func (f *inFlight) wait() {
	f.mu.Lock()
	if f.n == 0 {
		f.mu.Unlock()
		return
	}
	f.idle = make(chan struct{})
	idle := f.idle
	f.mu.Unlock()
	<-idle
}
