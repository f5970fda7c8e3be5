package guard

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/inventory"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.start(500, 1, otherCgroup)
	r.start(501, 1, jobCgroup)
	if err := os.WriteFile(r.procs.proc+"/501/comm", []byte("\x1b[2Jpy\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	on := func(pids ...int) (list []inventory.GPUProcess) {
		for _, pid := range pids {
			list = append(list, inventory.GPUProcess{PID: pid})
		}
		return list
	}
	if why := r.cleaner.gpu.judge(inventory.Occupancy{UsedBytes: 0}); why != "" {
		t.Fatal(why)
	}
	const reset = "sudo nvidia-smi --gpu-reset -i GPU-11111111-2222-3333-4444-555555555555"
	for name, row := range map[string]struct {
		seen inventory.Occupancy
		want string
	}{
		"idle":                   {inventory.Occupancy{UsedBytes: 64 << 20}, ""},
		"memory not known":       {inventory.Occupancy{UsedBytes: -1}, ""},
		"a desktop":              {inventory.Occupancy{UsedBytes: 1 << 20, Graphics: on(500)}, ""},
		"an operator's process":  {inventory.Occupancy{Compute: on(500, 501)}, "GPU-11111111-2222-3333-4444-555555555555 is used by process 500 (p500) and 1 more, which is not of a job; end it"},
		"a job's process":        {inventory.Occupancy{Compute: on(501)}, "GPU-11111111-2222-3333-4444-555555555555 is held by process 501 ([2Jpy) of a job, which does not end; reboot"},
		"a process that is gone": {inventory.Occupancy{Compute: on(502)}, "GPU-11111111-2222-3333-4444-555555555555 is held by process 502, which has ended; reset it (" + reset + ") or reboot"},
		"memory without a process": {
			inventory.Occupancy{UsedBytes: 65 << 20, Graphics: on(500)},
			"GPU-11111111-2222-3333-4444-555555555555 has 65 MiB in use without a process that computes, process 500 (p500) draws on it, and 0 MiB when idle; reset it (" + reset + "), or delete " + r.cleaner.gpu.idle + " if that is its idle state now",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(row.want, r.cleaner.gpu.judge(row.seen)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A job cannot raise what counts as idle.
func TestIdleUseOnlyFalls(t *testing.T) {
	t.Parallel()
	w := newSlotRig(t).cleaner.gpu
	for i, row := range []struct {
		gpu, driver string
		used, want  int64
	}{
		{"GPU-1", "580.1", 500, 500},
		{"GPU-1", "580.1", 900, 500},
		{"GPU-1", "580.1", 300, 300},
		{"GPU-1", "580.1", 500, 300},
		{"GPU-1", "590.1", 700, 700}, // a new driver
		{"GPU-2", "590.1", 800, 800}, // another GPU
		{"GPU-2", "590.1", 900, 800},
	} {
		w.name = row.gpu
		if got, err := w.idleUse(inventory.Occupancy{Driver: row.driver, UsedBytes: row.used}); got != row.want || err != nil {
			t.Errorf("step %d: %d, %v; want %d", i, got, err, row.want)
		}
	}
	if err := os.WriteFile(w.idle, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := w.idleUse(inventory.Occupancy{UsedBytes: 5}); got != 5 || err != nil {
		t.Errorf("from rubbish: %d, %v", got, err)
	}
	w.idle = "/nonexistent/x/gpu-idle.json"
	if got, err := w.idleUse(inventory.Occupancy{UsedBytes: 5}); got != 5 || err == nil || !strings.Contains(err.Error(), "nonexistent") {
		t.Errorf("without a place: %d, %v", got, err)
	}
}
