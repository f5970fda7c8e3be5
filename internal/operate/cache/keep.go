package cache

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/noise"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// ForgetOf removes what answers a request on agents such as the one that has just evaluated it, if that is known.
func (c *Cache) ForgetOf(at string, r submit.Request, out submit.Outcome) error {
	kind, err := kindOf(out.Tags)
	if err != nil {
		return nil //nolint:nilerr // then nothing is kept for it
	}
	k, err := KeyOf(at, r, kind)
	if err != nil {
		return err
	}
	return c.Forget(k)
}

// Keep puts the outcome of a request into the cache, or says why it does not belong there. An outcome that is no verdict is
// left out without a word. at is the address of Buildkite's API.
func (c *Cache) Keep(at string, r submit.Request, out submit.Outcome, now time.Time) error {
	if out.Verdict != submit.Passed && out.Verdict != submit.NotPassed {
		return nil
	}
	if err := quiet(out); err != nil {
		return err
	}
	kind, err := kindOf(out.Tags)
	if err != nil {
		return fmt.Errorf("agent %s: %w", out.Agent, err)
	}
	k, err := KeyOf(at, r, kind)
	if err != nil {
		return err
	}
	return c.Put(k, out, now)
}

// quiet returns why a job's result is not that of the next one: what the node's record says, which no job can write.
func quiet(out submit.Outcome) error {
	var node noise.Record
	switch {
	case out.NodeErr != nil:
		return out.NodeErr
	case len(out.Node) == 0:
		return fmt.Errorf("the node left no %s", result.NodeFile)
	}
	if err := json.Unmarshal(out.Node, &node); err != nil {
		return fmt.Errorf("read %s: %w", result.NodeFile, err)
	}
	tag := buildkite.Tag(out.Tags, plan.ImageTag)
	switch {
	case node.Schema != noise.Schema:
		return fmt.Errorf("%s is of another version of kbnode", result.NodeFile)
	case node.Noisy:
		return errors.New("the node disturbed the job")
	case out.Verdict != submit.Passed && node.Memory.Kills == nil:
		return fmt.Errorf("%s does not say whether memory ran out", result.NodeFile)
	case len(node.Implausible) > 0:
		return errors.New("the job reported times that cannot be")
	case !node.Image.Kept:
		return errors.New("the job's image is none that its node keeps up to date: its node needs image.auto_update, and the image must be image.name there")
	case plan.ShortImage(node.Image.ID) != tag || tag == "":
		return errors.New("the job's image is not the one that its agent's tags name: the node has just changed it")
	}
	return nil
}

var errIncomplete = errors.New("it is not what the tests found")

// died reports whether a judge says that the submission's process ended, as that of the examples does, which itself ends as
// after a wrong output. A fault of the node or the GPU may have ended the process.
func died(m result.Pair[string]) bool {
	return strings.HasPrefix(m.Key, "test.") && strings.HasSuffix(m.Key, ".error") &&
		(strings.HasPrefix(m.Value, "signal ") || strings.HasPrefix(m.Value, "the submission ended its process"))
}

// complete returns why an outcome is not what the check of the task's program found. The time limit, a signal, or a
// compiler may end the same submission in another way the next time.
func complete(out submit.Outcome) error {
	switch {
	case out.Result == nil || out.State != "passed" || out.Exit == nil || *out.Exit != 0:
		return errIncomplete
	case !out.Result.Success || len(out.Result.Runs) != 1 || out.Result.Runs[0].Key != Mode:
		return errIncomplete
	}
	_, passed := out.Result.Verdict()
	ran := out.Result.Runs[0].Value.Run
	if ran != nil && !passed && slices.ContainsFunc(ran.Result, died) {
		return errIncomplete
	}
	switch {
	case ran == nil || !ran.Success || ran.Passed != (ran.ExitCode == 0) || !ran.Passed && ran.ExitCode != result.ExitWrong:
		return errIncomplete
	case passed != ran.Passed || passed != (out.Verdict == submit.Passed) || !passed && out.Verdict != submit.NotPassed:
		return errIncomplete
	}
	return nil
}
