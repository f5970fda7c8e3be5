package health

import (
	"slices"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

// Each slot of a GPU proves its part, and a slot each of its GPUs.
func TestProofOfShapes(t *testing.T) {
	t.Parallel()
	t.Run("two slots of a GPU", func(t *testing.T) {
		n := owing(t, func(in *Signals) { in.Slots[4].UUID, in.Slots[4].PCI = uuid(3), pci(3) })
		const both, fourth = "gpu.proof info drain [3 4]", "gpu.proof info drain [4]"
		got := n.judgeAfter(time.Second, nil)
		n.want(got, both)
		n.due(got, 3, 4)
		got = n.evaluated(time.Minute, passes(3))
		n.want(got, fourth) // which an operator may have drained for long
		must.Contain(t, got[0].Fix, "resume gpu4")
		n.due(got, 4)
		n.want(n.evaluated(time.Minute, unknown(4)), "gpu.proof warn drain [4]")
		got = n.evaluated(time.Minute, fails(4))
		n.want(got, "gpu.proof warn drain [3 4]") // the whole GPU may be at fault
		must.Contain(t, got[0].Fix, "resume gpu3 gpu4")
		n.due(n.judgeAfter(2*proofPause, nil), 4)
		n.evaluated(time.Minute, fails(4))
		n.want(n.evaluated(time.Minute, fails(4)), "gpu.proof fatal drain [3 4]")
		n.want(n.evaluated(time.Hour, passes(4)))
		n.says("a short evaluation passed: it multiplied")
	})
	t.Run("a slot that fails among others that pass", func(t *testing.T) {
		three := func(in *Signals) {
			for i := range 3 {
				in.Slots[3+i].UUID, in.Slots[3+i].PCI = uuid(3), pci(3)
			}
		}
		const all = "gpu.proof warn drain [3 4 5]"
		n := owing(t, three)
		n.want(n.evaluated(time.Minute, fails(3)), all)
		n.due(n.judgeAfter(2*proofPause, nil), 4, 5, 3)
		got := n.evaluated(time.Minute, passes(4))
		n.want(got, all)
		must.Contain(t, got[0].Reason, "it sees no GPU")
		n.due(got, 5, 3)
		n.want(n.evaluated(time.Minute, fails(5)), all)
		got = n.judgeAfter(4*proofPause, nil)
		n.due(got, 3, 5)
		n.want(n.evaluated(time.Minute, passes(3)), all) // 5 does not
		n.want(n.evaluated(time.Minute, passes(5)))

		n = owing(t, three)
		n.evaluated(time.Minute, fails(3))
		n.evaluated(time.Minute, passes(4))
		n.evaluated(time.Minute, fails(3))
		n.evaluated(time.Minute, passes(5))
		n.want(n.evaluated(time.Minute, fails(3)), "gpu.proof fatal drain [3 4 5]") // what others do does not count

		n = owing(t, three)
		n.evaluated(time.Minute, passes(3))
		n.evaluated(time.Minute, fails(3)) // as for another GPU of the slot
		n.evaluated(time.Minute, passes(4))
		n.want(n.evaluated(time.Minute, passes(5)), all)
	})
	t.Run("slots that take turns", func(t *testing.T) {
		n := owing(t, func(in *Signals) {
			for i := range 3 {
				in.Slots[3+i].UUID, in.Slots[3+i].PCI = uuid(3), pci(3)
			}
		})
		n.due(n.judgeAfter(time.Second, nil), 3, 4, 5)
		for _, turn := range [][]int{{4, 5, 3}, {5, 3, 4}, {3, 4, 5}} {
			n.evaluated(time.Minute, unknown(turn[2]))
			n.due(n.judgeAfter(proofPause, nil), turn...)
		}
		got := n.evaluated(time.Minute, passes(4))
		n.want(got, "gpu.proof info drain [3 5]")
		n.due(got, 5, 3)
	})
	t.Run("two GPUs of a slot", func(t *testing.T) {
		n := owing(t, func(in *Signals) { in.Slots[4].Index = 3 })
		n.lines(time.Second, xidLineOf(4, 48, "words"))
		got := n.judgeAfter(time.Second, nil)
		n.want(got, "gpu.xid fatal drain [3]", owes)
		n.in.ResetByHand = map[string]time.Duration{uuid(4): n.in.Up + time.Second}
		got = n.judgeAfter(time.Minute, nil)
		n.want(got, owes, owes)
		n.due(got, 3)
		n.want(n.evaluated(time.Minute, fails(3)), again, again)
		n.want(n.evaluated(time.Minute, passes(3)))
	})
	t.Run("a slot that is removed and comes back", func(t *testing.T) {
		n := newNode(t, withPolicy(proving))
		n.want(n.judgeAfter(time.Minute, func(in *Signals) { in.GPUs.List[3].Healthy, in.GPUs.List[3].Error = false, "vfio" }), "gpu.error fatal park [3]")
		n.want(n.judgeAfter(time.Minute, nil), owes)
		slot := n.in.Slots[3]
		n.in.Slots = slices.Delete(n.in.Slots, 3, 4)
		got := n.evaluated(time.Minute, passes(3))
		n.want(got)
		n.due(got)
		n.judgeAfter(time.Hour, func(in *Signals) { in.GPUs.List = slices.Delete(in.GPUs.List, 3, 4) })
		n.in.Slots = append(n.in.Slots, slot)
		n.want(n.judgeAfter(time.Minute, nil), owes)
		n.want(n.evaluated(time.Minute, passes(3)))
	})
	t.Run("a GPU that replaces another with a fault", func(t *testing.T) {
		n := newNode(t, withPolicy(proving))
		n.lines(time.Hour, xidLineOf(3, 48, "words"))
		n.in.GPUs.List[3].UUID, n.in.Slots[3].UUID = uuid(77), uuid(77)
		n.want(n.judgeAfter(time.Minute, nil), "gpu.xid fatal drain []", owes)
	})
	t.Run("a GPU that replaces another", func(t *testing.T) {
		n := owing(t)
		n.evaluated(time.Minute, fails(3))
		n.in.GPUs.List[3].UUID = uuid(77)
		n.want(n.judgeAfter(time.Minute, nil), "gpu.missing fatal park [3]")
		n.in.Slots[3].UUID = uuid(77)
		got := n.judgeAfter(time.Minute, nil)
		n.want(got, owes)
		n.due(got, 3)
		n.want(n.evaluated(time.Minute, passes(3)))
		n.want(n.judgeAfter(time.Minute, nil))
	})
	t.Run("a GPU that is known by its address first", func(t *testing.T) {
		in := withPolicy(proving)
		in.Slots[3].UUID, in.GPUs.List[3].UUID = "", ""
		n := newNode(t, in)
		n.lines(time.Hour, xidLineOf(3, 48, "words"))
		n.in.Boot, n.in.Up = "another", time.Minute
		n.want(n.judgeAfter(time.Second, nil), owes)
		n.in.Slots[3].UUID, n.in.GPUs.List[3].UUID = uuid(3), uuid(3)
		n.want(n.judgeAfter(time.Second, nil), owes)
		n.want(n.evaluated(time.Second, passes(3)))
	})
}
