// Package health judges GPUs and the node: signals in, verdicts out.
//
// Judge is pure: it reads no file, clock or environment. What it knows of the past
// is its State, which is JSON and small, so that a daemon that was restarted goes
// on where it stopped. The readers beside it are Kmsg (the kernel's log, as Facts),
// ReadBus and ReadNode; the GPUs come from package inventory, whose probe of NVML
// has a deadline. A daemon does this:
//
//	in := health.Signals{Moment: now, Slots: slots, Kernel: what came from Kmsg.Run}
//	in.GPUs, in.Node = …        // every 30 s; nil when only lines of the kernel came
//	state, verdicts, events = health.Judge(state, in)
//
// What was not read stays as it was judged last: no news is no good news. The first
// call after a start should have everything. A State that is lost heals, but for
// the past of application errors: Kmsg begins with the oldest line of this boot.
package health

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/inventory"
)

// Level says how bad something is.
type Level int

// The levels, in order.
const (
	OK       Level = iota
	Info           // worth knowing, normal
	Warn           // somebody should look; jobs run as they should
	Degraded       // jobs run; what they measure may be wrong
	Fatal          // jobs fail, or what they compute may be wrong
)

// Effect is what a verdict does to a slot. None of them ends a running job.
type Effect int

// The effects, in order.
const (
	None  Effect = iota
	Drain        // the slot finishes its job and takes no more
	Park         // the same, and there is nothing to be had from its GPU until the cause is gone
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

// UnmarshalText reads the name of a level.
func (l *Level) UnmarshalText(text []byte) error {
	i := slices.Index(levels, string(text))
	*l = Level(max(i, 0))
	return unknownIf(i < 0, "level", text)
}

// UnmarshalText reads the name of an effect.
func (e *Effect) UnmarshalText(text []byte) error {
	i := slices.Index(effects, string(text))
	*e = Effect(max(i, 0))
	return unknownIf(i < 0, "effect", text)
}

func unknownIf(unknown bool, what string, text []byte) error {
	if unknown {
		return fmt.Errorf("read health: unknown %s %.20q", what, text)
	}
	return nil
}

// Moment is a point in time by three clocks.
type Moment struct {
	Now  time.Time     `json:"now"`  // wall clock; only shown to people
	Up   time.Duration `json:"up"`   // since the boot (CLOCK_MONOTONIC), ns; all waiting is measured by it
	Boot string        `json:"boot"` // the kernel's boot ID
}

// Signals is all that is known at one moment.
type Signals struct {
	Moment
	Slots  []Slot // all that the plan has
	Kernel []Fact // since the last call, in order; facts that were judged before are skipped
	GPUs   *GPUs  // nil: not read this time
	Node   *Node  // nil: not read this time
	// Mended are GPUs, by UUID or PCI address, that an operator says to have reset,
	// where no signal tells of it, and when he did, by Moment.Up.
	Mended map[string]time.Duration
}

// Slot is a slot as far as health needs it. One of several GPUs is in a list of
// slots once for each.
type Slot struct {
	Index  int
	UUID   string // of its GPU, as recorded; "" where it could never be read
	PCI    string // dddd:bb:dd.f; "" for a slot without a GPU
	Job    string // ID of the job that runs in it, "" without
	Agent  string // why its agent is not connected; "" if it is, or need not be
	Limits string // how its limits differ from the plan; "" if they do not
	// Unread are those of Agent and Limits that could not be read this time, by check.
	Unread []string
}

// GPUs is what one reading of the GPUs saw.
type GPUs struct {
	Started time.Duration // Moment.Up when the reading began
	List    []inventory.GPU
	NVIDIA  *inventory.NVIDIA
	Bus     map[string]Bus // by PCI address; see ReadBus
}

// Bus is what sysfs tells of a GPU beside the inventory.
type Bus struct {
	Unread   bool           // reading it takes too long; the rest is unknown
	Dead     bool           // its PCI configuration reads as ones
	RAS      map[string]RAS // AMD: error counters by block (umc, gfx, …)
	BadPages int            // AMD: bad pages of its memory
	Waiting  int            // AMD: of them, those that are in use still
	Link     *Link          // AMD: its PCIe link; nil where nothing tells
}

// Link is a PCIe link. What nothing tells is nil.
type Link struct {
	Width, MaxWidth *int // lanes
	Replays         *int // packets sent again, since the driver was loaded
}

// RAS counts errors of one block of an AMD GPU since its driver was loaded.
type RAS struct{ Uncorrected, Corrected uint64 }

// Node is what one reading of the node saw.
type Node struct {
	Disks     []inventory.DiskFree
	Docker    string   // why the engine does not answer; "" if it does
	Clock     Clock    // of the kernel
	CDIDriver string   // driver version that NVIDIA's CDI specification names; "" without one
	Down      []string // units that should run and do not: nvidia-fabricmanager.service
	Overdue   []string // reads that have not returned
	// Unread is what could not be read this time: paths of Disks, and checks, of whose
	// signals the fields above say nothing.
	Unread []string
}

// Clock is whether something keeps the wall clock right.
type Clock int

// The states of a Clock.
const (
	ClockUnknown Clock = iota
	ClockSynchronised
	ClockAdrift
)

// Verdict is one thing that is wrong, until it is not.
type Verdict struct {
	Check  string    `json:"check"`         // its stable ID, one of Checks
	GPU    string    `json:"gpu,omitempty"` // UUID, or PCI address where that is unknown; "" for the node
	Slots  []int     `json:"slots,omitempty"`
	Level  Level     `json:"level"`
	Effect Effect    `json:"effect"` // on Slots
	Reason string    `json:"reason"` // a sentence
	Fix    string    `json:"fix"`    // what to do, or to type
	Since  time.Time `json:"since"`
}

// Event is something that happened: a verdict began, changed or ended, or the
// kernel told something that is no verdict.
type Event struct {
	Time  time.Time `json:"time"`
	Kind  string    `json:"kind"` // "raised", "changed", "cleared", "kernel", "clock"
	Check string    `json:"check"`
	GPU   string    `json:"gpu,omitempty"`
	Slot  int       `json:"slot"` // -1 for the node, and for GPUs of no slot or several
	Level Level     `json:"level"`
	Job   string    `json:"job,omitempty"` // that the kernel's line is about: flag its result
	Text  string    `json:"text"`          // a sentence
}

// Checks are the stable IDs of all verdicts; docs/health.md has a row for each.
var Checks = []string{
	checkRecovery, checkLost, checkMissing, checkError, checkXid, checkECC, checkRemap, checkRetired,
	checkThrottle, checkThermal, checkFabric, checkNVLink, checkPCIe, checkMode, checkDirty, checkRAS, checkReset,
	checkDriver, checkNVML, checkPersistence, checkSwitch, checkDisk, CheckDocker, checkClock, CheckUnit, checkOverdue, CheckAgent, CheckLimits,
}

const (
	checkRecovery    = "gpu.recovery"
	checkLost        = "gpu.lost"
	checkMissing     = "gpu.missing"
	checkError       = "gpu.error"
	checkXid         = "gpu.xid"
	checkECC         = "gpu.ecc"
	checkRemap       = "gpu.remap"
	checkRetired     = "gpu.retired"
	checkThrottle    = "gpu.throttle"
	checkThermal     = "gpu.thermal"
	checkFabric      = "gpu.fabric"
	checkNVLink      = "gpu.nvlink"
	checkPCIe        = "gpu.pcie"
	checkMode        = "gpu.mode"
	checkDirty       = "gpu.dirty"
	checkRAS         = "gpu.ras"
	checkReset       = "gpu.reset"
	checkDriver      = "node.driver"
	checkNVML        = "node.nvml"
	checkPersistence = "node.persistence"
	checkSwitch      = "node.nvswitch"
	checkDisk        = "node.disk"
	checkOverdue     = "node.overdue"
	checkClock       = "node.clock"
)

// The checks whose signals a caller reads, and may name as unread.
const (
	CheckDocker = "node.docker"
	CheckUnit   = "node.unit"
	CheckAgent  = "slot.agent"
	CheckLimits = "slot.limits"
)

// Holding is the strongest of the verdicts that keep jobs from a slot; ok is false
// if there is none.
func Holding(verdicts []Verdict, slot int) (v Verdict, ok bool) {
	for _, w := range verdicts {
		if w.Effect > None && slices.Contains(w.Slots, slot) && (!ok || cmp.Or(cmp.Compare(w.Effect, v.Effect), cmp.Compare(w.Level, v.Level)) > 0) {
			v, ok = w, true
		}
	}
	return v, ok
}
