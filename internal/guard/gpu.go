package guard

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
)

const (
	// gpuTime is what a GPU has to become idle after its last process: the
	// driver frees memory a moment later.
	gpuTime = 5 * time.Second
	// soonTime of it is waited for before the agent is asked to end.
	soonTime = time.Second
	// gpuPoll lies between two looks.
	gpuPoll = 250 * time.Millisecond
	// GPUSlack is how much more of its memory than ever seen idle a GPU may have
	// in use, in bytes: drivers keep a little after the first use.
	GPUSlack = 64 << 20
	// IdleFile keeps that idle use, in the slot's run directory.
	IdleFile = "gpu-idle.json"
)

// gpuWatch looks at the slot's GPU between jobs.
type gpuWatch struct {
	name  string // for people
	reset string // how to reset it
	look  func(context.Context) (inventory.Occupancy, error)
	procs slotProcs
	idle  string // path of IdleFile
	log   *slog.Logger
}

func newGPUWatch(p plan.JobPolicy, procs slotProcs, log *slog.Logger) gpuWatch {
	w := gpuWatch{
		name: p.UUID, reset: "sudo nvidia-smi --gpu-reset -i " + p.UUID,
		look: func(ctx context.Context) (inventory.Occupancy, error) {
			_ = Trim() // what ended a job, or began the guard, is not needed beside the probe
			return inventory.Occupied(ctx, p.Vendor, p.UUID, p.DeviceNodes)
		},
		procs: procs, idle: filepath.Join(filepath.Dir(p.Socket), IdleFile), log: log,
	}
	if p.UUID == "" {
		w.name = "the GPU"
	}
	if p.Vendor == "amd" {
		w.reset = "sudo rocm-smi --gpureset"
	}
	return w
}

// settle waits, at most for this long, until nothing uses the GPU, and says in a
// sentence what does. known is false where the driver does not tell: that says
// nothing about the GPU.
func (w gpuWatch) settle(ctx context.Context, patience time.Duration) (busy string, known bool) {
	deadline := time.Now().Add(patience)
	for {
		o, err := w.look(ctx)
		if err != nil {
			w.log.Warn("gpu not looked at", "err", err)
			return busy, known
		}
		busy, known = w.judge(o), true
		if busy == "" || time.Now().After(deadline) || pause(ctx, gpuPoll) != nil {
			return busy, known
		}
	}
}

// judge says what uses the GPU, "" for nothing. A process that is not the slot's
// is an operator's: it is named, never killed.
func (w gpuWatch) judge(o inventory.Occupancy) string {
	if len(o.Compute) > 0 {
		p := o.Compute[0].PID
		more := ""
		if n := len(o.Compute) - 1; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		switch name := w.procs.name(p); {
		case name == "":
			return fmt.Sprintf("%s is held by process %d%s, which has ended; reset it (%s) or reboot", w.name, p, more, w.reset)
		case w.procs.owns(p):
			return fmt.Sprintf("%s is held by process %d (%s)%s of a job, which does not end; reboot", w.name, p, name, more)
		default:
			return fmt.Sprintf("%s is used by process %d (%s)%s, which is not of a job; end it", w.name, p, name, more)
		}
	}
	if o.UsedBytes < 0 {
		return ""
	}
	idle, err := w.idleUse(o)
	if err != nil {
		w.log.Warn("idle memory of the gpu not kept", "err", err)
	}
	if o.UsedBytes <= idle+GPUSlack {
		return ""
	}
	draws := ""
	if len(o.Graphics) > 0 {
		draws = fmt.Sprintf(", process %d (%s) draws on it", o.Graphics[0].PID, w.procs.name(o.Graphics[0].PID))
	}
	return fmt.Sprintf("%s has %d MiB in use without a process that computes%s, and %d MiB when idle; reset it (%s), or delete %s if that is its idle state now",
		w.name, o.UsedBytes>>20, draws, idle>>20, w.reset, w.idle)
}

// idleUse is what of its memory the GPU had in use when it was most idle, in
// bytes. It only falls, so a job cannot raise it; the first look is before the
// first job, as no agent starts without one. Another GPU or driver begins anew,
// and so does the next boot, which empties the directory.
func (w gpuWatch) idleUse(now inventory.Occupancy) (int64, error) {
	type record struct {
		GPU       string `json:"gpu"`
		Driver    string `json:"driver"`
		UsedBytes int64  `json:"used_bytes"`
	}
	var kept record
	text, err := os.ReadFile(w.idle)
	if err == nil && json.Unmarshal(text, &kept) == nil && kept.GPU == w.name && kept.Driver == now.Driver && kept.UsedBytes <= now.UsedBytes {
		return kept.UsedBytes, nil
	}
	text, err = json.Marshal(record{w.name, now.Driver, now.UsedBytes})
	if err == nil {
		err = renameio.WriteFile(w.idle, append(text, '\n'), 0o644)
	}
	if err != nil {
		err = fmt.Errorf("write %s: %w", strings.TrimPrefix(w.idle, "/"), err)
	}
	return now.UsedBytes, err
}
