package image

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/slottest"
)

// stage is a slot that runs jobs.
type stage struct {
	result  string        // what the job leaves; "" for nothing
	loose   bool          // it leaves the result only in the compatible profile
	strict  string        // what it leaves in the strict one, if that is another result
	link    bool          // it is a link to the result
	cleared bool          // the next job has cleared it away
	takes   time.Duration // of each run
	says    string
	end     slot.Outcome

	specs []*job.Spec
}

func (s *stage) serve(t *testing.T) *Machine {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	slottest.Serve(t, socket, func(canceled context.Context, kind byte, text []byte, frames *slot.Frames) slot.Outcome {
		spec, err := job.Parse(text)
		if kind != slot.RequestRun || err != nil {
			t.Errorf("%c: %s: %v", kind, text, err)
			return slot.Outcome{NodeFault: "no such job"}
		}
		s.specs = append(s.specs, spec)
		select {
		case <-time.After(s.takes):
		case <-canceled.Done():
			return slot.Outcome{Canceled: true, ExitCode: 1}
		}
		end := s.end
		if end.NodeFault+end.Refused == "" {
			end.Files = t.TempDir()
		}
		name := filepath.Join(end.Files, "result.json")
		if s.link {
			name = filepath.Join(t.TempDir(), "x")
			err = os.Symlink(name, filepath.Join(end.Files, "result.json"))
		}
		if left := cmp.Or(s.strict, s.result); left != "" && (!s.loose || spec.Profile == "compatible") {
			if spec.Profile == "compatible" {
				left = s.result
			}
			err = errors.Join(err, os.WriteFile(name, []byte(left), 0o600))
		}
		if s.cleared {
			err = os.RemoveAll(end.Files)
		}
		if err := errors.Join(err, frames.Send(slot.FrameStderr, []byte(s.says))); err != nil {
			t.Error(err)
		}
		return end
	})
	return &Machine{Policies: []plan.JobPolicy{{Slot: 77, Name: "gpu77", Slice: plan.SliceName(77), Socket: socket}}}
}

func TestCanary(t *testing.T) {
	t.Parallel()
	const good = `{"success":true,"error":"","system":{"gpu":"NVIDIA H100\n","torch":"2.9"},"runs":{"test":{"run":{"passed":true}}}}`
	const slow = `{"success":true,"error":"","runs":{"test":{"run":{"passed":false,"exit_code":114,"stderr":"timed out"}}}}`
	const limit = 3 * time.Second // instead of canaryTime
	for _, tt := range []struct {
		name string
		node string // its profile; "" is compatible
		s    stage
		want Canary
		err  string
	}{
		{name: "a good image", s: stage{result: good}, want: Canary{Passed: true, Profile: "strict", Uploadable: true, Slot: "gpu77", GPU: "NVIDIA H100", Torch: "2.9"}},
		{name: "one that needs root", s: stage{result: good, loose: true}, want: Canary{
			Passed: true, Profile: "compatible", NotStrict: "it left no result and exited with 0:", Uploadable: true, Slot: "gpu77", GPU: "NVIDIA H100", Torch: "2.9",
		}},
		{name: "one that needs root on a strict node", node: "strict", s: stage{result: good, loose: true}, want: Canary{
			Profile: "strict", Slot: "gpu77", Reason: "it left no result and exited with 0:",
		}},
		{name: "one that says so and fails", s: stage{result: good, end: slot.Outcome{ExitCode: 1}}, want: Canary{
			Profile: "compatible", Slot: "gpu77", Uploadable: true, GPU: "NVIDIA H100", Torch: "2.9", Reason: "the submission exited with 0",
		}},
		{name: "one that hangs until its timeout, in both profiles", s: stage{result: slow, takes: limit * 5 / 9}, want: Canary{
			Profile: "compatible", Slot: "gpu77", Uploadable: true, Reason: "timed out",
		}},
		{name: "one without a result", s: stage{says: strings.Repeat("x", 2*maxOutput) + "\nno python3\n", end: slot.Outcome{ExitCode: 127}}, want: Canary{
			Profile: "compatible", Slot: "gpu77", Reason: "it left no result and exited with 127: no python3",
		}},
		{name: "one that leaves a link", s: stage{result: good, link: true}, want: Canary{Profile: "compatible", Slot: "gpu77", Reason: "it left no result and exited with 0:"}},
		{name: "cleared away by a job", s: stage{result: good, cleared: true}, err: ErrKilled.Error()},
		{name: "killed", s: stage{end: slot.Outcome{ExitCode: 137}}, err: ErrKilled.Error()},
		{name: "a job that comes", s: stage{result: good, end: slot.Outcome{Canceled: true, ExitCode: 1}}, err: errJob.Error()},
		{name: "a job that runs", s: stage{end: slot.Outcome{Canceled: true, NodeFault: "the slot has a job"}}, err: errJob.Error()},
		{name: "a slot that cannot", s: stage{end: slot.Outcome{NodeFault: "the slot is parked"}}, err: "the slot is parked"},
		{name: "a refusal", s: stage{end: slot.Outcome{Refused: "no such image"}}, err: "no such image"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := tt.s
			m := s.serve(t)
			if s.takes > 0 {
				m.limit = limit
			}
			m.Policies[0].Profile = cmp.Or(tt.node, "compatible")
			got, err := m.Canary(t.Context(), Slot{Index: 77, Name: "gpu77", policy: m.Policies[0]}, id(1))
			if (err == nil) != (tt.err == "") || err != nil && !strings.HasPrefix(err.Error(), tt.err) {
				t.Fatalf("%v, want %s", err, tt.err)
			}
			got.Time, got.Seconds = tt.want.Time, 0
			if d := gocmp.Diff(tt.want, got); d != "" && tt.err == "" {
				t.Error(d)
			}
			for i, spec := range s.specs {
				if len(spec.Env) != 1 || spec.Env[0].Name != payload.Var {
					t.Fatalf("its environment is %q", spec.Env)
				}
				if doc, err := payload.Inflate(spec.Env[0].Value); err != nil || !strings.Contains(doc, `"tests":[{"size":64,"visible":0}]`) {
					t.Errorf("its payload is %s: %v", doc, err)
				}
				if slices.ContainsFunc(s.specs[:i], func(before *job.Spec) bool { return before.JobID == spec.JobID }) {
					t.Errorf("two jobs are %s", spec.JobID)
				}
				program := plan.ContainerBinary
				want := &job.Spec{
					Kind: job.KindPlugin, JobID: spec.JobID, Image: id(1), Pull: job.PullMissing, Entrypoint: &program, Command: []string{"runner", "--workdir", "/work"},
					Env: spec.Env, Mounts: []job.Mount{{Source: ".", Target: "/work"}}, Profile: []string{"strict", "compatible"}[i], Network: job.NetworkNone,
					Checkout: job.Checkout{Mode: job.CheckoutNone}, Artifacts: []string{"result.json"},
				}
				must.Equal(t, want, spec)
			}
		})
	}
}

// TestCanaryWithHooks gives hooks a time of their own, besides the canary's.
func TestCanaryWithHooks(t *testing.T) {
	t.Parallel()
	s := stage{result: `{"success":true,"error":"","runs":{"test":{"run":{"passed":true}}}}`, takes: 200 * time.Millisecond}
	m := s.serve(t)
	m.limit = time.Millisecond
	m.Policies[0].Hooks = &plan.Hooks{Epilog: "/opt/e", LimitSeconds: 600}
	c, err := m.Canary(t.Context(), Slot{Index: 77, Name: "gpu77", policy: m.Policies[0]}, id(1))
	if err != nil || !c.Passed {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestCanaryInterrupted ends the job in the slot, which is not taken for a job that goes first.
func TestCanaryInterrupted(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	ctx, interrupt := context.WithCancel(t.Context())
	slottest.Serve(t, socket, func(canceled context.Context, _ byte, _ []byte, _ *slot.Frames) slot.Outcome {
		interrupt()
		<-canceled.Done()
		return slot.Outcome{Canceled: true}
	})
	m := &Machine{Policies: []plan.JobPolicy{{Socket: socket}}}
	if _, err := m.Canary(ctx, Slot{policy: m.Policies[0]}, id(1)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestSlots(t *testing.T) {
	t.Parallel()
	m := (&stage{}).serve(t)
	got, err := m.Slots(t.Context())
	if len(got) != 1 || got[0].Index != 77 || got[0].Name != "gpu77" || got[0].Away+got[0].Job != "" || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	// Its processes cannot be read.
	root := t.TempDir()
	m.Policies[0].Slice = plan.SliceName(77)
	must.Do(t, os.MkdirAll(filepath.Join(root, host.CgroupRoot, plan.ParentSlice, plan.SliceName(77), plan.AgentUnit(77), "cgroup.procs"), 0o755))
	got, err = m.slots(&reconcile.Host{Root: root})
	if err != nil || len(got) != 1 || got[0].Job != "job unknown" || got[0].Away != "" {
		t.Errorf("%+v, %v", got, err)
	}
	// Its GPU owes an evaluation, and then something else keeps jobs away, too.
	drained := &reconcile.Host{Root: t.TempDir()}
	must.Do(t, os.MkdirAll(filepath.Join(drained.Root, filepath.Dir(plan.DrainsPath)), 0o755))
	drains := []plan.Drain{{Slot: 7, By: "gpu.lost"}, {Slot: 77, By: plan.ByOperator}, {Slot: 77, By: health.CheckProof, Reason: "it owes one"}}
	for _, other := range []string{"", "gpu.repeats"} {
		if other != "" {
			drains = append(drains, plan.Drain{Slot: 77, By: other, Reason: "often"})
		}
		must.Do(t, drained.WriteDrains(drains))
		got, err = m.slots(drained)
		if err != nil || !strings.Contains(got[0].Owes, "it owes one") || (got[0].Away != "") != (other != "") {
			t.Errorf("%+v, %v", got, err)
		}
	}
	m.Policies[0].Socket += ".gone"
	got, err = m.Slots(t.Context())
	if err != nil || !strings.Contains(got[0].Away, "systemctl status kbnode-job-gpu77.socket") {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestVariant(t *testing.T) {
	t.Parallel()
	for want, vendors := range map[string][]string{
		"cuda": {"nvidia", "nvidia"}, "rocm": {"amd"}, "cpu": {""},
		"its slots need different ones: cuda, rocm": {"nvidia", "amd", "nvidia"},
		ErrNoNode.Error(): nil,
	} {
		var slots []plan.JobPolicy
		for _, v := range vendors {
			slots = append(slots, plan.JobPolicy{Vendor: v})
		}
		got, err := Variant(slots)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", vendors, got, want)
		}
	}
}
