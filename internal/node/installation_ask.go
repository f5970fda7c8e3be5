package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan/config"
)

// ask asks for the queue and the token if they are missing, on a machine that lacks nothing else. It holds no lock:
// the daemon and other commands do not wait for a person.
func (i *installation) ask(ctx context.Context) error {
	if !i.Ask {
		return nil
	}
	_, err := i.findToken()
	noQueue, noToken := i.n.Config.Queue == "", errors.Is(err, errNoToken)
	if !noToken && err != nil {
		return err
	}
	if !noQueue && !noToken {
		return nil
	}
	if err := i.read(ctx); err != nil {
		return err
	}
	if missing := i.n.lacks(); len(missing) > 0 && !i.Packages {
		return errors.New(strings.Join(missing, "\n"))
	}
	i.dialog = true
	i.ui.Welcome()
	if noQueue {
		if err := i.ui.AskQueue(ctx, i.takeQueue); err != nil {
			return err
		}
		i.flags = append(i.flags, "--queue", i.Config.Queue)
	}
	if err := inOrder(ctx, i.load, i.makePlan); err != nil {
		return err
	}
	if !noToken {
		return nil
	}
	i.flags = append(i.flags, "--token-file", "token.txt")
	return i.ui.AskToken(ctx, func(answer string) error { return i.takeToken(ctx, answer) })
}

// takeQueue checks the name of a queue that was typed, and uses it.
func (i *installation) takeQueue(answer string) error {
	if answer == "" {
		return errors.New("a queue has a name, such as b200; Ctrl-C ends the installation")
	}
	for _, p := range config.Validate(config.Config{Queue: answer}) {
		return errors.New(p.Text)
	}
	i.Config.Queue = answer
	return nil
}

// takeToken checks a token that was typed, asks Buildkite, and uses it.
func (i *installation) takeToken(ctx context.Context, answer string) error {
	if answer == "" {
		return errors.New("the token is empty; paste it, or press Ctrl-C to end the installation")
	}
	token, err := agent.ParseToken([]byte(answer))
	if err != nil {
		return err
	}
	i.n.say("checking the token with Buildkite")
	account, err := agent.AskAccount(ctx, http.DefaultTransport, i.endpoint(), token)
	switch {
	case ctx.Err() != nil:
		return ErrDeclined
	case errors.Is(err, agent.ErrTokenRefused):
		return fmt.Errorf("Buildkite refuses this token (%s); copy all of it, or ask the operators for a new one", //nolint:staticcheck // a name
			config.HideURL(i.endpoint()))
	case err != nil:
		i.ui.Warn("%v; continuing, because the agents will keep trying", err)
	case len(account.Agents.Queues) > 0:
		for _, q := range Queues(i.n.Plan) {
			if _, there := account.Agents.Queues[q]; !there {
				i.ui.Warn("the token's cluster has no queue %s, or no agent in it yet; check the spelling", q)
			}
		}
	}
	i.Token, i.tokenChecked = token, true
	return nil
}

// confirm asks before a node is made of answers, and before files that are not kbnode's are replaced. Meanwhile it
// holds no lock, so it looks at everything again.
func (i *installation) confirm(ctx context.Context) error {
	paths := reconcile.Conflicts(i.Changes)
	if len(paths) > 0 && !i.Adopt {
		return &config.InputError{Err: &reconcile.ConflictError{Paths: paths}}
	}
	if !i.dialog && (len(paths) == 0 || i.Yes) {
		return nil
	}
	i.unlock()
	p := Proposal{Changes: i.Changes, Dialog: i.dialog, Flags: i.flags, TokenFile: i.tokenChecked}
	for _, c := range i.Changes {
		if c.Kind == reconcile.Adopt {
			p.Adoptions = append(p.Adoptions, c)
		}
	}
	err := i.ui.Confirm(ctx, p)
	if i.newPackages && errors.Is(err, ErrDeclined) {
		return errors.New("packages were installed; nothing else was changed")
	}
	if err != nil {
		return err
	}
	return i.lookAgain(ctx, paths)
}

// lookAgain reads and plans again after a time without the lock. Only conflicts that were agreed to may
// be replaced.
func (i *installation) lookAgain(ctx context.Context, agreed []string) error {
	err := inOrder(ctx, i.lock, i.load, i.n.Read, i.makePlan)
	if err != nil {
		return err
	}
	i.state, i.Changes, err = i.n.Compare(ctx, i.host)
	return errors.Join(err, onlyAgreed(i.Changes, agreed))
}

func onlyAgreed(changes []reconcile.Change, agreed []string) error {
	isAgreed := func(path string) bool { return slices.Contains(agreed, path) }
	more := slices.DeleteFunc(reconcile.Conflicts(changes), isAgreed)
	if len(more) == 0 {
		return nil
	}
	return fmt.Errorf("%s: appeared after you confirmed, and nothing was changed; run kbnode install again",
		strings.Join(more, ", "))
}
