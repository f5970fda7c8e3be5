// Package fleet remembers the nodes that kbnode queue has shown, so that it also shows those whose agents are gone:
// Buildkite's API lists only agents that are connected.
package fleet

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const (
	// Kept is how long a node without an agent is shown: a weekend, and some days to repair it.
	Kept = 7 * 24 * time.Hour
	// maxFile bounds the file in bytes: ten thousand slots take 2 MB.
	maxFile = 16 << 20
)

// Memory is what was last seen of an organization's nodes.
type Memory struct {
	path   string
	queues map[string]map[string]*seenNode // by queue and node
}

type seenNode struct {
	Slots   int                  `json:"slots"`
	Version string               `json:"kbnode_version,omitempty"`
	LastJob time.Time            `json:"last_job,omitzero"`
	Seen    time.Time            `json:"seen"`
	Agents  map[string]time.Time `json:"agents"` // slots, and when they last had an agent
}

// Open reads what was seen of an organization's nodes. After an error, it returns a memory of nothing.
func Open(organization string) (*Memory, error) {
	dir, err := StateDir()
	if err != nil {
		return &Memory{queues: map[string]map[string]*seenNode{}}, err
	}
	return load(filepath.Join(dir, "nodes-"+organization+".json"))
}

// StateDir returns the directory for what commands of an operator remember, below XDG_STATE_HOME or ~/.local/state.
func StateDir() (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) { // as the XDG Base Directory Specification wants it
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find directory for what is remembered: %w", err)
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "kbnode"), nil
}

// load reads a file. After an error, it returns a memory of nothing, which Save writes in the file's place.
func load(path string) (*Memory, error) {
	m := &Memory{path: path, queues: map[string]map[string]*seenNode{}}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		defer f.Close() //nolint:errcheck // opened for reading
		err = json.NewDecoder(io.LimitReader(f, maxFile)).Decode(&m.queues)
	}
	if err != nil || m.queues == nil { // of the word null
		m.queues = map[string]map[string]*seenNode{}
	}
	if err != nil {
		return m, fmt.Errorf("read the nodes seen before: %w", err)
	}
	return m, nil
}

// Save writes the file. Without a directory for it, it does nothing.
func (m *Memory) Save() error {
	if m.path == "" {
		return nil
	}
	content, err := json.Marshal(m.queues)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(m.path), 0o700)
	}
	if err == nil {
		err = renameio.WriteFile(m.path, content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the nodes seen for the next time: %w", err)
	}
	return nil
}

// Update adds to a report what it does not have but was seen before, and remembers what it has. all says that it is of all
// queues; others that it leaves out stay as they were.
func (m *Memory) Update(r *buildkite.QueueReport, all bool) {
	for _, name := range slices.Sorted(maps.Keys(m.queues)) {
		if all && !slices.ContainsFunc(r.Queues, func(q buildkite.Queue) bool { return q.Name == name }) {
			r.Queues = append(r.Queues, buildkite.EmptyQueue(text.Line(name, 100)))
		}
	}
	for i := range r.Queues {
		q := &r.Queues[i]
		known := m.queues[q.Name]
		if known == nil {
			known = map[string]*seenNode{}
		}
		met := map[string]bool{}
		for n := range q.Nodes {
			node := &q.Nodes[n]
			met[node.Node] = true
			if !node.Tagged { // a host that comes and goes, perhaps
				continue
			}
			if known[node.Node] == nil {
				known[node.Node] = &seenNode{}
			}
			known[node.Node].meet(node, q.Agents, r.Time)
		}
		for _, name := range slices.Sorted(maps.Keys(known)) {
			switch was := known[name]; {
			case was == nil || r.Time.Sub(was.Seen).Abs() > Kept:
				delete(known, name)
			case !met[name]:
				q.Nodes = append(q.Nodes, was.lastSeen(name, r.NodeQueues[name]))
			}
		}
		m.queues[q.Name] = known
		if len(known) == 0 {
			delete(m.queues, q.Name)
		}
	}
	r.Queues = slices.DeleteFunc(r.Queues, func(q buildkite.Queue) bool { return all && len(q.Nodes) == 0 && q.Waiting.Jobs == 0 })
}

// Forget forgets a node in all queues, and reports whether it knew it.
func (m *Memory) Forget(node string) bool {
	found := false
	for _, nodes := range m.queues {
		if _, ok := nodes[node]; ok {
			delete(nodes, node)
			found = true
		}
	}
	return found
}

// Knows reports whether it has seen a node.
func (m *Memory) Knows(node string) bool {
	for _, nodes := range m.queues {
		if nodes[node] != nil {
			return true
		}
	}
	return false
}

// meet remembers a node, and gives its slots without an agent the names that they had.
func (s *seenNode) meet(node *buildkite.QueueNode, agents []buildkite.QueueAgent, now time.Time) {
	if s.LastJob.After(node.LastJob) {
		node.LastJob = s.LastJob
	}
	s.Slots, s.Version, s.LastJob, s.Seen = node.Slots, node.KbnodeVersion, node.LastJob, now
	if s.Agents == nil {
		s.Agents = map[string]time.Time{}
	}
	present := map[string]bool{}
	for _, a := range agents {
		if a.Node == node.Node {
			present[a.Slot()], s.Agents[a.Slot()] = true, now
		}
	}
	var absent []string
	for slot, at := range s.Agents {
		if now.Sub(at).Abs() > Kept {
			delete(s.Agents, slot)
		} else if !present[slot] {
			absent = append(absent, slot)
		}
	}
	missing := slices.DeleteFunc(slices.Clone(node.Out), func(o buildkite.QueueSlot) bool { return o.State != buildkite.Missing })
	for i, slot := range s.latest(absent)[:min(len(absent), len(missing))] {
		missing[i].Slot, missing[i].Seen = text.Line(slot, 100), s.Agents[slot]
	}
	slices.SortFunc(missing, buildkite.BySlot)
	node.Out = append(node.Out[:len(node.Out)-len(missing)], missing...) // they are the last
}

// lastSeen returns a node of which no agent is connected in a queue. others are the queues in which it has agents, as after a
// change of its configuration.
func (s *seenNode) lastSeen(name string, others []string) buildkite.QueueNode {
	n := buildkite.QueueNode{Node: text.Line(name, 100), Slots: max(0, min(s.Slots, buildkite.MaxSlots)), KbnodeVersion: text.Line(s.Version, 100), LastJob: s.LastJob, Seen: s.Seen}
	latest := s.latest(slices.Collect(maps.Keys(s.Agents)))
	reason := ""
	if len(others) > 0 {
		reason = "the node has agents in queue " + text.Line(strings.Join(others, ", "), 300)
	}
	for i := range n.Slots {
		out := buildkite.QueueSlot{State: buildkite.Gone, Reason: reason, Seen: s.Seen}
		if i < len(latest) {
			out.Slot, out.Seen = text.Line(latest[i], 100), s.Agents[latest[i]]
		}
		n.Out = append(n.Out, out)
	}
	slices.SortFunc(n.Out, buildkite.BySlot)
	return n
}

// latest orders slots by when they last had an agent, the latest first: with more names than slots, the slots were divided
// again, and the latest names are theirs.
func (s *seenNode) latest(slots []string) []string {
	slices.SortFunc(slots, func(a, b string) int { return cmp.Or(s.Agents[b].Compare(s.Agents[a]), strings.Compare(a, b)) })
	return slots
}
