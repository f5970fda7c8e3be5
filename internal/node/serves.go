package node

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
)

// Served is what the authors of pipelines need to know about a node. The zero value is a machine
// that is not a node.
type Served struct {
	Image  string // "" if unknown
	Vendor string // as in a slot's policy; "none" of slots without a GPU, "" if unknown
	// Unread is why the configuration is unknown: the user may not read it.
	Unread error

	template string         // queue in the configuration
	queues   map[int]string // by slot, as the agents have them
}

// Queue returns the queue of a slot, or of all slots if index is -1.
func (s Served) Queue(index int) (string, error) {
	slots := slices.Sorted(maps.Keys(s.queues))
	if len(slots) == 0 {
		if strings.Contains(s.template, "{") {
			return "", fmt.Errorf("the queue %s is a template, and there are no agents yet; add --queue NAME", s.template)
		}
		return s.template, nil
	}
	if index >= 0 {
		q, ok := s.queues[index]
		if !ok {
			return "", fmt.Errorf("this node has no slot %s; it has %s to %s", plan.SlotName(index), plan.SlotName(slots[0]), plan.SlotName(slots[len(slots)-1]))
		}
		return q, nil
	}
	first, last := s.queues[slots[0]], s.queues[slots[len(slots)-1]]
	for _, k := range slots {
		if s.queues[k] != first {
			return "", fmt.Errorf("each slot of this node has its own queue, %s to %s; add --gpu-index N or --queue NAME", first, last)
		}
	}
	return first, nil
}

// Serves reads a node's files, with the rights of the user. Queues come from the agents'
// configuration, which is what Buildkite knows.
func (n *Node) Serves() (s Served, err error) {
	text, err := n.ReadFile(plan.ConfigPath)
	switch {
	case err == nil:
		cfg, err := config.Parse(plan.ConfigPath, text)
		if err != nil {
			return s, &config.InputError{Err: err}
		}
		s.Image, s.template = cfg.WithDefaults().Image.Name, cfg.Queue
	case errors.Is(err, fs.ErrPermission):
		s.Unread = err
	case !errors.Is(err, fs.ErrNotExist):
		return s, fmt.Errorf("read configuration: %w", err)
	}
	policies, err := slot.ReadPolicies(n.Root)
	if err != nil || policies == nil {
		return s, err
	}
	s.queues = map[int]string{}
	for _, pol := range policies {
		s.Vendor = cmp.Or(pol.Vendor, "none")
		text, err = n.ReadFile(plan.AgentDir(pol.Slot) + "/buildkite-agent.cfg")
		if err != nil {
			return s, fmt.Errorf("read slot %s: %w", plan.SlotName(pol.Slot), err)
		}
		s.queues[pol.Slot] = agentQueue(string(text))
	}
	return s, nil
}

// agentQueue returns the queue among the tags of an agent's configuration.
func agentQueue(cfg string) string {
	for line := range strings.Lines(cfg) {
		tags, ok := strings.CutPrefix(strings.TrimSpace(line), `tags="`)
		for tag := range strings.SplitSeq(strings.TrimSuffix(tags, `"`), ",") {
			if q, isQueue := strings.CutPrefix(tag, "queue="); ok && isQueue {
				return q
			}
		}
	}
	return ""
}
