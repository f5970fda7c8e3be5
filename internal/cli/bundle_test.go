package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/bundletest"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

// TestBundleCheck shows what a bundle has, and says when it is damaged.
func TestBundleCheck(t *testing.T) {
	t.Parallel()
	path := bundletest.Good().Write(t)
	var doc bundleReport
	got := kbnode(t, "bundle", "check", path, "--json")
	must.Do(t, json.Unmarshal([]byte(got.out), &doc))
	if doc.File != path || len(doc.Fingerprint) != 64 || doc.Agent.Version != "3.138.3" || doc.Image.ID != bundletest.ID || got.code != term.ExitDone {
		t.Errorf("%+v", got)
	}
	got = kbnode(t, "bundle", "check", path)
	must.Contain(t, got.out, path+": a bundle for "+doc.Arch+", made on 2026-", "\n  kbnode           1.2.3\n", "\n  buildkite-agent  3.138.3\n",
		"\n  image            ghcr.io/gpu-mode/kernelbot:latest, ", "\n  fingerprint      "+doc.Fingerprint+"\n")

	text := must.Read(t, path)
	must.Do(t, os.WriteFile(path, []byte(strings.Replace(text, "an agent", "no agent", 1)), 0o600))
	got = kbnode(t, "bundle", "check", path)
	must.Contain(t, got.err, "its buildkite-agent has SHA-256 ", "; copy it again\n")
	if got.code != term.ExitUsage || got.out != "" {
		t.Errorf("%+v", got)
	}
}

// TestCreateRefusesThis says what to name in place of a program for another machine, before it asks for an engine.
func TestCreateRefusesThis(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "b.tar")
	for _, arch := range architectures {
		got := kbnode(t, "bundle", "create", "-o", out, "--image", "registry.example/none:1", "--arch", arch)
		if got.code == term.ExitUsage {
			must.Contain(t, got.err, "; name the one for "+arch+", from a release, with --kbnode")
		} else {
			must.Equal(t, term.ExitNo, got.code) // there is no such image, or no engine
		}
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("a file was written")
	}
}

// TestStepsOfBundle compares a bundle before anything of it runs.
func TestStepsOfBundle(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	printSteps(term.Streams{Out: &b}, "abc", "my bundle.tar")
	must.Contain(t, strings.ReplaceAll(b.String(), term.Unbroken, " "), "  SHA-256          abc\n", "\n  sha256sum 'my bundle.tar'\n  tar -xf 'my bundle.tar' kbnode\n")
}

// TestHeldSlots are named when an image came another way.
func TestHeldSlots(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	warns := func(action string) string {
		var b strings.Builder
		warnHeld(term.Streams{Err: &b}, root, image.Result{Action: action})
		return b.String()
	}
	must.Equal(t, "", warns(image.ActionUpdated))
	must.Write(t, root, plan.DrainsPath, "")
	must.Do(t, (&reconcile.Host{Root: root}).WriteDrains([]plan.Drain{
		{Slot: 0, By: plan.ByOperator, Reason: "kbnode install --bundle has not tested the jobs' image yet"}, {Slot: 1, By: plan.ByOperator, Reason: "new fan"},
	}))
	must.Contain(t, strings.Join(strings.Fields(warns(image.ActionUpdated)), " "), "so gpu0 still takes no jobs; type sudo kbnode resume gpu0")
	must.Equal(t, "", warns(image.ActionLater))
}

// TestNextStepsOfBundle says what became of the image.
func TestNextStepsOfBundle(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		image image.Result
		wants []string
	}{
		{image.Result{Name: "x:1", Action: image.ActionNone, Reason: "it is the bundle's", Current: &image.Image{ID: "sha256:1"}}, []string{"Nothing to change: node n", "Up to date: x:1 is sha256:1: it is the bundle's.\n"}},
		{image.Result{Name: "x:1", Action: image.ActionSkipped, Reason: "it was refused", Current: &image.Image{ID: "sha256:1"}}, []string{"Nothing to change: node n", "\nx:1 stays sha256:1: it was refused.\n"}},
		{image.Result{Name: "x:1", Action: image.ActionUpdated, Current: &image.Image{ID: "sha256:1"}}, []string{"0 changes were made.\nx:1 is now sha256:1.\n"}},
		{image.Result{Action: image.ActionLater, Reason: "a job runs"}, []string{"The image comes later: a job runs; sudo kbnode image update --bundle 'my bundle.tar' waits for it.\n"}},
	} {
		var b strings.Builder
		nextSteps(term.Streams{Out: &b}, node.Report{Plan: &plan.Plan{Node: "n", Slots: systemdtest.Slots(1)}, Image: &tt.image}, "my bundle.tar")
		must.Contain(t, b.String(), tt.wants...)
	}
}
