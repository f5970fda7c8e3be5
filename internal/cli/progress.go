package cli

import (
	"fmt"
	"strings"

	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// doing names the work of each kind of change, for people who wait for it.
var doing = map[reconcile.Kind]string{
	reconcile.Create: "writing files", reconcile.Update: "writing files", reconcile.Adopt: "writing files", reconcile.Chmod: "writing files",
	reconcile.Delete: "deleting files", reconcile.Restore: "restoring files",
	reconcile.AddUser: "adding users", reconcile.DelUser: "removing users",
	reconcile.Protect: "writing firewall rules", reconcile.Unprotect: "removing networks", reconcile.DelNet: "removing networks",
	reconcile.Reload: "reloading systemd", reconcile.Start: "starting units", reconcile.Stop: "stopping units",
	reconcile.Restart: "restarting units", reconcile.Drain: "asking agents to stop after their job",
	reconcile.Tune: "applying settings", reconcile.Untune: "restoring settings",
	reconcile.Set: "setting limits", reconcile.Partition: "setting limits",
	reconcile.Enable: "enabling units", reconcile.Disable: "disabling units",
}

// changeProgress shows changes as they are made. A terminal gets one line for each kind of work,
// with the current change. Otherwise there is one line whenever the kind changes. plan and
// --dry-run print the full list.
type changeProgress struct {
	s     Streams
	width int // of the terminal; 0 if there is none
	work  string
	count int
}

func newChangeProgress(s Streams) *changeProgress {
	return &changeProgress{s: s, width: cursor(s.Err)}
}

// show is called before a change is made.
func (p *changeProgress) show(c reconcile.Change) {
	work := doing[c.Kind]
	if strings.HasSuffix(c.Subject, ".slice") && (c.Kind == reconcile.Start || c.Kind == reconcile.Set) {
		work = doing[reconcile.Partition] // a slice only limits
	}
	if work != p.work {
		p.end()
		p.work, p.count = work, 0
		if p.width == 0 {
			p.s.progress("%s", work)
		}
	}
	p.count++
	if p.width > 0 {
		rewriteLine(p.s.Err, p.width, fmt.Sprintf("  %s: %d, %s", work, p.count, c.Subject))
	}
}

// end completes the line of the finished work with its count.
func (p *changeProgress) end() {
	if p.width > 0 && p.work != "" {
		rewriteLine(p.s.Err, p.width, fmt.Sprintf("  %s: %d", p.work, p.count))
		printf(p.s.Err, "\n")
	}
	p.work = ""
}

// showProgress prints changes as they are made, instead of the log.
func showProgress(s Streams, host *reconcile.Host) (end func()) {
	p := newChangeProgress(s)
	host.Log = nil
	host.Progress = p.show
	return p.end
}
