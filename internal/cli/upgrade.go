package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/events"
	"github.com/gpu-mode/kbnode/internal/installer"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/slot"
)

type upgradeFlags struct {
	version, binary string
	timeout         time.Duration
	wait, dryRun    bool
}

func newUpgrade(s Streams) *cobra.Command {
	var f upgradeFlags
	cmd := &cobra.Command{
		Use:   "upgrade --agent-version VERSION",
		Short: "Change the slots' buildkite-agent to another version, slot by slot",
		Long: `Change the slots' buildkite-agent to another version, newer or older.

The release is fetched and checked as by install, and refused if it lacks an option
that isolation needs. One idle slot runs it first. When that agent has registered
with Buildkite, the other slots follow one by one; slots that run a job follow when
it is done, through the daemon, or before the command returns with --wait. No job is
ended. If an agent does not register in time, all slots return to the previous
version. An interrupted upgrade continues by itself, or with the same command.`,
		Example: `  sudo kbnode upgrade --agent-version 3.100.0 --dry-run
  sudo kbnode upgrade --agent-version 3.100.0 --wait
  sudo kbnode upgrade --agent-binary ./buildkite-agent`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return upgrade(cmd.Context(), s, f) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.version, "agent-version", "", "the version to change to, such as "+plan.PinnedAgentVersion)
	fl.StringVar(&f.binary, "agent-binary", "", "buildkite-agent to change to, for machines without internet")
	fl.DurationVar(&f.timeout, "timeout", slot.RegisterTime, "how long an agent has to register with Buildkite")
	fl.BoolVar(&f.wait, "wait", false, "wait until slots that run a job have changed too")
	fl.BoolVar(&f.dryRun, "dry-run", false, "show what would be done, and change nothing")
	return cmd
}

func (f upgradeFlags) check() error {
	switch {
	case f.version != "" && f.binary != "":
		return usagef("--agent-binary determines the version; leave out --agent-version")
	case f.version == "" && f.binary == "":
		return usagef("say which version of buildkite-agent: --agent-version %s; to upgrade kbnode itself, replace it with apt or dnf, or sudo install -m 755 kbnode %s; slots follow when they are idle", plan.PinnedAgentVersion, unitBinary)
	case f.timeout < time.Second:
		return usagef("--timeout %s is too short for an agent to register; write 1s or more", f.timeout)
	case f.version != "":
		return usage(plan.CheckAgentVersion(f.version))
	}
	return nil
}

func upgrade(ctx context.Context, s Streams, f upgradeFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	host, closeHost, err := rootHost(ctx, s, "upgrade")
	if err != nil {
		return err
	}
	defer closeHost()
	release, err := lockUpgrade(ctx, s, host)
	if err != nil {
		return err
	}
	defer release()
	m, err := readNode(ctx, s)
	if err != nil {
		return err
	}
	if b := m.cfg.Agent.Binary; b != "" {
		return fmt.Errorf("agent.binary in %s says that slots run %s; replace that file, and slots follow when they are idle, or delete the line and try again", plan.ConfigPath, b)
	}
	t := &target{m: m, host: host, s: s, version: f.version}
	if f.binary != "" {
		given, err := askAgent(ctx, f.binary)
		if err != nil {
			return err
		}
		t.version = given.Version
	}
	if f.dryRun {
		return t.dryRun(ctx)
	}
	to, fetched, err := t.get(ctx, f.binary)
	if err != nil {
		return err
	}
	u := newUpgrader(s, host, m.inv.Software.Agent)
	host.Log = nil // each slot has its own line
	u.Lock = func(ctx context.Context) (func(), error) {
		for { // finish what was begun, however long the daemon's passes take
			release, err := lock(ctx, s, host)
			if _, locked := errors.AsType[*reconcile.LockedError](err); !locked {
				return release, err
			}
		}
	}
	u.Say = func(slot int, text string) { printf(s.Out, "%s: %s\n", plan.SlotName(slot), text) }
	before := m.agents
	if err := u.Begin(ctx, to, fetched, f.timeout); err != nil {
		return err
	}
	busy, err := u.Run(ctx, f.wait)
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted; each slot has an agent, and the daemon or the same command continues from here")
	}
	switch {
	case err != nil:
		return err
	case len(busy) > 0:
		printf(s.Out, "Later: %s %s the new agent when %s done; see kbnode status and kbnode events.\n", slotNames(busy), plural(len(busy), "gets", "get"), plural(len(busy), "its job is", "their jobs are"))
	case before.Version == to && before.Roll != nil:
		printf(s.Out, "Rolled back: slots run %s again, those with a job when it is done.\n", u.Name(to))
	case before.Version == to:
		printf(s.Out, "Nothing to change: slots run %s.\n", u.Name(to))
	default:
		printf(s.Out, "All slots run %s.\n", u.Name(to))
	}
	return nil
}

// target is the version that slots are to change to.
type target struct {
	m       *machine
	host    *reconcile.Host
	s       Streams
	version string
}

// file returns the path of its release, which may not exist yet.
func (t *target) file() string { return filepath.Join(t.host.Root, plan.AgentBinary(t.version)) }

// known returns the version's name in agents.json, where "" means the installed agent, and
// reports whether the node already has it.
func (t *target) known() (to string, ok bool) {
	if t.m.agents.Has(t.version) {
		_, err := os.Stat(t.file())
		return t.version, err == nil
	}
	return "", t.m.inv.Software.Agent.Version == t.version
}

// get makes sure that the version is there, runs, and passes plan.CheckAgent. If a release
// fails, get removes it, and nothing has changed. release is nil unless one was fetched.
func (t *target) get(ctx context.Context, binary string) (to string, release *plan.AgentRelease, err error) {
	if to, ok := t.known(); ok {
		if to == "" {
			err = plan.CheckAgent(t.m.inv.Software.Agent)
		}
		return to, nil, err
	}
	if binary != "" {
		err = installer.CopyRelease(t.host.Root, t.version, binary)
	} else {
		t.s.progress("fetching buildkite-agent %s", t.version)
		err = installer.Release(ctx, t.host.Root, installer.AgentRelease{
			Version: t.version, Arch: runtime.GOARCH,
			URL: t.m.cfg.Agent.DownloadURL, SHA256: t.m.cfg.Agent.DownloadSHA256,
		})
	}
	if err == nil {
		release, err = t.prove(ctx)
	}
	if err != nil {
		if !t.m.agents.Has(t.version) {
			err = errors.Join(err, t.host.DropRelease(t.version))
		}
		return "", nil, fmt.Errorf("nothing was changed: %w", err)
	}
	return t.version, release, nil
}

// prove runs a fetched agent.
func (t *target) prove(ctx context.Context) (*plan.AgentRelease, error) {
	a, err := askAgent(ctx, t.file())
	if err != nil {
		return nil, err
	}
	if a.Version != t.version {
		return nil, fmt.Errorf("the archive of buildkite-agent %s contains %s; check agent.download_url", t.version, a.Version)
	}
	return &plan.AgentRelease{Version: a.Version, Keys: a.Keys}, plan.CheckAgent(a)
}

// askAgent asks an agent that slots are to run for its version and options.
func askAgent(ctx context.Context, file string) (inventory.Agent, error) {
	a, err := inventory.AskAgent(ctx, file)
	if err == nil && len(a.Keys) == 0 {
		err = errors.New("it does not list its options")
	}
	if err == nil {
		err = plan.CheckAgentVersion(a.Version)
	}
	if err != nil {
		return a, fmt.Errorf("%s is not a buildkite-agent for this machine (%s): %w", file, runtime.GOARCH, err)
	}
	return a, nil
}

// dryRun prints what would be done.
func (t *target) dryRun(ctx context.Context) error {
	name := versionName(t.m.inv.Software.Agent)
	from := name(t.m.agents.Version)
	to, known := t.known()
	switch {
	case known && to == t.m.agents.Version && t.m.agents.Roll == nil:
		printf(t.s.Out, "Nothing to change: slots run %s.\n", from)
		return nil
	case known:
		printf(t.s.Out, "%s is already here.\n", name(to))
	default:
		printf(t.s.Out, "buildkite-agent %s would be fetched and checked.\n", t.version)
	}
	state, err := t.host.Observe(ctx, t.m.plan)
	if err != nil {
		return err
	}
	for _, sl := range t.m.plan.Slots {
		what := "changes in its turn; the first must register before the others change"
		switch ss := state.Slot(sl.Index); {
		case !sl.Serves():
			what = "takes no jobs now; it gets the new agent when it does"
		case ss.Busy() != "" || ss.Agent.Stopping():
			what = "finishes its job first, then changes"
		}
		printf(t.s.Out, "%s: %s\n", sl.Name, what)
	}
	printf(t.s.Out, "Slots run %s now; nothing was changed.\n", from)
	return nil
}

// lockUpgrade waits until no other upgrade of agents runs. The daemon's takes as long as an
// agent has to register.
func lockUpgrade(ctx context.Context, s Streams, host *reconcile.Host) (release func(), err error) {
	for told := false; ; told = true {
		release, err := host.LockUpgrade()
		locked, ok := errors.AsType[*reconcile.LockedError](err)
		if !ok {
			return release, err
		}
		if !told {
			s.progress("waiting for another kbnode (pid %s), which changes agents", locked.PID)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// versionName returns a function that names a version of agents.json for people.
func versionName(installed inventory.Agent) func(string) string {
	return func(version string) string {
		if version == "" {
			return strings.TrimSpace("the installed buildkite-agent " + installed.Version)
		}
		return "buildkite-agent " + version
	}
}

func newUpgrader(s Streams, host *reconcile.Host, installed inventory.Agent) *reconcile.Upgrade {
	return &reconcile.Upgrade{
		Host: host,
		Lock: func(ctx context.Context) (func(), error) { return lock(ctx, s, host) },
		Plan: func(ctx context.Context) (*plan.Plan, error) {
			m, err := readNode(ctx, s)
			if err != nil {
				return nil, err
			}
			return m.plan, nil
		},
		Name: versionName(installed),
		Why: func(ctx context.Context, slot plan.Slot) string {
			lines, err := agent.Journal(ctx, plan.AgentUnit(slot.Index), 40)
			if err != nil {
				return ""
			}
			return agent.LastWords(lines)
		},
		Events: events.Log{File: events.Path},
	}
}

// upgradePoll is the time between checks whether agents are to be changed.
const upgradePoll = 30 * time.Second

// watchUpgrade continues an upgrade of agents whose command has ended, until ctx ends. If there
// is none, it reads one small file.
func watchUpgrade(ctx context.Context, s Streams, log *slog.Logger) {
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(upgradePoll):
		}
		kept, err := (&reconcile.Host{Root: "/"}).ReadAgents()
		if _, unused := kept.Used(); err != nil || kept.Roll == nil && !unused {
			continue // every pass reports what is wrong with it
		}
		err = goOnUpgrading(ctx, s, log)
		if _, locked := errors.AsType[*reconcile.LockedError](err); locked || ctx.Err() != nil {
			continue
		}
		if now := errorText(err); now != said {
			said = now
			if err != nil {
				log.Warn("agents not changed", "err", err)
			}
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func goOnUpgrading(ctx context.Context, s Streams, log *slog.Logger) error {
	host, closeHost, err := openHost(ctx, s)
	if err != nil {
		return err
	}
	defer closeHost()
	release, err := host.LockUpgrade()
	if err != nil {
		return err
	}
	defer release()
	m, err := readNode(ctx, s)
	if err != nil {
		return err
	}
	u := newUpgrader(s, host, m.inv.Software.Agent)
	u.Say = func(slot int, text string) { log.Info("agent changes", "slot", plan.SlotName(slot), "what", text) }
	_, err = u.Run(ctx, false)
	return err
}
