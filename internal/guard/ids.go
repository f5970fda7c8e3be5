package guard

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/job"
)

// usersGID is "users", the group of the only user of many images.
const usersGID = "100"

// checkUser checks "user", "user:group" or "", from a spec or an image, and more groups. The kernel counts
// many limits (pipes, inotify, keys, …) by user ID, and containers share the node's IDs: one that runs as
// the user of another slot or of a system service uses up theirs. What an image calls its users does not
// matter.
func (b *builder) checkUser(user string, groups []string) error {
	uid, gid, _ := strings.Cut(user, ":")
	ownUID, ownGID, _ := strings.Cut(b.facts.user, ":")
	if uid != ownUID && !job.FreeID(uid) {
		return fmt.Errorf("%.64q is a system account or another slot's user; use root, a number from %d to %d, or the slot's own user (propagate-uid-gid)", uid, job.FirstID, job.LastID)
	}
	nodes := slices.Clone(b.policy.DeviceNodes)
	for _, g := range b.policy.GPUs {
		nodes = append(nodes, g.Nodes...)
	}
	also := slices.Concat(b.facts.gids(nodes), b.facts.named, []string{usersGID, ownGID})
	for _, group := range append(slices.Clone(groups), gid) {
		if !slices.Contains(also, group) && !job.FreeID(group) {
			return fmt.Errorf("%.64q is a system group or another slot's; use video, render, or a number from %d to %d", group, job.FirstID, job.LastID)
		}
	}
	return nil
}
