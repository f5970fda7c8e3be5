package guard

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/bootstrap"
	"github.com/gpu-mode/kbnode/internal/checkout"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// TestCheckoutFaults says what a node does not check out, and whose fault it is.
func TestCheckoutFaults(t *testing.T) {
	t.Parallel()
	there := func(dir string) func() (checkout.Mirrors, error) {
		return func() (checkout.Mirrors, error) { return checkout.Mirrors{Dir: dir}, nil }
	}
	for name, row := range map[string]struct {
		allowed []string
		mirrors func() (checkout.Mirrors, error)
		status  int
		says    string
	}{
		"not allowed":        {[]string{`^https://github\.com/other/.*$`}, nil, job.ExitRefused, "add it to agent.allowed_repositories"},
		"nothing allowed":    {nil, nil, job.ExitRefused, "add it to agent.allowed_repositories"},
		"no user for git":    {[]string{".*"}, func() (checkout.Mirrors, error) { return userMirrors("kbnode-no-such-user") }, bootstrap.ExitNode, "look up user kbnode-no-such-user"},
		"root as git's user": {[]string{".*"}, func() (checkout.Mirrors, error) { return userMirrors("root") }, bootstrap.ExitNode, "user root is root"},
		"no mirrors":         {[]string{".*"}, there(filepath.Join(t.TempDir(), "none")), bootstrap.ExitNode, "run kbnode reconcile"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(t, map[string]string{"BUILDKITE_COMMAND": "true"}, func(r *rig) {
				r.policy.Repositories = row.allowed
				r.adjust = func(g *guard) { g.mirrors = row.mirrors }
			})
			r.in.Repositories = []string{".*"}
			if e := r.wait(t, r.start(t.Context())); e.status != row.status || !strings.Contains(r.log.String(), row.says) || len(r.engine.created) != 0 {
				t.Errorf("%+v: %s", e, r.log.String())
			}
		})
	}
	for _, err := range []error{&checkout.RefusedError{Reason: "x"}, errors.Join(errors.New("y"), &checkout.RefusedError{Reason: "x"})} {
		if out := notStarted(err); out.Refused != "x" || out.NodeFault != "" {
			t.Errorf("%v: %+v", err, out)
		}
	}
	if uid, _, err := slot.LookupUser(plan.GitUser); err == nil {
		if m, err := nodeMirrors(); err != nil || m.UID != uid || m.Dir != plan.MirrorsDir {
			t.Errorf("%+v, %v", m, err)
		}
	}
}
