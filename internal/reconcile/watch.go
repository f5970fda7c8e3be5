package reconcile

import (
	"context"

	sddbus "github.com/coreos/go-systemd/v22/dbus"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// watchBuffer holds what systemd says while nobody listens. More than that is
// lost, which is no harm: one signal is enough to look.
const watchBuffer = 64

// Watch calls changed, from another goroutine, when systemd says that one of
// kbnode's units is not as it was, until ctx ends. It is for a connection that
// stays: Alive says whether it still does.
func (b *Bus) Watch(ctx context.Context, changed func(unit string)) {
	updates := make(chan *sddbus.PropertiesUpdate, watchBuffer)
	lost := make(chan error, watchBuffer)
	b.systemd().SetPropertiesSubscriber(updates, lost)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case err := <-lost: // more was said than fits
				changed(err.Error())
			case u := <-updates:
				if _, ours := plan.OwnsUnit(u.UnitName); ours {
					changed(u.UnitName)
				}
			}
		}
	}()
}

// Alive says that the connection to systemd still stands.
func (b *Bus) Alive() bool { return b.systemd().Connected() }
