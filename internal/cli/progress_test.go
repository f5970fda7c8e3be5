package cli

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/submit"
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

// TestSubmitProgress counts the seconds of a build on one line, and asks after Ctrl-C.
func TestSubmitProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for width, want := range map[int]string{
			80: "|  waiting, 0 s|  waiting, 1 s|  build 7: http://b/7\n|  build 7: running on n-gpu3, 0 s|  502; retrying in 1s\n|  build 7: running on n-gpu3, 0 s|",
			0:  "  waiting\n  build 7: http://b/7\n  502; retrying in 1s\n  build 7: passed\n",
		} {
			var b strings.Builder
			p := newSubmitProgress(&progress{s: Streams{Err: &b}, width: width})
			p.show(0, submit.Status{State: "creating"})
			p.show(0, submit.Status{State: "waiting", Since: time.Now()})
			time.Sleep(1500 * time.Millisecond)
			p.show(0, submit.Status{State: "running", Build: 7, Agent: "n-gpu3", URL: "http://b/7", Since: time.Now()})
			p.trouble("502", 0)
			if width == 0 {
				p.show(0, submit.Status{State: "passed", Build: 7})
			}
			p.stop()
			p.stop()
			_, got, _ := strings.Cut("\n"+b.String(), "\n")
			if width > 0 {
				_, got, _ = strings.Cut(got, "creating, ")
				_, got, _ = strings.Cut(got, " s")
			}
			if diff := cmp.Diff(want, strings.ReplaceAll(got, clearLine, "|")); diff != "" {
				t.Errorf("width %d: %s", width, diff)
			}
		}
	})
}

func TestLeaveBuild(t *testing.T) {
	t.Parallel()
	for typed, leaves := range map[string]bool{"n\r": true, "No\r": true, "\r": false, "y\r": false, "\x04": false} {
		person := newPerson(t)
		p := newSubmitProgress(newProgress(person.streams("submit")))
		p.show(0, submit.Status{State: "running", Build: 7, Since: time.Now()})
		answer := make(chan bool)
		go func() { answer <- p.leave()() }()
		person.types("Cancel build 7 in Buildkite? [Y/n] ", typed)
		if got := <-answer; got != leaves {
			t.Errorf("%q: left is %t", typed, got)
		}
		p.stop()
		person.saw()
	}
	p := newSubmitProgress(newProgress(Streams{In: strings.NewReader("n\n"), Err: io.Discard}))
	defer p.stop()
	if p.leave() != nil {
		t.Error("asks without a terminal")
	}
}
