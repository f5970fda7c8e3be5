package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/bootstrap"
	"github.com/gpu-mode/kbnode/internal/job/environ"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// newBootstrap is what buildkite-agent starts for a job. It takes the job from the agent's
// environment, never from arguments.
func newBootstrap(s term.Streams) *cobra.Command {
	print, slot, agent := false, -1, ""
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Read a job as data (started by buildkite-agent)",
		Long: `Read a job as data: what Buildkite sent, from the file that BUILDKITE_ENV_FILE or
BUILDKITE_ENV_JSON_FILE names, and the environment.

With --slot it runs the job in a container of that slot and uploads its artifacts.

A step that kbnode refuses ends with exit status 96, and one that the node cannot run
with 255.`,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if print == (slot >= 0) {
				return term.Usagef("bootstrap needs --print-spec or --slot, and not both; add --print-spec to see what a job is")
			}
			var in job.Input
			env, err := environ.Read()
			if err == nil {
				in, err = jobInput(env)
			}
			if slot >= 0 {
				return runJob(cmd.Context(), slot, agent, bootstrap.Config{Input: in, InputErr: err, Log: s.Raw})
			}
			var spec *job.Spec
			if err == nil {
				in.Repositories, err = allowedRepositories(s)
			}
			if err == nil {
				spec, err = job.Read(in)
			}
			if refusal, ok := errors.AsType[*job.Refusal](err); ok {
				return &term.ExitError{Code: job.ExitRefused, Err: refusal}
			}
			if err != nil {
				return err
			}
			return term.PrintJSON(s.Out, spec)
		},
	}
	cmd.Flags().BoolVar(&print, "print-spec", false, "print what the job's container would be, or why it is refused")
	cmd.Flags().IntVar(&slot, "slot", -1, "the slot whose agent has the job")
	cmd.Flags().StringVar(&agent, "agent", plan.AgentCopy, "buildkite-agent, for uploads")
	return cmd
}

// runJob runs the agent's job and ends as the agent expects. A build says much of this process's own
// environment, such as GODEBUG and TMPDIR, so it is only data from here on.
func runJob(ctx context.Context, k int, agent string, c bootstrap.Config) error {
	os.Clearenv()
	// Between the agent's score, -900, and 0, the job's: with a job of many small processes, this would be the largest
	// one in the slot. No harm is done where the kernel says no.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-500"), 0)
	c.Input.Repositories = config.Patterns{`(?s).*`} // guard refuses what its policy does not allow
	c.Canceled, c.Socket, c.Slot, c.Agent = ctx.Done(), plan.SocketPath(k), plan.SlotName(k), agent
	c.Hooks, c.SlotVars, c.Home = plan.HooksDir, plan.AgentDir(k)+"/environment", plan.WorkDir(k)
	status, by := bootstrap.Run(context.WithoutCancel(ctx), c)
	bootstrap.End(by)
	if status == 0 {
		return nil
	}
	return &term.ExitError{Code: status}
}

// jobInput reads what the agent says about a job.
func jobInput(environ []string) (in job.Input, err error) {
	in.Env = map[string]string{}
	for _, e := range environ {
		if name, value, ok := strings.Cut(e, "="); ok {
			in.Env[name] = value // the last one wins, as in the agent
		}
	}
	for name := range in.Env {
		if strings.Contains(name, "\n") { // in the file, the rest of it would be another variable
			return in, &job.Refusal{Field: "the build's variables", Text: fmt.Sprintf("%.80q is not the name of a variable; remove it from the build", name)}
		}
	}
	read := job.ReadEnvFile
	file := in.Env["BUILDKITE_ENV_FILE"]
	if file == "" {
		read, file = job.ReadEnvJSON, in.Env["BUILDKITE_ENV_JSON_FILE"]
	}
	if file == "" {
		return in, term.Usagef("nothing says what Buildkite sent; let buildkite-agent start kbnode, or set BUILDKITE_ENV_FILE to a file of lines NAME=\"value\"")
	}
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return in, fmt.Errorf("read %s: not a regular file", file)
	}
	text, err := limit.ReadFile(file, job.MaxEnvFile+1)
	if err != nil {
		return in, fmt.Errorf("read the job's variables: %w", err)
	}
	in.Sent, err = read(string(text))
	return in, err
}

// allowedRepositories returns what the node allows, or kbnode's default where there is no node, or
// where the user may not read its configuration.
func allowedRepositories(s term.Streams) (config.Patterns, error) {
	n := here(s)
	err := n.LoadStored()
	if errors.Is(err, fs.ErrPermission) {
		err = nil
	}
	return n.Config.Agent.AllowedRepositories, err
}
