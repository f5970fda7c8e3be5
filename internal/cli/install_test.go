package cli

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/doctor"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
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

func TestConfirmInstall(t *testing.T) {
	t.Parallel()
	theirs := []reconcile.Change{
		{Kind: reconcile.Create, Subject: "/etc/a"},
		{Kind: reconcile.Adopt, Subject: "/etc/b", Diff: "-theirs\n+ours\n"},
	}
	for _, tt := range []struct {
		name    string
		flags   installFlags
		changes []reconcile.Change
		code    int
		err     string
	}{
		{name: "nothing of others", changes: theirs[:1]},
		{name: "not asked for", changes: theirs, code: 1, err: "/etc/b: not written by kbnode; move it away, or use --adopt"},
		{name: "agreed to beforehand", flags: installFlags{adopt: true, yes: true}, changes: theirs},
		{name: "no one to ask", flags: installFlags{adopt: true}, changes: theirs, code: 2, err: "1 file of an earlier setup would be replaced, with backups; add --yes to confirm"},
	} {
		var shown strings.Builder
		err := confirmInstall(t.Context(), term.Streams{In: strings.NewReader("y\n"), Err: &shown}, &tt.flags, tt.changes)
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.err)
		}
		if exit, ok := errors.AsType[*term.ExitError](err); ok != (tt.code == term.ExitUsage) || ok && exit.Code != term.ExitUsage {
			t.Errorf("%s: %v", tt.name, err)
		}
		if asks := tt.flags.adopt && !tt.flags.yes; asks != strings.Contains(shown.String(), "+ours") {
			t.Errorf("%s: shown is %q", tt.name, shown.String())
		}
	}
}

func TestNextSteps(t *testing.T) {
	t.Parallel()
	slots := systemdtest.Slots(3)
	slots[2].Parked = "its GPU is away"
	var report *doctor.Report
	say := func(result reconcile.Result, wrote bool) string {
		var b strings.Builder
		nextSteps(term.Streams{Out: &b}, &plan.Plan{Node: "n", Slots: slots}, result, wrote, report)
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
