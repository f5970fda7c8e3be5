package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/config"
)

// unusable are the checks of GPUs that cannot run a job, whatever the policy says.
var unusable = []string{checkLost, checkMissing, checkError, checkReset}

// counted are the checks whose fatal verdicts are faults of a GPU. What a driver's installation or
// someone who swaps GPUs does is none, nor a reset that fails: AMD's GPUs that xGMI joins reset together, and a job may be why.
var counted = []string{checkRecovery, checkLost, checkXid, checkECC, checkRemap, checkNVLink, checkRAS}

// provoked are Xids of other classes than XidApplication that some programs cause. Their form since NVLink 5 are those of
// XidLink that are not fatal.
var provoked = []int{108, 137}

// faultAfter is how long readings must show a fault to count: for seconds, a GPU that is reset or divided again looks lost.
const faultAfter = time.Minute

// decide changes what follows from an Xid as the policy says. kept is false if no verdict follows.
func (j *judge) decide(m Mark, f Fact, class XidClass, c cause) (_ Mark, kept bool) {
	i := slices.IndexFunc(j.in.Policy.Xids, func(r config.XidRule) bool { return r.Xid == f.Xid })
	old := j.find(gpuKey(checkXid, j.id(f), fmt.Sprint(f.Xid)))
	// An unknown one says nothing of the GPU if a job may have caused it, and a milder line takes back nothing.
	kept = class != XidIgnored && (class != XidUnknown || c != someJob) && (old == nil || old.Effect <= m.Effect)
	if i < 0 || class == XidLost || class == XidApplication {
		return m, kept
	}
	r := j.in.Policy.Xids[i]
	stronger := (r.Action == config.XidDrain || r.Action == config.XidPark) && m.Effect == None
	if mayBeJob := class == XidIgnored || class == XidUnknown || LookupXid(f.Xid).Class == XidLink && f.Severity != "Fatal" || slices.Contains(provoked, f.Xid); stronger && mayBeJob && c != noJob {
		return m, kept // or the job could take the GPU out of service
	}
	switch r.Action {
	case config.XidIgnore:
		m.Level = Info
		return m, false
	case config.XidWarn:
		m.Level, m.Effect, m.Quiet = Warn, None, idleQuiet
	case config.XidDegraded:
		m.Level, m.Effect, m.Quiet = Degraded, None, idleQuiet
	default:
		reached := j.countXid(j.id(f), f, r.Rate)
		if !reached && (old == nil || old.Effect == None) { // nothing that was decided is taken back
			if m.Level > Degraded {
				m.Level, m.Effect, m.Quiet = Degraded, None, idleQuiet
			}
			return m, kept
		}
		m.Level, m.Effect, m.Quiet = Fatal, Drain, 0
		if r.Action == config.XidPark {
			m.Effect = Park
		}
		if r.Rate.Count > 1 {
			m.Reason += ", " + r.Rate.String()
		}
	}
	if m.Fix == "" || m.Effect > None {
		m.Fix = fixReset(j.addressOf(j.id(f)))
	}
	return m, true
}

// id returns the ID of the GPU that a line is about.
func (j *judge) id(f Fact) string {
	if id := j.byPCI[f.PCI]; id != "" {
		return id
	}
	return f.PCI
}

// countXid counts an Xid, those of one minute once, and reports whether it came as often as a rate says.
func (j *judge) countXid(id string, f Fact, rate config.Rate) bool {
	if rate.Count < 2 {
		return true
	}
	g, what, at := j.gpu(id, f.PCI), fmt.Sprint(f.Xid), j.s.Age-(j.in.Up-f.Up)
	same := func(x fault) bool { return x.What == what }
	g.Xids = slices.DeleteFunc(g.Xids, func(x fault) bool { return same(x) && at-x.At > time.Duration(rate.Hours)*time.Hour })
	i := slices.IndexFunc(g.Xids, func(x fault) bool { return same(x) && (at-x.At).Abs() < time.Minute })
	if i < 0 {
		g.Xids = append(g.Xids, fault{at, what})
	} else {
		g.Xids[i].At = max(g.Xids[i].At, at) // a storm is one, however long
	}
	n := 0
	for _, x := range g.Xids {
		if same(x) {
			n++
		}
	}
	if n > rate.Count { // the oldest
		g.Xids = slices.Delete(g.Xids, slices.IndexFunc(g.Xids, same), slices.IndexFunc(g.Xids, same)+1)
	}
	return n >= rate.Count
}

// FaultCount returns how many faults s has that time ends. While there are some, its Age should be stored now and then,
// since time that is not stored before a reboot does not end them.
func (s State) FaultCount() (n int) {
	for _, g := range s.GPUs {
		n += len(g.Faults) + len(g.Xids)
	}
	return n
}

// returned forgets the faults of GPUs that an operator returns to service, or the proof that they owe if no faults
// keep them out. Later ones stay. Each report ends one thing, however often it is judged by.
func (j *judge) returned() {
	for _, s := range j.in.Slots {
		id := j.idOf(s)
		if id == "" {
			continue
		}
		if why := j.in.Out[s.Index]; why != "" {
			j.gpu(id, s.PCI).Out = why
		}
		if check := j.in.Faults[s.Index]; check != "" {
			g := j.gpu(id, s.PCI)
			g.Fault = cmp.Or(g.Fault, check)
		}
	}
	for id, up := range j.in.Returned {
		at := j.s.Age - max(0, j.in.Up-up)
		for i := range j.s.GPUs {
			g := &j.s.GPUs[i]
			if g.ID != id && (g.PCI != normalPCI(id) || g.PCI == "") || up <= g.Returned {
				continue
			}
			g.Returned = up
			switch owes := gpuKey(CheckProof, g.ID); {
			case g.Proof != nil && g.Out == "":
				if g.Proof.Since <= at {
					j.clear("an operator does without it", hasKey(owes))
					g.Proof = nil
				}
			default:
				g.Out = ""
				g.Faults = slices.DeleteFunc(g.Faults, func(f fault) bool { return f.At <= at })
			}
		}
	}
}

// countFaults counts the faults of each GPU, all verdicts at a time as one, and takes the GPUs that
// have too many out of service until an operator returns them.
func (j *judge) countFaults() {
	rate := j.in.Policy.Repeats
	for i := range j.s.GPUs {
		g := &j.s.GPUs[i]
		was, what, degraded := g.Faulty, "", []string(nil)
		g.Faulty = false
		for _, m := range j.s.Marks {
			if m.GPU != g.ID || !m.Shown || m.Level < Fatal || m.Effect == None || !slices.Contains(counted, m.Check) {
				continue
			}
			name := m.Check
			if m.Check == checkXid {
				name = "Xid " + m.Detail
			}
			if r := j.recoveryOf(m); r != nil && r.Level < Fatal {
				degraded = append(degraded, name)
				continue
			}
			ending, young := m.Latched && m.Last < g.Reset, !m.Latched && m.Last-m.First < faultAfter
			if ending || young { // what ends once the GPU answers, and what may pass, begin no fault
				g.Faulty = g.Faulty || was
				continue
			}
			g.Faulty = true
			if m.Check != checkRecovery || !j.afterJob(*g) {
				what = cmp.Or(what, name)
			}
		}
		switch {
		case !was && what != "":
			g.Faults = append(g.Faults, fault{j.s.Age, what})
		case was && !g.Faulty: // the driver may say a moment after the Xid what it wants
			g.Faults = slices.DeleteFunc(g.Faults, func(f fault) bool { return j.s.Age-f.At < time.Minute && slices.Contains(degraded, f.What) })
		}
		g.Faults = slices.DeleteFunc(g.Faults, func(f fault) bool { return j.s.Age-f.At > time.Duration(rate.Hours)*time.Hour })
		g.Xids = slices.DeleteFunc(g.Xids, func(x fault) bool {
			return !slices.ContainsFunc(j.in.Policy.Xids, func(r config.XidRule) bool {
				return fmt.Sprint(r.Xid) == x.What && j.s.Age-x.At <= time.Duration(r.Rate.Hours)*time.Hour
			})
		})
		g.Faults = g.Faults[max(0, len(g.Faults)-maxFaults):]
	}
	for i := range j.s.GPUs {
		g := &j.s.GPUs[i]
		if rate.Count == 0 || j.in.Policy.WatchOnly { // it must not come into effect when the policy changes
			g.Out = ""
		}
		out := g.Out
		if alone := j.alone(g); out == "" && rate.Count > 0 && len(alone) >= rate.Count {
			alone = alone[len(alone)-rate.Count:]
			var what []string
			for _, f := range alone {
				what = append(what, f.What)
			}
			out = fmt.Sprintf("the GPU at %s had %d faults in %s (%s): it stays out until an operator returns it", j.addressOf(g.ID), len(alone), strings.SplitN(rate.String(), " in ", 2)[1], strings.Join(what, ", "))
		}
		if !j.in.Policy.WatchOnly {
			g.Out = out
		}
		j.update(gpuKey(CheckRepeats, g.ID), out != "" && len(j.slotsOf(g.ID)) > 0, Mark{Level: Fatal, Effect: Drain, Reason: out, Fix: "sudo kbnode resume" + j.slotNames(g.ID)})
	}
}

// recoveryOf returns the recovery action that the driver wants instead of what the table says of an Xid, nil if there is none.
func (j *judge) recoveryOf(m Mark) *Mark {
	if r := j.find(gpuKey(checkRecovery, m.GPU)); m.Check == checkXid && m.Effect > None && r != nil && r.Shown {
		return r
	}
	return nil
}

// maxFaults bounds what is kept of a GPU's faults: a policy counts at most 20.
const maxFaults = 40

// alone returns the faults of a GPU that no other GPU shares, when a minute has shown that: a failure of what joins GPUs, or
// of their power, is none of each.
func (j *judge) alone(g *gpu) (faults []fault) {
	for _, f := range g.Faults {
		shared := j.s.Age-f.At < time.Minute || slices.ContainsFunc(j.s.GPUs, func(o gpu) bool {
			return o.ID != g.ID && slices.ContainsFunc(o.Faults, func(other fault) bool { return (other.At - f.At).Abs() < time.Minute })
		})
		if !shared {
			faults = append(faults, f)
		}
	}
	return faults
}

// afterJob reports whether a job can be why the driver wants a GPU to be reset: an Xid that jobs cause came just before.
func (j *judge) afterJob(g gpu) bool {
	return slices.ContainsFunc(g.Recent, func(l line) bool {
		return j.in.Up-l.At <= time.Minute && slices.ContainsFunc(append([]int{109}, config.XidsOfJobs...), func(xid int) bool {
			return strings.HasPrefix(l.Text, recentXid(xid))
		})
	})
}

// recentXid is how the lines in gpu.Recent about an Xid begin.
func recentXid(xid int) string { return fmt.Sprint(KindXid, " ", xid, " ") }

// slotNames returns the names of a GPU's slots, each after a space.
func (j *judge) slotNames(id string) string { return namesOf(j.slotsOf(id)) }

func namesOf(slots []Slot) string {
	var names strings.Builder
	for _, s := range slots {
		_, _ = fmt.Fprintf(&names, " gpu%d", s.Index)
	}
	return names.String()
}
