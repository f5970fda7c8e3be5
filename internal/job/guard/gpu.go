package guard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

const (
	// gpuTime is how long a GPU has to become idle after its last process: the driver frees
	// memory a moment later.
	gpuTime = 5 * time.Second
	// gpuPoll is the time between two checks.
	gpuPoll = 250 * time.Millisecond
	// lookTime bounds the looks at one GPU, besides gpuTime.
	lookTime = 30 * time.Second
)

// gpuWatch checks a GPU of the slot, or the slot's part of one, between jobs.
type gpuWatch struct {
	name  string // for people
	reset string // how to reset it
	read  func(context.Context) (detect.Occupancy, error)
	procs slotProcs
	idle  string // path of slot.IdleFile
	log   *slog.Logger
}

// gpuWatches checks all GPUs of a slot.
type gpuWatches []gpuWatch

// settle settles each GPU in turn and returns the first that is in use. Without a GPU nothing is
// in use.
func (all gpuWatches) settle(ctx context.Context, patience time.Duration) (busy string, known bool) {
	known = true
	for _, w := range all {
		what, checked := w.settle(ctx, patience)
		if what != "" {
			return what, checked
		}
		known = known && checked
	}
	return "", known
}

func newGPUWatches(p plan.JobPolicy, procs slotProcs, log *slog.Logger) (all gpuWatches) {
	for i, g := range p.GPUs {
		id := cmp.Or(g.Instance, g.UUID)
		w := gpuWatch{
			name: cmp.Or(id, "the GPU"), reset: fmt.Sprintf("sudo nvidia-smi -pm 0 -i %[1]s && sudo nvidia-smi -r -i %[1]s", g.UUID),
			read: func(ctx context.Context) (detect.Occupancy, error) {
				return detect.NVIDIAOccupied(ctx, id)
			},
			procs: procs, log: log, idle: filepath.Join(filepath.Dir(p.Socket), slot.IdleFile),
		}
		if i > 0 {
			w.idle = strings.TrimSuffix(w.idle, ".json") + fmt.Sprintf("-%d.json", i)
		}
		switch {
		case p.Vendor == "amd":
			w.read = func(context.Context) (detect.Occupancy, error) {
				if dir, err := detect.AMDDevice(g.Nodes); err == nil {
					if err := sameAMD(dir, g); err != nil {
						return detect.Occupancy{}, err
					}
				}
				return detect.AMDOccupied("/", g.Nodes)
			}
			w.reset = amdReset("GPU")
			if dir, err := detect.AMDDevice(g.Nodes); err == nil {
				w.reset = amdReset(filepath.Base(dir))
			}
		case g.Instance != "":
			w.reset += " after draining all slots of that GPU, which share it, and then create its instances again"
		}
		all = append(all, w)
	}
	return all
}

// amdReset returns how to reset an AMD GPU. GPUs that xGMI joins, and so all partitions of one,
// are reset together, and every process that computes on any of them ends.
func amdReset(pci string) string {
	return "sudo amd-smi reset -G -g " + pci + " after draining all slots, because it resets all GPUs connected by xGMI"
}

// otherGPUError means that the slot's device node now belongs to another GPU.
type otherGPUError struct{ text string }

func (e *otherGPUError) Error() string { return e.text }

// sameAMD returns an *otherGPUError if the PCI device behind the slot's render node, a directory
// of /sys, is no longer the policy's GPU: reloading the driver or partitioning a GPU renumbers
// nodes.
func sameAMD(dir string, g plan.PolicyGPU) error {
	text, err := os.ReadFile(filepath.Join(dir, "unique_id"))
	if err != nil || g.UUID == "" {
		return nil // unknown; only the address identifies it
	}
	unique, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimSpace(string(text)), "0x"), 16, 64)
	if now := fmt.Sprintf("GPU-%016x", unique); err == nil && unique != 0 && !strings.EqualFold(now, g.UUID) {
		return &otherGPUError{fmt.Sprintf("%s now belongs to %s, not %s; run sudo kbnode reconcile", strings.Join(g.Nodes, " "), now, g.UUID)}
	}
	return nil
}

// settle waits, for at most patience, until nothing uses the GPU, and returns a sentence about
// what does, or "", also where the driver answers that it tells no processes. If known is false, the
// driver did not report in this time, which says nothing about the GPU.
func (w gpuWatch) settle(ctx context.Context, patience time.Duration) (busy string, known bool) {
	ctx, cancel := context.WithTimeout(ctx, patience+lookTime)
	defer cancel()
	deadline := time.Now().Add(patience)
	for {
		o, err := w.read(ctx)
		if other, is := errors.AsType[*otherGPUError](err); is {
			return other.text, true
		}
		if errors.Is(err, detect.ErrUntold) {
			w.log.Warn("gpu not checked", "err", err)
			return "", true // it never will
		}
		if err == nil {
			busy, known = w.judge(o), true
		}
		if known && busy == "" || time.Now().After(deadline) || limit.Sleep(ctx, gpuPoll) != nil {
			if !known {
				w.log.Warn("gpu not checked", "err", err)
			}
			return busy, known
		}
	}
}

// judge returns a sentence about what uses the GPU, "" for nothing. A process that is not the
// slot's is an operator's: it is named, never killed.
func (w gpuWatch) judge(o detect.Occupancy) string {
	if len(o.Compute) > 0 {
		p := int(o.Compute[0].PID)
		more := ""
		if n := len(o.Compute) - 1; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		switch name := w.procs.name(p); {
		case name == "":
			return fmt.Sprintf("%s is held by process %d%s, which has exited; reset it (%s) or reboot", w.name, p, more, w.reset)
		case w.procs.owns(p):
			return fmt.Sprintf("%s is held by process %d (%s)%s of a job, which does not exit; reboot", w.name, p, name, more)
		default:
			return fmt.Sprintf("%s is used by process %d (%s)%s, which does not belong to a job; stop it", w.name, p, name, more)
		}
	}
	if o.UsedBytes < 0 {
		return ""
	}
	idle, err := w.idleUse(o)
	if err != nil {
		w.log.Warn("idle memory of the gpu not recorded", "err", err)
	}
	if o.UsedBytes <= idle+slot.GPUSlack {
		return ""
	}
	draws := ""
	if len(o.Graphics) > 0 {
		p := int(o.Graphics[0].PID)
		draws = fmt.Sprintf(", process %d (%s) uses it for graphics", p, w.procs.name(p))
	}
	return fmt.Sprintf("%s has %d MiB in use without a compute process%s, and %d MiB when idle; reset it (%s), or delete %s if this is now its idle state",
		w.name, o.UsedBytes>>20, draws, idle>>20, w.reset, w.idle)
}

// idleUse returns how much memory the GPU had in use when it was most idle, in bytes. It only
// falls, so a job cannot raise it; the first check is before the first job, as no agent starts
// without one. It starts over with another GPU or driver, and after a boot, which empties the
// directory.
func (w gpuWatch) idleUse(now detect.Occupancy) (int64, error) {
	type idleFile struct {
		GPU       string `json:"gpu"`
		Driver    string `json:"driver"`
		UsedBytes int64  `json:"used_bytes"`
	}
	var stored idleFile
	text, err := os.ReadFile(w.idle)
	if err == nil && json.Unmarshal(text, &stored) == nil && stored.GPU == w.name && stored.Driver == now.Driver && stored.UsedBytes <= now.UsedBytes {
		return stored.UsedBytes, nil
	}
	text, err = json.Marshal(idleFile{w.name, now.Driver, now.UsedBytes})
	if err == nil {
		err = renameio.WriteFile(w.idle, append(text, '\n'), 0o644)
	}
	if err != nil {
		err = fmt.Errorf("write %s: %w", strings.TrimPrefix(w.idle, "/"), err)
	}
	return now.UsedBytes, err
}
