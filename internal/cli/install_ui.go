package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// installUI is node.UI on the streams of a command.
type installUI struct {
	term.Streams
	changes *changeProgress // these are nil until they show something: the terminal may get another width
	agents  *agentProgress
	images  *layerProgress
}

// declined turns a question that was left into what package node knows.
func declined(err error) error {
	if errors.Is(err, term.ErrDeclined) {
		return node.ErrDeclined
	}
	return err
}

// Welcome implements node.UI.
func (u *installUI) Welcome() {
	term.Printf(u.Err, "\nThe operators give you the name of a queue and an agent token.\nNothing is changed before you agree.\n\n")
}

// AskQueue implements node.UI.
func (u *installUI) AskQueue(ctx context.Context, take func(string) error) error {
	return declined(u.Question(ctx, "Queue:", false, func(answer string) error {
		if len(term.Secrets([]string{answer})) > 0 {
			return errors.New("this looks like a token; type the name of the queue first, such as b200")
		}
		return take(answer)
	}))
}

// AskToken implements node.UI.
func (u *installUI) AskToken(ctx context.Context, take func(string) error) error {
	return declined(u.Question(ctx, "Agent token (not shown):", true, take))
}

// ConfirmPackages implements node.UI.
func (u *installUI) ConfirmPackages(ctx context.Context) error {
	return declined(u.Streams.Confirm(ctx, "Run these commands?", ""))
}

// Confirm implements node.UI.
func (u *installUI) Confirm(ctx context.Context, p node.Proposal) error {
	n, files := len(p.Adoptions), text.Plural(len(p.Adoptions), "file", "files")
	printChanges(u.Err, p.Adoptions)
	question := fmt.Sprintf("Replace %d %s and keep backups?", n, files)
	if p.Dialog {
		u.printAsked(p)
		term.Printf(u.Err, "kbnode uninstall restores the machine.\n")
		question = fmt.Sprintf("Make this machine a node (%s)?", changeCount(len(p.Changes)))
		if n > 0 {
			question = fmt.Sprintf("Make this machine a node (%s), replace %d %s and keep backups?", changeCount(len(p.Changes)), n, files)
		}
	}
	return declined(u.Streams.Confirm(ctx, question,
		fmt.Sprintf("%d %s of an earlier setup would be replaced, with backups; add --yes to confirm", n, files)))
}

// printAsked prints the command that does the same without questions. It has no token: every user
// of a machine can read command lines.
func (u *installUI) printAsked(p node.Proposal) {
	args := slices.Clone(u.Typed)
	at := len(args)
	if i := slices.Index(args, "--"); i >= 0 {
		at = i
	}
	file := ""
	if p.TokenFile {
		file = ", with the token in a file"
	}
	term.Printf(u.Err, "The same without questions%s:\n", file)
	term.Printf(u.Err, "  %s\n\n", u.Line(slices.Insert(args, at, p.Flags...)))
}

// ShowPlan implements node.UI.
func (u *installUI) ShowPlan(p *plan.Plan, changes []reconcile.Change) {
	term.Printf(u.Err, "\n")
	printSlots(u.Err, p)
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
		term.Printf(u.Err, "The slots take %s of disk below /var/lib/buildkite-agent%s.\n", text.Bytes(total), each)
	}
	printSlotsAffected(u.Err, p, changes)
	term.Printf(u.Err, "\n")
	for _, warning := range p.Warnings {
		u.Warn("%s", warning)
	}
}

// ShowChange implements node.UI.
func (u *installUI) ShowChange(c reconcile.Change) {
	if u.changes == nil {
		u.changes = &changeProgress{Progress: term.NewProgress(u.Streams)}
	}
	u.changes.show(c)
}

// ShowAgents implements node.UI.
func (u *installUI) ShowAgents(registered, total int) {
	if u.agents == nil {
		u.agents = &agentProgress{term.NewProgress(u.Streams)}
	}
	u.agents.show(registered, total)
}

// ShowImage implements node.UI.
func (u *installUI) ShowImage(p image.Progress) {
	if u.images == nil {
		u.images = &layerProgress{term.NewProgress(u.Streams)}
	}
	u.images.update(p)
}

// EndProgress implements node.UI.
func (u *installUI) EndProgress() {
	if u.changes != nil {
		u.changes.end()
	}
	if u.agents != nil {
		u.agents.end()
	}
	if u.images != nil {
		u.images.End("")
	}
}

// agentProgress shows how many agents have registered.
type agentProgress struct{ *term.Progress }

func (p agentProgress) show(registered, total int) {
	line := fmt.Sprintf("%d of %d agents registered", registered, total)
	p.Show(line, line)
}

func (p agentProgress) end() { p.End(p.Line) }

// notLate prints a *node.LateError, and turns it into an exit code.
func notLate(s term.Streams, err error) error {
	if late, ok := errors.AsType[*node.LateError](err); ok {
		s.Warn("%v", late)
		return &term.ExitError{Code: term.ExitNo}
	}
	return err
}
