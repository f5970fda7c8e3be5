package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/doctor"
	"github.com/gpu-mode/kbnode/internal/installer"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/internal/text"
)

type installFlags struct {
	configFlags
	tokenFile, agentBinary          string
	dryRun, yes, adopt, installDeps bool

	token   string   // of the file or a person; "" to look elsewhere
	checked bool     // Buildkite was asked about the token
	asked   bool     // a person was asked
	added   []string // flags that would have made the questions needless
	ran     bool     // packages were installed
}

func newInstall(s term.Streams) *cobra.Command {
	var f installFlags
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Make this machine a node: one Buildkite agent for each GPU",
		Long: `Make this machine a node: one Buildkite agent for each GPU, with its share of
CPUs and memory. Run it again to change or repair the node. A slot that runs a job
changes when the job is done.

On a terminal, install asks for a missing queue or token, and before it begins.
The agent token comes from --token-file, BUILDKITE_AGENT_TOKEN, or an earlier install.

Exit code 2 also means that trying again later changes nothing: Buildkite refuses the
token, the configuration is wrong, files of another setup are in the way, or the machine
cannot be a node.`,
		Example: `  sudo kbnode install
  sudo kbnode install --queue b200 --token-file token.txt
  sudo kbnode install --queue b200 --gpus 0,2,5 --dry-run`,
		RunE: func(cmd *cobra.Command, _ []string) error { return install(cmd.Context(), s, &f) },
	}
	f.register(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.tokenFile, "token-file", "", "file with the Buildkite agent token")
	fl.StringVar(&f.agentBinary, "agent-binary", "", "buildkite-agent to use, for machines without internet")
	fl.BoolVar(&f.installDeps, "install-deps", false, "install missing packages (Docker, git, e2fsprogs, container toolkit) with apt or dnf")
	fl.BoolVar(&f.adopt, "adopt", false, "replace files that kbnode did not write, keeping backups")
	fl.BoolVar(&f.dryRun, "dry-run", false, "show what would change, and change nothing")
	fl.BoolVarP(&f.yes, "yes", "y", false, "ask nothing, not even before replacing files with --adopt")
	return cmd
}

// check returns what is wrong with the flags, before anything is asked of the machine.
func (f *installFlags) check(ctx context.Context, s term.Streams) error {
	if _, err := f.config(); err != nil {
		return err
	}
	if err := f.readToken(ctx, s.Root); err != nil {
		return err
	}
	return term.CheckFile("--agent-binary", f.agentBinary)
}

func install(ctx context.Context, s term.Streams, f *installFlags) error {
	if err := f.check(ctx, s); err != nil {
		return err
	}
	if err := needRoot(s, "install"); err != nil {
		if !f.dryRun {
			return err
		}
		return tryInstall(ctx, s, f)
	}
	n := here(s)
	if err := f.load(n, os.Getenv); err != nil {
		return err
	}
	talks := s.Asks() && !f.yes
	if n.Config.Queue == "" && !talks {
		return term.Usagef("no queue is given; name the Buildkite queue of these GPUs, such as --queue b200 (or set GPU_TYPE); --queue '{shape}' gives each kind of slot its own")
	}
	host, err := n.Open(ctx)
	if err != nil {
		return err
	}
	defer host.Close()
	host.Adopt = f.adopt
	if exe, err := os.Executable(); err != nil {
		return fmt.Errorf("find kbnode's own path: %w", err)
	} else if err := node.UsableBinary(exe); err != nil && !f.dryRun {
		return term.Usagef("%w, then %s", err, strings.Replace(s.Again(), term.Program(), "kbnode", 1))
	}
	if talks {
		if err := f.ask(ctx, s, n, os.Getenv); err != nil {
			return err
		}
	}
	release, err := n.Lock(ctx, host.Host)
	if err != nil {
		return err
	}
	defer func() { release() }()
	// Again: the kbnode that held the lock may have written another configuration.
	if err := f.load(n, os.Getenv); err != nil {
		return err
	}

	s.Progress("reading the machine")
	if err := n.Read(ctx); err != nil {
		return err
	}
	if err := installPackages(ctx, s, n, f); err != nil {
		return err
	}
	if missing := installer.Preflight(n.Inventory); len(missing) > 0 {
		err := errors.New(strings.Join(missing, "\n"))
		if len(installer.Unfit(n.Inventory)) > 0 {
			return term.Usage(err)
		}
		return err
	}
	// Refuse everything that can be refused before writing anything.
	if err := f.makePlan(n); err != nil {
		return err
	}
	token, err := f.findToken("/", os.Getenv)
	if err != nil {
		return err
	}
	if token == "" {
		s.Warn("%v", node.ErrNoToken)
	} else if err := node.MayWriteToken(host.Host, token); err != nil {
		return term.Usage(err)
	}
	if token != "" && !f.checked {
		s.Progress("checking the token with Buildkite")
		if err := agent.CheckToken(ctx, n.AgentEndpoint(), token); errors.Is(err, agent.ErrTokenRefused) {
			return term.Usage(err)
		} else if err != nil {
			s.Warn("%v; continuing, because the agents will keep trying", err)
		}
	}
	state, changes, err := n.Compare(ctx, host.Host)
	if err != nil {
		return err
	}
	printTaken(s, n.Plan, changes)
	if f.dryRun {
		printDryRun(s.Out, changes)
		return nil
	}
	agreed := reconcile.Conflicts(changes)
	asks := f.asked || f.adopt && !f.yes && len(agreed) > 0
	if asks { // the daemon and other commands do not wait for a person
		release()
		release = func() {}
	}
	if err := confirmInstall(ctx, s, f, changes); errors.As(err, new(*reconcile.ConflictError)) {
		return term.Usage(err)
	} else if err != nil {
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
		if state, changes, err = n.Compare(ctx, host.Host); err != nil {
			return err
		}
	}
	result, wrote, err := applyInstall(ctx, s, n.Plan, host.Host, state, changes, token)
	if err != nil {
		return err
	}
	var report *doctor.Report
	if f.asked {
		release()
		release = func() {}
		s.Progress("checking the node")
		if report, _, err = here(s).Doctor(ctx, doctor.Options{Fast: true}, buildkiteAPI()); err != nil {
			s.Warn("%v; type sudo kbnode doctor to check the node", err)
		}
	}
	term.Printf(s.Err, "\n")
	nextSteps(s, n.Plan, result, wrote, report)
	return nil
}

// makePlan plans the machine as it was read, with slots of what exists now.
func (f *installFlags) makePlan(n *node.Node) error {
	if f.agentBinary != "" && n.Inventory.WhyUnread(inventory.SubjectAgent) != "" {
		n.Inventory.Software.Agent = inventory.Agent{} // --agent-binary replaces it
	}
	n.Reshape = true
	return n.MakePlan()
}

func applyInstall(ctx context.Context, s term.Streams, p *plan.Plan, host *reconcile.Host, state *reconcile.State, changes []reconcile.Change, token string) (result reconcile.Result, wrote bool, err error) {
	if wrote, err = node.WriteToken(host, token); err != nil {
		return result, wrote, err
	}
	end := showProgress(s, host)
	result, err = host.Apply(ctx, p, state, changes)
	end()
	warnChanges(s, result)
	if err != nil {
		return result, wrote, fmt.Errorf("%w\neverything else was changed (%s); fix this and type %s to continue", err, changeCount(len(result.Applied)), s.Again())
	}
	return result, wrote, waitRegistered(ctx, s, p, host, result.Deferred, slot.RegisterTime)
}

func installPackages(ctx context.Context, s term.Streams, n *node.Node, f *installFlags) error {
	if !f.installDeps {
		return nil
	}
	steps, err := installer.Packages(n.Inventory, installer.Manager())
	if err != nil || len(steps) == 0 {
		return err
	}
	for _, step := range steps {
		s.Progress("%s: %s", step.Why, step)
	}
	if f.dryRun {
		return nil
	}
	if f.asked {
		if err := s.Confirm(ctx, "Run these commands?", ""); err != nil {
			return err
		}
	}
	f.ran = true
	if err := installer.Run(ctx, steps, s.Err); err != nil {
		return err
	}
	silent := n.Inventory.Software.Docker.Version == ""
	if err := n.Read(ctx); err != nil || !silent || n.Inventory.Software.Docker.Version == "" {
		return err
	}
	return installPackages(ctx, s, n, f) // Docker says now what it lacks
}

// maxListed is how many changes are worth a line each.
const maxListed = 12

// nextSteps prints what was done, what doctor found unless report is nil, and what is left to do by
// hand.
func nextSteps(s term.Streams, p *plan.Plan, result reconcile.Result, wroteToken bool, report *doctor.Report) {
	queues := node.Queues(p)
	running := 0
	for _, slot := range p.Slots {
		if slot.Serves() {
			running++
		}
	}
	w := s.Out
	if len(result.Applied) == 0 && !wroteToken {
		term.Printf(w, "Nothing to change: node %s has %d slots.\n", p.Node, len(p.Slots))
	} else {
		term.Printf(w, "Node %s has %d slots, %d with an agent; %s made.\n", p.Node, len(p.Slots), running, changesWere(len(result.Applied)))
	}
	if len(result.Applied) <= maxListed {
		for _, c := range result.Applied {
			term.Printf(w, "  %s\n", c)
		}
	}
	if slices.ContainsFunc(result.Applied, func(c reconcile.Change) bool { return c.Kind == reconcile.Adopt }) {
		term.Printf(w, "Replaced and removed files are in %s.\n", reconcile.BackupDir)
	}
	printLater(w, result.Deferred)
	if report != nil {
		printDoctor(w, report, onlyFailures)
	}
	term.Printf(w, `
Next:
  The agents serve %s %s. In Buildkite, under Agents and Queues of the
  cluster, %s must exist as self-hosted, or no job is sent.
  sudo kbnode doctor --acceptance   tests the node; send its list to the operators
  sudo kbnode status                shows the slots
  sudo kbnode uninstall             restores the machine
`, text.Plural(len(queues), "queue", "queues"), strings.Join(queues, ", "), text.Plural(len(queues), "it", "they"))
}

func changeCount(n int) string { return fmt.Sprintf("%d %s", n, text.Plural(n, "change", "changes")) }

func changesWere(n int) string { return changeCount(n) + text.Plural(n, " was", " were") }

// waitRegistered waits for the agents, and shows how many have registered.
func waitRegistered(ctx context.Context, s term.Streams, p *plan.Plan, host *reconcile.Host, deferred []reconcile.Change, within time.Duration) error {
	w := term.NewProgress(s)
	err := node.WaitRegistered(ctx, p, host, deferred, within, func(done, total int) {
		line := fmt.Sprintf("%d of %d agents registered", done, total)
		w.Show(line, line)
	}, func(p plan.Slot, why string) {
		w.End(w.Line)
		s.Warn("slot %s is parked: %s", p.Name, why)
	})
	w.End(w.Line)
	if late, ok := errors.AsType[*node.LateError](err); ok {
		s.Warn("%v", late)
		return &term.ExitError{Code: term.ExitNo}
	}
	return err
}
