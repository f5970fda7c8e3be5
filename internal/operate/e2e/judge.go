package e2e

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
)

// whole judges the result.json of a job that evaluates nothing. Its size and checksum were
// checked when it was fetched.
func whole(out submit.Outcome) (string, bool) {
	r := out.Result
	switch {
	case out.Verdict != submit.Passed || r == nil:
		return unlike(out), false
	case !r.Success || len(r.Runs) > 0 || r.System == nil || r.System.Hostname == "" || r.System.Platform == "":
		return "result.json came back, but is not what the job wrote", false
	}
	return fmt.Sprintf("result.json came back intact: %d bytes from %s", len(out.Raw), r.System.Hostname), true
}

// judged reports whether a submission came out as its kind should, and says why.
func judged(out submit.Outcome, kind Kind, mode string) (string, bool) {
	passed := out.Verdict == submit.Passed && out.Result != nil
	if passed {
		for _, name := range task.Runs(mode) {
			if run := runOf(out.Result, name); run == nil || !run.Passed {
				return fmt.Sprintf("the build passed without the run %s", name), false
			}
		}
	}
	switch {
	case passed && kind == Right:
		return out.Reason, true
	case passed && kind == Cheat && mode == "test":
		return "it passed, because mode test makes one call per case", true
	case passed:
		return "it passed and should not have: a pass here proves nothing", false
	case kind == Right || out.Verdict != submit.NotPassed:
		return unlike(out), false
	case refused(out.Result):
		return "caught: " + strings.TrimPrefix(out.Reason, "Not passed: "), true
	}
	return "it did not pass, but not because of its answers: " + unlike(out), false
}

// refused reports whether a run completed and found the submission wrong.
func refused(r *result.Result) bool {
	return r != nil && slices.ContainsFunc(r.Runs, func(e result.Pair[*result.Evaluation]) bool {
		return e.Value.Run != nil && e.Value.Run.Success && !e.Value.Run.Passed
	})
}

func runOf(r *result.Result, name string) *result.Run {
	if ev := r.Runs.Get(name); ev != nil {
		return ev.Run
	}
	return nil
}

func unlike(out submit.Outcome) string {
	return fmt.Sprintf("%s: %s", out.Verdict, strings.TrimPrefix(out.Reason, "Not passed: "))
}

// own reports whether a concurrent job came back with its own result, from the GPU of its agent.
func own(out submit.Outcome) (string, bool) {
	if out.Verdict != submit.Passed || out.Result == nil {
		return unlike(out), false
	}
	run := runOf(out.Result, "test")
	if run == nil || !run.Passed {
		return "the build passed without the run test", false
	}
	given, tagged := run.Result.Get("gpu"), buildkite.Tag(out.Tags, "gpu-uuid")
	switch {
	case run.Result.Get("run-id") != out.RunID:
		return fmt.Sprintf("its result is another job's: %.100q", run.Result.Get("run-id")), false
	case tagged != "" && uuid(given) && given != tagged:
		return fmt.Sprintf("it was given the GPU %.100q, but its agent has %.100q", given, tagged), false
	case gpu(out) == "":
		return "cannot tell which GPU it had: its agent has neither the tag gpu-uuid nor gpu-index and node, unlike kbnode's agents", false
	}
	return "its own result, on " + gpu(out), true
}

// uuid reports whether s is the UUID of exactly one GPU, or of part of one.
func uuid(s string) bool {
	return (strings.HasPrefix(s, "GPU-") || strings.HasPrefix(s, "MIG-")) && !strings.Contains(s, ",")
}

// gpu returns a unique name for the GPU that a job had, or "" if it is not known. A UUID moves
// with its GPU; an index is unique only within a node.
func gpu(out submit.Outcome) string {
	node, index := buildkite.Tag(out.Tags, "node"), buildkite.Tag(out.Tags, "gpu-index")
	if uuid := buildkite.Tag(out.Tags, "gpu-uuid"); uuid != "" {
		if part := buildkite.Tag(out.Tags, "gpu-part"); part != "" && index != "" {
			return uuid + ", " + part + " of slot " + index // all its partitions share the UUID
		}
		return uuid
	}
	if node == "" || index == "" {
		return ""
	}
	return "GPU " + index + " of " + node
}

// sideBySide reports whether all jobs ran, width of them at the same time, and each had its own
// agent and GPU.
func sideBySide(outcomes []submit.Outcome, width int) (string, bool) {
	ran := slices.DeleteFunc(slices.Clone(outcomes), func(out submit.Outcome) bool { return out.Started.IsZero() || out.Ended.IsZero() })
	agents, gpus, most := map[string]bool{}, map[string]bool{}, 0
	for i, a := range ran {
		agents[a.Agent], gpus[gpu(a)] = true, true
		running := 1 // when a began
		for j, b := range ran {
			if j == i || a.Started.Before(b.Started) || !a.Started.Before(b.Ended) {
				continue
			}
			running++
			switch {
			case a.Agent == b.Agent:
				return fmt.Sprintf("builds %d and %d ran at the same time on agent %s", b.Build, a.Build, a.Agent), false
			case gpu(a) != "" && gpu(a) == gpu(b):
				return fmt.Sprintf("builds %d and %d ran at the same time on %s, by the agents %s and %s", b.Build, a.Build, gpu(a), b.Agent, a.Agent), false
			}
		}
		most = max(most, running)
	}
	saw := fmt.Sprintf("%d of %d jobs ran, up to %d at the same time, on %d agents and %d GPUs", len(ran), len(outcomes), most, len(agents), len(gpus))
	switch {
	case len(ran) < len(outcomes):
		return saw, false
	case most < width:
		return fmt.Sprintf("%s; %d agents were free. Try again when no one else uses the queue, or with a longer --hold", saw, width), false
	}
	return saw, true
}
