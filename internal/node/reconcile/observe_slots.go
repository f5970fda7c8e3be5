package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// runsTime bounds the look at one slot's processes. A job can make its memory, and so its
// environment, unreadable: with a mapped file of a FUSE mount.
const runsTime = 5 * time.Second

// slots finds out what each slot runs.
func (o *observer) slots(context.Context) error {
	indexes := map[int]bool{}
	for _, sl := range o.p.Slots {
		indexes[sl.Index] = true
	}
	for name := range o.s.Units {
		if slot, ok := plan.OwnsUnit(name); ok && slot >= 0 {
			indexes[slot] = true
		}
	}
	for _, k := range slices.Sorted(maps.Keys(indexes)) {
		now, err := o.h.ObserveSlot(slot.State{
			Index: k, Name: plan.SlotName(k),
			Agent:  o.s.Units[plan.AgentUnit(k)],
			Socket: o.s.Units[plan.JobSocket(k)],
			Slice:  o.s.Slices[plan.SliceName(k)],
		})
		if err != nil {
			o.s.Warnings = append(o.s.Warnings, err.Error())
		}
		if o.h.Root == "/" || o.h.sockets {
			now.CutOff = o.h.cutOff(now)
		}
		o.s.Slots = append(o.s.Slots, now)
	}
	return nil
}

// cutOff returns what is gone of what the unit of a slot's socket makes: the socket, and the agent's directory beside it.
func (h *Host) cutOff(now slot.State) string {
	if now.Socket.Active != "active" {
		return ""
	}
	dir := path.Join(plan.RunDir(now.Index), "agent")
	if info, err := os.Lstat(h.path(dir)); errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return dir + " is gone"
	}
	socket := plan.SocketPath(now.Index)
	info, err := os.Lstat(h.path(socket))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return socket + " is gone"
	case err != nil: // unknown
	case info.Mode().Type() != fs.ModeSocket, !now.Socket.Since.IsZero() && info.ModTime().After(now.Socket.Since.Add(bindTime)):
		return socket + " is not systemd's"
	}
	return ""
}

// bindTime is how much newer than its unit's start a socket may be.
const bindTime = 2 * time.Second

// ObserveSlot adds what a slot does. On an error the slot counts as busy: what cannot be seen
// may be a job, and a job is not touched.
func (h *Host) ObserveSlot(s slot.State) (slot.State, error) {
	s = s.ReadRunDir(h.Root)
	found, err := limit.Call(h.Root, "processes of slot "+s.Name, runsTime, func() (slot.State, error) { return s.ReadProcesses(h.Root) })
	if err != nil {
		s.Job = &slot.Job{ID: "unknown"}
		return s, fmt.Errorf("slot %s is treated as busy: %w", s.Name, err)
	}
	return found, nil
}

// Active returns what still runs in a slot, planned or not, or "" if nothing does.
func (h *Host) Active(ctx context.Context) (string, error) {
	loaded, err := h.Systemd.Loaded(ctx, "buildkite-agent-gpu*.service", "kbnode-job-gpu*@*.service")
	if err != nil {
		return "", err
	}
	units, err := h.Systemd.Units(ctx, loaded...)
	if err != nil {
		return "", err
	}
	for i, u := range units {
		if u.Running() {
			return loaded[i], nil
		}
	}
	// Containers are no units of ours. The slices of all slots are below this one.
	if populated, err := slot.Populated(h.Root, plan.ParentSlice); err != nil || populated {
		return "a container", err
	}
	return "", nil
}

// Slots reads only the agents and jobs of slots, for when Observe cannot read the rest. A
// slot whose processes cannot be read counts as busy.
func (h *Host) Slots(ctx context.Context, planned []plan.Slot) ([]slot.State, error) {
	names := make([]string, len(planned))
	for i, sl := range planned {
		names[i] = plan.AgentUnit(sl.Index)
	}
	units, err := h.Systemd.Units(ctx, names...)
	if err != nil {
		return nil, err
	}
	all := make([]slot.State, len(planned))
	for i, sl := range planned {
		all[i], _ = h.ObserveSlot(slot.State{Index: sl.Index, Name: plan.SlotName(sl.Index), Agent: units[i]})
	}
	return all, nil
}
