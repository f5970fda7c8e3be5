package acceptance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/doctor"
	"github.com/gpu-mode/kbnode/internal/image"
)

const (
	backTime = 10 * time.Second // for an agent to be back
	pollTime = 100 * time.Millisecond

	// shown is how many of several failures are reported.
	shown = 3

	typeAgain = "sudo kbnode doctor --acceptance, when no job runs"
)

// items are in the order in which they are tried: quick ones first, and the one that ends
// an agent last.
var items = []item{
	{"image", "the jobs' image can be pulled", pull},
	{"doctor", "kbnode doctor finds the node fit", fit},
	{"agents", "the agent of each slot is connected", checks("sudo kbnode doctor --only agent,buildkite", "agent-running", "buildkite-queue", "buildkite-agents")},
	{"limits", "each slot's container gets its CPUs, its memory and one GPU", checks("sudo kbnode doctor --only slots", "container", "slot-limits")},
	{"isolation", "nothing escapes from a slot", isolation},
	{"evaluation", "an evaluation passes in each slot, one after the other", evaluations(false)},
	{"together", "evaluations pass in all slots at once", evaluations(true)},
	{"gpu", "the image computes on each slot's GPU", gpu},
	{"artifacts", "each evaluation left a result that the agent can upload", artifacts},
	{"restart", "a killed agent is back within 10 s", restart},
	{"build", "a build from Buildkite passes and has its artifacts", build},
}

func pull(ctx context.Context, r *run) Item {
	digest, err := r.Pull(ctx)
	switch {
	case errors.Is(err, image.ErrNoRegistry):
		return byHand("sudo kbnode image update, if a registry has it", "it was made or loaded here: %v", err)
	case err != nil:
		return failed("sudo kbnode image update", "%v", err)
	}
	return passed("%s", digest)
}

func fit(ctx context.Context, r *run) Item {
	report, err := r.Doctor(ctx)
	if err != nil {
		return failed("sudo kbnode doctor", "%v", err)
	}
	r.fit = report
	if !report.Fit {
		var wrong []string
		for _, c := range report.Checks {
			if c.Status == doctor.Fail {
				wrong = append(wrong, c.ID+": "+c.Summary())
			}
		}
		return failed("sudo kbnode doctor", "%s", summary(wrong))
	}
	return passed("%d checks are OK, %d warn", report.Count(doctor.OK), report.Count(doctor.Warn))
}

// checks sums up some of doctor's checks. At least one must be OK, and the first of them in
// all slots.
func checks(do string, ids ...string) func(context.Context, *run) Item {
	return func(_ context.Context, r *run) Item { return r.checked(do, ids) }
}

func (r *run) checked(do string, ids []string) Item {
	if r.fit == nil {
		return untried("sudo kbnode doctor", "cannot run kbnode doctor")
	}
	var well, wrong, left []string
	for n, id := range ids {
		i := slices.IndexFunc(r.fit.Checks, func(c doctor.Result) bool { return c.ID == id })
		if i < 0 {
			continue
		}
		c := r.fit.Checks[i]
		for _, f := range c.Findings {
			if n == 0 && f.Status == doctor.Skip {
				left = append(left, slotsPrefix(f.Slots)+f.Detail)
			}
		}
		switch {
		case c.Status == doctor.Fail:
			wrong = append(wrong, c.ID+": "+c.Summary())
		case c.Status == doctor.Skip && n == 0:
			left = append(left, c.ID+": "+c.Summary())
		case c.Status != doctor.Skip:
			well = append(well, c.ID+": "+c.Summary())
		}
	}
	switch {
	case len(wrong) > 0:
		return failed(do, "%s", summary(wrong))
	case len(left) > 0 || len(well) == 0:
		return untried(typeAgain, "%s", cmp.Or(summary(left), "it was not checked"))
	}
	return passed("%s", strings.Join(well, "; "))
}

func isolation(ctx context.Context, r *run) Item {
	reports, err := r.Selftest(ctx)
	if err != nil {
		return failed("sudo kbnode selftest", "%v", err)
	}
	tried := 0
	var wrong, left []string
	for _, s := range reports {
		for _, c := range s.Checks {
			if tried++; !c.Held {
				wrong = append(wrong, fmt.Sprintf("%s, %s: saw %s", s.Slot, c.Tried, c.Saw))
			}
		}
		if s.Skipped != "" {
			left = append(left, s.Slot+": "+s.Skipped)
		}
	}
	switch {
	case len(wrong) > 0:
		return failed("sudo kbnode selftest", "%s", summary(wrong))
	case len(left) > 0 || tried == 0:
		return untried(typeAgain, "%s", cmp.Or(summary(left), "there is no slot"))
	}
	return passed("%d attempts, all blocked", tried)
}

// evaluations evaluates in the slots, one after another or all at once.
func evaluations(atOnce bool) func(context.Context, *run) Item {
	return func(ctx context.Context, r *run) Item {
		all, err := r.Evaluate(ctx, atOnce)
		r.evaluations = append(r.evaluations, all...)
		if err != nil {
			return failed("sudo kbnode image list", "%v", err)
		}
		return evaluated(all)
	}
}

func evaluated(all []image.Evaluation) Item {
	var wrong, left, profiles, loose []string
	var took []float64
	for _, e := range all {
		profiles = append(profiles, e.Profile)
		if e.NotStrict != "" {
			loose = append(loose, e.Slot+": "+e.NotStrict)
		}
		switch {
		case e.Missed != "":
			left = append(left, e.Slot+": "+e.Missed)
		case !e.Passed:
			wrong = append(wrong, e.Slot+": "+e.Reason)
		}
		took = append(took, e.Seconds)
	}
	switch {
	case len(wrong) > 0:
		return failed("sudo kbnode doctor --only slots,image", "%s", summary(wrong))
	case len(left) > 0 || len(all) == 0:
		return untried(typeAgain, "%s", cmp.Or(summary(left), "there is no slot"))
	}
	saw := fmt.Sprintf("%d passed in profile %s, in %.1f to %.1f s", len(all), strings.Join(slices.Compact(slices.Sorted(slices.Values(profiles))), " and "), slices.Min(took), slices.Max(took))
	if len(loose) > 0 {
		saw += "; print pipelines with --profile compatible, because the image fails in the strict one in " + summary(loose)
	}
	return passed("%s", saw)
}

// gpu reports what the evaluations computed on. If the image has no library that uses GPUs,
// it is left to do by hand.
func gpu(_ context.Context, r *run) Item {
	counts := map[string]int{}
	var none []string
	for _, e := range r.evaluations {
		switch {
		case !e.Passed:
			return untried("see the evaluations", "not every evaluation passed")
		case e.Torch == "" || e.GPU == "":
			none = append(none, e.Slot)
		default:
			counts[e.GPU+", torch "+e.Torch]++
		}
	}
	switch {
	case len(r.evaluations) == 0:
		return untried("see the evaluations", "nothing was evaluated")
	case len(counts) == 0:
		return byHand("set image.name to the jobs' image", "the image has no torch that uses GPUs")
	case len(none) > 0:
		return failed("sudo kbnode doctor --only gpu,docker", "torch saw no GPU in %s", summary(none))
	case len(counts) > 1:
		var kinds []string
		for kind, n := range counts {
			kinds = append(kinds, fmt.Sprintf("%d x %s", n, kind))
		}
		slices.Sort(kinds)
		return failed("sudo kbnode inventory", "the slots differ: %s", summary(kinds))
	}
	for kind, n := range counts {
		return passed("%d x %s", n, kind)
	}
	return Item{}
}

func artifacts(_ context.Context, r *run) Item {
	var wrong []string
	n := 0
	for _, e := range r.evaluations {
		if e.Missed != "" {
			continue
		}
		if n++; !e.Uploadable {
			wrong = append(wrong, e.Slot)
		}
	}
	switch {
	case len(wrong) > 0:
		return failed("sudo kbnode doctor --only slots,image", "no result to upload in %s", summary(wrong))
	case n == 0:
		return untried("see the evaluations", "nothing was evaluated")
	}
	return passed("%d of %d result.json are complete, and the agent can read them", n, n)
}

// build is a check for Buildkite: an agent token cannot start a build.
func build(context.Context, *run) Item {
	return byHand("run kbnode e2e --org ORG --queue QUEUE where there is an API token; it starts builds in this queue and checks their results", "an agent's token cannot start one")
}

// summary returns a few of the texts, and how many more there are.
func summary(all []string) string {
	more := ""
	if n := len(all) - shown; n > 0 {
		all, more = all[:shown], fmt.Sprintf("; and %d more", n)
	}
	return strings.Join(all, "; ") + more
}

func slotsPrefix(slots []int) string {
	if len(slots) == 0 {
		return ""
	}
	return "slots " + cpuset.Of(slots...).String() + ": "
}
