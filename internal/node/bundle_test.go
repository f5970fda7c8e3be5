package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/installer"
	"github.com/gpu-mode/kbnode/internal/node/bundle"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/bundletest"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

const jobsImage = "ghcr.io/gpu-mode/kernelbot:latest"

// imageHost is the engine and the slot of a node on which a bundle is installed.
type imageHost struct {
	image.Engine // panics at what an installation does not ask

	names  map[string]string // of images, with their IDs
	loads  int
	free   int64
	job    string
	passes bool
	tried  func() // called in a canary
}

func (h *imageHost) Image(_ context.Context, ref string) (docker.Image, error) {
	for name, id := range h.names {
		if ref == name || ref == id {
			return docker.Image{ID: id, Names: []string{name}}, nil
		}
	}
	return docker.Image{}, fmt.Errorf("look up image %s: %w", ref, docker.ErrNotFound)
}

func (h *imageHost) Load(_ context.Context, archive io.Reader, _ int64, _ func(image.Progress)) error {
	h.loads++
	h.names[bundle.ImageName] = bundletest.ID
	_, err := io.Copy(io.Discard, archive)
	return err
}

func (h *imageHost) Tag(ctx context.Context, source, name string) error {
	i, err := h.Image(ctx, source)
	if err == nil {
		h.names[name] = i.ID
	}
	return err
}

func (h *imageHost) Untag(_ context.Context, name string) error {
	delete(h.names, name)
	return nil
}

func (h *imageHost) Names(_ context.Context, prefix string) (map[string]string, error) {
	found := map[string]string{}
	for name, id := range h.names {
		if strings.HasPrefix(name, prefix) {
			found[name] = id
		}
	}
	return found, nil
}

func (h *imageHost) ImagesInUse(context.Context) (map[string]bool, error) { return nil, nil } //nolint:nilnil // none
func (h *imageHost) Room(context.Context) (free, total int64, err error)  { return h.free, 1 << 40, nil }

func (h *imageHost) Slots(context.Context) ([]image.Slot, error) {
	return []image.Slot{{Name: plan.SlotName(0), Job: h.job}}, nil
}

func (h *imageHost) Canary(context.Context, image.Slot, string) (image.Canary, error) {
	if h.tried != nil {
		h.tried()
	}
	return image.Canary{Passed: h.passes, Slot: plan.SlotName(0), Reason: "it fails"}, nil
}

// installsBundle is installs with a bundle.
func installsBundle(t *testing.T, host *reconcile.Host, h *imageHost, path string, o InstallOptions, ui *screen) (Report, error) {
	t.Helper()
	b, err := bundle.Open(path)
	must.Do(t, err)
	defer b.Close() //nolint:errcheck // opened for reading
	o.Env, o.Bundle, o.Token, o.Again = noEnv, b, "the-agent-token", "AGAIN"
	o.Config.Queue, o.Config.Node, o.Config.Agent.Endpoint = "b200", "one", "http://127.0.0.1:1/v3" // no one there
	n := &Node{Root: host.Root, Version: "1.2.2", Log: slog.New(slog.DiscardHandler), Say: ui.see, heldWait: time.Nanosecond}
	n.openImages = func() (*image.Updater, func(), error) {
		return &image.Updater{Engine: h, Node: h, Dir: filepath.Join(host.Root, plan.ImageDir), Name: n.Config.Image.Name, Keep: 1, Pause: time.Millisecond}, func() {}, nil
	}
	must.Do(t, n.Load(o.Env, o.Config))
	report, err := n.InstallOn(t.Context(), host, o, ui)
	free(t, host)
	return report, err
}

func newBundle() bundletest.Bundle {
	b := bundletest.Good()
	b.AgentVersion = "3.139.0"
	b.Agent = agentProgram(b.AgentVersion, machinetest.AgentKeys(machinetest.AgentVersion))
	return b
}

func drainsOf(t *testing.T, host *reconcile.Host) (reasons []string) {
	t.Helper()
	drains, err := host.ReadDrains()
	must.Do(t, err)
	for _, d := range drains {
		reasons = append(reasons, d.Reason)
	}
	return reasons
}

// TestInstallFromBundle makes a node without an image: it takes no jobs until the bundle's has passed its canary.
func TestInstallFromBundle(t *testing.T) { // not parallel: it executes what was just written
	must.Root(t, "makes users")
	host, sd := bareMachine(t)
	started := func() bool { return slices.ContainsFunc(sd.Words(), startsAgent) }
	h := &imageHost{names: map[string]string{}, free: 1 << 40}
	h.tried = func() {
		free(t, host) // others need not wait for it
		must.Equal(t, []string{untilImage}, drainsOf(t, host))
		if started() {
			t.Error("its agent takes jobs")
		}
	}
	made := newBundle()
	path := made.Write(t)
	before := filesBelow(t, host.Root)

	report, err := installsBundle(t, host, h, path, InstallOptions{DryRun: true}, &screen{})
	must.Do(t, err)
	must.Equal(t, []string{
		"buildkite-agent 3.139.0, in place of the installed buildkite-agent 3.138.3",
		"image " + jobsImage + " (5 KiB), as " + jobsImage + " when it has passed a canary",
		"kbnode 1.2.3, which you install by hand; this is 1.2.2",
	}, report.Brings)
	untouched(t, host.Root, before)
	must.Equal(t, 0, h.loads)

	ui := &screen{}
	_, err = installsBundle(t, host, h, path, InstallOptions{}, ui)
	must.Err(t, err, "the image of "+path+" was refused: it fails\neverything else was done; fix this and type AGAIN to continue; until then, slots take no jobs")
	must.Equal(t, []string{untilImage}, drainsOf(t, host))
	if !slices.Contains(ui.saw, "changing") || started() || h.names[jobsImage] != "" {
		t.Errorf("it saw %q; names %v", ui.saw, h.names)
	}
	must.Equal(t, made.Agent, must.Read(t, filepath.Join(host.Root, installer.AgentPath)))
	if _, err := os.Stat(filepath.Join(host.Root, bundledAgent)); err == nil {
		t.Error("the unpacked agent is left")
	}

	// The copy went bad since. Without an image, the bundle's is loaded again, so it is compared before anything is written.
	good := must.Read(t, path)
	must.Write(t, filepath.Dir(path), filepath.Base(path), strings.Replace(good, "a layer", "A LAYER", 1))
	damaged := func() {
		t.Helper()
		_, err := installsBundle(t, host, h, path, InstallOptions{}, &screen{})
		if err == nil || !strings.Contains(err.Error(), "its image.tar has SHA-256 ") || strings.Contains(err.Error(), "everything else was done") {
			t.Error(err)
		}
	}
	damaged()
	must.Write(t, filepath.Dir(path), filepath.Base(path), good)

	h.passes, ui = true, &screen{}
	report, err = installsBundle(t, host, h, path, InstallOptions{}, ui)
	must.Do(t, err)
	must.Equal(t, 0, len(drainsOf(t, host)))
	if !started() || h.names[jobsImage] != bundletest.ID || report.Image == nil || report.Image.Action != image.ActionUpdated || !report.Plan.Slots[0].Serves() {
		t.Errorf("%+v, names %v, saw %q", report, h.names, ui.saw)
	}
	must.Equal(t, "1 of 1 registered", ui.saw[len(ui.saw)-1])

	loads := h.loads
	report, err = installsBundle(t, host, h, path, InstallOptions{}, &screen{})
	if err != nil || len(report.Result.Applied) > 0 || report.Image.Action != image.ActionNone || h.loads != loads {
		t.Errorf("again: %v, %+v", err, report)
	}
	report, err = installsBundle(t, host, h, path, InstallOptions{DryRun: true}, &screen{})
	must.Do(t, err)
	must.Equal(t, "image "+jobsImage+", which is "+jobsImage+" already", report.Brings[1])

	clear(h.names) // docker system prune -a
	report, err = installsBundle(t, host, h, path, InstallOptions{DryRun: true}, &screen{})
	must.Do(t, err)
	must.Contain(t, report.Brings[1], "when it has passed a canary")
	must.Write(t, filepath.Dir(path), filepath.Base(path), strings.Replace(good, "a layer", "A LAYER", 1))
	damaged()
}

// TestInstallBundleBesideJobs leaves the image for later on a node that has one, where jobs run.
func TestInstallBundleBesideJobs(t *testing.T) { // not parallel: it executes what was just written
	must.Root(t, "makes users")
	host, sd := bareMachine(t)
	h := &imageHost{names: map[string]string{jobsImage: "sha256:before"}, free: 1 << 40, job: "job 7", passes: true}
	drained := plan.Drain{By: plan.ByOperator, Reason: "new fan"}
	must.Do(t, os.MkdirAll(filepath.Join(host.Root, plan.ImageDir), 0o755))
	must.Do(t, host.WriteDrains([]plan.Drain{drained}))
	path := newBundle().Write(t)
	report, err := installsBundle(t, host, h, path, InstallOptions{}, &screen{})
	must.Do(t, err)
	if report.Image.Action != image.ActionLater || h.loads > 0 || h.names[jobsImage] != "sha256:before" {
		t.Errorf("%+v, %v", report.Image, h.names)
	}
	h.job = ""
	report, err = installsBundle(t, host, h, path, InstallOptions{}, &screen{})
	must.Do(t, err)
	must.Equal(t, image.ActionUpdated, report.Image.Action)
	must.Equal(t, []string{"new fan"}, drainsOf(t, host)) // an operator's stays
	must.Equal(t, 0, len(HeldSlots(host.Root)))
	if slices.ContainsFunc(sd.Words(), startsAgent) {
		t.Error("the agent of a drained slot was started")
	}
}

// TestInstallBundleWhileServing leaves the slots of a node in service, whose steps name images of their own.
func TestInstallBundleWhileServing(t *testing.T) { // not parallel: it executes what was just written
	must.Root(t, "makes users")
	host, _ := bareMachine(t)
	o := InstallOptions{Config: config.Config{Queue: "b200"}, Token: "the-agent-token"}
	_, err := installs(t, host, o, &screen{})
	must.Do(t, err)
	h := &imageHost{names: map[string]string{}, free: 1 << 40, job: "job 7"}
	h.tried = func() { must.Equal(t, 0, len(drainsOf(t, host))) }
	path := newBundle().Write(t)
	report, err := installsBundle(t, host, h, path, InstallOptions{}, &screen{})
	must.Do(t, err)
	must.Equal(t, image.ActionLater, report.Image.Action)
	h.job = ""
	_, err = installsBundle(t, host, h, path, InstallOptions{}, &screen{})
	must.Err(t, err, "the image of "+path+" was refused: it fails\neverything else was done; fix this and type AGAIN to continue")
	if strings.Contains(err.Error(), "slots take no jobs") {
		t.Error(err)
	}
	must.Equal(t, 0, len(drainsOf(t, host)))
}

// TestInstallBundleWaits ends when the slot of a new node stays busy, as one whose processes cannot be read.
func TestInstallBundleWaits(t *testing.T) { // not parallel: it executes what was just written
	must.Root(t, "makes users")
	host, _ := bareMachine(t)
	h := &imageHost{names: map[string]string{}, free: 1 << 40, job: "job 7", passes: true}
	path := newBundle().Write(t)
	_, err := installsBundle(t, host, h, path, InstallOptions{}, &screen{})
	must.Err(t, err, "was not tested: the load would disturb the timings of gpu0\neverything else was done; fix this and type AGAIN to continue; until then, slots take no jobs")
	must.Equal(t, []string{untilImage}, drainsOf(t, host))
	must.Equal(t, []string{"gpu0"}, HeldSlots(host.Root))

	h.names[jobsImage] = "sha256:other" // it came another way
	report, err := installsBundle(t, host, h, path, InstallOptions{}, &screen{})
	must.Do(t, err)
	must.Equal(t, image.ActionLater, report.Image.Action)
	must.Equal(t, 0, len(drainsOf(t, host)))
}

// TestInstallBundleWithoutAgent brings the image although an agent does not come.
func TestInstallBundleWithoutAgent(t *testing.T) { // not parallel: it executes what was just written
	must.Root(t, "makes users")
	host, sd := bareMachine(t)
	sd.Hook = nil // no agent registers
	h := &imageHost{names: map[string]string{jobsImage: "sha256:before"}, free: 1 << 40, passes: true}
	ui := &screen{agents: func() { must.Do(t, sd.Fail(plan.AgentUnit(0))) }}
	path := newBundle().Write(t)
	report, err := installsBundle(t, host, h, path, InstallOptions{}, ui)
	must.Err(t, err, "agent of slot gpu0 ended at once")
	if report.Image == nil || report.Image.Action != image.ActionUpdated || h.names[jobsImage] != bundletest.ID {
		t.Errorf("%+v, names %v", report.Image, h.names)
	}
}

// TestInstallBundleAgain leaves alone what was decided by hand since.
func TestInstallBundleAgain(t *testing.T) { // not parallel: it executes what was just written
	must.Root(t, "makes users")
	host, _ := bareMachine(t)
	h := &imageHost{names: map[string]string{jobsImage: "sha256:before"}, free: 1 << 40, passes: true}
	path := newBundle().Write(t)
	_, err := installsBundle(t, host, h, path, InstallOptions{}, &screen{})
	must.Do(t, err)
	u := &image.Updater{Engine: h, Node: h, Dir: filepath.Join(host.Root, plan.ImageDir), Name: jobsImage, Keep: 1}
	_, err = u.Rollback(t.Context(), "slow")
	must.Do(t, err)
	h.free = 0 // nothing needs room
	report, err := installsBundle(t, host, h, path, InstallOptions{}, &screen{})
	must.Do(t, err)
	if report.Image.Action != image.ActionSkipped || h.loads != 1 || h.names[jobsImage] != "sha256:before" {
		t.Errorf("%+v, %d loads, names %v", report.Image, h.loads, h.names)
	}
	report, err = installsBundle(t, host, h, path, InstallOptions{DryRun: true}, &screen{})
	must.Do(t, err)
	must.Contain(t, report.Brings[1], "which came before and was refused or replaced since")
}

// TestInstallBundleAsksTheOtherEndpoint writes nothing if the endpoint of the bundle's agent does not answer a node.
func TestInstallBundleAsksTheOtherEndpoint(t *testing.T) { // not parallel: it replaces the network
	network := http.DefaultTransport
	t.Cleanup(func() { http.DefaultTransport = network })
	http.DefaultTransport = roundTrip(func(*http.Request) (*http.Response, error) { return nil, errors.New("no route to host") })
	n := &Node{Inventory: &inventory.Inventory{}, Config: config.Config{Agent: config.Agent{Endpoint: config.DefaultEndpoint}}}
	n.Inventory.Software.Agent.Version = "3.76.2"
	b := &Bundle{}
	b.Agent.Version = "3.139.0"
	i := &installation{n: n, InstallOptions: InstallOptions{Bundle: b}}
	must.Equal(t, config.DefaultEndpoint, i.endpoint())
	must.Err(t, i.checkEndpoint(t.Context()), "buildkite-agent 3.139.0 connects to https://agent-edge.buildkite.com/v3, which does not answer")
	i.newNode = true
	must.Do(t, i.checkEndpoint(t.Context()))
	i.newNode, i.Bundle = false, nil
	must.Do(t, i.checkEndpoint(t.Context()))
	must.Equal(t, config.PollingEndpoint, i.endpoint())
}
