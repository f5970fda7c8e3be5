package node

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/selftest"
	"github.com/gpu-mode/kbnode/internal/text"
)

// SelftestReport is the JSON of kbnode selftest; docs/security.md describes it.
type SelftestReport struct {
	Node  string                `json:"node"`
	Held  bool                  `json:"held"`
	Slots []selftest.SlotReport `json:"slots"` // the node itself first
}

// Selftest tries to break out of slots of this node, or of all of them if none is named.
func (n *Node) Selftest(ctx context.Context, slots []int) (*SelftestReport, error) {
	host, err := n.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	state, err := n.LookLocked(ctx, host.Host)
	if err != nil {
		return nil, err
	}
	for _, k := range slots {
		if !slices.ContainsFunc(n.Plan.Slots, func(s plan.Slot) bool { return s.Index == k }) {
			return nil, config.BadInput("--slot %d: this node has no such slot; kbnode status lists them", k)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find kbnode's own path: %w", err)
	}
	slots = slices.Compact(slices.Sorted(slices.Values(slots)))
	reports, err := selftest.Run(ctx, selftest.Options{
		Plan: n.Plan, State: state, Changes: reconcile.Diff(n.Plan, state), Slots: slots,
		Binary: exe, Program: host.Bus.RunProgram, Log: n.Log,
		Progress: func(slot, doing string) { n.say("%s", strings.TrimPrefix(slot+": "+doing, ": ")) },
	})
	if err != nil {
		return nil, err
	}
	out := &SelftestReport{Node: n.Plan.Node, Slots: reports, Held: true}
	tried := false
	for _, r := range reports {
		out.Held = out.Held && r.Held()
		tried = tried || r.Index >= 0 && r.Skipped == ""
	}
	out.Held = out.Held && tried
	return out, nil
}

// Verdict returns the last line for people.
func (out *SelftestReport) Verdict() string {
	tried, skipped, bad := 0, 0, []string{}
	for _, r := range out.Slots {
		switch {
		case !r.Held():
			bad = append(bad, r.Slot)
		case r.Index >= 0 && r.Skipped == "":
			tried++
		}
		if r.Skipped != "" {
			skipped++
		}
	}
	left := ""
	if skipped > 0 {
		left = fmt.Sprintf("; %d %s skipped", skipped, text.Plural(skipped, "slot was", "slots were"))
	}
	switch {
	case len(bad) > 0:
		return "NOT HELD: " + strings.Join(bad, ", ") + left + "."
	case tried == 0:
		return "No slot could be tried, all are busy or parked; try again when one is idle."
	}
	return fmt.Sprintf("Everything held in %s%s.", text.Count(tried, "slot"), left)
}
