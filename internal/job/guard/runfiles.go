package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/checkout"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// runPrefix begins the names of directories of jobs below the work root.
const runPrefix = "kbnode-"

// fill makes the job's directory with what its checkout has.
func (g *guard) fill(ctx context.Context, r *jobRun) error {
	c := r.spec.Checkout
	if c.Mode == job.CheckoutMirror && !job.Allows(g.policy.Repositories, c.Repository) {
		return forbid("BUILDKITE_REPO: %.200q is not a repository that this node allows; use one that is, or add it to agent.allowed_repositories in the node's "+plan.ConfigPath, c.Repository)
	}
	err := errors.Join(os.Mkdir(r.top, 0o700), os.Mkdir(r.checkout(), 0o755), chown(r.checkout(), g.jobUID, g.jobUID)) //nolint:gosec // its parent is root's alone
	for i, m := range r.spec.Mounts {
		if m.Source == "" {
			err = errors.Join(err, openDir(emptyDir(r.checkout(), i)))
		}
	}
	if err != nil {
		return fmt.Errorf("make a checkout: %w", err)
	}
	if c.Mode != job.CheckoutMirror {
		return nil
	}
	mirrors, err := g.mirrors()
	if err != nil {
		return err
	}
	_ = r.frames.Note("fetches %s of %s", c.Commit, c.Repository) // the reader may be gone
	to, err := os.OpenRoot(r.checkout())
	if err != nil {
		return fmt.Errorf("make a checkout: %w", err)
	}
	defer hangUp(to)
	_, err = mirrors.Checkout(ctx, checkout.Source{Repository: c.Repository, Commit: c.Commit, Branch: c.Branch}, to, g.jobUID, g.jobUID)
	return err
}

// nodeMirrors are the mirrors that all slots share. Without git's user there are none: git runs as
// no other.
func nodeMirrors() (checkout.Mirrors, error) { return userMirrors(plan.GitUser) }

func userMirrors(name string) (checkout.Mirrors, error) {
	uid, gid, err := slot.LookupUser(name)
	if err == nil && (uid == 0 || gid == 0) {
		err = fmt.Errorf("user %s is root; delete it, and run kbnode reconcile", name)
	}
	return checkout.Mirrors{Dir: plan.MirrorsDir, UID: uid, GID: gid}, err
}

// give gives the agent the job's files.
func (r *jobRun) give(o *slot.Outcome) error {
	// The job may have closed it.
	if err := os.Chmod(r.checkout(), 0o755); err != nil { //nolint:gosec // its artifacts are public
		return err
	}
	if err := os.Rename(r.checkout(), r.files()); err != nil {
		return err
	}
	o.Files = r.files()
	return nil
}

// pipelineFiles are where the agent looks for a pipeline. Source: clicommand/pipeline_upload.go.
var pipelineFiles = []string{
	"buildkite.yml", "buildkite.yaml", "buildkite.json", ".buildkite/pipeline.yml", ".buildkite/pipeline.yaml", ".buildkite/pipeline.json",
	"buildkite/pipeline.yml", "buildkite/pipeline.yaml", "buildkite/pipeline.json",
}

// givePipeline gives the agent the file of the checkout that it is to upload.
func (r *jobRun) givePipeline() (o slot.Outcome, err error) {
	names := pipelineFiles
	if r.spec.PipelineFile != "" {
		names = []string{r.spec.PipelineFile}
	}
	root, err := os.OpenRoot(r.checkout())
	if err != nil {
		return o, fmt.Errorf("read the pipeline: %w", err)
	}
	defer hangUp(root)
	var file fs.FileInfo
	there := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		info, err := root.Stat(name)
		if err == nil {
			file = info
		}
		return err != nil
	})
	switch {
	case len(there) == 0:
		return o, forbid("the checkout has no %s; write the path of the pipeline relative to the repository", strings.Join(names, ", "))
	case len(there) > 1:
		return o, forbid("the checkout has %s; write which one, as in buildkite-agent pipeline upload %s", strings.Join(there, " and "), there[0])
	case !file.Mode().IsRegular() || file.Size() > job.MaxPipeline:
		return o, forbid("%.100s is not a file of at most %d bytes; write the pipeline into one", there[0], job.MaxPipeline)
	}
	if err := r.give(&o); err != nil {
		return o, fmt.Errorf("read the pipeline: %w", err)
	}
	o.Pipeline = there[0]
	return o, nil
}
