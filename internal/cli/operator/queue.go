package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/operate/fleet"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// queueWatch is how often --watch asks Buildkite: each look takes a request per 100 agents and one per 30 builds, of the
// 50 that a person's tokens may make in a minute.
const queueWatch = 15 * time.Second

type queueCommand struct {
	s      term.Streams
	api    APIFlags
	queues []string
	node   string // pattern

	agents, watch, asJSON bool
}

// NewQueue returns kbnode queue.
func NewQueue(s term.Streams) *cobra.Command {
	q := &queueCommand{s: s}
	forget := ""
	cmd := &cobra.Command{
		Use:   "queue [NAME ...]",
		Short: "Show the nodes of Buildkite's queues, what serves, and what waits",
		Long: `Show the nodes of some queues, or of all: their slots that are idle, busy, and out of
service, and why, and how many jobs wait.

A node whose agents are all gone is shown for a week, as it was when this command last saw
it. The API token needs the scopes read_agents, read_builds and, to see that a queue is
paused, read_clusters. Agents and jobs that name no queue are in the queue default.

On a terminal that is too short, nodes with all slots in service share a line.

Exit code 1 if no agent is connected, or no node has the name of --node.`,
		Example: `  kbnode queue --org gpu-mode
  kbnode queue b200 mi300 --watch
  kbnode queue b200 --node 'vendor-*' --agents`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			q.queues = args
			if cmd.Flags().Changed("forget") {
				return q.forget(forget)
			}
			return q.run(cmd.Context())
		},
	}
	q.api.add(cmd)
	fl := cmd.Flags()
	term.JSONFlag(fl, &q.asJSON, "print JSON", queueDoc)
	fl.BoolVar(&q.agents, "agents", false, "show a line per agent, with its job, and per waiting job")
	fl.BoolVar(&q.watch, "watch", false, "refresh every 15 seconds, until interrupted")
	fl.StringVar(&q.node, "node", "", "show only nodes with such a name; * and ? stand for other characters")
	fl.StringVar(&forget, "forget", "", "do not show this node as gone any more")
	cmd.AddCommand(newQueueCreate(s))
	return cmd
}

// durationForm matches what other tools have after --watch.
var durationForm = lazy.Regexp(`^\d+[smh]?$`)

func (q *queueCommand) check() error {
	if len(q.queues) == 2 && text.Edits(q.queues[0], "create") <= 2 {
		return q.s.Advise(fmt.Sprintf("there is no kbnode queue %s", q.queues[0]), []string{"queue", "create", q.queues[1]})
	}
	for _, name := range q.queues {
		i := slices.Index(q.s.Typed, name)
		switch {
		case i >= 0 && strings.ContainsAny(name, ", "):
			return q.s.Advise("queues are words of their own", q.s.With(i, strings.FieldsFunc(name, func(r rune) bool { return r == ',' || r == ' ' })...))
		case i >= 0 && slices.Contains([]string{"list", "ls", "show", "get", "status"}, name):
			return q.s.Advise(fmt.Sprintf("%q is taken for the name of a queue", name), q.s.With(i))
		case slices.Contains([]string{"delete", "remove", "rm"}, name):
			return term.Usagef("kbnode deletes no queue; do it in Buildkite, under Agents, the cluster, Queues")
		case q.watch && durationForm().MatchString(name):
			return q.s.Advise("--watch takes no time", q.s.With(i))
		case len(name) > 100 || !text.Plain(name) || strings.Contains(name, "/"):
			return term.Usagef("%.40q is not the name of a queue; write it as in Buildkite, such as b200", name)
		}
	}
	if q.watch && q.asJSON {
		return term.Usagef("--watch is for a person, and --json for a program; give one of them")
	}
	if _, err := path.Match(q.node, ""); err != nil {
		return term.Usagef("--node %.40q is not a pattern; write a name, or part of it and *, such as 'vendor-*'", q.node)
	}
	return nil
}

func (q *queueCommand) run(ctx context.Context) error {
	if err := q.check(); err != nil {
		return err
	}
	client, err := q.api.Client(q.s, nil)
	if err != nil {
		return err
	}
	answered := false
	for {
		report, none, err := client.ReadQueues(ctx, q.api.Org, q.queues...)
		if err != nil && answered && passing(buildkite.Refused(err)) && ctx.Err() == nil {
			q.s.Warn("%v; trying again", err)
			if limit.Sleep(ctx, queueWatch) != nil {
				return nil
			}
			continue
		}
		if err != nil {
			return err
		}
		answered = q.watch // before, what is wrong stays wrong

		memory, err := fleet.Open(q.api.Org) // each time: another kbnode queue writes it, too
		if err != nil {
			q.s.Warn("%v; nodes without agents are not shown", err)
		}
		memory.Update(&report, len(q.queues) == 0)
		if err := memory.Save(); err != nil {
			q.s.Warn("%v", err)
		}
		none = cmp.Or(q.nodesAsQueues(report, memory, none), q.filter(&report))
		err = queueDoc.Print(q.s, q.asJSON, report, func() { q.print(report, none) })
		if err == nil && none != "" && !q.watch {
			err = errors.New(none)
		}
		if err != nil || !q.watch {
			return err
		}
		if limit.Sleep(ctx, queueWatch) != nil {
			return nil
		}
	}
}

// print writes a report for people.
func (q *queueCommand) print(report buildkite.QueueReport, none string) {
	view := QueueView{Agents: q.agents, Part: q.node != ""}
	other := 1 // the prompt
	if q.watch {
		other++
		clear := "\n"
		if term.Cursor(q.s.Out) > 0 {
			clear = term.ClearScreen
		}
		term.Printf(q.s.Out, "%s", clear)
	}
	if lines := term.Height(q.s.Out); lines > 0 {
		view.Lines = max(1, lines-other)
	}
	PrintQueues(q.s.Out, report, view)
	if !q.watch {
		return
	}
	if none != "" {
		term.Printf(q.s.Out, "%s\n", none)
	}
	term.Printf(q.s.Out, "as of %s, refreshed every %s\n", report.Time.Local().Format(time.TimeOnly), text.Count(int(queueWatch.Seconds()), "second"))
}

// passing reports whether another try may go better than one that was refused with this status, or, with 0, not answered.
func passing(status int) bool {
	return status == 0 || status == http.StatusTooManyRequests || status >= http.StatusInternalServerError
}

func (q *queueCommand) forget(node string) error {
	if _, err := q.api.Client(q.s, nil); err != nil { // for the organization
		return err
	}
	memory, err := fleet.Open(q.api.Org)
	if err != nil {
		return err
	}
	if !memory.Forget(node) {
		return term.Usagef("no node %.100q was seen; kbnode queue shows their names", node)
	}
	if err := memory.Save(); err != nil {
		return err
	}
	q.s.Progress("forgot %s", node)
	return nil
}

// nodesAsQueues returns none, which says that queues have no agent, or else that the name of one is that of a node.
func (q *queueCommand) nodesAsQueues(r buildkite.QueueReport, memory *fleet.Memory, none string) string {
	for _, in := range r.Queues {
		if none != "" && slices.Contains(q.queues, in.Name) && len(in.Agents) == 0 && (len(r.NodeQueues[in.Name]) > 0 || memory.Knows(in.Name)) {
			return fmt.Sprintf("no agent is connected in queue %q; %[1]s is a node: write %s", in.Name, q.s.Line([]string{"queue", "--node", in.Name}))
		}
	}
	return none
}

// filter removes what --node leaves out. If that is everything, it says so, and which nodes there are.
func (q *queueCommand) filter(r *buildkite.QueueReport) (none string) {
	if q.node == "" {
		return ""
	}
	none = q.noNode(*r)
	other := func(node string) bool {
		ok, _ := path.Match(q.node, node) // checked
		return !ok
	}
	for i := range r.Queues {
		r.Queues[i].Agents = slices.DeleteFunc(r.Queues[i].Agents, func(a buildkite.QueueAgent) bool { return other(a.Node) })
		r.Queues[i].Nodes = slices.DeleteFunc(r.Queues[i].Nodes, func(n buildkite.QueueNode) bool { return other(n.Node) })
	}
	if len(q.queues) == 0 {
		r.Queues = slices.DeleteFunc(r.Queues, func(q buildkite.Queue) bool { return len(q.Nodes) == 0 })
	}
	if slices.ContainsFunc(r.Queues, func(q buildkite.Queue) bool { return len(q.Nodes) > 0 }) {
		return ""
	}
	return none
}

// noNode says that no node has a name that --node asks for, and what there is.
func (q *queueCommand) noNode(r buildkite.QueueReport) string {
	says := fmt.Sprintf("no node is named %q", q.node)
	if strings.ContainsAny(q.node, `*?[\`) {
		says = fmt.Sprintf("no node matches %q", q.node)
	}
	if len(q.queues) > 0 {
		says += " in queue " + strings.Join(q.queues, ", ")
	}
	if at := r.NodeQueues[q.node]; len(at) > 0 {
		return fmt.Sprintf("%s; it is in %s", says, strings.Join(at, ", "))
	}
	var names []string
	for _, in := range r.Queues {
		for _, a := range in.Agents {
			if a.Name == q.node {
				return fmt.Sprintf("%s, but an agent of %s; write %s", says, a.Node, q.s.Line([]string{"queue", "--node", a.Node}))
			}
		}
		for _, n := range in.Nodes {
			names = append(names, n.Node)
		}
	}
	if len(names) == 0 {
		return says
	}
	slices.Sort(names)
	return fmt.Sprintf("%s; nodes: %s", says, buildkite.Named(q.node, slices.Compact(names)))
}
