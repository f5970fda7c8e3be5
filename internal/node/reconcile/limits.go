package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// set sets all limits of a running slice and reads back what the kernel made of them.
func (a *applier) set(ctx context.Context, w plan.Slice) error {
	props, err := properties(w)
	if err != nil {
		return err
	}
	if err := a.h.Systemd.SetProperties(ctx, w.Unit, props...); err != nil {
		return err
	}
	// systemd answers this in its next event loop iteration, after it has written the
	// limits to the cgroup.
	units, err := a.h.Systemd.Units(ctx, w.Unit)
	if err != nil {
		return err
	}
	got, err := a.h.readSlice(w.Unit, units[0].Cgroup)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range slot.Compare(w, got) {
		errs = append(errs, fmt.Errorf("slice %s: %s, although it was set", w.Unit, m))
	}
	if got.Cgroup == "" {
		errs = append(errs, fmt.Errorf("slice %s has no cgroup, although it was started", w.Unit))
	}
	a.s.Slices[w.Unit] = got
	return errors.Join(errs...)
}

// partition makes a slice a cpuset partition: the kernel then keeps everything outside it
// off its CPUs. If the kernel refuses, that is a warning, once per boot and plan. systemd
// does not know about this file, so it does not undo the change.
func (a *applier) partition(unit string) error {
	w, got := a.wantSlices[unit], a.s.Slices[unit]
	if got.Cgroup == "" { // did not start; the error says so
		return nil
	}
	name := a.h.path("/sys/fs/cgroup", got.Cgroup, slot.FilePartition)
	why := ""
	if _, ok := got.Files[slot.FilePartition]; !ok {
		why = "this kernel has no " + slot.FilePartition
	} else if err := a.h.callStep("partition", unit); err != nil {
		return err
	} else if err := os.WriteFile(name, []byte("root"), 0o600); err != nil {
		why = err.Error()
		if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
			why = slot.FilePartition + ": " + pathErr.Err.Error()
		}
	} else if now, err := readSmall(name); err != nil {
		return fmt.Errorf("read partition of %s: %w", unit, err)
	} else if state := strings.TrimSpace(string(now)); state != "root" {
		why = slot.FilePartition + " is " + state
	}
	if why == "" {
		return nil
	}
	a.result.Warnings = append(a.result.Warnings, fmt.Sprintf("no cpuset partition for %s: %s; other programs can run on the slots' CPUs", unit, why))
	if err := os.MkdirAll(a.h.path("/run/kbnode"), 0o755); err != nil { //nolint:gosec // sockets of slots are below it
		return err
	}
	return a.h.Store(refusedPath, w.CPUs+"\n"+why+"\n")
}
