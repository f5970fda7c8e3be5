package cli

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/acceptance"
)

// accept runs the acceptance and prints its report.
func accept(ctx context.Context, s Streams, asJSON bool) error {
	if err := s.needRoot("doctor --acceptance"); err != nil {
		return err
	}
	report, err := here(s).Accept(ctx, buildkiteAPI(), func(text string) { s.progress("%s", text) })
	if err != nil {
		return err
	}
	return exitUnless(report.Accepted, s.print(asJSON, report, func() { printAcceptance(s.Out, report) }))
}

// printAcceptance prints a report plain enough for a letter: the label comes first.
func printAcceptance(w io.Writer, out *acceptance.Report) {
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
	verdict := paintWord(w, map[bool]string{true: "ACCEPTED", false: "NOT ACCEPTED"}[out.Accepted])
	printf(w, "\n%s: %d passed, %d failed, %d not tried, %d by hand. Send all of this to the operators.\n", verdict,
		out.Count(acceptance.Passed), out.Count(acceptance.Failed), out.Count(acceptance.Untried), out.Count(acceptance.ByHand))
}

func paintVerdict(w io.Writer, v acceptance.Verdict) string {
	if v == acceptance.Passed || v == acceptance.ByHand {
		return paintWord(w, string(v))
	}
	return paintWord(w, strings.ToUpper(string(v)))
}
