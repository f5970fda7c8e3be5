package node

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// loanNotice is how long before its end status warns of a loan's end.
const loanNotice = 7 * 24 * time.Hour

// loanEnd returns when the loan ends, and the zero time if never. A time without a zone is in loc.
func (n *Node) loanEnd(loc *time.Location) (time.Time, error) {
	if n.Config.Loan.Until == "" {
		return time.Time{}, nil
	}
	return text.ParseDate(n.Config.Loan.Until, loc)
}

// ends returns warnings about what ends soon: the loan, and this boot.
func (n *Node) ends(state *reconcile.State, now time.Time) (warnings []string) {
	if end, err := n.loanEnd(now.Location()); err == nil && end.After(now) && end.Sub(now) <= loanNotice {
		left := text.Count(int(end.Sub(now)/(24*time.Hour)), "day")
		if end.Sub(now) < 24*time.Hour {
			left = text.Count(int(end.Sub(now)/time.Hour), "hour")
		}
		warnings = append(warnings, fmt.Sprintf("the loan ends in %s, at %s: slots then finish their jobs and take no more; loan.until in %s says so", left, end.Format(plan.Dates), plan.ConfigPath))
	}
	if !rebootPending(n.Drains) {
		return warnings
	}
	var waits []string
	for _, ss := range state.Slots { // also of those that are no longer planned
		if busy := ss.Busy(); busy != "" {
			waits = append(waits, busy)
		} else if ss.Agent.Running() {
			waits = append(waits, "the agent of slot "+ss.Name)
		}
	}
	if len(waits) == 0 {
		return append(warnings, "the machine reboots now")
	}
	return append(warnings, fmt.Sprintf("the machine reboots when its slots are idle: it waits for %s; sudo kbnode resume --all cancels that", strings.Join(waits, ", ")))
}
