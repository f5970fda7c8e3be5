// Package notify tells people of a node's events: it runs a command or posts JSON to an address. It follows the log of events,
// so that it tells of those that other processes record, too, and loses none while the daemon restarts.
package notify

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/plan/config"
)

// Dir is where a node's notifier stores how far it is.
const Dir = "/var/lib/kbnode"

// graceTime is how long a delivery may go on when the notifier is closed: what is interrupted is sent again.
const graceTime = 5 * time.Second

// Options are what a notifier needs.
type Options struct {
	Network http.RoundTripper // nil is http.DefaultTransport
	Events  events.Log
	Dir     string
	Log     *slog.Logger
}

// Notifier notifies of each event with a level. Nothing waits for it. Each target has its own place in the log, so that none
// waits for another.
type Notifier struct {
	Options
	node    string
	config  config.Notify
	started bool
	stop    context.CancelFunc
	ended   []chan struct{} // closed when a follower has ended
}

// New returns a Notifier without a target. The caller closes it.
func New(o Options) *Notifier { return &Notifier{Options: o, stop: func() {}} }

// Configure says what the node is called and who is notified from now on. It may be called again and again.
func (n *Notifier) Configure(node string, c config.Notify) {
	if n.started && node == n.node && reflect.DeepEqual(c, n.config) {
		return
	}
	n.stop()
	ctx, stop := context.WithCancel(context.Background())
	n.node, n.config, n.started, n.stop = node, c, true, stop
	before := n.ended
	all := targets(c, n.Network, nil)
	for _, key := range []string{"command", "url"} {
		ended := make(chan struct{})
		n.ended = append(n.ended, ended)
		f := &follower{Options: n.Options, node: node, to: all[key], file: filepath.Join(n.Dir, "notify-"+key+".json")}
		go func() {
			defer close(ended)
			for _, other := range before { // they write the same files
				<-other
			}
			if f.to != nil {
				f.run(ctx)
			} else if err := os.Remove(f.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				n.Log.Warn("state of notifications not removed", "err", err)
			}
		}()
	}
	n.ended = n.ended[len(before):]
}

// Close ends all deliveries, after some seconds at most.
func (n *Notifier) Close() {
	n.stop()
	late := time.After(graceTime + time.Second) // a command or a file can hang in the kernel
	for _, ended := range n.ended {
		select {
		case <-ended:
		case <-late:
			n.Log.Warn("notification still being sent")
			return
		}
	}
}

// Test sends a test to each target, and calls report with the result. What the command prints goes to output.
func Test(ctx context.Context, node string, c config.Notify, output io.Writer, report func(target string, err error)) {
	all := targets(c, nil, output)
	for _, key := range []string{"command", "url"} {
		if to := all[key]; to != nil {
			e := events.Event{Time: time.Now().UTC().Truncate(time.Second), Kind: kindTest, Slot: -1, Level: events.Info, Text: "this is a test of kbnode notify"}
			report(to.String(), to.send(ctx, encode(node, e)))
		}
	}
}
