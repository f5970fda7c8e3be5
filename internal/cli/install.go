package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

type installFlags struct {
	configFlags
	tokenFile, agentBinary, bundle  string
	dryRun, yes, adopt, installDeps bool
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

Without internet, --bundle brings the agent and the jobs' image. On a new node that has
no image yet, slots take no jobs until it has passed its canary.

Exit code 2 also means that trying again later changes nothing: Buildkite refuses the
token, the configuration is wrong, files of another setup are in the way, or the machine
cannot be a node.`,
		Example: `  sudo kbnode install
  sudo kbnode install --queue b200 --token-file token.txt
  sudo kbnode install --queue b200 --gpus 0,2,5 --dry-run
  sudo kbnode install --queue b200 --bundle kbnode-bundle.tar`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneOf(cmd, "bundle", "agent-binary"); err != nil {
				return err
			}
			return install(cmd.Context(), s, &f)
		},
	}
	f.register(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.tokenFile, "token-file", "", "file with the Buildkite agent token")
	fl.StringVar(&f.agentBinary, "agent-binary", "", "buildkite-agent to use, for machines without internet")
	fl.StringVar(&f.bundle, "bundle", "", "file of kbnode bundle create to take the agent and the image from")
	fl.BoolVar(&f.installDeps, "install-deps", false, "install missing packages (Docker, git, e2fsprogs, container toolkit) with apt or dnf")
	fl.BoolVar(&f.adopt, "adopt", false, "replace files that kbnode did not write, keeping backups")
	fl.BoolVar(&f.dryRun, "dry-run", false, "show what would change, and change nothing")
	fl.BoolVarP(&f.yes, "yes", "y", false, "ask nothing, not even before replacing files with --adopt")
	return cmd
}

func install(ctx context.Context, s term.Streams, f *installFlags) error {
	o, err := f.options(ctx, s)
	if err != nil {
		return err
	}
	notRoot := needRoot(s, "install")
	if notRoot != nil && !f.dryRun {
		return notRoot
	}
	b, closeBundle, err := openBundle(f.bundle)
	if err != nil {
		return err
	}
	defer closeBundle()
	if notRoot != nil {
		if b != nil {
			printBundle(s, b)
		}
		return tryInstall(ctx, s, f)
	}
	o.Bundle = b
	report, err := here(s).Install(ctx, o, &installUI{Streams: s})
	if err != nil {
		if report.Image != nil {
			term.Printf(s.Out, "%s\n", bundledImage(*report.Image, f.bundle))
		}
		return notLate(s, err)
	}
	if f.dryRun {
		printBrings(s, f.bundle, report.Brings)
		printDryRun(s.Out, report.Changes)
		return nil
	}
	term.Printf(s.Err, "\n")
	nextSteps(s, report, f.bundle)
	return nil
}

// options returns what the flags ask for, or what is wrong with them, before anything is asked of the machine.
func (f *installFlags) options(ctx context.Context, s term.Streams) (o node.InstallOptions, err error) {
	o = node.InstallOptions{
		Env: os.Getenv, AgentBinary: f.agentBinary, Packages: f.installDeps, Adopt: f.adopt, Yes: f.yes,
		Ask: s.Asks() && !f.yes, DryRun: f.dryRun,
		Again: s.Again(), Moved: strings.Replace(s.Again(), term.Program(), "kbnode", 1),
		Output: s.Err, API: buildkiteAPI(),
	}
	if o.Config, err = f.config(); err != nil {
		return o, err
	}
	if o.Token, err = readToken(ctx, f.tokenFile, s.Root); err != nil {
		return o, err
	}
	if err := term.CheckFile("--bundle", f.bundle); err != nil {
		return o, err
	}
	return o, term.CheckFile("--agent-binary", f.agentBinary)
}

// readToken reads --token-file once: a pipe has nothing to read again. What only root may read is
// left for root.
func readToken(ctx context.Context, name string, root bool) (string, error) {
	if name == "" {
		return "", nil
	}
	token, err := limit.Until(ctx, func() (string, error) { return agent.ReadToken(name) })
	switch {
	case ctx.Err() != nil:
		return "", term.ErrDeclined
	case errors.Is(err, os.ErrPermission) && !root:
		return "", nil
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		err = text.FileError(name, err, "write the token from Buildkite (Agents, Agent Tokens) to a file, and name it")
	}
	if err != nil {
		return "", term.Usagef("--token-file: %w", err)
	}
	return token, nil
}

// maxListed is how many changes are worth a line each.
const maxListed = 12

// nextSteps prints what was done, also with a bundle, what doctor found if it was asked, and what is left to do by hand.
func nextSteps(s term.Streams, r node.Report, bundle string) {
	p, applied := r.Plan, r.Result.Applied
	queues := node.Queues(p)
	running := 0
	for _, slot := range p.Slots {
		if slot.Serves() {
			running++
		}
	}
	w := s.Out
	if len(applied) == 0 && !r.WroteToken && (r.Image == nil || r.Image.Action == image.ActionNone || r.Image.Action == image.ActionSkipped) {
		term.Printf(w, "Nothing to change: node %s has %d slots.\n", p.Node, len(p.Slots))
	} else {
		term.Printf(w, "Node %s has %d slots, %d with an agent; %s made.\n", p.Node, len(p.Slots), running, changesWere(len(applied)))
	}
	if len(applied) <= maxListed {
		for _, c := range applied {
			term.Printf(w, "  %s\n", c)
		}
	}
	if slices.ContainsFunc(applied, func(c reconcile.Change) bool { return c.Kind == reconcile.Adopt }) {
		term.Printf(w, "Replaced and removed files are in %s.\n", reconcile.BackupDir)
	}
	printLater(w, r.Result.Deferred)
	if r.Image != nil {
		term.Printf(w, "%s\n", bundledImage(*r.Image, bundle))
	}
	if r.Health != nil {
		printDoctor(w, r.Health, onlyFailures)
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
