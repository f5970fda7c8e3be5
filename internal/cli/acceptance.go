package cli

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/gpu-mode/kbnode/internal/acceptance"
)

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
	if err := s.needRoot("doctor --acceptance"); err != nil {
		return err
	}
	n := here(s)
	report, image, err := n.Accept(ctx, buildkiteAPI(), func(text string) { s.progress("%s", text) })
	if err != nil {
		return err
	}
	out := acceptanceOutput{Node: n.Plan.Node, Kbnode: readVersion().Version, Image: image, Report: report}
	for _, slot := range n.Plan.Slots {
		for _, g := range slot.GPUs {
			out.GPUs = append(out.GPUs, slot.Name+": "+g.Model+", "+g.UUID)
		}
		out.Queues = append(out.Queues, slot.Queue)
	}
	slices.Sort(out.Queues)
	out.Queues = slices.Compact(out.Queues)
	return exitUnless(report.Accepted, s.print(asJSON, out, func() { printAcceptance(s.Out, out) }))
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
