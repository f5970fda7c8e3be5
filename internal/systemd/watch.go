package systemd

import (
	"context"

	sddbus "github.com/coreos/go-systemd/v22/dbus"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// watchBuffer is how many of systemd's signals are kept until they are read. The rest is
// lost, which does no harm: one signal is enough to look.
const watchBuffer = 64

// Watch calls changed, from another goroutine, when systemd reports that one of kbnode's
// units has changed, until ctx ends. It needs a connection that stays open: Alive reports
// whether it is.
func (b *Bus) Watch(ctx context.Context, changed func(unit string)) {
	updates := make(chan *sddbus.PropertiesUpdate, watchBuffer)
	lost := make(chan error, watchBuffer)
	b.systemd().SetPropertiesSubscriber(updates, lost)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case err := <-lost: // more signals than fit
				changed(err.Error())
			case u := <-updates:
				if _, ours := plan.OwnsUnit(u.UnitName); ours {
					changed(u.UnitName)
				}
			}
		}
	}()
}

// Alive reports whether the connection to systemd is still open.
func (b *Bus) Alive() bool { return b.systemd().Connected() }
