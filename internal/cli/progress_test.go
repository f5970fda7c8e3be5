package cli

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/reconcile"
)

var shown = []reconcile.Change{
	{Kind: reconcile.AddUser, Subject: "kbnode-gpu0"},
	{Kind: reconcile.AddUser, Subject: "kbnode-gpu1"},
	{Kind: reconcile.Create, Subject: "/etc/kbnode/"},
	{Kind: reconcile.Update, Subject: "/etc/kbnode/config.yaml"},
	{Kind: reconcile.Reload, Subject: "systemd"},
}

func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	for width, want := range map[int]string{
		80: "  adding users: 2|  writing files: 2|  reloading systemd: 1|",
		12: "  adding us|  writing f|  reloading|",
		1:  "|||",
	} {
		var b strings.Builder
		p := changeProgress{progress: &progress{s: Streams{Err: &b}, width: width}}
		for _, c := range shown {
			p.show(c)
		}
		p.end()
		p.end() // a second call does nothing
		got := ""
		for line := range strings.Lines(b.String()) {
			parts := strings.Split(strings.TrimSuffix(line, "\n"), "\r\x1b[K")
			for _, part := range parts {
				if len(part) >= width {
					t.Errorf("width %d: %q would wrap", width, part)
				}
			}
			got += parts[len(parts)-1] + "|"
		}
		if got != want {
			t.Errorf("width %d leaves %q, want %q", width, got, want)
		}
		if width == 80 && !strings.Contains(b.String(), "  writing files: 2, /etc/kbnode/config.yaml") {
			t.Errorf("what is under way is not shown: %q", b.String())
		}
	}
}

// TestEveryChangeIsNamed checks that no kind of change shows a line without words.
func TestEveryChangeIsNamed(t *testing.T) {
	t.Parallel()
	for _, k := range []reconcile.Kind{
		reconcile.Create, reconcile.Update, reconcile.Adopt, reconcile.Chmod, reconcile.Delete, reconcile.Restore,
		reconcile.AddUser, reconcile.DelUser, reconcile.Reload, reconcile.Start, reconcile.Stop, reconcile.Restart,
		reconcile.Drain, reconcile.Set, reconcile.Partition, reconcile.Enable, reconcile.Disable,
	} {
		if doing[k] == "" {
			t.Errorf("no words for %s", k)
		}
	}
}
