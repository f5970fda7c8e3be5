package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/gpu-mode/kbnode/internal/checkout"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/internal/tree"
)

// runPrefix begins the names of directories of jobs below the work root, in which the slot's user
// makes others.
const runPrefix = "kbnode-"

var runForm = lazily(`^kbnode-(files-)?[A-Z2-7]{26}$`)

func isRun(name string) bool { return runForm.MatchString(name) }

// isOurs reports whether a path of the work root is a directory that no one else can change.
func isOurs(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// fill makes the job's directory with what its checkout has.
func (g *guard) fill(ctx context.Context, r *jobRun, frames *slot.Frames) error {
	c := r.spec.Checkout
	if c.Mode == job.CheckoutMirror && !job.Allows(g.policy.Repositories, c.Repository) {
		return forbid("%.200q is not a repository that this node allows; use one that is, or add it to agent.allowed_repositories in the node's "+plan.ConfigPath, c.Repository)
	}
	work, err := os.OpenRoot(g.policy.WorkRoot)
	if err != nil {
		return fmt.Errorf("make a checkout: %w", err)
	}
	defer hangUp(work)
	top := filepath.Base(r.top)
	dir := filepath.Join(top, "checkout")
	err = work.Mkdir(top, 0o700)
	if err == nil {
		err = work.Mkdir(dir, 0o755)
	}
	if err == nil && os.Geteuid() == 0 {
		err = work.Lchown(dir, g.uid, g.gid)
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
	_ = frames.Note("fetches %s of %s", c.Commit, c.Repository) // the reader may be gone
	to, err := work.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("make a checkout: %w", err)
	}
	defer hangUp(to)
	_, err = mirrors.Checkout(ctx, checkout.Source{Repository: c.Repository, Commit: c.Commit, Branch: c.Branch}, to, g.uid, g.gid)
	return err
}

// nodeMirrors are the mirrors that all slots share. Without git's user there are none: git runs as
// no other.
func nodeMirrors() (checkout.Mirrors, error) { return userMirrors(plan.GitUser) }

func userMirrors(name string) (checkout.Mirrors, error) {
	uid, gid, err := lookupUser(name)
	if err == nil && (uid == 0 || gid == 0) {
		err = fmt.Errorf("user %s is root; delete it, and run kbnode reconcile", name)
	}
	return checkout.Mirrors{Dir: plan.MirrorsDir, UID: uid, GID: gid}, err
}

// removeOldMirrors removes the mirrors that an earlier version kept for each slot.
func removeOldMirrors(runDir string) error {
	root, err := os.OpenRoot(runDir)
	if err != nil {
		return fmt.Errorf("remove earlier mirrors: %w", err)
	}
	defer hangUp(root)
	if err := tree.Remove(root, "mirrors"); err != nil {
		return fmt.Errorf("remove earlier mirrors: %w", err)
	}
	return nil
}

// clearRuns removes the directories of earlier jobs.
func (g *guard) clearRuns() error {
	work, err := os.OpenRoot(g.policy.WorkRoot)
	if err != nil {
		return fmt.Errorf("remove earlier checkouts: %w", err)
	}
	defer hangUp(work)
	entries, err := os.ReadDir(g.policy.WorkRoot)
	for _, e := range entries {
		if isRun(e.Name()) {
			err = errors.Join(err, tree.Remove(work, e.Name()))
		}
	}
	if err != nil {
		return fmt.Errorf("remove earlier checkouts: %w", err)
	}
	return nil
}

// give gives the agent the job's files.
func (g *guard) give(r *jobRun) error {
	files := r.files()
	// The job may have closed it, or given it away.
	if err := errors.Join(chown(r.checkout(), g.uid, g.gid), os.Chmod(r.checkout(), 0o755)); err != nil { //nolint:gosec // its artifacts are public
		return err
	}
	if err := os.Rename(r.checkout(), files); err != nil {
		return err
	}
	r.outcome.Files = files
	return nil
}

// pipelineFiles are where the agent looks for a pipeline. Source: clicommand/pipeline_upload.go.
var pipelineFiles = []string{
	"buildkite.yml", "buildkite.yaml", "buildkite.json", ".buildkite/pipeline.yml", ".buildkite/pipeline.yaml", ".buildkite/pipeline.json",
	"buildkite/pipeline.yml", "buildkite/pipeline.yaml", "buildkite/pipeline.json",
}

// maxPipeline bounds a pipeline's file, in bytes.
const maxPipeline = 1 << 20

// givePipeline gives the agent the file of the checkout that it is to upload.
func (g *guard) givePipeline(r *jobRun) error {
	names := pipelineFiles
	if r.spec.PipelineFile != "" {
		names = []string{r.spec.PipelineFile}
	}
	root, err := os.OpenRoot(r.checkout())
	if err != nil {
		return fmt.Errorf("read the pipeline: %w", err)
	}
	defer hangUp(root)
	for _, name := range names {
		info, err := root.Stat(name)
		if err != nil {
			continue
		}
		if !info.Mode().IsRegular() || info.Size() > maxPipeline {
			return forbid("%.100s is not a file of at most %d bytes; write the pipeline into one", name, maxPipeline)
		}
		if err := g.give(r); err != nil {
			return fmt.Errorf("read the pipeline: %w", err)
		}
		r.outcome.Pipeline = name
		return nil
	}
	return forbid("the checkout has no %s; write the path of the pipeline relative to the repository", strings.Join(names, ", "))
}
