package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gpu-mode/kbnode/internal/machine/disk"
	"github.com/gpu-mode/kbnode/internal/machine/hook"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/machine/systemd"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// siteHooks runs the site's hooks. Each is a reason of its own to park, by its name.
type siteHooks struct {
	check  func(file string) error
	run    func(context.Context, systemd.Program) error
	failed map[string]bool // in this process, by name: another one tries again
}

func newHooks() siteHooks { return siteHooks{hookOnHost, runUnit, map[string]bool{}} }

// hookCheckTime bounds the look at a hook's file, which may be on a disk that hangs.
const hookCheckTime = 10 * time.Second

// hookOnHost checks a hook's file where hooks run: this process does not see all files. It is for people; what runs is checked
// when it runs.
func hookOnHost(file string) error {
	_, err := limit.Call("/", "hook "+file, hookCheckTime, func() (struct{}, error) {
		return struct{}{}, disk.OnHost(func() error {
			f, err := hook.Open("/", file)
			if err == nil {
				hangUp(f)
			}
			return err
		})
	})
	return err
}

// runUnit runs a program in a unit of its own. This process has a sandbox, in which no hook could do its work, and hooks are not to
// have its memory and tasks.
func runUnit(ctx context.Context, p systemd.Program) error {
	bus, err := systemd.Connect(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer bus.Close()
	return bus.Run(ctx, p)
}

// hookError is a hook that failed, in words for the log of a job, which shows no path of the node, and no output of a hook.
type hookError struct {
	name, file, unit string
	err              error
}

func (e *hookError) Unwrap() error { return e.err }

func (e *hookError) Error() string {
	if end, ok := errors.AsType[*systemd.EndError](e.err); ok {
		return fmt.Sprintf("the node's hook job.%s %s", e.name, end)
	}
	return fmt.Sprintf("the node's hook job.%s could not run", e.name)
}

// reason returns what the node's owner needs to know.
func (e *hookError) reason() string {
	end, ended := errors.AsType[*systemd.EndError](e.err)
	file, wrong := errors.AsType[*hook.FileError](e.err)
	switch {
	case ended:
		return fmt.Sprintf("job.%s %s %s; sudo journalctl -u %s shows why", e.name, e.file, end, e.unit)
	case wrong:
		return fmt.Sprintf("job.%s: %s", e.name, file)
	}
	return fmt.Sprintf("job.%s %s could not run: %v", e.name, e.file, e.err)
}

// otherHook is the one that must not run beside this one: a job's process that was killed in it has left it running.
func otherHook(name string) string {
	if name == hook.Prolog {
		return hook.Epilog
	}
	return hook.Prolog
}

// runHook runs a hook of the site's to its end, or to that of ctx.
func (g *guard) runHook(ctx context.Context, name string) error {
	file, unit := hook.File(g.policy, name), plan.HookUnit(name, g.policy.Slot)
	if file == "" {
		return nil
	}
	began := time.Now()
	err := g.hooks.check(file)
	if err == nil {
		err = g.hooks.run(ctx, systemd.Program{
			Unit: unit, Ends: plan.HookUnit(otherHook(name), g.policy.Slot), Description: "Hook job." + name + " for slot " + g.policy.Name,
			Limit: g.policy.HookLimit(), Args: []string{g.policy.Binary, "run-hook", "--slot", strconv.Itoa(g.policy.Slot), name},
		})
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		g.hooks.failed[name] = true
		failed := &hookError{name, file, unit, err}
		g.log.Warn("hook failed", "reason", failed.reason())
		return failed
	}
	g.log.Info("hook ended", "hook", name, "took", time.Since(began).Round(time.Millisecond).String())
	return nil
}

// prolog runs the site's prolog, if it has one, before a job's container, and has the epilog follow. One that fails for a job of
// the agent's parks the slot; root's own job only says so, because no agent would then look whether it succeeds again.
func (g *guard) prolog(ctx context.Context, root bool) error {
	err := g.setEpilog("") // also without hooks: an epilog that is configured again is due after this job
	if err == nil {
		err = g.runHook(ctx, hook.Prolog)
	}
	if failed, ok := errors.AsType[*hookError](err); ok && !root {
		err = errors.Join(err, g.note(hook.Prolog, failed.reason()))
	}
	return err
}

// epilogOfRoot runs the epilog after a job of root's. One that fails, or for which no time is left, is due before the next job;
// so is that of a job which left something: what removes that runs it.
func (g *guard) epilogOfRoot(ctx context.Context, r *jobRun) {
	if g.policy.Hooks == nil || ctx.Err() != nil || r.left {
		return
	}
	if g.runHook(ctx, hook.Epilog) != nil {
		return
	}
	if err := g.setEpilog(g.policy.Hooks.Epilog); err != nil {
		g.log.Warn("epilog not recorded; it runs again", "err", err)
	}
}

// settleHooks runs the hooks that are due when nothing of a job is left: with retry a prolog that failed, and the epilog if no one
// succeeded since the last job or boot. It reports whether neither parks the slot now.
func (g *guard) settleHooks(ctx context.Context, retry bool) (settled bool, err error) {
	if retry {
		if err := g.settleHook(ctx, hook.Prolog, g.notedHook(hook.Prolog)); err != nil {
			return false, err
		}
	}
	if err := g.settleHook(ctx, hook.Epilog, !g.epilogDone()); err != nil {
		return false, err
	}
	return !g.hooks.failed[hook.Prolog] && !g.hooks.failed[hook.Epilog], nil
}

// notedHook reports whether a hook is noted as a reason to park.
func (g *guard) notedHook(name string) bool {
	_, err := os.Lstat(filepath.Join(g.runDir(), slot.ParkedDir, name+".json"))
	return err == nil
}

// hookParks reports whether one of the hooks is such a reason.
func (g *guard) hookParks() bool { return slices.ContainsFunc(hook.Names, g.notedHook) }

// settleHook runs a hook that is due, once in this process, and notes whether it parks the slot.
func (g *guard) settleHook(ctx context.Context, name string, due bool) error {
	file := hook.File(g.policy, name)
	if file == "" || !due {
		return g.note(name, "")
	}
	if g.hooks.failed[name] {
		return nil
	}
	if name == hook.Prolog {
		if err := g.setEpilog(""); err != nil {
			return err
		}
	}
	err := g.runHook(ctx, name)
	if failed, ok := errors.AsType[*hookError](err); ok {
		return g.note(name, failed.reason())
	}
	if err == nil && name == hook.Epilog {
		err = g.setEpilog(file)
	}
	if err == nil {
		err = g.note(name, "")
	}
	return err
}

// epilogName is the file in the slot's run directory with the epilog that succeeded since the last job. After a boot there is none.
const epilogName = "epilog"

func (g *guard) epilogDone() bool {
	text, err := limit.ReadFile(filepath.Join(g.runDir(), epilogName), 1<<10)
	return err == nil && string(text) == hook.File(g.policy, hook.Epilog)
}

// setEpilog records the epilog that succeeded; "" that one is due.
func (g *guard) setEpilog(file string) error {
	name := filepath.Join(g.runDir(), epilogName)
	err := ignoreAbsent(os.Remove(name))
	if err == nil && file != "" {
		err = renameio.WriteFile(name, []byte(file), 0o600)
	}
	if err != nil {
		return fmt.Errorf("record whether the epilog is due: %w", err)
	}
	return nil
}
