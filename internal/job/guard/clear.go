package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

const (
	// parkedPoll is the time between two looks at a parked slot, and parkedTime how long one process looks.
	parkedPoll = 5 * time.Second
	parkedTime = 30 * time.Second
)

// clear clears the slot before its agent starts, and waits while the slot is parked, or for an agent that fails again and
// again: as long as something remains that cannot be cleared, the agent does not start. It returns after parkedTime why the
// slot is parked, so that another process looks, with what the node's configuration and kbnode are by then.
func (g *guard) clear(ctx context.Context, when string) (parked string, err error) {
	wait := time.Duration(0)
	if when == slot.ClearStart {
		if err := g.setCleared(false); err != nil {
			return "", err
		}
		if wait, err = g.countStart(time.Now()); err != nil {
			g.log.Warn("agents that fail are not counted", "err", err)
		}
	}
	for began := time.Now(); ; {
		if parked, err = g.clearOnce(ctx); err != nil || parked != "" && time.Since(began) > parkedTime {
			return parked, err
		}
		if parked == "" {
			break
		}
		if err := limit.Sleep(ctx, parkedPoll); err != nil {
			return "", err
		}
	}
	if wait > 0 {
		g.log.Warn("agent exited several times in a row without a job", "wait", wait.String())
		if err := limit.Sleep(ctx, wait); err != nil {
			return "", err
		}
	}
	return "", g.giveToken()
}

// giveToken writes the registration token where the agent's unit reads it. An operator's file may have other forms.
func (g *guard) giveToken() error {
	token, err := g.token()
	if err == nil {
		err = renameio.WriteFile(filepath.Join(g.runDir(), plan.TokenName), []byte(agent.RenderToken(token)), 0o600)
	}
	return err
}

// sweepOnce removes what is left of a job when its agent has ended: the next one may start never, or late.
func (g *guard) sweepOnce(ctx context.Context) error {
	release, err := g.hold(ctx, holderRoot)
	if errors.Is(err, errBusy) {
		if g.holder().kind == holderRoot {
			return nil // it removes what it leaves, and the next job of the agent's is not near
		}
		release, err = g.hold(ctx, holderClear)
	}
	if err != nil {
		return err
	}
	defer release()
	if err := ignoreAbsent(os.Remove(filepath.Join(g.runDir(), plan.TokenName))); err != nil {
		g.log.Warn("token left behind", "err", err)
	}
	if err := g.sweep(ctx, retryTime); err != nil {
		return err
	}
	_, err = g.settleHooks(ctx, false)
	return err
}

func (g *guard) clearOnce(ctx context.Context) (parked string, err error) {
	release, err := g.hold(ctx, holderClear)
	if err != nil {
		if ctx.Err() != nil {
			return "", err
		}
		return err.Error(), g.note(leftName, err.Error())
	}
	defer release()
	if parked, err = g.clean(ctx, retryTime); err != nil || parked != "" || g.policy.Network == config.NetworkNone {
		return parked, err
	}
	// So that the next job does not wait for it. Each job checks the network again.
	if err := g.network.ready(ctx); err != nil && ctx.Err() == nil {
		g.log.Warn("network not created; the next job tries again", "err", err)
	}
	return "", nil
}

const (
	// calmLife is the shortest life of an agent that works but gets no job. One that ends sooner
	// has failed: its token is refused, or Buildkite sends it away.
	calmLife = time.Minute
	// firstWait follows the second failure in a row. Each further wait is twice as long, up to
	// longestWait, or longestRegistered if Buildkite accepted the agent: that one may have had a job whose
	// bootstrap did not start, as with a variable that is too long for Linux.
	firstWait   = 5 * time.Second
	longestWait = time.Minute
	// longestRegistered is enough not to ask Buildkite too often.
	longestRegistered = 20 * time.Second
)

// starts counts agents that failed in a row. systemd cannot: it also starts the agent again after each job.
type starts struct {
	Failures int       `json:"failures"`
	Since    time.Time `json:"since"` // when the last agent was about to start
}

// countStart counts the agent that ended as one that failed or not, and returns how long the next one waits. The wait does
// not count as its life.
func (g *guard) countStart(now time.Time) (wait time.Duration, err error) {
	name := filepath.Join(g.runDir(), "starts.json")
	var s starts
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	first := err != nil // the agent before is not known
	_, worked := os.Lstat(filepath.Join(g.runDir(), slot.WorkedName))
	_, registered := os.Lstat(filepath.Join(g.runDir(), slot.RegisteredName))
	switch life := now.Sub(s.Since); {
	case first, worked == nil, life > calmLife, life < 0:
		s.Failures = 0
	default:
		s.Failures++
		if s.Failures > 1 {
			longest := longestWait
			if registered == nil {
				longest = longestRegistered
			}
			wait = min(firstWait<<min(s.Failures-2, 10), longest)
		}
	}
	s.Since = now.Add(wait)
	if text, err = json.Marshal(s); err == nil {
		err = renameio.WriteFile(name, text, 0o600)
	}
	for _, file := range []string{slot.WorkedName, slot.RegisteredName} {
		err = errors.Join(err, ignoreAbsent(os.Remove(filepath.Join(g.runDir(), file))))
	}
	return wait, err
}

// report notes how far the slot's agent came.
func (g *guard) report(name string) error {
	if name != slot.RegisteredName && name != slot.WorkedName {
		return fmt.Errorf("an agent reports no %.20q; another version of kbnode sent it", name)
	}
	if err := os.WriteFile(filepath.Join(g.runDir(), name), nil, 0o600); err != nil {
		return fmt.Errorf("record how far the agent came: %w", err)
	}
	return nil
}
