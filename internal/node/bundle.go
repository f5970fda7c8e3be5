package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/installer"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/bundle"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Bundle is a bundle that is open.
type Bundle = bundle.File

// BundleOptions are what to make a bundle of, without what the configuration says.
type BundleOptions = bundle.Options

// CreateBundle makes a bundle with this machine's engine, which need not be a node.
func CreateBundle(ctx context.Context, o BundleOptions) (*Bundle, error) {
	n := &Node{Root: "/"}
	if err := n.LoadStored(); err != nil {
		return nil, err
	}
	o.Agent = n.Config.Agent
	if o.Image == "" {
		o.Image = n.Config.Image.Name
	}
	engine, err := docker.New(n.Config.Docker.Socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = engine.Close() }()
	return bundle.Create(ctx, engine, o)
}

// OpenBundle opens a bundle of any machine.
func OpenBundle(path string) (*Bundle, error) { return bundle.Open(path) }

// OpenOwnBundle opens a bundle for this machine.
func OpenOwnBundle(path string) (*Bundle, error) {
	b, err := bundle.Open(path)
	if err == nil && b.Arch != runtime.GOARCH {
		err = errors.Join(config.BadInput("%s is for %s, and this machine is %s; make one with kbnode bundle create --arch %[3]s", path, b.Arch, runtime.GOARCH), b.Close())
	}
	return b, err
}

// ImageOf returns the image of a bundle, for image.Updater.Load.
func ImageOf(b *Bundle) image.Archive {
	return image.Archive{
		Source: filepath.Base(b.Path), Name: bundle.ImageName, SHA256: b.Image.SHA256, Size: b.Image.Size, Open: b.OpenImage,
		Check: func(ctx context.Context, report func(done, total int64)) error { return b.Check(ctx, true, report) },
	}
}

// bundledAgent is where a bundle's agent is until it was asked for its version: a machine may run no programs from /tmp.
const bundledAgent = installer.AgentPath + ".bundle"

// UnpackAgent returns a bundle's agent as a program that slots can run, until remove is called.
func (n *Node) UnpackAgent(ctx context.Context, b *Bundle) (program string, remove func(), err error) {
	program = filepath.Join(n.Root, bundledAgent)
	remove = func() { _ = os.Remove(program) }
	err = installer.Write(program, 0o700, b.OpenAgent())
	if err == nil {
		var version string
		version, err = n.AgentTarget(ctx, "", program)
		if err == nil && version != b.Agent.Version {
			err = config.BadInput("the agent of %s is buildkite-agent %s, not %s as its manifest says; make the bundle again", b.Path, version, b.Agent.Version)
		}
	}
	if err != nil {
		remove()
		return "", nil, err
	}
	return program, remove, nil
}

// untilImage is why the slots of a new node that has no image take no jobs: each would fail.
const untilImage = "kbnode install --bundle has not tested the jobs' image yet"

// heldWait is how long an installation waits for slots that it keeps jobs off. They are idle, but for a job that began when
// someone resumed one.
const heldWait = 10 * time.Minute

// checkBundle refuses a bundle that is damaged, or that brings what slots would not use. It reads an image of 20 GiB for
// minutes, so it holds no lock.
func (i *installation) checkBundle(ctx context.Context) error {
	if i.Bundle == nil {
		return nil
	}
	if _, err := i.n.AgentTarget(ctx, i.Bundle.Agent.Version, ""); err != nil {
		return err
	}
	if name, err := image.ParseName(i.n.Config.Image.Name); err == nil && name != i.Bundle.Image.Name {
		i.ui.Warn("jobs will get the bundle's image as %s, which is image.name; if pipelines name %s, write that there", name, i.Bundle.Image.Name)
	}
	known, err := image.Read(filepath.Join(i.n.Root, plan.ImageDir))
	if err != nil {
		return err
	}
	i.n.say("checking %s", i.Bundle.Path)
	defer i.ui.EndProgress()
	needed := true
	if sum := i.Bundle.Image.SHA256; known.Name == i.n.Config.Image.Name && (known.Has(sum) || known.Left(sum)) {
		needed = i.needsImage(ctx)
	}
	return i.Bundle.Check(ctx, needed, func(done, total int64) {
		i.ui.ShowImage(image.Progress{Layer: "bundle", Status: "checked", Current: done, Total: total})
	})
}

// needsImage reports whether the bundle's image is to be loaded, which the engine knows. If that does not answer, checkRoom
// says so.
func (i *installation) needsImage(ctx context.Context) bool {
	u, closeEngine, err := i.n.images()
	if err != nil {
		return true
	}
	defer closeEngine()
	needs, err := u.Needs(ctx, ImageOf(i.Bundle))
	return needs || err != nil
}

// checkRoom refuses a bundle whose image the engine has no room for, and looks whether jobs have an image now, and whether
// there were slots before.
func (i *installation) checkRoom(ctx context.Context) error {
	if i.Bundle == nil {
		return nil
	}
	u, closeEngine, err := i.n.images()
	if err != nil {
		return err
	}
	defer closeEngine()
	has, err := u.Present(ctx)
	if err != nil {
		return err
	}
	i.noImage = !has
	policies, err := slot.ReadPolicies(i.n.Root)
	if err != nil {
		return err
	}
	i.newNode = len(policies) == 0
	return u.CheckRoom(ctx, ImageOf(i.Bundle))
}

// holdSlots keeps jobs off a new node that has no image until the bundle's has passed its canary. Slots that served before
// go on: their steps may name images of their own.
func (i *installation) holdSlots(ctx context.Context) error {
	if i.Bundle == nil || !i.noImage {
		return nil
	}
	drains, err := i.host.ReadDrains()
	if err != nil {
		return err
	}
	if !i.newNode {
		i.held = slices.ContainsFunc(drains, waitsForImage) // by an earlier run
		return nil
	}
	i.held = true
	for _, s := range i.n.Plan.Slots {
		if !slices.ContainsFunc(drains, func(d plan.Drain) bool { return d.Slot == s.Index && d.By == plan.ByOperator }) {
			drains = append(drains, plan.Drain{Slot: s.Index, By: plan.ByOperator, Reason: untilImage, Since: time.Now().UTC().Truncate(time.Second)})
		}
	}
	// A new machine has no such directory yet.
	if err := os.MkdirAll(filepath.Join(i.n.Root, filepath.Dir(plan.DrainsPath)), 0o755); err != nil { //nolint:gosec // as planned
		return fmt.Errorf("drain slots: %w", err)
	}
	if err := i.host.WriteDrains(drains); err != nil {
		return err
	}
	i.n.say("slots take no jobs until the image has passed its canary")
	return i.planAgain(ctx)
}

func waitsForImage(d plan.Drain) bool { return d.By == plan.ByOperator && d.Reason == untilImage }

// HeldSlots returns the names of slots, on the machine below root, that take no jobs because an installation with a bundle
// did not end. Only that, or an operator, lets them take jobs again.
func HeldSlots(root string) (names []string) {
	drains, err := (&reconcile.Host{Root: root}).ReadDrains()
	for _, d := range drains {
		if err == nil && waitsForImage(d) {
			names = append(names, plan.SlotName(d.Slot))
		}
	}
	return names
}

// planAgain plans and compares with what was written since.
func (i *installation) planAgain(ctx context.Context) (err error) {
	if err = i.makePlan(ctx); err == nil {
		i.state, i.Changes, err = i.n.Compare(ctx, i.host)
	}
	return err
}

// addImage loads and tests the bundle's image. On a node that has one, jobs go first.
func (i *installation) addImage(ctx context.Context) error {
	if i.Bundle == nil {
		return nil
	}
	i.unlock() // others need not wait for the canary
	u, closeEngine, err := i.n.images()
	if err != nil {
		return err
	}
	defer closeEngine()
	u.Say, u.Progress = func(text string) { i.ui.ShowImage(image.Progress{Status: text}) }, i.ui.ShowImage
	// It may run every day, so what was decided by hand since stays.
	o := image.Options{Wait: time.Nanosecond, Auto: true}
	if i.held {
		o.Wait = cmp.Or(i.n.heldWait, heldWait)
	}
	r, err := u.Load(ctx, ImageOf(i.Bundle), o)
	i.ui.EndProgress()
	again := fmt.Sprintf("fix this and type %s to continue", i.Again)
	if err == nil && r.Action == image.ActionRefused {
		err = fmt.Errorf("the image of %s was refused: %s", i.Bundle.Path, r.Reason)
		if !i.noImage { // from now on, an installation leaves it alone
			again = fmt.Sprintf("sudo kbnode image update --bundle %s tries it again", text.ShellWord(i.Bundle.Path))
		}
	}
	if err == nil && r.Action == image.ActionLater && i.held {
		err = fmt.Errorf("the image of %s was not tested: %s", i.Bundle.Path, r.Reason)
	}
	if err != nil {
		if i.held {
			again += "; until then, slots take no jobs"
		}
		if !i.noImage && ctx.Err() == nil { // an earlier run may hold slots, for which jobs have an image now
			if held := i.freeSlots(ctx); held != nil {
				i.ui.Warn("%v", held)
			}
		}
		return fmt.Errorf("%w\neverything else was done; %s", err, again)
	}
	i.Image = &r
	if i.noImage && r.Action == image.ActionLater {
		return nil
	}
	return i.freeSlots(ctx)
}

// freeSlots takes back holdSlots, also that of an installation that was interrupted.
func (i *installation) freeSlots(ctx context.Context) error {
	if err := inOrder(ctx, i.lock, i.load); err != nil {
		return err
	}
	drains, err := i.host.ReadDrains()
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(drains), waitsForImage)
	if len(left) == len(drains) {
		return nil
	}
	if err := i.host.WriteDrains(left); err != nil {
		return err
	}
	applied, wrote := i.Result.Applied, i.WroteToken
	err = inOrder(ctx, i.n.Read, i.planAgain, i.write)
	i.Result.Applied, i.WroteToken = append(applied, i.Result.Applied...), wrote
	if err != nil {
		return err
	}
	return i.awaitAgents(ctx)
}

// bundleChanges looks what a bundle would change on this node, which was planned.
func (i *installation) bundleChanges(context.Context) error {
	if i.Bundle == nil || !i.DryRun {
		return nil
	}
	b, before := i.Bundle, i.n.AgentName(i.n.Agent.Version)
	agent := "buildkite-agent " + b.Agent.Version
	switch i.n.agentVersion() {
	case b.Agent.Version:
		agent += ", which is installed already"
	case "":
	default:
		agent += ", in place of " + before
	}
	known, err := image.Read(filepath.Join(i.n.Root, plan.ImageDir))
	if err != nil {
		return err
	}
	what := fmt.Sprintf("image %s (%s), as %s when it has passed a canary", b.Image.Name, text.Bytes(b.Image.Size), i.n.Config.Image.Name)
	if known.Name == i.n.Config.Image.Name && !i.noImage {
		switch c := known.Current; {
		case c != nil && c.Archive == b.Image.SHA256:
			what = fmt.Sprintf("image %s, which is %s already", b.Image.Name, i.n.Config.Image.Name)
		case known.Left(b.Image.SHA256):
			what = fmt.Sprintf("image %s, which came before and was refused or replaced since; only kbnode image update --bundle tries it again", b.Image.Name)
		}
	}
	i.Brings = []string{agent, what}
	if v := b.Kbnode.Version; v != "" && v != i.n.Version {
		i.Brings = append(i.Brings, fmt.Sprintf("kbnode %s, which you install by hand; this is %s", v, i.n.Version))
	}
	return nil
}
