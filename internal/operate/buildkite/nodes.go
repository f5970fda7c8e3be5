package buildkite

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxSlots bounds what a tag says: a node of today has at most 16 GPUs with 8 parts each.
const MaxSlots = 128

// The states of a slot without an agent: Gone is one of a node without any.
const (
	Missing = "missing"
	Gone    = "gone"
)

// QueueNode is a node with slots in a queue, as its agents' tags describe it.
type QueueNode struct {
	Node   string `json:"node"`
	Slots  int    `json:"slots"`  // in this queue, by the tag slots; at least its agents
	Agents int    `json:"agents"` // that are connected and are no stand-ins
	Idle   int    `json:"idle"`
	Busy   int    `json:"busy"` // draining ones, too
	// Out are its slots that take no jobs, by name. A slot without an agent has a name if one was seen before.
	Out []QueueSlot `json:"out_of_service,omitempty"`
	// KbnodeVersion is "" if its agents are not kbnode's. While it changes, it is the one that most of them have.
	KbnodeVersion string    `json:"kbnode_version,omitempty"`
	OtherVersion  bool      `json:"other_version,omitempty"` // than most nodes of the queue have
	LastJob       time.Time `json:"last_job,omitzero"`       // when one of its agents was last known to have a job
	Tagged        bool      `json:"-"`                       // its agents say its name; of others it is the host's
	Seen          time.Time `json:"seen,omitzero"`           // when one of its agents was last connected; zero if one is
}

// QueueSlot is a slot that takes no jobs.
type QueueSlot struct {
	Slot   string    `json:"slot,omitempty"` // the agent's name, without the node's
	State  string    `json:"state"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since,omitzero"` // since when it is drained or paused; zero if that is not known
	Seen   time.Time `json:"seen,omitzero"`  // when its agent was last connected; zero if it is, or if that is not known
}

// Slot returns the name of an agent's slot: what its name has after that of its node.
func (a QueueAgent) Slot() string {
	if slot, ok := strings.CutPrefix(a.Name, a.Node+"-"); ok && slot != "" {
		return slot
	}
	return a.Name
}

// nodesOf returns the nodes of a queue's agents, by name. now is when they were read.
func nodesOf(agents []Agent, now time.Time) []QueueNode {
	nodes := map[string]*QueueNode{}
	versions := map[string][]string{}
	for _, agent := range agents {
		a := agent.inQueue()
		n := nodes[a.Node]
		if n == nil {
			n = &QueueNode{Node: a.Node}
			nodes[a.Node] = n
		}
		if slots, err := strconv.ParseUint(Tag(agent.Tags, "slots"), 10, 16); err == nil {
			n.Slots = max(n.Slots, min(int(slots), MaxSlots)) // they may differ while it changes
		}
		n.Tagged = n.Tagged || Tag(agent.Tags, "node") != ""
		if !agent.StandsIn() {
			n.Agents++
		}
		switch a.State {
		case Idle:
			n.Idle++
		case Busy, Draining:
			n.Busy++
		default:
			n.Out = append(n.Out, QueueSlot{Slot: a.Slot(), State: a.State, Reason: a.Note, Since: agent.outSince(a.State)})
		}
		last := agent.LastJob
		if a.Job != nil {
			last = now
		}
		if last.After(n.LastJob) {
			n.LastJob = last
		}
		if a.KbnodeVersion != "" {
			versions[a.Node] = append(versions[a.Node], a.KbnodeVersion)
		}
	}
	all := []QueueNode{}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		n := nodes[name]
		slices.SortFunc(n.Out, BySlot)
		n.KbnodeVersion = mostCommon(versions[name])
		n.Slots = max(n.Slots, n.Idle+n.Busy+len(n.Out))
		for range n.Slots - n.Idle - n.Busy - len(n.Out) {
			n.Out = append(n.Out, QueueSlot{State: Missing})
		}
		all = append(all, *n)
	}
	markVersions(all)
	return all
}

// BySlot orders slots by name: gpu2 before gpu10.
func BySlot(a, b QueueSlot) int {
	return cmp.Or(cmp.Compare(len(a.Slot), len(b.Slot)), cmp.Compare(a.Slot, b.Slot))
}

// markVersions sets OtherVersion of the nodes of a queue.
func markVersions(nodes []QueueNode) {
	var versions []string
	for _, n := range nodes {
		if n.KbnodeVersion != "" {
			versions = append(versions, n.KbnodeVersion)
		}
	}
	usual := mostCommon(versions)
	for i := range nodes {
		nodes[i].OtherVersion = nodes[i].KbnodeVersion != "" && nodes[i].KbnodeVersion != usual
	}
}

// mostCommon returns the string that occurs most often; of two, the one that sorts last.
func mostCommon(all []string) string {
	count := map[string]int{}
	for _, s := range all {
		count[s]++
	}
	var most string
	for _, s := range slices.Sorted(maps.Keys(count)) {
		if count[s] >= count[most] {
			most = s
		}
	}
	return most
}
