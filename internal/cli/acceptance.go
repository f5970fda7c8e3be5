package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/gpu-mode/kbnode/internal/acceptance"
	"github.com/gpu-mode/kbnode/internal/doctor"
	"github.com/gpu-mode/kbnode/internal/image"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/selftest"
)

// acceptTime is how long doctor may take for the acceptance: no one waits at a screen.
const acceptTime = 5 * time.Minute

// acceptanceOutput is the JSON of kbnode doctor --acceptance; docs/install.md
// describes it.
type acceptanceOutput struct {
	Node   string   `json:"node"`
	Kbnode string   `json:"kbnode"` // its version
	Queues []string `json:"queues"`
	GPUs   []string `json:"gpus"` // "gpu0: NVIDIA B200, GPU-…"
	Image  string   `json:"image"`
	*acceptance.Report
}

// accept runs the acceptance and prints its report.
func accept(ctx context.Context, s Streams, asJSON bool) error {
	if err := needRoot("doctor --acceptance"); err != nil {
		return err
	}
	host, closeHost, err := openHost(ctx, s)
	if err != nil {
		return err
	}
	defer closeHost()
	u, closeUpdater, err := openUpdater()
	if err != nil {
		return err
	}
	defer closeUpdater()
	m, _, err := lookLocked(ctx, s, host)
	if err != nil {
		return err
	}
	quiet := s
	quiet.Err = io.Discard // the steps' own progress
	report, err := acceptance.Run(ctx, &acceptedNode{s: quiet, host: host, m: m, images: u}, func(text string) { s.progress("%s", text) })
	if err != nil {
		return err
	}
	out := acceptanceOutput{Node: m.plan.Node, Kbnode: readVersion().Version, Image: u.Name, Report: report}
	for _, slot := range m.plan.Slots {
		for _, g := range slot.GPUs {
			out.GPUs = append(out.GPUs, slot.Name+": "+g.Model+", "+g.UUID)
		}
		out.Queues = append(out.Queues, slot.Queue)
	}
	slices.Sort(out.Queues)
	out.Queues = slices.Compact(out.Queues)
	if asJSON {
		err = printJSON(s.Out, out)
	} else {
		printAcceptance(s.Out, out)
	}
	if err == nil && !report.Accepted {
		return &exitError{code: exitNo}
	}
	return err
}

// acceptedNode is this machine.
type acceptedNode struct {
	s      Streams
	host   *reconcile.Host
	m      *machine
	images *image.Updater
}

func (n *acceptedNode) Doctor(ctx context.Context) (*doctor.Report, error) {
	return (&doctorRun{s: n.s, o: doctor.Options{Limit: acceptTime}}).ask(ctx)
}

func (n *acceptedNode) Selftest(ctx context.Context) ([]selftest.SlotReport, error) {
	out, err := runSelftest(ctx, n.s, nil)
	if err != nil {
		return nil, err
	}
	return out.Slots, nil
}

func (n *acceptedNode) Pull(ctx context.Context) (string, error) { return n.images.Again(ctx) }

func (n *acceptedNode) Evaluate(ctx context.Context, atOnce bool) ([]image.Evaluation, error) {
	return n.images.Evaluate(ctx, atOnce)
}

func (n *acceptedNode) Idle(ctx context.Context) (int, bool, error) {
	state, err := n.host.Observe(ctx, n.m.plan)
	if err != nil {
		return 0, false, err
	}
	for _, slot := range n.m.plan.Slots {
		if ss := state.Slot(slot.Index); slot.Serves() && ss.Busy() == "" && ss.Agent.Active == "active" {
			return slot.Index, true, nil
		}
	}
	return 0, false, nil
}

func (n *acceptedNode) Agent(ctx context.Context, slot int) (acceptance.Agent, error) {
	state, err := n.host.Observe(ctx, n.m.plan)
	if err != nil {
		return acceptance.Agent{}, err
	}
	ss := state.Slot(slot)
	a := acceptance.Agent{Registered: registered(ss)}
	if ss.Agent.Active == "active" {
		a.PID = ss.Agent.MainPID
	}
	return a, nil
}

func (n *acceptedNode) Kill(ctx context.Context, slot int) error {
	state, err := n.host.Observe(ctx, n.m.plan)
	if err != nil {
		return err
	}
	ss := state.Slot(slot)
	if busy := ss.Busy(); busy != "" { // a job may have started since
		return fmt.Errorf("kill %s: it is busy with %s", plan.AgentUnit(slot), busy)
	}
	p, err := os.FindProcess(ss.Agent.MainPID)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		return fmt.Errorf("kill %s: %w", plan.AgentUnit(slot), err)
	}
	return nil
}

// printAcceptance prints a report plain enough for a letter: the label comes first.
func printAcceptance(w io.Writer, out acceptanceOutput) {
	printf(w, "Node    %s\nTime    %s\nkbnode  %s, %s\nQueue   %s\nImage   %s\n", out.Node, out.Time.Format(time.DateTime+" UTC"), out.Kbnode, runtime.GOARCH, strings.Join(out.Queues, ", "), out.Image)
	for _, gpu := range out.GPUs {
		printf(w, "GPU     %s\n", gpu)
	}
	printf(w, "\n")
	t := newList(w, "", "Item", "Verdict", "Seconds")
	t.wraps = "Item"
	for n, i := range out.Items {
		t.row(n+1, i.About, paintVerdict(w, i.Verdict), fmt.Sprintf("%.1f", i.Seconds))
	}
	t.print()
	for n, i := range out.Items {
		printf(w, "%2d. %s: %s\n", n+1, i.Verdict, i.Saw)
		if i.Do != "" {
			printf(w, "    do  %s\n", i.Do)
		}
	}
	verdict := paint(w, text.FgGreen, "ACCEPTED")
	if !out.Accepted {
		verdict = paint(w, text.FgRed, "NOT ACCEPTED")
	}
	printf(w, "\n%s: %d passed, %d failed, %d not tried, %d by hand. Send all of this to the operators.\n", verdict,
		out.Count(acceptance.Passed), out.Count(acceptance.Failed), out.Count(acceptance.Untried), out.Count(acceptance.ByHand))
}

func paintVerdict(w io.Writer, v acceptance.Verdict) string {
	switch v {
	case acceptance.Passed:
		return paint(w, text.FgGreen, string(v))
	case acceptance.ByHand:
		return paint(w, text.FgYellow, string(v))
	default:
		return paint(w, text.FgRed, strings.ToUpper(string(v)))
	}
}
