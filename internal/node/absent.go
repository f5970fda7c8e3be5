package node

import (
	"strings"

	"github.com/gpu-mode/kbnode/internal/node/daemon"
	"github.com/gpu-mode/kbnode/internal/node/standin"
)

// ShowAbsent has Buildkite show which slots take no jobs, and why. A pass that did not see the slots changes nothing.
func ShowAbsent(keeper *standin.Keeper, s daemon.Snapshot) {
	if absent, ok := absentSlots(s); ok {
		keeper.Update(s.Service, absent)
	}
}

// absentSlots returns the slots that take no jobs, as a pass of the daemon saw them. ok is false if it did not see them.
func absentSlots(s daemon.Snapshot) (absent []standin.Absence, ok bool) {
	if s.Service.Endpoint == "" || s.Plan == nil || s.State == nil {
		return nil, false
	}
	for i, row := range StatusOf(s.Plan, s.State, nil).Slots {
		a := standin.Absence{Agent: s.Plan.Slots[i].Agent, Tags: s.Plan.Slots[i].Tags, State: row.Agent}
		switch row.Agent {
		case "drained":
			var drains []string
			for _, d := range row.Drains {
				if a.Since.IsZero() || d.Since.Before(a.Since) {
					a.Since = d.Since
				}
				drains = append(drains, strings.TrimLeft(strings.TrimPrefix(d.String(), "drained"), ": "))
			}
			a.Reason = strings.Join(drains, "; ")
		case "parked":
			a.Reason = strings.Join(row.Problems, "; ")
		case "failed":
			a.Reason = "its agent fails; sudo kbnode status on the node shows why"
		default:
			continue
		}
		absent = append(absent, a)
	}
	return absent, true
}
