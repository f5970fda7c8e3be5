package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// judge is the state of one call of Judge.
type judge struct {
	in     Signals
	s      State
	byPCI  map[string]string // ID of the GPU at an address
	events []Event
}

// Judge derives verdicts and events from the State that the last call returned and from
// the signals since then. It modifies and retains neither.
func Judge(prev State, in Signals) (State, []Verdict, []Event) {
	in.Now = in.Now.Round(0) // the monotonic clock is not part of a State
	in.Slots = slices.Clone(in.Slots)
	for i := range in.Slots {
		in.Slots[i].PCI = normalPCI(in.Slots[i].PCI)
	}
	j := &judge{in: in, s: prev.clone()}
	j.begin()
	j.name()
	j.resetByHand()
	j.returned()
	for _, f := range in.Kernel {
		if f.Kind == KindOverrun {
			j.emit(Event{Kind: "kernel", Check: checkXid, Slot: -1, Level: Warn, Text: f.Text})
			continue
		}
		if f.Seq >= j.s.Next {
			j.s.Next = f.Seq + 1
			j.kernel(f)
		}
	}
	if in.GPUs != nil {
		j.gpus()
	}
	if in.Node != nil {
		j.node()
	}
	j.slots()
	j.settle()
	j.countFaults()
	j.prove()
	j.s.truncate()
	j.s.Moment = in.Moment
	return j.s, j.verdicts(), j.events
}

// begin compares the clocks with the last call.
func (j *judge) begin() {
	if j.s.Boot != j.in.Boot {
		j.s.Age += j.in.Up
		j.reboot()
		return
	}
	j.s.Age += max(0, j.in.Up-j.s.Up)
	skew := j.in.Now.Sub(j.s.Now) - (j.in.Up - j.s.Up)
	if skew.Abs() > 5*time.Second {
		j.emit(Event{Kind: "clock", Check: checkClock, Slot: -1, Level: Warn, Text: fmt.Sprintf("the clock jumped by %s", skew.Round(time.Second))})
	}
}

// reboot clears what a reboot ends. Readings are kept until the next ones.
func (j *judge) reboot() {
	j.s.Next, j.s.Jobs = 0, nil
	j.clear("the node was rebooted", func(m Mark) bool { return m.Latched })
	for i := range j.s.Marks {
		j.s.Marks[i].First, j.s.Marks[i].Last = j.in.Up, j.in.Up
	}
	for i, g := range j.s.GPUs {
		j.s.GPUs[i] = gpu{ID: g.ID, PCI: g.PCI, Vendor: g.Vendor, Links: g.Links, record: g.record}
		if g.Proof != nil { // what failed may be repaired now
			j.s.GPUs[i].Proof = j.proofAfter(g.Proof.After, &j.s.GPUs[i])
		}
	}
}

// name finds out which GPU is at which address. The kernel's log has addresses, and a
// lost GPU may have nothing else.
func (j *judge) name() {
	j.byPCI = map[string]string{}
	at := func(pci, uuid string) {
		if pci != "" && uuid != "" {
			j.byPCI[pci] = uuid
		}
	}
	for _, g := range j.s.GPUs {
		if g.RemovedAt == 0 { // or another may be there now
			at(g.PCI, g.ID)
		}
	}
	for _, s := range j.in.Slots {
		at(s.PCI, s.UUID)
	}
	if j.in.GPUs != nil {
		for _, g := range j.in.GPUs.List {
			at(g.PCI, g.UUID)
		}
	}
	// What was known only by its address is now known by its UUID.
	for i := range j.s.Marks {
		if m := &j.s.Marks[i]; m.GPU != "" {
			m.GPU = cmp.Or(j.byPCI[m.GPU], m.GPU)
		}
	}
	for pci, id := range j.byPCI {
		known := slices.ContainsFunc(j.s.GPUs, func(g gpu) bool { return g.ID == id })
		g := j.gpu(id, pci)
		g.PCI = pci
		if !known {
			j.inherit(g)
		}
	}
	j.s.GPUs = slices.DeleteFunc(j.s.GPUs, func(g gpu) bool {
		id := j.byPCI[g.ID]
		if id == "" || id == g.ID {
			return false
		}
		known := j.gpu(id, g.ID)
		known.record = known.union(g.record)
		return true
	})
	slices.SortFunc(j.s.GPUs, func(a, b gpu) int { return cmp.Compare(a.ID, b.ID) })
}

// gpu returns the record of a GPU and creates it if needed. The pointer is valid until
// the next new GPU.
func (j *judge) gpu(id, pci string) *gpu {
	for i := range j.s.GPUs {
		if j.s.GPUs[i].ID == id {
			return &j.s.GPUs[i]
		}
	}
	j.s.GPUs = append(j.s.GPUs, gpu{ID: id, PCI: pci})
	return &j.s.GPUs[len(j.s.GPUs)-1]
}

// idOf returns the ID of a slot's GPU.
func (j *judge) idOf(s Slot) string {
	return cmp.Or(s.UUID, j.byPCI[s.PCI], s.PCI)
}

// slotsOf returns the slots of a GPU, several if it is partitioned.
func (j *judge) slotsOf(id string) []Slot {
	var list []Slot
	for _, s := range j.in.Slots {
		if j.idOf(s) == id {
			list = append(list, s)
		}
	}
	return list
}

// slotOf returns the index of a GPU's only slot, -1 if it has none or several.
func (j *judge) slotOf(id string) int {
	if list := j.slotsOf(id); len(list) == 1 && id != "" {
		return list[0].Index
	}
	return -1
}

// addressOf returns a GPU's address, or its ID if the address is unknown.
func (j *judge) addressOf(id string) string {
	for _, g := range j.s.GPUs {
		if g.ID == id && g.PCI != "" {
			return g.PCI
		}
	}
	return id
}

// gpuKey returns the key of a GPU's finding; a check with several kinds of them has details.
func gpuKey(check, id string, detail ...string) key {
	return key{Check: check, GPU: id, Slot: -1, Detail: strings.Join(detail, "")}
}

func (j *judge) find(k key) *Mark {
	for i := range j.s.Marks {
		if j.s.Marks[i].key == k {
			return &j.s.Marks[i]
		}
	}
	return nil
}

// update records the finding m under k if bad is true, and otherwise clears it, unless it
// was seen less than its Quiet ago or comes from the kernel's log, which no reading
// overrules.
func (j *judge) update(k key, bad bool, m Mark) {
	if bad {
		m.key, m.Last = k, j.in.Up
		j.mark(m)
		return
	}
	j.clear("", func(m Mark) bool { return m.key == k && !m.Latched && j.in.Up-m.Last >= m.Quiet })
}

// latch is like update for findings that are reported only once, at the time at.
func (j *judge) latch(k key, at time.Duration, m Mark) {
	m.key, m.Last, m.Latched = k, at, true
	j.mark(m)
}

func (j *judge) mark(m Mark) {
	old := j.find(m.key)
	if old == nil {
		m.First, m.Since = m.Last, j.in.Now.Add(m.Last-j.in.Up)
		j.s.Marks = append(j.s.Marks, m)
		old = &j.s.Marks[len(j.s.Marks)-1]
	} else {
		m.First, m.Since, m.Shown, m.Latched = old.First, old.Since, old.Shown, m.Latched || old.Latched
		changed := m.Shown && (m.Level != old.Level || m.Effect != old.Effect)
		*old = m
		if changed {
			j.emit(j.event("changed", m, m.Reason))
		}
	}
	if !m.Latched {
		j.show(old) // latched marks wait: a later line may clear them
	}
}

// show turns a mark into a verdict once it has lasted long enough.
func (j *judge) show(m *Mark) {
	if !m.Shown && j.in.Up-m.First >= m.After {
		m.Shown = true
		j.emit(j.event("raised", *m, m.Reason))
	}
}

// clear ends the marks that are over.
func (j *judge) clear(why string, over func(Mark) bool) {
	j.s.Marks = slices.DeleteFunc(j.s.Marks, func(m Mark) bool {
		ends := over(m)
		if ends && m.Shown {
			j.emit(j.event("cleared", m, strings.TrimSuffix("no longer: "+m.Reason+"; "+why, "; ")))
		}
		return ends
	})
}

// hasKey matches the mark with a key.
func hasKey(k key) func(Mark) bool { return func(m Mark) bool { return m.key == k } }

func (j *judge) event(kind string, m Mark, text string) Event {
	e := Event{Kind: kind, Check: m.Check, GPU: m.GPU, Slot: m.Slot, Level: m.Level, Text: text}
	if e.Slot < 0 {
		e.Slot = j.slotOf(m.GPU)
	}
	return e
}

func (j *judge) emit(e Event) {
	if e.Time.IsZero() {
		e.Time = j.in.Now
	}
	if e.Level == Info && e.Kind != "kernel" && e.Check != CheckProof {
		return // normal conditions come and go
	}
	j.events = append(j.events, e)
}

// settle handles the passing of time: it clears marks from the kernel's log that were
// quiet for long enough, and shows those that did not end in time.
func (j *judge) settle() {
	for _, m := range slices.Clone(j.s.Marks) {
		if m.Latched && m.Quiet > 0 && j.in.Up-m.Last >= m.Quiet {
			j.clear(fmt.Sprintf("not seen for %s", m.Quiet), hasKey(m.key))
		}
	}
	for i := range j.s.Marks {
		if m := &j.s.Marks[i]; m.Latched {
			j.show(m)
		}
	}
	j.s.Jobs = slices.DeleteFunc(j.s.Jobs, func(r ran) bool { return j.in.Up-r.At > jobGrace })
	for _, s := range j.in.Slots {
		if s.Job == "" {
			continue
		}
		j.s.Jobs = slices.DeleteFunc(j.s.Jobs, func(r ran) bool { return r.Slot == s.Index })
		j.s.Jobs = append(j.s.Jobs, ran{s.Index, s.Job, j.in.Up})
	}
}

// resetByHand records resets that an operator reported. Like any other reset, one clears
// earlier marks once the GPU answers, and nothing that readings still show.
func (j *judge) resetByHand() {
	for id, at := range j.in.ResetByHand {
		if pci := normalPCI(id); pci != "" {
			id = cmp.Or(j.byPCI[pci], pci)
		}
		for i := range j.s.GPUs {
			if g := &j.s.GPUs[i]; g.ID == id {
				g.Reset = max(g.Reset, min(at, j.in.Up))
			}
		}
	}
}

// verdicts returns the shown marks, the worst first.
func (j *judge) verdicts() []Verdict {
	var list []Verdict
	for _, m := range j.s.Marks {
		if !m.Shown {
			continue
		}
		v := Verdict{Check: m.Check, GPU: m.GPU, Level: m.Level, Effect: m.Effect, Reason: m.Reason, Fix: m.Fix, Since: m.Since}
		switch {
		case m.Slot >= 0:
			v.Slots = []int{m.Slot}
		case m.GPU != "":
			for _, s := range j.slotsOf(m.GPU) {
				if m.Check != CheckProof || j.holds(m.GPU, s.Index) {
					v.Slots = append(v.Slots, s.Index)
				}
			}
		case m.Effect > None:
			for _, s := range j.in.Slots {
				v.Slots = append(v.Slots, s.Index)
			}
		}
		if r := j.recoveryOf(m); r != nil {
			v.Level, v.Effect, v.Fix = Info, None, r.Fix
		}
		if j.in.Policy.WatchOnly && v.Effect > None && !slices.Contains(unusable, m.Check) {
			v.Effect, v.Reason = None, v.Reason+" (health.watch_only: no slot is drained for it)"
		}
		slices.Sort(v.Slots)
		v.Slots = slices.Compact(v.Slots)
		list = append(list, v)
	}
	slices.SortStableFunc(list, func(a, b Verdict) int {
		return cmp.Or(cmp.Compare(b.Level, a.Level), cmp.Compare(b.Effect, a.Effect), a.Since.Compare(b.Since))
	})
	return list
}

// slots judges what belongs to a slot and not to its GPU.
func (j *judge) slots() {
	known := map[int]bool{}
	for _, s := range j.in.Slots {
		known[s.Index] = true
		if !slices.Contains(s.Unread, CheckAgent) {
			j.update(key{Check: CheckAgent, Slot: s.Index}, s.Agent != "", Mark{
				Level: Warn, After: 5 * time.Minute,
				Reason: "the slot's agent is not connected: " + s.Agent,
				Fix:    fmt.Sprintf("sudo journalctl -u buildkite-agent-gpu%d", s.Index),
			})
		}
		if !slices.Contains(s.Unread, CheckLimits) {
			j.update(key{Check: CheckLimits, Slot: s.Index}, s.Limits != "", Mark{
				Level: Degraded, After: time.Minute,
				Reason: "the slot's limits are not as planned: " + s.Limits,
				Fix:    "sudo kbnode reconcile",
			})
		}
	}
	j.s.Marks = slices.DeleteFunc(j.s.Marks, func(m Mark) bool { return m.Slot >= 0 && !known[m.Slot] })
}
