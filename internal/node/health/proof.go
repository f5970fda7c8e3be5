package health

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

const (
	// proofTries is how many evaluations may fail in a row; then only an operator, a reset or a reboot brings another one.
	proofTries = 3
	// proofPause is the time between two, after each that fails twice as long.
	proofPause = 5 * time.Minute
)

// Evaluation is how an evaluation ended that GPUs of a slot owe.
type Evaluation struct {
	Slot   int
	Began  time.Duration // by Moment.Up
	Ended  bool          // false if it did not run, or not to its end, which says nothing about the GPUs
	Passed bool
	Text   string // what was computed, or why it did not end or pass; in one line
}

// proof is what a GPU owes that was out of service for a fault: an evaluation in each of its slots.
type proof struct {
	After  string        `json:"after"`            // check of the fault
	Since  time.Duration `json:"since"`            // by State.Age
	Reset  time.Duration `json:"reset,omitempty"`  // gpu.Reset then
	Passed []int         `json:"passed,omitempty"` // slots
	Bad    []int         `json:"bad,omitempty"`    // slots whose last one failed
	Failed int           `json:"failed,omitempty"` // since there was no bad slot
	Tried  time.Duration `json:"tried,omitempty"`  // when the last one ended that did not pass, by State.Age; 0 if that is over
	Why    string        `json:"why,omitempty"`    // Text of that one
	Did    string        `json:"did,omitempty"`    // Text of the last one that passed
	Last   int           `json:"last"`             // slot of the last one; -1 if there was none
}

// fault names the fault of a GPU for people.
func (o *proof) fault() string {
	if o.After == CheckProof { // the state that had it is lost
		return "a fault"
	}
	return o.After
}

// take takes over how an evaluation ended that began at a time, by State.Age as all times of o.
func (o *proof) take(e Evaluation, began, now time.Duration) {
	if began < o.Since { // before the GPU's last fault or reset
		return
	}
	o.Last = e.Slot
	if e.Ended {
		its := func(slot int) bool { return slot == e.Slot }
		o.Passed, o.Bad = slices.DeleteFunc(o.Passed, its), slices.DeleteFunc(o.Bad, its)
	}
	switch {
	case e.Passed:
		o.Passed, o.Did = append(o.Passed, e.Slot), e.Text
		if len(o.Bad) == 0 {
			o.Failed, o.Tried = 0, 0
		}
		return
	case e.Ended:
		o.Bad = append(o.Bad, e.Slot)
		o.Failed++
	}
	o.Tried, o.Why = max(now, 1), e.Text
}

// due reports whether it is time for an evaluation.
func (o *proof) due(now time.Duration) bool {
	return o.Failed < proofTries && (o.Tried == 0 || now-o.Tried >= proofPause<<o.Failed)
}

// holds reports whether a proof that a GPU owes keeps jobs from one of its slots. One that has passed takes them while another
// cannot be evaluated, as one that an operator drained, but not after another has failed: the GPU may compute wrongly.
func (j *judge) holds(id string, slot int) bool {
	i := slices.IndexFunc(j.s.GPUs, func(g gpu) bool { return g.ID == id && g.Proof != nil })
	return i < 0 || j.s.GPUs[i].Proof.Failed > 0 || !slices.Contains(j.s.GPUs[i].Proof.Passed, slot)
}

// Due returns the slots in which it is time for an evaluation, in the order of their turns: after a GPU's last one come the
// slots behind it, since one that cannot be evaluated must not always be the first.
func Due(s State, verdicts []Verdict) (slots []int) {
	for _, v := range verdicts {
		i := slices.IndexFunc(s.GPUs, func(g gpu) bool { return g.ID == v.GPU })
		if v.Check != CheckProof || i < 0 || s.GPUs[i].Proof == nil || !s.GPUs[i].Proof.due(s.Age) {
			continue
		}
		behind := slices.IndexFunc(v.Slots, func(k int) bool { return k > s.GPUs[i].Proof.Last })
		behind = max(behind, 0)
		for _, k := range slices.Concat(v.Slots[behind:], v.Slots[:behind]) {
			if !slices.Contains(s.GPUs[i].Proof.Passed, k) && !slices.Contains(slots, k) {
				slots = append(slots, k)
			}
		}
	}
	return slots
}

// prove keeps GPUs that were out of service for a fault from jobs until an evaluation has passed in each of their slots.
func (j *judge) prove() {
	faulty := map[string]string{}
	for _, v := range j.verdicts() { // the worst come first
		if v.Level == Fatal && v.Check != CheckRepeats && v.Check != CheckProof && faulty[v.GPU] == "" {
			faulty[v.GPU] = v.Check
		}
	}
	for i := range j.s.GPUs {
		g := &j.s.GPUs[i]
		k := gpuKey(CheckProof, g.ID)
		now := faulty[g.ID]
		switch {
		case !j.in.Policy.Proof || j.in.Policy.WatchOnly: // it must not come into effect when the policy changes
			g.Fault, g.Proof = "", nil
		case now != "":
			j.clear("it has a fault again", hasKey(k))
			g.Fault, g.Proof = now, nil
		case g.Fault != "":
			g.Proof, g.Fault = j.proofAfter(g.Fault, g), ""
		case g.Proof != nil && g.Proof.Reset != g.Reset:
			g.Proof = j.proofAfter(g.Proof.After, g)
		}
		mine := j.slotsOf(g.ID)
		for _, e := range j.in.Evaluations {
			if g.Proof != nil && slices.ContainsFunc(mine, func(s Slot) bool { return s.Index == e.Slot }) {
				g.Proof.take(e, j.s.Age-(j.in.Up-e.Began), j.s.Age)
			}
		}
		owes := g.Proof != nil && len(mine) > 0 // another one may be removed and come back
		if owes && !slices.ContainsFunc(mine, func(s Slot) bool { return !slices.Contains(g.Proof.Passed, s.Index) }) {
			j.clear("a short evaluation passed: "+g.Proof.Did, hasKey(k))
			g.Proof, owes = nil, false
		}
		var m Mark
		if owes {
			m = g.Proof.mark(j.addressOf(g.ID), namesOf(slices.DeleteFunc(mine, func(s Slot) bool { return !j.holds(g.ID, s.Index) })))
		}
		j.update(k, owes, m)
	}
}

// inherit has a new GPU prove itself that replaces one with a fault: that was the repair.
func (j *judge) inherit(g *gpu) {
	for _, o := range j.s.GPUs {
		if o.PCI != g.PCI || o.ID == g.ID {
			continue
		}
		g.Fault = cmp.Or(g.Fault, o.Fault)
		if o.Proof != nil {
			g.Fault = cmp.Or(g.Fault, o.Proof.After)
		}
	}
}

func (j *judge) proofAfter(fault string, g *gpu) *proof {
	return &proof{After: fault, Since: j.s.Age, Reset: g.Reset, Last: -1}
}

// mark returns what is shown of a GPU at an address, with the names of its slots.
func (o *proof) mark(pci, slots string) Mark {
	m := Mark{
		Level: Info, Effect: Drain,
		Reason: fmt.Sprintf("the GPU at %s takes jobs again when a short evaluation has passed, after %s", pci, o.fault()),
		Fix:    "wait for it, or do without it: sudo kbnode resume" + slots,
	}
	switch {
	case o.Failed >= proofTries:
		m.Level = Fatal
		m.Reason = fmt.Sprintf("the GPU at %s failed %d short evaluations after %s: %s", pci, o.Failed, o.fault(), o.Why)
		m.Fix = fmt.Sprintf("sudo kbnode doctor; after a repair sudo kbnode resume%[1]s --mended, which tries again, or without an evaluation sudo kbnode resume%[1]s", slots)
	case o.Failed > 0:
		m.Level = Warn
		m.Reason = fmt.Sprintf("the GPU at %s failed a short evaluation after %s, which is tried again: %s", pci, o.fault(), o.Why)
	case o.Tried > 0:
		m.Level = Warn
		m.Reason = fmt.Sprintf("the GPU at %s waits for a short evaluation after %s, which could not run: %s", pci, o.fault(), o.Why)
	}
	return m
}
