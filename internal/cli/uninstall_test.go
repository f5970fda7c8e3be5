package cli

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestConfirmUninstall asks about a node with two slots, one with a job.
func TestConfirmUninstall(t *testing.T) {
	n := newNode(t, 2)
	bk := n.serve(t)
	defer func() { _ = bk.Close() }()
	must.Do(t, n.install(t.Context(), bk.Endpoint(), bktest.DefaultAgentToken))
	must.Do(t, n.sd.RunJob(1, "0192"))
	const slots = "Slots to be removed: gpu0, gpu1\n"
	waits, ends := slots+"To be waited for: job 0192 of slot gpu1; --now ends it\n", slots+"To be ended: job 0192 of slot gpu1\n"
	for _, tt := range []struct {
		name, answer string
		f            uninstallFlags
		shows        string
		declined     bool
	}{
		{"yes", "y\r", uninstallFlags{}, waits, false},
		{"yes, and now", "Yes\r", uninstallFlags{now: true}, ends, false},
		{"no", "n\r", uninstallFlags{}, waits, true},
		{"the default", "\r", uninstallFlags{}, waits, true},
		{"Ctrl-D", "\x04", uninstallFlags{}, waits, true},
		{"Ctrl-C", "", uninstallFlags{}, waits, true},
		{"asked before", "", uninstallFlags{yes: true}, "", false},
		{"nothing to agree to", "", uninstallFlags{dryRun: true}, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPerson(t, 80)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			n.host.Now = tt.f.now
			done := make(chan error)
			go func() { done <- confirmUninstall(ctx, p.streams("uninstall"), tt.f, n.host) }()
			if tt.shows != "" {
				p.types("[y/N] ", tt.answer)
			}
			if tt.name == "Ctrl-C" {
				interrupt()
			}
			err := <-done
			if tt.name == "Ctrl-C" {
				p.types("", "\r") // to the read that was left
			}
			if errors.Is(err, term.ErrDeclined) != tt.declined || err != nil && !tt.declined {
				t.Error(err)
			}
			shows, _, _ := strings.Cut(p.saw(), "Remove everything that kbnode set up (")
			must.Equal(t, tt.shows, shows)
		})
	}
	n.host.Now = false
	if err := confirmUninstall(t.Context(), term.Streams{In: strings.NewReader(""), Err: t.Output()}, uninstallFlags{}, n.host); err != nil {
		t.Errorf("a script is asked: %v", err)
	}
	p := newPerson(t, 80) // nothing is there to remove
	must.Do(t, confirmUninstall(t.Context(), p.streams("uninstall"), uninstallFlags{}, newNode(t, 1).host))
	must.Equal(t, "", p.saw())
}
