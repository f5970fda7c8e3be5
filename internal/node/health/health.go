// Package health judges GPUs and the node: signals in, verdicts out.
//
// Judge is pure: it reads no file, clock or environment. It remembers the past in its
// State, which is small and can be stored as JSON, so that a restarted daemon continues
// where it stopped. Package signals reads the signals. A daemon does this:
//
//	in := health.Signals{Moment: now, Slots: slots, Kernel: what came from signals.Kmsg}
//	in.GPUs, in.Node = …        // every 30 s; nil when only lines of the kernel came
//	state, verdicts, events = health.Judge(state, in)
//
// Signals that were not read keep their last verdict, good or bad. The first call after a
// start should have all of them. A lost State rebuilds itself: signals.Kmsg begins with the oldest
// line of this boot.
package health

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
)

// Level is how bad something is.
type Level int

// The levels, in order.
const (
	OK       Level = iota
	Info           // worth knowing, normal
	Warn           // someone should look; jobs run normally
	Degraded       // jobs run; their measurements may be wrong
	Fatal          // jobs fail, or their results may be wrong
)

// Effect is what a verdict does to a slot. No effect ends a running job.
type Effect int

// The effects, in order.
const (
	None  Effect = iota
	Drain        // the slot finishes its job and takes no more
	Park         // the same, and the GPU cannot be used until the cause is gone
)

var (
	levels  = []string{"ok", "info", "warn", "degraded", "fatal"}
	effects = []string{"none", "drain", "park"}
)

func (l Level) String() string  { return levels[l] }
func (e Effect) String() string { return effects[e] }

// MarshalText writes a level as its name.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// MarshalText writes an effect as its name.
func (e Effect) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText parses the name of a level.
func (l *Level) UnmarshalText(text []byte) error { return parseName(l, levels, text) }

// UnmarshalText parses the name of an effect.
func (e *Effect) UnmarshalText(text []byte) error { return parseName(e, effects, text) }

func parseName[T ~int](to *T, names []string, text []byte) error {
	i := slices.Index(names, string(text))
	if i < 0 {
		return fmt.Errorf("read health: unknown name %.20q", text)
	}
	*to = T(i)
	return nil
}

// Moment is a point in time by three clocks.
type Moment struct {
	Now  time.Time     `json:"now"`  // wall clock; only shown to people
	Up   time.Duration `json:"up"`   // since the boot (CLOCK_MONOTONIC), ns; measures all delays
	Boot string        `json:"boot"` // the kernel's boot ID
}

// Signals is everything that is known at one moment.
type Signals struct {
	Moment
	Slots  []Slot // all slots of the plan
	Kernel []Fact // since the last call, in order; facts that were already judged are skipped
	GPUs   *GPUs  // nil: not read this time
	Node   *Node  // nil: not read this time
	// ResetByHand maps GPUs, by UUID or PCI address, that an operator reports as reset, when
	// no signal shows it, to the time of the reset by Moment.Up.
	ResetByHand map[string]time.Duration
	// Returned maps GPUs, likewise, that an operator returns to service despite their faults.
	Returned map[string]time.Duration
	// Out is why slots were out of service for their GPUs' faults before the State was lost, by slot, and Faults the check
	// that kept them out of service then.
	Out, Faults map[int]string
	Evaluations []Evaluation // that ended since the last call
	Policy      config.HealthPolicy
}

// Slot is a slot as far as health needs it. A slot with several GPUs is listed once for
// each.
type Slot struct {
	Index  int
	UUID   string // of its GPU, as recorded; "" if it could never be read
	PCI    string // dddd:bb:dd.f; "" for a slot without a GPU
	Job    string // ID of the running job; "" if there is none
	Agent  string // why its agent is not connected; "" if it is, or need not be
	Limits string // how its limits differ from the plan; "" if they do not
	// Unread lists the checks, of Agent and Limits, that could not be read this time.
	Unread []string
}

// GPUs is one reading of the GPUs.
type GPUs struct {
	Started time.Duration // Moment.Up when the reading began
	List    []inventory.GPU
	NVIDIA  *inventory.NVIDIA
	Bus     map[string]Bus // by PCI address; see signals.ReadBus
	Unread  []string       // subjects of the inventory that could not be read
}

// unread reports whether a GPU may be at an address although the list has none there.
func (g *GPUs) unread(pci string) bool {
	return !slices.ContainsFunc(g.List, func(g inventory.GPU) bool { return g.PCI == pci }) &&
		(slices.Contains(g.Unread, inventory.SubjectGPUs) || slices.Contains(g.Unread, inventory.GPUSubject(pci)))
}

// Bus is what sysfs has of a GPU beyond the inventory.
type Bus struct {
	Unread bool              // reading takes too long; the rest is unknown
	Dead   bool              // its PCI configuration reads as ones
	RAS    map[string]uint64 // AMD: uncorrected errors by block (umc, gfx, …) since its driver was loaded
	Link   *nvml.PCIe        // AMD: its PCIe link; nil if not reported

	Telemetry Telemetry // AMD; NVML has that of others
}

// Telemetry is what metrics tell of a GPU's work. Nothing is judged by it, and what is not reported is nil.
type Telemetry struct {
	nvml.Sample
	MemoryClock *uint32 // MHz
	PowerLimit  *uint32 // mW
}

// ReadGPUs is the caller's name for its reading of the GPUs. The driver's files hang under names of their own.
const ReadGPUs = "GPUs"

// Node is one reading of the node.
type Node struct {
	Disks     []inventory.DiskFree
	Docker    string   // why the engine does not answer; "" if it does
	Clock     Clock    // the kernel's clock
	CDIDriver string   // driver version named in NVIDIA's CDI specification; "" if there is none
	Down      []string // units that should run but do not: nvidia-fabricmanager.service
	Overdue   []string // reads that have not returned yet, such as ReadGPUs
	// Unread is what could not be read this time: paths of Disks, and checks whose fields
	// above are not valid.
	Unread []string
}

// Clock reports whether the wall clock is synchronized.
type Clock int

// The states of a Clock.
const (
	ClockUnknown Clock = iota
	ClockSynchronised
	ClockAdrift
)

// Verdict is one problem, for as long as it lasts.
type Verdict struct {
	Check  string    `json:"check"`         // one of Checks
	GPU    string    `json:"gpu,omitempty"` // UUID, else PCI address; "" for the node
	Slots  []int     `json:"slots,omitempty"`
	Level  Level     `json:"level"`
	Effect Effect    `json:"effect"` // on Slots
	Reason string    `json:"reason"` // a sentence
	Fix    string    `json:"fix"`    // what to do or type
	Since  time.Time `json:"since"`
}

// Event is something that happened: a verdict began, changed or ended, or the kernel
// logged something that is not a verdict.
type Event struct {
	Time  time.Time `json:"time"`
	Kind  string    `json:"kind"` // "raised", "changed", "cleared", "kernel", "clock"
	Check string    `json:"check"`
	GPU   string    `json:"gpu,omitempty"`
	Slot  int       `json:"slot"` // -1 for the node, and for GPUs with no slot or several
	Level Level     `json:"level"`
	Job   string    `json:"job,omitempty"` // job that caused the kernel's line: flag its result
	Text  string    `json:"text"`          // a sentence
}

// Checks are the stable IDs of all verdicts; docs/health.md has a row for each.
var Checks = []string{
	checkRecovery, checkLost, checkMissing, checkError, checkGPUNVML, checkXid, checkECC, checkRemap,
	checkThrottle, checkThermal, checkFabric, checkNVLink, checkPCIe, checkRAS, checkReset, CheckRepeats, CheckProof,
	CheckDriver, checkNVML, checkSwitch, checkDisk, CheckDocker, checkClock, CheckUnit, checkOverdue, CheckAgent, CheckLimits,
}

const (
	checkRecovery = "gpu.recovery"
	checkLost     = "gpu.lost"
	checkMissing  = "gpu.missing"
	checkError    = "gpu.error"
	checkGPUNVML  = "gpu.nvml"
	checkXid      = "gpu.xid"
	checkECC      = "gpu.ecc"
	checkRemap    = "gpu.remap"
	checkThrottle = "gpu.throttle"
	checkThermal  = "gpu.thermal"
	checkFabric   = "gpu.fabric"
	checkNVLink   = "gpu.nvlink"
	checkPCIe     = "gpu.pcie"
	checkRAS      = "gpu.ras"
	checkReset    = "gpu.reset"
	checkNVML     = "node.nvml"
	checkSwitch   = "node.nvswitch"
	checkDisk     = "node.disk"
	checkOverdue  = "node.overdue"
	checkClock    = "node.clock"
)

// The checks whose signals the caller reads, and may report as unread.
const (
	CheckDriver = "node.driver"
	CheckDocker = "node.docker"
	CheckUnit   = "node.unit"
	CheckAgent  = "slot.agent"
	CheckLimits = "slot.limits"
)

// CheckRepeats is the check whose verdict ends only when an operator says so.
const CheckRepeats = "gpu.repeats"

// CheckProof is the check whose verdict ends when an evaluation has passed, or an operator says so.
const CheckProof = "gpu.proof"

// Holding returns the strongest verdict that keeps jobs from a slot; ok is false if there
// is none.
func Holding(verdicts []Verdict, slot int) (v Verdict, ok bool) {
	for _, w := range verdicts {
		if w.Effect > None && slices.Contains(w.Slots, slot) && (!ok || cmp.Or(cmp.Compare(w.Effect, v.Effect), cmp.Compare(w.Level, v.Level)) > 0) {
			v, ok = w, true
		}
	}
	return v, ok
}
