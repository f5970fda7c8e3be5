package guard

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.start(500, otherCgroup)
	r.start(501, jobCgroup)
	must.Do(t, os.WriteFile(r.procs.proc+"/501/comm", []byte("\x1b[2Jpy\n"), 0o600))
	on := func(pids ...uint32) (list []nvml.Process) {
		for _, pid := range pids {
			list = append(list, nvml.Process{PID: pid})
		}
		return list
	}
	if why := r.guard.gpu[0].judge(detect.Occupancy{UsedBytes: 0}); why != "" {
		t.Fatal(why)
	}
	const reset = "sudo nvidia-smi -pm 0 -i GPU-11111111-2222-3333-4444-555555555555 && sudo nvidia-smi -r -i GPU-11111111-2222-3333-4444-555555555555"
	for name, row := range map[string]struct {
		uses detect.Occupancy
		want string
	}{
		"idle":                   {detect.Occupancy{UsedBytes: 64 << 20}, ""},
		"memory not known":       {detect.Occupancy{UsedBytes: -1}, ""},
		"a desktop":              {detect.Occupancy{UsedBytes: 1 << 20, Graphics: on(500)}, ""},
		"an operator's process":  {detect.Occupancy{Compute: on(500, 501)}, "GPU-11111111-2222-3333-4444-555555555555 is used by process 500 (p500) and 1 more, which does not belong to a job; stop it"},
		"a job's process":        {detect.Occupancy{Compute: on(501)}, "GPU-11111111-2222-3333-4444-555555555555 is held by process 501 (py) of a job, which does not exit; reboot"},
		"a process that is gone": {detect.Occupancy{Compute: on(502)}, "GPU-11111111-2222-3333-4444-555555555555 is held by process 502, which has exited; reset it (" + reset + ") or reboot"},
		"memory without a process": {
			detect.Occupancy{UsedBytes: 65 << 20, Graphics: on(500)},
			"GPU-11111111-2222-3333-4444-555555555555 has 65 MiB in use without a compute process, process 500 (p500) uses it for graphics, and 0 MiB when idle; reset it (" + reset + "), or delete " + r.guard.gpu[0].idle + " if this is now its idle state",
		},
	} {
		t.Run(name, func(t *testing.T) {
			must.Equal(t, row.want, r.guard.gpu[0].judge(row.uses))
		})
	}
}

// TestSameAMD: nodes are renumbered while a slot waits, so its node may now be another slot's
// GPU.
func TestSameAMD(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ unique, uuid, want string }{
		"the same":            {"3b1f0a0e64b40000\n", "GPU-3b1f0a0e64b40000", ""},
		"the same, short":     {"1f0a0e64b40000", "GPU-001F0A0E64B40000", ""},
		"another":             {"3b1f0a0e64b40001\n", "GPU-3b1f0a0e64b40000", "/dev/kfd /dev/dri/renderD129 now belongs to GPU-3b1f0a0e64b40001, not GPU-3b1f0a0e64b40000; run sudo kbnode reconcile"},
		"it does not tell":    {"0\n", "GPU-3b1f0a0e64b40000", ""},
		"rubbish":             {"\x1b[2Jx", "GPU-3b1f0a0e64b40000", ""},
		"no UUID in policy":   {"3b1f0a0e64b40001", "", ""},
		"too old to have one": {"", "GPU-3b1f0a0e64b40000", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, g := t.TempDir(), plan.PolicyGPU{UUID: row.uuid, Nodes: []string{"/dev/kfd", "/dev/dri/renderD129"}}
			if row.unique != "" {
				must.Do(t, os.WriteFile(filepath.Join(dir, "unique_id"), []byte(row.unique), 0o600))
			}
			said := ""
			if err := sameAMD(dir, g); err != nil {
				said = err.Error()
			}
			must.Equal(t, row.want, said)
		})
	}
	// It parks the slot: no job begins on a neighbor's GPU.
	r := newSlotRig(t)
	r.useErr = &otherGPUError{"it is another"}
	r.want(r.waits, "it is another")
	r.useErr = nil
	r.want(r.waits, "")
}

// TestAMDReset: how to reset an AMD GPU names no tool of another vendor, and says that its
// neighbors are reset with it.
func TestAMDReset(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	gpu := plan.PolicyGPU{UUID: "GPU-3b1f0a0e64b40000", Nodes: []string{"/dev/kfd", "/dev/dri/renderD4095"}}
	w := newGPUWatches(plan.JobPolicy{Vendor: "amd", GPUs: []plan.PolicyGPU{gpu}}, r.procs, r.log)[0]
	said := w.judge(detect.Occupancy{Compute: []nvml.Process{{PID: 502}}})
	want := "GPU-3b1f0a0e64b40000 is held by process 502, which has exited; reset it (sudo amd-smi reset -G -g GPU after draining all slots, because it resets all GPUs connected by xGMI) or reboot"
	must.Equal(t, want, said)
	w.reset = amdReset("0000:05:00.0")
	if !strings.HasPrefix(w.reset, "sudo amd-smi reset -G -g 0000:05:00.0 ") {
		t.Error(w.reset)
	}
}

// TestSeveralGPUs: all GPUs of a slot are checked, each with its own idle use.
func TestSeveralGPUs(t *testing.T) {
	t.Parallel()
	r, policy := newSlotRig(t), testPolicy()
	policy.GPUs = []plan.PolicyGPU{{UUID: "GPU-a"}, {UUID: "GPU-b"}}
	all := newGPUWatches(policy, r.procs, r.log)
	if all[0].idle == all[1].idle {
		t.Errorf("both keep their idle use in %s", all[0].idle)
	}
	uses := [2]detect.Occupancy{{UsedBytes: -1}, {UsedBytes: -1}}
	var failed error
	for i := range all {
		all[i].read = func(context.Context) (detect.Occupancy, error) { return uses[i], failed }
	}
	if busy, known := all.settle(t.Context(), 0); busy != "" || !known {
		t.Errorf("idle ones: %q, %t", busy, known)
	}
	uses[1].Compute = []nvml.Process{{PID: 502}}
	if busy, known := all.settle(t.Context(), 0); !strings.HasPrefix(busy, "GPU-b is held by process 502") || !known {
		t.Errorf("the second is in use: %q, %t", busy, known)
	}
	failed = errors.New("no answer")
	if busy, known := all.settle(t.Context(), 0); busy != "" || known {
		t.Errorf("without an answer: %q, %t", busy, known)
	}
	if busy, known := (gpuWatches{}).settle(t.Context(), 0); busy != "" || !known {
		t.Errorf("without a GPU: %q, %t", busy, known)
	}
}

// TestIdleUseOnlyFalls: a job cannot raise what counts as idle.
func TestIdleUseOnlyFalls(t *testing.T) {
	t.Parallel()
	w := newSlotRig(t).gpu[0]
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
		if got, err := w.idleUse(detect.Occupancy{Driver: row.driver, UsedBytes: row.used}); got != row.want || err != nil {
			t.Errorf("step %d: %d, %v; want %d", i, got, err, row.want)
		}
	}
	must.Do(t, os.WriteFile(w.idle, []byte("rubbish"), 0o600))
	if got, err := w.idleUse(detect.Occupancy{UsedBytes: 5}); got != 5 || err != nil {
		t.Errorf("from rubbish: %d, %v", got, err)
	}
	w.idle = "/nonexistent/x/gpu-idle.json"
	if got, err := w.idleUse(detect.Occupancy{UsedBytes: 5}); got != 5 || err == nil || !strings.Contains(err.Error(), "nonexistent") {
		t.Errorf("without a place: %d, %v", got, err)
	}
}
