package node

import (
	"fmt"
	"slices"
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

// withLoan completes the plan p of in. Once the loan has ended, it drains the slots that are new: they must begin no job
// before the daemon drains them, too.
func (n *Node) withLoan(in plan.Input, p *plan.Plan) (*plan.Plan, error) {
	end, err := n.loanEnd(time.Local)
	if err != nil {
		return nil, err
	}
	if over := !end.IsZero() && !time.Now().Before(end); over {
		if n.Others == nil { // else the daemon has decided
			undrained := slices.DeleteFunc(slices.Clone(p.Slots), func(s plan.Slot) bool {
				return slices.ContainsFunc(n.Drains, func(d plan.Drain) bool { return d.Slot == s.Index && d.By == plan.ByLoan })
			})
			in.Drains = slices.Concat(n.Drains, plan.LoanDrains(undrained, end, true))
			if p, err = plan.Build(in); err != nil {
				return nil, err
			}
		}
		p.Warnings = append(p.Warnings, fmt.Sprintf("the loan ended at %s, so slots take no jobs; loan.until in %s says so", end.Format(plan.Dates), plan.ConfigPath))
	}
	p.LoanUntil = end
	return p, nil
}

// ends returns warnings about what ends soon: the loan, and this boot.
func (n *Node) ends(state *reconcile.State, now time.Time) (warnings []string) {
	if end, err := n.loanEnd(now.Location()); err == nil && end.After(now) && end.Sub(now) <= loanNotice {
		left := text.Count(int(end.Sub(now)/(24*time.Hour)), "day")
		switch {
		case end.Sub(now) < time.Hour:
			left = text.Count(int(end.Sub(now)/time.Minute), "minute")
		case end.Sub(now) < 24*time.Hour:
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
