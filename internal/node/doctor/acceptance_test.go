package doctor

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestAcceptImage(t *testing.T) {
	t.Parallel()
	play(t, []scene{
		{"pulled", "accept-image", &fake{}, nil, "ok: sha256:abc", ""},
		{"loaded", "accept-image", &fake{err: image.ErrNoRegistry}, nil, "ok: it was made or loaded here", ""},
		{"loaded or not", "accept-image", &fake{err: image.ErrUnrecorded}, nil, "warn: " + image.ErrUnrecorded.Error(), "kbnode image update"},
		{"no registry", "accept-image", &fake{err: errors.New("no answer")}, nil, "fail: no answer", "kbnode image update"},
	})
}

func TestEvaluations(t *testing.T) {
	t.Parallel()
	one := func(k int, change func(*image.Evaluation)) image.Evaluation {
		e := image.Evaluation{Index: k, Canary: image.Canary{Passed: true, Profile: "strict", Uploadable: true, GPU: "NVIDIA B200", Torch: "2.9"}}
		change(&e)
		return e
	}
	slots := func(shapes ...string) *plan.Plan {
		p := &plan.Plan{}
		for k, shape := range shapes {
			p.Slots = append(p.Slots, plan.Slot{Index: k, Shape: shape, GPUs: make([]plan.SlotGPU, len(shape)/4)})
		}
		return p
	}
	in := func(p *plan.Plan, change func(*image.Evaluation)) *fake {
		return &fake{plan: p, evaluations: []image.Evaluation{one(0, func(*image.Evaluation) {}), one(1, change)}}
	}
	with := func(change func(*image.Evaluation)) *fake { return in(slots("b200", "b200"), change) }
	play(t, []scene{
		{"alike", "accept-evaluation", with(func(*image.Evaluation) {}), nil, "ok: passed in profile strict, on NVIDIA B200, torch 2.9", ""},
		{"none", "accept-evaluation", &fake{}, nil, "skip: there is no slot", ""},
		{"no image", "accept-together", &fake{err: errors.New("no such image")}, nil, "fail: no such image", ""},
		{"a job", "accept-together", &fake{plan: slots("b200"), evaluations: []image.Evaluation{one(0, func(e *image.Evaluation) { e.Missed = "job 7 runs in it" })}}, nil, "skip: job 7 runs in it", ""},
		{"wrong", "accept-evaluation", with(func(e *image.Evaluation) { e.Passed, e.Reason = false, "no python3" }), nil, "fail: no python3", ""},
		{"no result", "accept-evaluation", with(func(e *image.Evaluation) { e.Uploadable = false }), nil, "fail: there is no result.json that the agent can upload", ""},
		{"no torch", "accept-evaluation", with(func(e *image.Evaluation) { e.Torch = "" }), nil, "warn: passed in profile strict, but the image has no torch that uses GPUs", ""},
		{"no GPU", "accept-evaluation", with(func(e *image.Evaluation) { e.GPU = "" }), nil, "fail: torch saw no GPU", ""},
		{"as root only", "accept-evaluation", with(func(e *image.Evaluation) { e.Profile, e.NotStrict = "compatible", "no python3" }), nil, "warn: passed only in profile compatible, on NVIDIA B200, torch 2.9: no python3", ""},
		{"two kinds", "accept-evaluation", with(func(e *image.Evaluation) { e.GPU = "NVIDIA L4" }), nil, "fail: the slots of shape b200 differ: NVIDIA B200, torch 2.9; NVIDIA L4, torch 2.9", ""},
		{"two shapes", "accept-evaluation", in(slots("b200", "l40s"), func(e *image.Evaluation) { e.GPU = "NVIDIA L40S" }), nil, "ok: passed in profile strict, on NVIDIA B200, torch 2.9 (and 1 more)", ""},
		{"without a GPU", "accept-evaluation", in(slots("b200", "cpu"), func(e *image.Evaluation) { e.GPU = "" }), nil, "ok: passed in profile strict, on NVIDIA B200, torch 2.9 (and 1 more)", ""},
		{"without a GPU, as root only", "accept-evaluation", in(slots("b200", "cpu"), func(e *image.Evaluation) { e.GPU, e.Profile, e.NotStrict = "", "compatible", "no python3" }), nil, "warn: passed only in profile compatible: no python3", ""},
	})
}

// TestAccept tests which checks must not be skipped, in no slot.
func TestAccept(t *testing.T) {
	t.Parallel()
	full := config.Config{}.WithDefaults()
	m := &Machine{Config: &full}
	skipped := []Finding{ok("fine").Of(0), skip("it is busy").Of(1)}
	for want, c := range map[string]Result{
		"container": {ID: "container", Group: "slots", Findings: skipped}, "agent-running": {ID: "agent-running", Group: "agent", Status: Skip},
		"escape": {ID: "escape", Group: "selftest", Findings: skipped}, "accept-image": {ID: "accept-image", Group: "acceptance", Status: Skip}, "": {ID: "docker-lan", Group: "docker", Findings: skipped},
	} {
		if a := Accept(m, &Report{Fit: true, Checks: []Result{c}}, "v1"); strings.Join(a.Untried, " ") != want || a.Accepted != (want == "") {
			t.Errorf("%s: %+v", want, a)
		}
	}
	if Accept(m, &Report{}, "v1").Accepted {
		t.Error("a node that is not fit is accepted")
	}
}

// TestRestart kills the agent of slot 2, since slot 0 takes no jobs and slot 1 has one.
func TestRestart(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		back, ready time.Duration // after the kill; 0 means never
		kill        error
		want        string
	}{
		"back":           {1950 * time.Millisecond, 2950 * time.Millisecond, nil, "ok: back after 2.0 s, registered after 3.0 s"},
		"late":           {10*time.Second + 50*time.Millisecond, 19950 * time.Millisecond, nil, "fail: back after 10.1 s, registered after 20.0 s"},
		"away":           {0, 0, nil, "fail: the agent is not back after 10s"},
		"not registered": {1950 * time.Millisecond, 0, nil, "fail: the agent was back after 2.0 s, but has not registered"},
		"not killed":     {0, 0, errors.New("kill buildkite-agent-gpu2.service: timeout"), "fail: kill buildkite-agent-gpu2.service: timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var killed time.Time
				f := &fake{plan: &plan.Plan{Slots: []plan.Slot{{Index: 0, Parked: "its GPU is lost"}, {Index: 1}, {Index: 2}}}}
				f.killed = func(unit string) error {
					killed = time.Now()
					must.Equal(t, "buildkite-agent-gpu2.service", unit)
					return row.kill
				}
				f.observed = func() *reconcile.State {
					agent := func(k, pid int) slot.State {
						return slot.State{Index: k, Agent: slot.Unit{Active: "active", MainPID: pid}, Registered: k == 2}
					}
					s := &reconcile.State{Slots: []slot.State{agent(0, 8), agent(1, 9), agent(2, 10)}}
					s.Slots[1].Job = &slot.Job{ID: "7"}
					// systemd reports the killed agent for a moment, and the marker of the previous agent stays.
					switch since := time.Since(killed); {
					case killed.IsZero() || since < time.Second:
					case row.back == 0 || since < row.back:
						s.Slots[2].Agent.MainPID = 0
					default:
						s.Slots[2].Agent.MainPID, s.Slots[2].Registered = 11, row.ready > 0 && since >= row.ready
					}
					return s
				}
				m := &Machine{Source: f, Plan: f.plan}
				got := agentRestart(t.Context(), m).Findings[0]
				must.Equal(t, row.want, got.Status.String()+": "+got.Detail)
			})
		})
	}
	busy := &fake{state: &reconcile.State{}, plan: &plan.Plan{Slots: []plan.Slot{{}}}}
	play(t, []scene{
		{"no idle slot", "accept-restart", busy, nil, "skip: no slot is idle", ""},
		{"no systemd", "accept-restart", &fake{err: errors.New("no answer"), state: &reconcile.State{}}, nil, "fail: no answer", ""},
	})
}
