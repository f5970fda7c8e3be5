package buildkite

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const (
	// DefaultQueue is the queue of agents and jobs that name none:
	// https://buildkite.com/docs/agent/v3/queues
	DefaultQueue = "default"
	// maxText bounds a name or tag from Buildkite, in bytes.
	maxText = 100
	// maxMissing bounds the tags reported as missing.
	maxMissing = 5
)

// The states of an agent.
const (
	Idle     = "idle"
	Busy     = "busy"
	Draining = "draining" // busy, and paused or stopping: takes no more jobs
	Paused   = "paused"
	Stopping = "stopping"
)

// QueueReport is the JSON of kbnode queue.
type QueueReport struct {
	Time         time.Time `json:"time"` // of the answer
	Organization string    `json:"organization"`
	Queues       []Queue   `json:"queues"`

	NodeQueues map[string][]string `json:"-"` // by connected node, its queues, also those that were not asked for
}

// Queue is a queue with its connected agents. Texts from Buildkite are made
// printable and truncated.
type Queue struct {
	Name    string       `json:"queue"`
	Agents  []QueueAgent `json:"agents"` // by node, GPU and name
	Waiting Waiting      `json:"waiting"`
	Nodes   []QueueNode  `json:"nodes"` // by name
	// WhyIdle says why jobs wait although a slot that could take them is idle. Only ReadQueues sets it.
	WhyIdle string `json:"why_idle,omitempty"`
	// RunnerQueue says the same to kernelbot. Only ReadQueues sets it.
	RunnerQueue *RunnerQueue `json:"runner_queue,omitempty"`
}

// QueueAgent is an agent in a queue. Only kbnode's agents have all the tags.
type QueueAgent struct {
	Name          string    `json:"name"`
	State         string    `json:"state"`
	Note          string    `json:"note,omitempty"` // why it is paused
	Node          string    `json:"node"`           // tag node, else the hostname
	GPUIndex      *int      `json:"gpu_index,omitempty"`
	GPUModel      string    `json:"gpu_model,omitempty"` // tag gpu-model, else gpu
	GPUUUID       string    `json:"gpu_uuid,omitempty"`
	NUMA          string    `json:"numa,omitempty"`
	AgentVersion  string    `json:"agent_version,omitempty"`
	KbnodeVersion string    `json:"kbnode_version,omitempty"`
	Job           *QueueJob `json:"job,omitempty"`
}

// QueueJob is what an agent runs.
type QueueJob struct {
	ID       string    `json:"id"`
	Name     string    `json:"name,omitempty"`
	State    string    `json:"state"`
	URL      string    `json:"url,omitempty"`
	Pipeline string    `json:"pipeline,omitempty"`
	Build    int       `json:"build,omitempty"`  // number
	Started  time.Time `json:"started,omitzero"` // zero if it is about to start
}

// Queues sorts agents and waiting jobs into queues, by name. builds may be from a
// moment before or after agents: a job that an agent has is not counted as waiting. now is when they were read.
func Queues(agents []Agent, builds []Build, now time.Time) []Queue {
	found := map[string]*Queue{}
	at := func(name string) *Queue {
		name = cmp.Or(text.Line(name, maxText), DefaultQueue)
		if found[name] == nil {
			found[name] = &Queue{Name: name, Agents: []QueueAgent{}, Nodes: []QueueNode{}}
		}
		return found[name]
	}
	there := map[string][]Agent{}
	taken := map[string]bool{}
	for _, a := range withoutReplaced(agents) {
		if a.Job != nil && jobEnded(a.Job.State) {
			a.Job = nil
		}
		for _, name := range a.Queues() {
			q := at(name)
			q.Agents = append(q.Agents, a.inQueue())
			there[q.Name] = append(there[q.Name], a)
		}
		if a.Job != nil {
			taken[a.Job.ID] = true
		}
	}
	for _, b := range builds {
		for _, j := range b.Scripts() {
			if j.State != "scheduled" || taken[j.ID] {
				continue
			}
			for _, name := range queuesOf(j.Rules) {
				q := at(name)
				q.Waiting.add(b, j, there[q.Name])
			}
		}
	}
	var all []Queue
	for _, q := range found {
		slices.SortFunc(q.Agents, func(a, b QueueAgent) int {
			return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.index(), b.index()), cmp.Compare(a.Name, b.Name))
		})
		q.Nodes = nodesOf(there[q.Name], now)
		slices.SortStableFunc(q.Waiting.List, func(a, b WaitingJob) int {
			return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Since.Compare(b.Since), cmp.Compare(a.Build, b.Build))
		})
		slices.Sort(q.Waiting.Missing)
		q.Waiting.Missing = q.Waiting.Missing[:min(len(q.Waiting.Missing), maxMissing)]
		all = append(all, *q)
	}
	slices.SortFunc(all, func(a, b Queue) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// withoutReplaced leaves out agents that stand in for slots that have another agent: Buildkite lists both until it counts
// one as lost, or hears that it left. Of two such agents, it keeps the first.
func withoutReplaced(agents []Agent) []Agent {
	there := map[[2]string]bool{}
	for _, a := range agents {
		if !a.StandsIn() {
			there[[2]string{a.Hostname, a.Name}] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(agents), func(a Agent) bool {
		at := [2]string{a.Hostname, a.Name}
		replaced := a.StandsIn() && there[at]
		there[at] = true
		return replaced
	})
}

// ReadQueues returns the queues of an organization with these names, or all of them if there are none. If there is no
// agent in one of those, or in any queue, it also says so, and where there are some.
func (c *Client) ReadQueues(ctx context.Context, org string, names ...string) (r QueueReport, none string, err error) {
	agents, err := c.Agents(ctx, org)
	if err != nil {
		return r, "", err
	}
	builds, err := c.Unfinished(ctx, org)
	if err != nil {
		return r, "", err
	}
	r = QueueReport{Time: time.Now().UTC().Truncate(time.Second), Organization: org, Queues: []Queue{}, NodeQueues: map[string][]string{}}
	found := Queues(agents, builds, r.Time)
	var withAgents []string
	for _, q := range found {
		if slices.ContainsFunc(q.Nodes, func(n QueueNode) bool { return n.Agents > 0 }) {
			withAgents = append(withAgents, q.Name)
		}
		for _, n := range q.Nodes {
			r.NodeQueues[n.Node] = append(r.NodeQueues[n.Node], q.Name)
		}
		if len(names) == 0 || slices.Contains(names, q.Name) {
			r.Queues = append(r.Queues, q)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(r.Queues, func(q Queue) bool { return q.Name == name }) {
			r.Queues = append(r.Queues, EmptyQueue(name))
		}
	}
	for i := range r.Queues {
		r.Queues[i].RunnerQueue = r.Queues[i].runnerQueue()
	}
	c.explainIdle(ctx, &r)
	return r, noAgents(org, names, withAgents), nil
}

// EmptyQueue returns a queue without agents and jobs.
func EmptyQueue(name string) Queue {
	q := Queue{Name: name, Agents: []QueueAgent{}, Nodes: []QueueNode{}}
	q.RunnerQueue = q.runnerQueue()
	return q
}

// noAgents says which of these queues has no agent, and which queues have some.
func noAgents(org string, names, withAgents []string) string {
	if len(withAgents) == 0 {
		none := "no agent is connected in any queue of " + org
		if len(names) > 0 {
			none = fmt.Sprintf("no agent is connected in queue %q; %s", names[0], none)
		}
		return none
	}
	for _, name := range names {
		if !slices.Contains(withAgents, name) {
			return fmt.Sprintf("no agent is connected in queue %q; queues with agents: %s", name, Named(name, withAgents))
		}
	}
	return ""
}

// queuesOf returns the queues that an agent's tags or a job's rules name.
func queuesOf(tags []string) []string {
	var names []string
	for _, t := range tags {
		if q, ok := strings.CutPrefix(t, "queue="); ok && !slices.Contains(names, q) {
			names = append(names, q)
		}
	}
	if len(names) == 0 {
		return []string{DefaultQueue}
	}
	return names
}

func (a Agent) inQueue() QueueAgent {
	tag := func(key string) string { return text.Line(Tag(a.Tags, key), maxText) }
	out := QueueAgent{
		Name: text.Line(a.Name, maxText), Note: text.Line(a.PausedNote, 4*maxText),
		Node:     cmp.Or(tag("node"), text.Line(a.Hostname, maxText)),
		GPUModel: cmp.Or(tag("gpu-model"), tag("gpu")), GPUUUID: tag("gpu-uuid"), NUMA: tag("numa"),
		AgentVersion: text.Line(a.Version, maxText), KbnodeVersion: tag("kbnode"),
	}
	if n, err := strconv.ParseUint(Tag(a.Tags, "gpu-index"), 10, 16); err == nil {
		index := int(n)
		out.GPUIndex = &index
	}
	switch {
	case a.StandsIn():
		out.State = tag(plan.OutTag)
		if !slices.Contains(plan.OutStates, out.State) {
			out.State = plan.OutStates[0]
		}
	case a.Job != nil && (a.Paused || a.Stopping()):
		out.State = Draining
	case a.Job != nil:
		out.State = Busy
	case a.Stopping():
		out.State = Stopping
	case a.Paused:
		out.State = Paused
	default:
		out.State = Idle
	}
	if j := a.Job; j != nil {
		out.Job = &QueueJob{ID: text.Line(j.ID, maxText), Name: text.Line(j.Name, maxText), State: text.Line(j.State, maxText), URL: text.Line(j.URL, 5*maxText), Started: j.Started}
		out.Job.Pipeline, out.Job.Build = BuildOf(out.Job.URL)
	}
	return out
}

// jobEnded reports whether a job in this state no longer occupies an agent.
func jobEnded(state string) bool {
	return slices.Contains([]string{"passed", "failed", "canceled", "timed_out", "expired", "broken", "skipped"}, state)
}

func (a QueueAgent) index() int {
	if a.GPUIndex == nil {
		return -1
	}
	return *a.GPUIndex
}

// BuildOf returns the pipeline and number in the URL of a build's or a job's page,
// https://buildkite.com/ORGANIZATION/PIPELINE/builds/NUMBER#JOB.
func BuildOf(page string) (pipeline string, number int) {
	at, err := url.Parse(page)
	if err != nil {
		return "", 0
	}
	part := strings.Split(strings.Trim(at.Path, "/"), "/")
	if len(part) < 4 || part[2] != "builds" || !slugRule().MatchString(part[1]) {
		return "", 0
	}
	if number, err = strconv.Atoi(part[3]); err != nil || number <= 0 {
		return "", 0
	}
	return part[1], number
}

// Count returns how many agents are in one of these states.
func (q Queue) Count(states ...string) int {
	n := 0
	for _, a := range q.Agents {
		if slices.Contains(states, a.State) {
			n++
		}
	}
	return n
}

// maxNamed bounds the names in a message.
const maxNamed = 8

// Named formats names for a message, those most like word first.
func Named(word string, names []string) string {
	names = slices.Clone(names)
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(text.Edits(word, a), text.Edits(word, b)), cmp.Compare(a, b))
	})
	more := ""
	if len(names) > maxNamed {
		names, more = names[:maxNamed], fmt.Sprintf(" and %d more", len(names)-maxNamed)
	}
	for i, n := range names {
		names[i] = text.Line(n, 100)
	}
	return strings.Join(names, ", ") + more
}
