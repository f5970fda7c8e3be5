package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gpu-mode/kbnode/internal/evaluate/noise"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/witness"
	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
)

// removeTime is how long the removal of a container may take: there may be many files in it.
const removeTime = time.Minute

// collect ends what a job left, and gives the agent the files that it may upload, or says why there are none.
func (g *guard) collect(r *jobRun, c *running, o *slot.Outcome) {
	g.tellUnrunnable(r.spec, c.id, o)
	err := g.settle(context.Background(), r, c, o)
	if err == nil {
		return
	}
	g.log.Warn("nothing is uploaded", "job", r.spec.JobID, "err", err)
	reason := "nothing is uploaded: " + err.Error()
	if _, own := errors.AsType[agent.LimitError](err); own || len(r.spec.Artifacts) == 0 {
		o.Reason = strings.TrimPrefix(o.Reason+"; "+reason, "; ")
	} else {
		o.Lost = reason
	}
}

// settle leaves of a job only what may be uploaded: no links out of the checkout, no pipes, and no result that was not
// finished.
func (g *guard) settle(ctx context.Context, r *jobRun, c *running, o *slot.Outcome) error {
	rec, recErr := r.record.read(ctx)
	rec.Profile, rec.Image, rec.Protection.Containers = c.profile, c.image, []noise.Container{c.protection}
	if o.ExitCode == exitKilled && o.NodeFault == "" && rec.Memory.Kills != nil && *rec.Memory.Kills > 0 {
		o.OutOfMemory = true // the engine misses some
	}
	patience := removeTime
	if o.Canceled && (o.NodeFault != "" || o.ExitCode == exitKilled) {
		patience = discardTime // the agent does not wait much longer
	}
	err := g.discardJob(c.id, patience)
	if err == nil { // the engine may have lost it
		_, err = g.procs.endBeside(ctx)
	}
	if err != nil {
		r.left = true
		return fmt.Errorf("something may still run: %w", err)
	}
	if len(r.spec.Artifacts) == 0 {
		return nil
	}
	status := strconv.Itoa(o.ExitCode)
	if o.NodeFault != "" {
		status = "-1"
	}
	// Before Sift, which removes links to what is gone.
	rec.Implausible, err = witness.Take(r.checkout(), status)
	switch {
	case err != nil && len(rec.Implausible) == 0: // none would say that nothing was found
		rec.Implausible = []witness.Finding{{Evaluation: "all evaluations", Reason: "what the runner found cannot be read"}}
	case err == nil && len(rec.Implausible) > 0:
		err = slot.CountImplausible(g.runDir())
	}
	if err != nil {
		g.log.Warn("what is implausible about the job is not known", "job", r.spec.JobID, "err", err)
	}
	forged, err := agent.Sift(ctx, r.checkout(), r.spec.Artifacts, status, o.Canceled)
	if err != nil {
		return err
	}
	if len(forged) > 0 {
		o.Reason = strings.TrimPrefix(o.Reason+fmt.Sprintf("; %.200q is not uploaded: only the job's own may have that name, at the top of the checkout; name another file differently", forged), "; ")
	}
	if recErr == nil {
		recErr = writeRecord(r.checkout(), rec)
	}
	if recErr != nil { // as on a full disk
		g.log.Warn("no node.json", "job", r.spec.JobID, "err", recErr)
	}
	return r.give(o)
}

// writeRecord writes node.json, which is not there, as a whole or not at all: the job may have filled the disk.
func writeRecord(dir string, rec noise.Record) error {
	text, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(dir, result.NodeFile), append(text, '\n'), 0o644)
}
