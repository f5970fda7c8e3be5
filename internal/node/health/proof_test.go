package health

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

const (
	owes   = "gpu.proof info drain [3]"
	again  = "gpu.proof warn drain [3]"
	failed = "gpu.proof fatal drain [3]"
)

var proving = config.Health{Repeats: "3/168h", Proof: config.ProofEvaluation}

// evaluated judges after evaluations have ended that began at the last look.
func (n *node) evaluated(later time.Duration, ended ...Evaluation) []Verdict {
	n.t.Helper()
	began := n.in.Up
	return n.judgeAfter(later, func(in *Signals) {
		for _, e := range ended {
			e.Began = began
			in.Evaluations = append(in.Evaluations, e)
		}
	})
}

// owing returns a node whose fourth GPU had a fault, and owes an evaluation.
func owing(t *testing.T, change ...func(*Signals)) *node {
	t.Helper()
	in := withPolicy(proving)
	for _, f := range change {
		f(&in)
	}
	n := newNode(t, in)
	n.fail(time.Hour)
	return n
}

func (n *node) due(verdicts []Verdict, want ...int) {
	n.t.Helper()
	if got := Due(n.state, verdicts); !slices.Equal(got, want) {
		n.t.Errorf("due in slots %v, want %v", got, want)
	}
}

func passes(slot int) Evaluation {
	return Evaluation{Slot: slot, Ended: true, Passed: true, Text: "it multiplied"}
}

func fails(slot int) Evaluation { return Evaluation{Slot: slot, Ended: true, Text: "it sees no GPU"} }

func unknown(slot int) Evaluation { return Evaluation{Slot: slot, Text: "no image"} }

func (n *node) says(words ...string) {
	n.t.Helper()
	var all strings.Builder
	for _, e := range n.events {
		all.WriteString(e.Kind + " " + e.Text + "\n")
	}
	must.Contain(n.t, all.String(), words...)
}

func TestProof(t *testing.T) {
	t.Parallel()
	t.Run("passed", func(t *testing.T) {
		n := newNode(t, withPolicy(proving))
		n.due(n.lines(time.Hour, xidLineOf(3, 48, "words")))
		n.in.ResetByHand = map[string]time.Duration{uuid(3): n.in.Up + time.Second}
		got := n.judgeAfter(time.Minute, nil)
		n.in.ResetByHand = nil
		n.want(got, owes)
		n.due(got, 3)
		must.Equal(t, "wait for it, or do without it: sudo kbnode resume gpu3", got[0].Fix)
		n.says("raised the GPU at "+pci(3)+" takes jobs again when", "after gpu.xid")
		n.want(n.judgeAfter(100*time.Hour, nil), owes)
		n.want(n.evaluated(time.Minute, passes(4)), owes)
		got = n.evaluated(time.Minute, passes(3))
		n.want(got)
		n.due(got)
		n.says("cleared no longer: ", "; a short evaluation passed: it multiplied")
		n.want(n.evaluated(time.Minute, fails(3)))
		must.Equal(t, 1, len(n.state.GPUs[3].Faults))
	})
	t.Run("failed", func(t *testing.T) {
		n := owing(t)
		for i, pause := range []time.Duration{2 * proofPause, 4 * proofPause} {
			got := n.evaluated(time.Minute, fails(3))
			n.want(got, again)
			n.due(got)
			must.Contain(t, got[0].Reason, "failed a short evaluation after gpu.xid, which is tried again: it sees no GPU")
			n.due(n.judgeAfter(pause-time.Second, nil))
			n.due(n.judgeAfter(time.Second, nil), 3)
			if i == 0 && len(n.events) > 0 {
				t.Errorf("the same again: %+v", n.events)
			}
		}
		got := n.evaluated(time.Minute, fails(3))
		n.want(got, failed)
		n.says("changed the GPU at " + pci(3) + " failed 3 short evaluations after gpu.xid: it sees no GPU")
		must.Contain(t, got[0].Fix, "sudo kbnode resume gpu3 --mended")
		got = n.judgeAfter(1000*time.Hour, nil)
		n.want(got, failed)
		n.due(got)
		n.in.ResetByHand = map[string]time.Duration{uuid(3): n.in.Up + time.Second}
		got = n.judgeAfter(time.Minute, nil)
		n.want(got, owes)
		n.due(got, 3)
		n.evaluated(time.Minute, fails(3))
		n.in.ResetByHand = nil
		n.in.Boot, n.in.Up = "another", time.Minute
		got = n.judgeAfter(time.Second, nil)
		n.want(got, owes)
		n.due(got, 3)
		for range proofTries {
			got = n.evaluated(time.Hour, fails(3))
		}
		n.want(got, failed)
		n.in.Boot, n.in.Up = "a third", time.Minute
		got = n.judgeAfter(time.Second, nil)
		n.want(got, owes)
		n.due(got, 3)
		n.want(n.evaluated(time.Second, passes(3)))
	})
	t.Run("could not run", func(t *testing.T) {
		n := owing(t)
		for range 10 {
			got := n.evaluated(time.Minute, unknown(3))
			n.want(got, again)
			must.Contain(t, got[0].Reason, "which could not run: no image")
			n.due(got)
			n.due(n.judgeAfter(proofPause, nil), 3)
		}
	})
	t.Run("another fault meanwhile", func(t *testing.T) {
		n := owing(t)
		n.want(n.lines(time.Second, xidLineOf(3, 48, "words")), "gpu.xid fatal drain [3]")
		n.want(n.evaluated(time.Second, passes(3)), "gpu.xid fatal drain [3]")
		began := n.in.Up
		n.in.ResetByHand = map[string]time.Duration{uuid(3): n.in.Up + time.Second}
		n.want(n.judgeAfter(time.Minute, nil), owes)
		early := passes(3)
		early.Began = began
		n.want(n.judgeAfter(time.Minute, func(in *Signals) { in.Evaluations = []Evaluation{early} }), owes)
		n.want(n.evaluated(time.Minute, passes(3)))
	})
	t.Run("what is no fault of a GPU", func(t *testing.T) {
		n := newNode(t, withPolicy(proving))
		n.want(n.lines(time.Second, xidLineOf(3, 63, "words"), xidLineOf(3, 31, "words")), "gpu.xid degraded none [3]")
		n.want(n.judgeAfter(25*time.Hour, nil))
		for range 3 {
			n.judgeAfter(time.Minute, func(in *Signals) { in.Node.Docker = "refused" })
		}
		n.want(n.judgeAfter(time.Minute, nil))
		n.want(n.judgeAfter(time.Minute, func(in *Signals) { in.GPUs.List[3].NVML.RemappedRows = &nvml.Remapped{Pending: true} }), "gpu.remap degraded drain [3]")
		n.want(n.judgeAfter(time.Minute, nil))
	})
	t.Run("without a policy", func(t *testing.T) {
		for _, h := range []config.Health{{Proof: config.NoLimit}, {Proof: config.ProofEvaluation, WatchOnly: true}} {
			n := newNode(t, withPolicy(h))
			n.want(n.fail(time.Hour))
			n = owing(t)
			n.in.Policy = h.Policy()
			n.want(n.judgeAfter(time.Second, nil))
			n.in.Policy = proving.Policy()
			n.want(n.judgeAfter(time.Second, nil))
			n.lines(time.Second, xidLineOf(3, 48, "words"))
			n.in.Policy = h.Policy()
			n.judgeAfter(time.Second, nil)
			n.in.Policy = proving.Policy() // while the fault lasts
			n.want(n.judgeAfter(time.Second, nil), "gpu.xid fatal drain [3]")
			n.in.ResetByHand = map[string]time.Duration{uuid(3): n.in.Up + time.Second}
			n.want(n.judgeAfter(time.Minute, nil), owes)

			n.want(n.lines(time.Second, xidLineOf(3, 48, "words")), "gpu.xid fatal drain [3]")
			n.in.Policy = h.Policy()
			n.in.ResetByHand = map[string]time.Duration{uuid(3): n.in.Up + time.Second}
			n.want(n.judgeAfter(time.Minute, nil))
			n.in.Policy = proving.Policy() // after it
			n.want(n.judgeAfter(time.Minute, nil))
		}
	})
	t.Run("AMD", func(t *testing.T) {
		in := amdMachine(8)
		in.Policy = proving.Policy()
		n := newNode(t, in)
		n.want(n.judgeAfter(time.Minute, func(in *Signals) { in.GPUs.Bus[pci(3)] = Bus{RAS: map[string]uint64{"umc": 1}} }), "gpu.ras fatal drain [3]")
		n.want(n.judgeAfter(time.Minute, nil), owes)
		n.want(n.evaluated(time.Minute, passes(3)))
	})
}

// An operator's word ends one thing at a time: repeated faults, and then the proof.
func TestProofReturned(t *testing.T) {
	t.Parallel()
	n := owing(t)
	said := n.in.Up
	n.want(n.fail(time.Hour), owes)
	resume := func(at time.Duration) []Verdict {
		n.in.Returned = map[string]time.Duration{uuid(3): at}
		defer func() { n.in.Returned = nil }()
		first := n.judgeAfter(time.Second, nil)
		events := n.events
		n.want(n.judgeAfter(time.Second, nil), short(first)...) // as of a pass that reads everything after a look
		n.events = append(events, n.events...)
		return first
	}
	n.want(resume(said), owes) // before the last fault
	n.want(resume(n.in.Up))
	n.says("an operator does without it")
	n.want(n.fail(time.Hour), "gpu.repeats fatal drain [3]", owes) // the count went on
	n.want(resume(n.in.Up), owes)
	n.want(resume(n.in.Up))
	n.want(n.fail(time.Hour), owes)
	n.in.Returned = map[string]time.Duration{pci(3): n.in.Up}
	n.want(n.judgeAfter(time.Second, nil))
}

// What kept slots from jobs before the state was lost is a fault, whether it is over or not.
func TestProofOfALostState(t *testing.T) {
	t.Parallel()
	for check, after := range map[string]string{"gpu.lost": "gpu.lost", CheckProof: "a fault"} {
		n := newNode(t, withPolicy(proving))
		n.state = State{}
		n.in.Faults = map[int]string{3: check}
		got := n.judgeAfter(time.Second, nil)
		n.in.Faults = nil
		n.want(got, owes)
		must.Contain(t, got[0].Reason, "after "+after)
		n.want(n.judgeAfter(time.Minute, nil), owes)
		n.state, n.in.Faults = State{}, map[int]string{3: check}
		n.want(n.judgeAfter(time.Second, func(in *Signals) { in.GPUs.Bus[pci(3)] = Bus{Dead: true} }), "gpu.lost fatal park [3]")
		n.in.Faults = nil
		n.want(n.judgeAfter(time.Minute, nil), owes)
	}
}

// TestProofHolds lets anything happen in any order: no slot takes jobs again after a fatal verdict of its GPU unless an
// evaluation in it has passed since then, and none owes one without such a verdict.
func TestProofHolds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := newNode(t, withPolicy(proving))
		owed := map[int]bool{}
		for step := range 60 {
			began, later := n.in.Up, time.Duration(1+r.IntN(4000))*time.Second
			if r.IntN(12) == 0 {
				n.in.Boot, n.in.Up = fmt.Sprint(step), time.Minute
			}
			n.in.ResetByHand = nil
			if r.IntN(3) == 0 {
				n.in.ResetByHand = map[string]time.Duration{uuid(r.IntN(8)): n.in.Up + later}
			}
			e := []Evaluation{passes(r.IntN(8)), fails(r.IntN(8)), unknown(r.IntN(8))}[r.IntN(3)]
			e.Began = began
			if r.IntN(3) == 0 || n.in.Up != began {
				e.Began = -9000 * time.Hour
			}
			got := n.judgeAfter(later, func(in *Signals) {
				in.Evaluations = []Evaluation{e}
				if r.IntN(4) == 0 {
					in.Kernel = n.facts(in.Up, xidLineOf(r.IntN(8), []int{48, 79, 119, 31}[r.IntN(4)], "words"))
				}
				switch r.IntN(8) {
				case 0, 1:
					in.GPUs = nil
				case 2:
					in.GPUs.Bus[pci(r.IntN(8))] = Bus{Dead: true}
				}
			})
			for k := range 8 {
				held, ok := Holding(got, k)
				faulty := slices.ContainsFunc(got, func(v Verdict) bool {
					return v.Level == Fatal && v.Check != CheckProof && v.Check != CheckRepeats && slices.Contains(v.Slots, k)
				})
				passed := e.Passed && e.Slot == k && e.Began == began && !ok
				switch {
				case owed[k] && !ok && !passed:
					t.Fatalf("seed %d, step %d: slot %d takes jobs: %v", seed, step, k, short(got))
				case !owed[k] && !faulty && ok && held.Check == CheckProof:
					t.Fatalf("seed %d, step %d: slot %d owes an evaluation: %v", seed, step, k, short(got))
				}
				owed[k] = (owed[k] || faulty) && !passed
			}
		}
	}
}
