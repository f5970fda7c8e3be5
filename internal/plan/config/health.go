package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// Health is what follows from faults of GPUs.
type Health struct {
	// WatchOnly keeps verdicts from draining slots. Default: they drain them.
	WatchOnly bool `yaml:"watch_only,omitempty"`
	// Xids say what follows from an Xid, in the form of xidForm. Default: as its class says.
	Xids []string `yaml:"xids,omitempty"`
	// Repeats is how many faults, in how many hours, keep a GPU out of service until an operator
	// returns it, or NoLimit. Default: DefaultRepeats.
	Repeats string `yaml:"repeats,omitempty"`
	// Proof is what a GPU that was out of service for a fault must pass before it takes jobs again:
	// ProofEvaluation, or NoLimit. Default: ProofEvaluation.
	Proof string `yaml:"proof,omitempty"`
}

// DefaultRepeats is what an empty Health.Repeats means.
const DefaultRepeats = "3/168h"

// ProofEvaluation is the Health.Proof that is a short evaluation in each of the GPU's slots.
const ProofEvaluation = "evaluation"

// Actions of an XidRule.
const (
	XidIgnore   = "ignore"
	XidWarn     = "warn"
	XidDegraded = "degraded"
	XidDrain    = "drain"
	XidPark     = "park"
)

// Rate is a number of times within hours. The zero value is never reached.
type Rate struct {
	Count int
	Hours int
}

// XidRule is what follows from an Xid, as an operator decided.
type XidRule struct {
	Xid    int
	Action string
	Rate   Rate // from which on; once, if it is zero
}

// HealthPolicy is Health as its reader needs it.
type HealthPolicy struct {
	WatchOnly bool
	Xids      []XidRule
	Repeats   Rate
	Proof     bool // GPUs must pass an evaluation after a fault
}

const maxXidRules = 16

const rateForm = `([1-9]|1[0-9]|20)/([1-9][0-9]{0,3})h`

var (
	repeatsForm = lazy.Regexp(`^(` + NoLimit + `|` + rateForm + `)$`)
	xidForm     = lazy.Regexp(`^([1-9][0-9]{0,3})=(ignore|warn|degraded|(drain|park)(@` + rateForm + `)?)$`)
)

// XidsOfJobs are the Xids that a job can cause at will. No configuration holds them against a GPU:
// one submission could take the node down.
var XidsOfJobs = []int{
	8, 11, 13, 25, 31, 32, 39, 40, 41, 43, 45, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85,
	86, 88, 89, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 126, 127, 128, 129, 130, 131, 132, 133,
	134, 135, 139, 142,
}

// Policy returns what h says. Validate has found nothing wrong with it.
func (h Health) Policy() HealthPolicy {
	p := HealthPolicy{WatchOnly: h.WatchOnly, Proof: h.Proof == ProofEvaluation}
	for _, s := range h.Xids {
		if part := xidForm().FindStringSubmatch(s); part != nil {
			action, _, _ := strings.Cut(part[2], "@")
			p.Xids = append(p.Xids, XidRule{number(part[1]), action, rateOf(part[5], part[6])})
		}
	}
	if part := repeatsForm().FindStringSubmatch(h.Repeats); part != nil {
		p.Repeats = rateOf(part[2], part[3])
	}
	return p
}

func rateOf(count, hours string) Rate {
	return Rate{number(count), number(hours)}
}

// number returns the number that a form has matched; 0 for "".
func number(digits string) int {
	n, _ := strconv.Atoi(digits)
	return n
}

func validateHealth(h Health, bad func(key, format string, args ...any)) {
	if len(h.Xids) > maxXidRules {
		bad("health.xids", "has %d entries; write at most %d", len(h.Xids), maxXidRules)
	}
	listed := map[int]bool{}
	for _, r := range h.Policy().Xids {
		switch {
		case listed[r.Xid]:
			bad("health.xids", "Xid %d is listed twice; list each once", r.Xid)
		case r.Xid == 79:
			bad("health.xids", "Xid 79 means that the GPU is gone, and nothing that is written here brings it back; leave it out")
		case r.Xid == 154:
			bad("health.xids", "Xid 154 is the driver's request for a reset or reboot, which is followed; leave it out")
		case r.Xid == 109 || slices.Contains(XidsOfJobs, r.Xid):
			bad("health.xids", "jobs cause Xid %d at will, and one could take the node out of service; leave it out", r.Xid)
		}
		listed[r.Xid] = true
	}
}

// String returns a rate for people: 3 in 7 days.
func (r Rate) String() string {
	switch hours := r.Hours; {
	case hours%24 == 0 && hours > 24:
		return fmt.Sprintf("%d in %d days", r.Count, hours/24)
	case hours == 1:
		return fmt.Sprintf("%d in an hour", r.Count)
	default:
		return fmt.Sprintf("%d in %d hours", r.Count, hours)
	}
}
