package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/installer"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/text"
)

type installFlags struct {
	wishes
	tokenFile, agentBinary          string
	dryRun, yes, adopt, installDeps bool
}

func newInstall(s Streams) *cobra.Command {
	var f installFlags
	cmd := &cobra.Command{
		Use:   "install --queue NAME",
		Short: "Make this machine a node: one Buildkite agent for each GPU",
		Long: `Make this machine a node: one Buildkite agent for each GPU, with its share of
CPUs and memory. Run it again to change or repair the node. A slot that runs a job
changes when the job is done.

The agent token comes from --token-file, BUILDKITE_AGENT_TOKEN, or the token file
of an earlier install (` + plan.TokenPath + `). GPU_TYPE, NODE_NAME, GPU_COUNT,
CPUS_PER_GPU and RAM_PER_GPU are read from the environment, as the old setup
scripts did.`,
		Example: `  sudo kbnode install --queue b200 --token-file token.txt
  sudo BUILDKITE_AGENT_TOKEN=… kbnode install --queue 'nvidia-h100-{index}'
  sudo kbnode install --queue b200 --gpus 0,2,5 --dry-run`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return install(cmd.Context(), s, &f) },
	}
	f.register(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.tokenFile, "token-file", "", "file with the Buildkite agent token")
	fl.StringVar(&f.agentBinary, "agent-binary", "", "buildkite-agent to use, for machines without internet")
	fl.BoolVar(&f.installDeps, "install-deps", false, "install missing packages (Docker, git, e2fsprogs, container toolkit) with apt or dnf")
	fl.BoolVar(&f.adopt, "adopt", false, "replace files of an earlier setup that kbnode did not write, keeping backups")
	fl.BoolVar(&f.dryRun, "dry-run", false, "show what would change, and change nothing")
	fl.BoolVarP(&f.yes, "yes", "y", false, "do not ask before replacing files with --adopt")
	return cmd
}

// check returns what is wrong with the flags, before anything is asked of the machine. What only
// root may read is left for root.
func (f *installFlags) check() error {
	if _, err := f.config(); err != nil {
		return err
	}
	if f.tokenFile != "" {
		switch _, err := agent.ReadToken(f.tokenFile); {
		case errors.Is(err, fs.ErrNotExist):
			return usagef("--token-file: %w; write the token from Buildkite (Agents, Agent Tokens) to a file, and name it", err)
		case err != nil && !errors.Is(err, fs.ErrPermission):
			return err
		}
	}
	return checkFile("--agent-binary", f.agentBinary)
}

func install(ctx context.Context, s Streams, f *installFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	if err := s.needRoot("install"); err != nil {
		if !f.dryRun {
			return err
		}
		return tryInstall(ctx, s, f)
	}
	n := here(s)
	if err := f.load(n, os.Getenv); err != nil {
		return err
	}
	if n.Config.Queue == "" {
		return usagef("no queue is given; name the Buildkite queue of these GPUs, such as --queue b200 (or set GPU_TYPE); --queue '{shape}' gives each kind of slot its own")
	}
	host, err := n.Open(ctx)
	if err != nil {
		return err
	}
	defer host.Close()
	host.Adopt = f.adopt
	release, err := n.Lock(ctx, host.Host)
	if err != nil {
		return err
	}
	defer func() { release() }()
	// Again: the kbnode that held the lock may have written other wishes.
	if err := f.load(n, os.Getenv); err != nil {
		return err
	}

	s.progress("reading the machine")
	if err := n.Read(ctx); err != nil {
		return err
	}
	if err := installPackages(ctx, s, n, f); err != nil {
		return err
	}
	if missing := installer.Preflight(n.Inventory); len(missing) > 0 {
		return errors.New(strings.Join(missing, "\n"))
	}
	if f.agentBinary != "" && n.Inventory.WhyUnread(inventory.SubjectAgent) != "" {
		n.Inventory.Software.Agent = inventory.Agent{} // --agent-binary replaces it
	}
	// Refuse everything that can be refused before writing anything.
	n.Reshape = true
	if err := n.MakePlan(); err != nil {
		return err
	}
	if exe, err := os.Executable(); err != nil {
		return fmt.Errorf("find kbnode's own path: %w", err)
	} else if err := node.UsableBinary(exe); err != nil && !f.dryRun {
		return fmt.Errorf("%w, then %s", err, strings.Replace(s.again(), program(), "kbnode", 1))
	}
	token, err := node.FindToken("/", os.Getenv, f.tokenFile, f.adopt)
	if err != nil {
		return err
	}
	if err := node.MayWriteToken(host.Host, token); err != nil {
		return err
	}
	s.progress("checking the token with Buildkite")
	endpoint := n.Config.Agent.Endpoint
	if err := agent.CheckToken(ctx, endpoint, token); errors.Is(err, agent.ErrTokenRefused) {
		return err
	} else if err != nil {
		s.warn("%v; continuing, because the agents will keep trying", err)
	}
	host.GPUs = n.Inventory.GPUs
	state, err := host.Observe(ctx, n.Plan)
	if err != nil {
		return err
	}
	changes := reconcile.Diff(n.Plan, state)
	printf(s.Err, "\n")
	printSlots(s.Err, n.Plan)
	printFates(s.Err, n.Plan, changes)
	printf(s.Err, "\n")
	for _, warning := range n.Plan.Warnings {
		s.warn("%s", warning)
	}
	if f.dryRun {
		printChanges(s.Out, changes)
		printf(s.Out, "%s would be made; nothing was changed\n", changeCount(len(changes)))
		return nil
	}
	agreed := reconcile.Conflicts(changes)
	asks := f.adopt && !f.yes && len(agreed) > 0
	if asks { // the daemon and other commands do not wait for a person
		release()
		release = func() {}
	}
	if err := confirmAdopt(s, f, changes); err != nil {
		return err
	}
	if asks {
		held, err := n.Lock(ctx, host.Host)
		if err != nil {
			return err
		}
		release = held
		if state, changes, err = n.LookAgain(ctx, host.Host, func() error { return f.load(n, os.Getenv) }, agreed); err != nil {
			return err
		}
	}
	if fetched, err := n.InstallAgent(ctx, host.Host, f.agentBinary); err != nil {
		return err
	} else if fetched {
		if state, err = host.Observe(ctx, n.Plan); err != nil {
			return err
		}
		changes = reconcile.Diff(n.Plan, state)
	}
	return applyInstall(ctx, s, n.Plan, host.Host, state, changes, token)
}

func applyInstall(ctx context.Context, s Streams, p *plan.Plan, host *reconcile.Host, state *reconcile.State, changes []reconcile.Change, token string) error {
	wrote, err := node.WriteToken(host, token)
	if err != nil {
		return err
	}
	end := showProgress(s, host)
	result, err := host.Apply(ctx, p, state, changes)
	end()
	if err != nil {
		return fmt.Errorf("%w\neverything else was changed (%s); fix this and type %s to continue", err, changeCount(len(result.Applied)), s.again())
	}
	if err := waitRegistered(ctx, s, p, host, result.Deferred); err != nil {
		return err
	}
	printf(s.Err, "\n")
	return nextSteps(s, p, result, wrote)
}

func installPackages(ctx context.Context, s Streams, n *node.Node, f *installFlags) error {
	if !f.installDeps {
		return nil
	}
	steps, err := installer.Packages(n.Inventory, installer.Manager())
	if err != nil || len(steps) == 0 {
		return err
	}
	for _, step := range steps {
		s.progress("%s: %s", step.Why, step)
	}
	if f.dryRun {
		return nil
	}
	if err := installer.Run(ctx, steps, s.Err); err != nil {
		return err
	}
	return n.Read(ctx)
}

// fewChanges is how many changes are worth a line each.
const fewChanges = 12

// nextSteps prints what was done and what is left to do by hand.
func nextSteps(s Streams, p *plan.Plan, result reconcile.Result, wroteToken bool) error {
	var queues []string
	running := 0
	for _, slot := range p.Slots {
		if !slices.Contains(queues, slot.Queue) {
			queues = append(queues, slot.Queue)
		}
		if slot.Serves() {
			running++
		}
	}
	w := s.Out
	if len(result.Applied) == 0 && !wroteToken {
		printf(w, "Nothing to change: node %s has %d slots.\n", p.Node, len(p.Slots))
	} else {
		printf(w, "Node %s has %d slots, %d with an agent; %s made.\n", p.Node, len(p.Slots), running, changesWere(len(result.Applied)))
	}
	if len(result.Applied) <= fewChanges {
		for _, c := range result.Applied {
			printf(w, "  %s\n", c)
		}
	}
	printLater(w, result.Deferred)
	printf(w, `
Next:
  The agents serve %s %s. In Buildkite, under Agents and Queues of the
  cluster, %s must exist as self-hosted, or no job is sent.
  sudo kbnode status      shows the slots
  sudo kbnode uninstall   restores the machine
`, text.Plural(len(queues), "queue", "queues"), strings.Join(queues, ", "), cmp.Or(map[bool]string{true: "it"}[len(queues) == 1], "they"))
	return nil
}

func changeCount(n int) string { return fmt.Sprintf("%d %s", n, text.Plural(n, "change", "changes")) }

func changesWere(n int) string { return changeCount(n) + text.Plural(n, " was", " were") }
