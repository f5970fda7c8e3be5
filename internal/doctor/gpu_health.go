package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/daemon"
	"github.com/gpu-mode/kbnode/internal/health"
	"github.com/gpu-mode/kbnode/internal/host"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// judged returns a check for these verdicts. If the daemon runs, the check health reports
// them, except what the daemon has not seen yet.
func judged(checks ...string) func(context.Context, *Machine) Answer {
	return func(ctx context.Context, m *Machine) Answer {
		f := fleetOf(m, "")
		if len(f.gpus) == 0 {
			return none("no GPU")
		}
		// The daemon's cgroup tells whether it runs, even if systemd does not answer.
		watched := m.Value(host.CgroupRoot+"/system.slice/"+plan.NodeService+"/cgroup.procs") != ""
		verdicts, unread := verdictsNow(ctx, m, f, watched)
		var wrong []Finding
		if unread != nil && slices.Contains(checks, "gpu.xid") {
			wrong = append(wrong, warn("%s", unread).Advise("see whether sudo dmesg names a GPU"))
		}
		for _, v := range verdicts {
			if v.Level >= health.Warn && slices.Contains(checks, v.Check) && !isOwn(m, v) {
				wrong = append(wrong, verdictFinding(v))
			}
		}
		newer := ""
		if slices.Contains(checks, "gpu.xid") {
			newer = newerThanCatalog(m)
		}
		if watched && len(wrong) == 0 {
			return none("kbnode.service watches this; see health%s", newer)
		}
		return otherwise(wrong, ok("%d GPUs%s", len(f.gpus), newer))
	}
}

// newerThanCatalog says that the node's driver may have Xids that kbnode does not know, and
// "" if it has none.
func newerThanCatalog(m *Machine) string {
	if m.Inventory.NVIDIA == nil {
		return ""
	}
	version := m.Inventory.NVIDIA.DriverVersion
	major, _, _ := strings.Cut(version, ".")
	if branch, err := strconv.Atoi(major); err != nil || branch <= health.XidBranch {
		return ""
	}
	return fmt.Sprintf("; driver %s may have Xids above %d, where the catalog of r%d ends", version, health.XidLast, health.XidBranch)
}

// verdictFinding converts a verdict to a finding.
func verdictFinding(v health.Verdict) Finding {
	f := Finding{Status: Warn, Slots: v.Slots, Detail: fmt.Sprintf("%s: %s", v.Check, v.Reason), Advice: v.Fix}
	if v.Effect > health.None || v.Level == health.Fatal {
		f.Status = Fail
	}
	return f
}

// verdictsNow judges the GPUs like a daemon that has just started and sees the same again a
// minute later. If a daemon runs, it judges only the current state and leaves out what the
// daemon has judged. An error means that the kernel's log cannot be read; the verdicts are
// still valid.
func verdictsNow(ctx context.Context, m *Machine, f fleet, watched bool) ([]health.Verdict, error) {
	now, err := health.Now()
	if err != nil {
		return nil, err
	}
	now.Now = m.Now
	in := health.Signals{Moment: now, GPUs: &health.GPUs{Started: now.Up, List: f.gpus, NVIDIA: m.Inventory.NVIDIA, Bus: health.ReadBus(m.Root, f.gpus)}}
	for _, b := range slotBindings(m) {
		for _, g := range b.Members() {
			in.Slots = append(in.Slots, health.Slot{Index: b.Slot, UUID: g.UUID, PCI: g.PCI})
		}
	}
	if watched {
		kept, _ := daemon.ReadHealth(m.Root) // the check health reports what is wrong with it
		_, verdicts, _ := health.Judge(health.State{}, in)
		return slices.DeleteFunc(verdicts, func(v health.Verdict) bool {
			// AMD's counters may include errors from before a reset, which only the daemon
			// knows.
			return v.Check == "gpu.ras" || slices.ContainsFunc(kept.Verdicts, func(k health.Verdict) bool { return k.Check == v.Check && k.GPU == v.GPU })
		}), nil
	}
	log := health.Kmsg{Path: m.Path("/dev/kmsg"), Once: true}
	err = log.Run(ctx, func(fact health.Fact) {
		// Errors that jobs cause are no fault of the GPU, and the job can no longer be
		// determined.
		caused := fact.Kind == health.KindRing || fact.Kind == health.KindFault ||
			fact.Kind == health.KindXid && health.LookupXid(fact.Xid).Class == health.XidApplication
		if !caused && len(in.Kernel) < maxFacts {
			in.Kernel = append(in.Kernel, fact)
		}
	})
	state, _, _ := health.Judge(health.State{}, in)
	in.Up, in.Now, in.Kernel = in.Up+time.Minute, in.Now.Add(time.Minute), nil
	_, verdicts, _ := health.Judge(state, in)
	return verdicts, err
}

// maxFacts limits how many facts from the kernel's log are judged.
const maxFacts = 10000
