package config

import (
	"fmt"
	"strconv"
)

// Hygiene is what is set on the machine so that timings are steady.
type Hygiene struct {
	// Disabled leaves the machine's settings alone and puts back those that were
	// changed. Default: they are set.
	Disabled bool `yaml:"disabled,omitempty"`
	// Clocks are the SM clocks that GPUs are locked to: ClocksDefault, ClocksBase
	// or a number of MHz. Default: ClocksDefault.
	Clocks string `yaml:"clocks,omitempty"`
}

// Words of Hygiene.Clocks.
const (
	ClocksDefault = "default" // not locked
	ClocksBase    = "base"    // what a GPU sustains within its power limit
)

// Bounds of a clock in MHz. Only its driver knows what a GPU supports.
const (
	minClock = 100
	maxClock = 10_000
)

// problem returns what is wrong with the clocks; "" if nothing is.
func (h Hygiene) problem() string {
	switch h.Clocks {
	case "", ClocksDefault, ClocksBase:
		return ""
	}
	if n, err := strconv.Atoi(h.Clocks); err != nil || n < minClock || n > maxClock || strconv.Itoa(n) != h.Clocks {
		return fmt.Sprintf("%q is not a clock setting; write %s, %s or a number of MHz such as 1410", h.Clocks, ClocksDefault, ClocksBase)
	}
	return ""
}
