package guard

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// newName returns a name for one of the slot's containers. No two have the same: an engine that was killed, or
// that cannot remove a container, keeps its name, and that of its endpoint, from others.
func (g *guard) newName() string { return g.namePrefix() + "-" + rand.Text() }

func (g *guard) namePrefix() string { return "kbnode-" + g.policy.Name }

// textLetters are those of rand.Text.
const textLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"

// owns reports whether a name is of one of the slot's containers.
func (g *guard) owns(name string) bool {
	rest, ok := strings.CutPrefix(strings.TrimSuffix(name, imageSuffix), g.namePrefix()+"-")
	return ok && len(rest) == len(rand.Text()) && strings.Trim(rest, textLetters) == ""
}

// detachTime is how long the engine may take to clear the slot's network.
const detachTime = 10 * time.Second

// removeContainers removes the slot's containers, whatever guard or engine left them, and then what the engine
// keeps of them on the slot's network.
func (g *guard) removeContainers(ctx context.Context) error {
	if err := g.api.RemoveNamed(ctx, g.namePrefix(), g.owns); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, detachTime)
	defer cancel()
	// What stays there keeps only an address from the slot's next container, which has another name.
	if err := g.api.DetachGone(ctx, plan.NetworkName(g.policy.Slot)); err != nil {
		g.log.Warn("network not cleared of containers that are gone", "err", err)
	}
	return nil
}
