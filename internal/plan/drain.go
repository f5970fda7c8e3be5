package plan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// DrainsPath records which slots operators and health verdicts have drained, so
// that this survives a reboot.
const DrainsPath = "/var/lib/kbnode/drains.json"

// ByOperator is the By of a slot that was drained with kbnode drain. Any other
// value is ByLoan or the ID of a health check.
const ByOperator = "operator"

// ByLoan is the By of slots of a machine whose loan has ended. Since is then the loan's end.
const ByLoan = "loan"

// Dates is how times that people wrote are shown: with their zone.
const Dates = "2006-01-02 15:04 MST"

// Drain makes a slot finish its job and take no more.
type Drain struct {
	Slot   int       `json:"slot"`
	By     string    `json:"by"`     // ByOperator, ByLoan, or the ID of a health check
	Reason string    `json:"reason"` // "" if an operator gave none
	Since  time.Time `json:"since"`
	// Until is when an operator's drain ends by itself; zero means never. A kbnode that does not know it keeps the drain.
	Until time.Time `json:"until,omitzero"`
	// Reboot is the kernel's ID of the boot that the machine is to leave as soon as no slot has a job: the drain ends in
	// the next one, unless Stays: then there was one before. "" means that no reboot was asked for.
	Reboot string `json:"reboot,omitempty"`
	Stays  bool   `json:"stays,omitempty"`
}

// What Drain.Reason says of a loan that has ended: surely, or by a clock that may be wrong.
const (
	loanOver    = "sudo kbnode uninstall"
	loanByClock = "the clock, which says so, is not synchronized yet"
)

// LoanDrains returns the drains of slots whose loan has ended. sure is false if only a clock says so that nothing has synchronized.
func LoanDrains(slots []Slot, end time.Time, sure bool) (drains []Drain) {
	reason := loanOver
	if !sure {
		reason = loanByClock
	}
	for _, s := range slots {
		drains = append(drains, Drain{Slot: s.Index, By: ByLoan, Reason: reason, Since: end})
	}
	return drains
}

// LoanOver reports whether drains are of a loan that has surely ended.
func LoanOver(drains []Drain) bool {
	return slices.ContainsFunc(drains, func(d Drain) bool { return d.By == ByLoan && d.Reason == loanOver })
}

// Wanted reports whether people want the drain, so that nothing is wrong.
func (d Drain) Wanted() bool { return d.By == ByOperator || d.By == ByLoan }

// RebootWaits reports whether the drain is for a reboot that has yet to come. The boot is "" if it is not known.
func (d Drain) RebootWaits(boot string) bool {
	return d.Reboot != "" && (boot == "" || d.Reboot == boot)
}

// Now returns what is left of a drain in a boot, and false if it has ended. reached reports whether a time has come.
func (d Drain) Now(boot string, reached func(time.Time) bool) (Drain, bool) {
	if d.Reboot != "" && !d.RebootWaits(boot) {
		if !d.Stays {
			return d, false
		}
		d.Reboot, d.Stays = "", false
	}
	if d.Until.IsZero() || !reached(d.Until) {
		return d, true
	}
	if d.Reboot == "" {
		return d, false
	}
	d.Until, d.Stays = time.Time{}, false // it holds until the reboot
	return d, true
}

// String returns the drain in one line: "drained by operator until the reboot: new fan".
func (d Drain) String() string {
	text := "drained by " + d.By
	switch {
	case d.By == ByLoan:
		return "drained: loan ended at " + d.Since.Format(Dates) + "; " + d.Reason
	case !d.Until.IsZero():
		text += " until " + d.Until.Format(Dates)
	case d.Reboot != "" && !d.Stays:
		text += " until the reboot"
	}
	if d.Reason != "" {
		text += ": " + d.Reason
	}
	return text
}

// drainsFile is the content of DrainsPath.
type drainsFile struct {
	WrittenBy string  `json:"written_by"`
	Schema    int     `json:"schema"`
	Drains    []Drain `json:"drains"`
}

// ParseDrains reads the content of DrainsPath.
func ParseDrains(text []byte) ([]Drain, error) {
	var f drainsFile
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("read drained slots %s: %w; delete the file to drain no slots", DrainsPath, err)
	}
	if f.Schema != Schema {
		return nil, errors.New("the drained slots in " + DrainsPath + " were written by another version of kbnode; delete the file and drain them again")
	}
	return f.Drains, nil
}

// RenderDrains returns the content of DrainsPath, sorted by slot and By.
func RenderDrains(drains []Drain) (string, error) {
	f := drainsFile{WrittenBy: "kbnode", Schema: Schema, Drains: slices.SortedFunc(slices.Values(drains), func(a, b Drain) int {
		return cmp.Or(a.Slot-b.Slot, cmp.Compare(a.By, b.By))
	})}
	return renderJSON("drained slots", f)
}

// AddDrain adds a drain. It replaces one of the same slot with the same By, whose Since stays. A reboot changes no
// other drain, but waits for it.
func AddDrain(drains []Drain, add Drain) []Drain {
	drains = slices.Clone(drains)
	for i, d := range drains {
		if d.Slot == add.Slot && d.By == add.By {
			if add.Reboot != "" {
				drains[i].Stays = d.Reboot == "" || d.Stays
				drains[i].Reboot = add.Reboot
				return drains
			}
			add.Since = d.Since
			drains[i] = add
			return drains
		}
	}
	return append(drains, add)
}

// Resume removes an operator's drain of a slot. While a reboot waits it takes back that, and leaves a drain that there was
// before.
func Resume(drains []Drain, slot int, boot string) []Drain {
	for i, d := range drains {
		if d.Slot == slot && d.By == ByOperator && d.Stays && d.RebootWaits(boot) {
			drains = slices.Clone(drains)
			drains[i].Reboot, drains[i].Stays = "", false
			return drains
		}
	}
	return RemoveDrain(drains, slot, ByOperator)
}

// RemoveDrain removes the drain of a slot with this By.
func RemoveDrain(drains []Drain, slot int, by string) []Drain {
	return slices.DeleteFunc(slices.Clone(drains), func(d Drain) bool { return d.Slot == slot && d.By == by })
}

// drainsOf returns the drains of one slot, an operator's first.
func drainsOf(drains []Drain, slot int) []Drain {
	var list []Drain
	for _, d := range drains {
		if d.Slot == slot {
			list = append(list, d)
		}
	}
	rank := map[string]int{ByOperator: -1}
	slices.SortStableFunc(list, func(a, b Drain) int {
		return cmp.Or(rank[a.By]-rank[b.By], a.Since.Compare(b.Since))
	})
	return list
}

// withoutSlot warns about drains by operators whose slot no longer exists: its GPU
// may be in another slot, and a later slot of that name would be drained. Health
// checks remove their own drains.
func (p *Plan) withoutSlot(drains []Drain) (warnings []string) {
	for _, d := range SlotlessDrains(p.Slots, drains) {
		name := SlotName(d.Slot)
		warnings = append(warnings, fmt.Sprintf("%s is %s, but does not exist now; a later %s will be drained unless you run sudo kbnode resume %s first", name, d, name, name))
	}
	return warnings
}

// SlotlessDrains returns the drains by operators whose slot does not exist now.
func SlotlessDrains(slots []Slot, drains []Drain) []Drain {
	return slices.DeleteFunc(slices.Clone(drains), func(d Drain) bool {
		return d.By != ByOperator || slices.ContainsFunc(slots, func(s Slot) bool { return s.Index == d.Slot })
	})
}
