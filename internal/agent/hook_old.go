package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// This file goes with the release after the one that brings `kbnode bootstrap`. Until then an agent
// whose hooks an earlier kbnode wrote may have a job while kbnode is upgraded, and its hooks start the
// new program.

// oldRecordPath is where an earlier guard ends what a job left running.
const (
	oldRecordPath = "/kbnode/record"
	oldRecordTime = 20 * time.Second
)

// bootstrapVar is in the environment of agents that start `kbnode bootstrap`, by their units. No build
// can set it: the agent runs this hook without the job's variables.
const bootstrapVar = "KBNODE_BOOTSTRAP"

// oldHook runs a hook that an earlier kbnode wrote.
func oldHook(ctx context.Context, name string, k int) error {
	switch name {
	case "pre-bootstrap":
		if os.Getenv(bootstrapVar) != "" {
			return nil // the hook is left for the agent of another slot
		}
		return errors.New("the job is refused: this node is being upgraded; run the job again")
	case "pre-artifact":
		dir, err := checkoutDir(k, os.Getenv("BUILDKITE_BUILD_CHECKOUT_PATH"))
		if err == nil {
			// First, because this ends anything that could put links back.
			asking, cancel := context.WithTimeout(ctx, oldRecordTime)
			defer cancel()
			_ = postToGuard(asking, plan.SocketPath(k), oldRecordPath) // a new guard does not know it
			err = Prepare(ctx, dir, strings.Split(os.Getenv("BUILDKITE_ARTIFACT_PATHS"), ";"),
				os.Getenv("BUILDKITE_COMMAND_EXIT_STATUS"), os.Getenv("BUILDKITE_JOB_CANCELLED") == "true")
		}
		if err != nil {
			return fmt.Errorf("nothing is uploaded: %w", err)
		}
		return nil
	case "pre-exit":
		return nil // the guard clears the slot before the next agent
	}
	return fmt.Errorf("%q is not a hook of kbnode; use agent-startup", name)
}

// checkoutDir returns where a checkout of slot k is. It follows links on the way there;
// nothing follows links below it.
func checkoutDir(k int, checkout string) (string, error) {
	at, err := filepath.EvalSymlinks(checkout)
	if err == nil && !strings.HasPrefix(at, plan.BuildsDir(k)+"/") {
		err = fmt.Errorf("%s is not below %s", at, plan.BuildsDir(k))
	}
	return at, err
}
