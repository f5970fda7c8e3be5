package cli

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

func TestWhatStays(t *testing.T) {
	t.Parallel()
	for exe, want := range map[string]string{
		"/usr/bin/kbnode":       "The package kbnode stays; remove it with apt or dnf.",
		"/usr/local/bin/kbnode": "The binary /usr/local/bin/kbnode stays; delete it by hand.",
	} {
		if got := whatStays(exe); got != want {
			t.Errorf("uninstall by %s ends with %q, want %q", exe, got, want)
		}
	}
	// packagedBinary must be where the packages install kbnode.
	text := must.Read(t, "../../.goreleaser.yaml")
	must.Contain(t, text, "bindir: "+filepath.Dir(packagedBinary)+"\n")
}

// TestNoOneToConfirm shows what would be replaced, and says what agrees to it beforehand.
func TestNoOneToConfirm(t *testing.T) {
	t.Parallel()
	var shown strings.Builder
	ui := &installUI{Streams: term.Streams{In: strings.NewReader("y\n"), Err: &shown}}
	err := ui.Confirm(t.Context(), node.Proposal{Adoptions: []reconcile.Change{{Kind: reconcile.Adopt, Subject: "/etc/b", Diff: "-theirs\n+ours\n"}}})
	must.Err(t, err, "1 file of an earlier setup would be replaced, with backups; add --yes to confirm")
	if exit, ok := errors.AsType[*term.ExitError](err); !ok || exit.Code != term.ExitUsage {
		t.Error(err)
	}
	must.Contain(t, shown.String(), "+ours")
}

func TestNextSteps(t *testing.T) {
	t.Parallel()
	slots := systemdtest.Slots(3)
	slots[2].Parked = "its GPU is away"
	say := func(result reconcile.Result, wrote bool) string {
		var b strings.Builder
		nextSteps(term.Streams{Out: &b}, node.Report{Plan: &plan.Plan{Node: "n", Slots: slots}, Result: result, WroteToken: wrote}, "")
		return b.String()
	}
	first := say(reconcile.Result{
		Applied:  []reconcile.Change{{Kind: reconcile.Create, Subject: "/etc/a"}},
		Deferred: []reconcile.Change{{Kind: reconcile.Restart, Subject: "a.service", Deferred: "waits for job 7"}},
	}, true)
	golden(t, "next-steps.txt", first)
	if got := say(reconcile.Result{}, false); !strings.HasPrefix(got, "Nothing to change: node n has 3 slots.\n") {
		t.Errorf("a second install says %q", got)
	}
	slots[1].Queue = "other"
	if got := say(reconcile.Result{}, true); !strings.Contains(got, "queues b200, other.") || !strings.Contains(got, "they must exist") || strings.HasPrefix(got, "Nothing") {
		t.Errorf("two queues and a new token: %q", got)
	}
}
