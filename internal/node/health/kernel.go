package health

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

const (
	idleQuiet  = 24 * time.Hour
	resetLimit = 2 * time.Minute // AMD's resets take seconds
)

// cause is the possible cause of a line of the kernel.
type cause int

const (
	noJob    cause = iota // no job ran
	someJob               // a job ran
	longPast              // too long ago to know, or the slots' jobs could not be read
)

// cause finds which job may have caused a line about a GPU. Only jobs of the GPU's own
// slots can open it. Lines may come late, after their cause has ended.
func (j *judge) cause(f Fact, id string) (slot int, job string, c cause) {
	mine := j.slotsOf(id)
	slot = j.slotOf(id)
	unread := slices.ContainsFunc(mine, func(s Slot) bool { return slices.Contains(s.Unread, CheckAgent) })
	if j.in.Up-f.Up > jobGrace || unread {
		return slot, "", longPast
	}
	var jobs []ran
	for _, s := range mine {
		if s.Job != "" {
			jobs = append(jobs, ran{Slot: s.Index, Job: s.Job})
		}
	}
	for _, r := range j.s.Jobs {
		known := slices.ContainsFunc(jobs, func(o ran) bool { return o.Slot == r.Slot })
		if !known && slices.ContainsFunc(mine, func(s Slot) bool { return s.Index == r.Slot }) && f.Up-r.At <= jobGrace {
			jobs = append(jobs, r)
		}
	}
	switch len(jobs) {
	case 0:
		return slot, "", noJob
	case 1:
		return jobs[0].Slot, jobs[0].Job, someJob
	}
	return -1, "", someJob // jobs on several parts of the GPU; the line does not name the part
}

// faults are the kinds of lines that report a fault of a GPU, with the level of the event.
var faults = map[Kind]struct {
	check, detail string
	level         Level
	effect        Effect
	after         time.Duration
	reason        string // with the GPU's address
}{
	KindFallen:      {checkLost, "", Fatal, Park, 0, "the GPU at %s has fallen off the bus"},
	KindResetBegin:  {checkReset, "", Info, Park, resetLimit, "the reset of the GPU at %s does not finish"},
	KindResetFailed: {checkReset, "", Fatal, Park, 0, "the reset of the GPU at %s failed"},
	KindRAS:         {checkRAS, "kernel", Fatal, Drain, 0, "the GPU at %s reported uncorrectable hardware errors"},
}

// kernel judges one line of the kernel's log.
func (j *judge) kernel(f Fact) {
	if f.Kind == KindSwitch { // no GPU of its fabric starts CUDA any more
		j.latch(ofNode(checkSwitch, f.PCI), f.Up, Mark{
			Level: Fatal, Effect: Drain, Fix: fixReboot,
			Reason: fmt.Sprintf("the NVSwitch at %s had a fatal error (SXid %d)", f.PCI, f.Xid),
		})
		return
	}
	if f.Kind == KindUVM {
		j.latch(ofNode(CheckDriver, "uvm"), f.Up, Mark{
			Level: Fatal, Effect: Park, Fix: fixReboot,
			Reason: "the driver's memory manager (nvidia-uvm) had a fatal error, so no job can start CUDA",
		})
		return
	}
	id := cmp.Or(j.byPCI[f.PCI], f.PCI)
	slot, job, c := j.cause(f, id)
	e := Event{Time: j.in.Now.Add(f.Up - j.in.Up), Kind: "kernel", Check: checkXid, GPU: id, Slot: slot, Job: job, Level: Info}
	defer func() {
		if e.Level < Fatal && j.repeats(id, fmt.Sprint(f.Kind, " ", f.Xid, " ", job), f) {
			return
		}
		e.Text = f.Text + by(f.Kind, job, c)
		j.emit(e)
	}()
	if id == "" && f.Kind != KindLoaded {
		e.Level = Warn
		return // the next reading shows which GPU it is
	}
	if id != "" {
		j.gpu(id, f.PCI)
	}
	if fault, ok := faults[f.Kind]; ok {
		m := Mark{Level: Fatal, Effect: fault.effect, After: fault.after, Reason: fmt.Sprintf(fault.reason, j.addressOf(id)), Fix: fixReboot}
		if m.Effect == Drain {
			m.Fix = fixAMDReset(j.addressOf(id))
		}
		e.Check, e.Level = fault.check, fault.level
		j.latch(gpuKey(fault.check, id, fault.detail), f.Up, m)
		return
	}
	switch f.Kind {
	case KindXid:
		e.Level = j.xid(f, id, c)
	case KindLoaded:
		e.Check = CheckDriver
		j.clear("the driver was loaded again", func(m Mark) bool { return m.Check == checkSwitch || m.key == ofNode(CheckDriver, "uvm") })
		for i := range j.s.GPUs {
			if j.s.GPUs[i].Vendor != "amd" {
				j.s.GPUs[i].Reset = f.Up
			}
		}
	case KindResetDone:
		e.Check = checkReset
		j.clear("the reset succeeded", hasKey(gpuKey(checkReset, id)))
		j.gpu(id, f.PCI).Reset = f.Up
	case KindVRAM:
		e.Check, e.Level = checkReset, Warn
	case KindRing, KindFault:
		e.Level = Warn // a job can cause it at will
	}
}

// repeats reports whether the same line was recorded for the GPU within the last minute:
// one faulty kernel logs hundreds of lines, and events are stored on disk.
func (j *judge) repeats(id, what string, f Fact) bool {
	if id == "" {
		return false
	}
	g := j.gpu(id, f.PCI)
	g.Recent = slices.DeleteFunc(g.Recent, func(l line) bool { return f.Up-l.At > time.Minute })
	if slices.ContainsFunc(g.Recent, func(l line) bool { return l.Text == what }) {
		return true
	}
	g.Recent = append(g.Recent[:min(len(g.Recent), maxLines)], line{f.Up, what})
	return false
}

// by describes who caused a line. GPUs joined by xGMI are reset together, so a reset is
// not attributed to the job that it ended.
func by(kind Kind, job string, c cause) string {
	switch {
	case kind == KindLoaded || kind == KindFallen || c == longPast:
		return ""
	case c == noJob:
		return "; while no job ran"
	case job == "":
		return "; while jobs ran on several parts of the GPU"
	case slices.Contains([]Kind{KindResetBegin, KindResetDone, KindResetFailed, KindVRAM}, kind):
		return "; while job " + job + " ran"
	}
	return "; by job " + job
}

// xid judges an Xid and returns the level of its line.
func (j *judge) xid(f Fact, id string, c cause) Level {
	x := LookupXid(f.Xid)
	class := x.Class
	switch {
	case class == XidLink && f.Severity == "Fatal":
		class = XidReset
	case class == XidLink:
		class = XidDegraded
	case f.Xid == 109 && c == noJob:
		class = XidReset
	}
	m := Mark{Reason: fmt.Sprintf("Xid %d, %s, on the GPU at %s", f.Xid, x.Words, j.addressOf(id))}
	k := gpuKey(checkXid, id, fmt.Sprint(f.Xid))
	switch class {
	case XidApplication:
		return Warn // no number of them is held against the GPU: one submission could take the node down
	case XidIgnored:
		m.Level = Info
	case XidRecovery:
		return j.recovery(id, f.To, f.Up, "Xid 154")
	case XidUnknown:
		m.Level, m.Quiet, m.Fix = Warn, idleQuiet, "report it to NVIDIA"
		if f.Xid > XidLast {
			m.Fix = "see what NVIDIA's Xid catalog says about it"
		}
	case XidLost:
		k = gpuKey(checkLost, id)
		m.Level, m.Effect, m.Reason = Fatal, Park, "the GPU at "+j.addressOf(id)+" has fallen off the bus (Xid 79)"
		m.Fix = fixReboot
	case XidMemory:
		m.Level, m.Effect, m.Fix = Fatal, Drain, fixReset(j.addressOf(id))+"; if it comes back, replace the GPU"
	case XidReset:
		m.Level, m.Effect, m.Fix = Fatal, Drain, fixReset(j.addressOf(id))
	case XidDegraded:
		m.Level, m.Quiet, m.Fix = Degraded, idleQuiet, fixReset(j.addressOf(id))
	case XidPower:
		m.Level, m.Quiet, m.Fix = Degraded, idleQuiet, "check the GPU's power supply and cooling"
	}
	m, kept := j.decide(m, f, class, c)
	if kept {
		j.latch(k, f.Up, m)
	}
	return m.Level
}

// recovery judges the recovery action that the driver asked for at the time at.
func (j *judge) recovery(id string, action int, at time.Duration, source string) Level {
	k := gpuKey(checkRecovery, id)
	old := j.find(k)
	if old != nil && old.Last > at {
		return Info // newer information is available
	}
	m := Mark{Level: Fatal, Effect: Drain, Fix: fixReset(j.addressOf(id))}
	switch action {
	case -1:
		return Warn // not readable; NVML reports it
	case 0:
		// Only a change means that something was done. None by itself does not end an Xid
		// that the table calls fatal.
		if old != nil || source == "Xid 154" {
			j.clear("the driver no longer requests anything", hasKey(k))
			g := j.gpu(id, "")
			g.Reset = max(g.Reset, at)
		}
		return Info
	case 1, 4:
		m.Reason = "the driver requests a reset of the GPU at " + j.addressOf(id)
	case 2, 7:
		m.Reason = "the driver requests a reboot for the GPU at " + j.addressOf(id)
		m.Effect, m.Fix = Park, fixReboot
	case 3:
		m.Level, m.Reason = Degraded, "the driver requests no traffic between the GPU at "+j.addressOf(id)+" and others"
		m.Fix = "this clears when the jobs of all slots have ended; otherwise " + m.Fix
	case 5:
		m.Level, m.Reason = Degraded, "the driver requests a recovery of the IMEX domain of the GPU at "+j.addressOf(id)
		m.Fix = "sudo systemctl restart nvidia-imex"
	default:
		m.Reason = fmt.Sprintf("the driver requests recovery action %d for the GPU at %s", action, j.addressOf(id))
	}
	m.Reason += " (" + source + ")"
	j.latch(k, at, m)
	return m.Level
}

// fixReset turns persistence mode off for this GPU only. To stop nvidia-persistenced would
// remove its socket, which CDI specifications mount, and no slot could start a container.
func fixReset(pci string) string {
	return fmt.Sprintf("with its slots drained: sudo nvidia-smi -pm 0 -i %[1]s && sudo nvidia-smi -r -i %[1]s; sudo nvidia-smi -pm 1 -i %[1]s", pci)
}

// fixAMDReset drains all slots: a reset also resets the GPUs that xGMI joins to this one,
// and ends all computations on them.
func fixAMDReset(pci string) string {
	return "sudo kbnode drain --all --wait; sudo amd-smi reset -G -g " + pci + "; sudo kbnode resume --all"
}

const fixReboot = "sudo kbnode drain --all --reboot"
