package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/installer"
	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/text"
)

// ask asks for the queue and the token if they are missing, on a machine that lacks nothing else.
func (f *installFlags) ask(ctx context.Context, s term.Streams, n *node.Node, env func(string) string) error {
	_, err := f.findToken(n.Root, env)
	noQueue, noToken := n.Config.Queue == "", errors.Is(err, node.ErrNoToken)
	if !noToken && err != nil {
		return err
	}
	if !noQueue && !noToken {
		return nil
	}
	s.Progress("reading the machine")
	if err := n.Read(ctx); err != nil {
		return err
	}
	if missing := installer.Preflight(n.Inventory); len(missing) > 0 && !f.installDeps {
		return errors.New(strings.Join(missing, "\n"))
	}
	term.Printf(s.Err, "\nThe operators give you the name of a queue and an agent token.\nNothing is changed before you agree.\n\n")
	f.asked = true
	if noQueue {
		if err := s.Question(ctx, "Queue:", false, f.takeQueue); err != nil {
			return err
		}
		f.added = append(f.added, "--queue", f.cfg.Queue)
	}
	if err := f.load(n, env); err != nil {
		return err
	}
	if err := f.makePlan(n); err != nil {
		return err
	}
	if !noToken {
		return nil
	}
	f.added = append(f.added, "--token-file", "token.txt")
	return s.Question(ctx, "Agent token (not shown):", true, func(answer string) error { return f.takeToken(ctx, s, n, answer) })
}

// takeQueue checks the name of a queue that was typed, and uses it.
func (f *installFlags) takeQueue(answer string) error {
	if answer == "" {
		return errors.New("a queue has a name, such as b200; Ctrl-C ends the installation")
	}
	if len(term.Secrets([]string{answer})) > 0 {
		return errors.New("this looks like a token; type the name of the queue first, such as b200")
	}
	for _, p := range config.Validate(config.Config{Queue: answer}) {
		return errors.New(p.Text)
	}
	f.cfg.Queue = answer
	return nil
}

// takeToken checks a token that was typed, asks Buildkite, and uses it.
func (f *installFlags) takeToken(ctx context.Context, s term.Streams, n *node.Node, answer string) error {
	if answer == "" {
		return errors.New("the token is empty; paste it, or press Ctrl-C to end the installation")
	}
	token, err := agent.ParseToken([]byte(answer))
	if err != nil {
		return err
	}
	s.Progress("checking the token with Buildkite")
	account, err := agent.AskAccount(ctx, http.DefaultTransport, n.AgentEndpoint(), token)
	switch {
	case ctx.Err() != nil:
		return term.ErrDeclined
	case errors.Is(err, agent.ErrTokenRefused):
		return fmt.Errorf("Buildkite refuses this token (%s); copy all of it, or ask the operators for a new one", config.HideURL(n.AgentEndpoint())) //nolint:staticcheck // a name
	case err != nil:
		s.Warn("%v; continuing, because the agents will keep trying", err)
	case len(account.Agents.Queues) > 0:
		for _, q := range node.Queues(n.Plan) {
			if _, there := account.Agents.Queues[q]; !there {
				s.Warn("the token's cluster has no queue %s, or no agent in it yet; check the spelling", q)
			}
		}
	}
	f.token, f.checked = token, true
	return nil
}

// printTaken prints what of the machine the slots take.
func printTaken(s term.Streams, p *plan.Plan, changes []reconcile.Change) {
	term.Printf(s.Err, "\n")
	printSlots(s.Err, p)
	total, same := int64(0), len(p.Slots) > 1
	for _, slot := range p.Slots {
		total += slot.DiskBytes
		same = same && slot.DiskBytes == p.Slots[0].DiskBytes
	}
	if total > 0 {
		each := ""
		if same {
			each = fmt.Sprintf(", %s each", text.Bytes(p.Slots[0].DiskBytes))
		}
		term.Printf(s.Err, "The slots take %s of disk below /var/lib/buildkite-agent%s.\n", text.Bytes(total), each)
	}
	printSlotsAffected(s.Err, p, changes)
	term.Printf(s.Err, "\n")
	for _, warning := range p.Warnings {
		s.Warn("%s", warning)
	}
}

// confirmInstall asks before a node is made of answers, and before files that are not kbnode's are
// replaced.
func confirmInstall(ctx context.Context, s term.Streams, f *installFlags, changes []reconcile.Change) error {
	paths := reconcile.Conflicts(changes)
	if len(paths) > 0 && !f.adopt {
		return &reconcile.ConflictError{Paths: paths}
	}
	replaces := len(paths) > 0 && !f.yes
	if !replaces && !f.asked {
		return nil
	}
	adopts := slices.DeleteFunc(slices.Clone(changes), func(c reconcile.Change) bool { return c.Kind != reconcile.Adopt })
	files := text.Plural(len(adopts), "file", "files")
	if replaces {
		printChanges(s.Err, adopts)
	}
	question := fmt.Sprintf("Replace %d %s and keep backups?", len(adopts), files)
	if f.asked {
		printAsked(s, f)
		term.Printf(s.Err, "kbnode uninstall restores the machine.\n")
		question = fmt.Sprintf("Make this machine a node (%s)?", changeCount(len(changes)))
		if replaces {
			question = fmt.Sprintf("Make this machine a node (%s), replace %d %s and keep backups?", changeCount(len(changes)), len(adopts), files)
		}
	}
	err := s.Confirm(ctx, question,
		fmt.Sprintf("%d %s of an earlier setup would be replaced, with backups; add --yes to confirm", len(adopts), files))
	if f.ran && errors.Is(err, term.ErrDeclined) {
		return errors.New("packages were installed; nothing else was changed")
	}
	return err
}

// printAsked prints the command that does the same without questions. It has no token: every user
// of a machine can read command lines.
func printAsked(s term.Streams, f *installFlags) {
	args := slices.Clone(s.Typed)
	at := len(args)
	if i := slices.Index(args, "--"); i >= 0 {
		at = i
	}
	file := ""
	if f.checked {
		file = ", with the token in a file"
	}
	term.Printf(s.Err, "The same without questions%s:\n", file)
	term.Printf(s.Err, "  %s\n\n", s.Line(slices.Insert(args, at, f.added...)))
}

// findToken returns the agent token that slots will have. A dry run needs none: it is then "".
func (f *installFlags) findToken(root string, env func(string) string) (string, error) {
	if f.token != "" {
		return f.token, nil
	}
	token, err := node.FindToken(root, env, f.adopt)
	if f.dryRun && errors.Is(err, node.ErrNoToken) {
		return "", nil
	}
	if errors.Is(err, agent.ErrMalformed) { // one that is not there yet may come
		return "", term.Usage(err)
	}
	return token, err
}

// readToken reads --token-file once: a pipe has nothing to read again. What only root may read is
// left for root.
func (f *installFlags) readToken(ctx context.Context, root bool) error {
	if f.tokenFile == "" {
		return nil
	}
	token, err := limit.Until(ctx, func() (string, error) { return agent.ReadToken(f.tokenFile) })
	switch {
	case ctx.Err() != nil:
		return term.ErrDeclined
	case errors.Is(err, os.ErrNotExist):
		return term.Usagef("--token-file: %w; write the token from Buildkite (Agents, Agent Tokens) to a file, and name it", err)
	case errors.Is(err, os.ErrPermission) && !root:
		return nil
	}
	f.token = token
	return err
}
