package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	pretty "github.com/jedib0t/go-pretty/v6/text"

	"github.com/gpu-mode/kbnode/internal/noise"
	"github.com/gpu-mode/kbnode/internal/submit"
	"github.com/gpu-mode/kbnode/internal/text"
)

func printOutcome(s Streams, out submit.Outcome) {
	said := ""
	if out.Result != nil {
		var passed bool
		said, passed = out.Result.Verdict()
		if _, ok := terminal(s.Err); ok {
			printf(s.Err, "\n") // between the progress and the result
		}
		var report strings.Builder
		out.Result.Report(&report)
		printf(s.Out, "%s\n", paintReport(s.Out, report.String(), said, passed))
	}
	var node noise.Record
	if json.Unmarshal(out.Node, &node) == nil && node.Noisy {
		for _, why := range node.Why[:min(len(node.Why), 5)] {
			printf(s.Out, "noisy: %s\n", text.Line(why, 200))
		}
	}
	to := s.Out
	if out.Verdict != submit.Passed {
		to = s.Err
	}
	if said != out.Reason {
		printf(to, "%s: %s\n", out.Verdict, text.Line(out.Reason, 1000))
	}
	if out.Build != 0 {
		printf(s.Out, "%s\n", buildLine(out))
	}
}

// paintReport colors the verdict in a report.
func paintReport(w io.Writer, report, said string, passed bool) string {
	word, _, _ := strings.Cut(said, ":")
	c := pretty.FgRed
	if passed {
		c = pretty.FgGreen
	}
	before, after, found := strings.Cut("\n"+report, "\n"+word)
	if !found {
		return report
	}
	return (before + "\n" + paint(w, c, word) + after)[1:]
}

// buildLine returns where a job ran, and for how long.
func buildLine(out submit.Outcome) string {
	parts := []string{fmt.Sprintf("build %d", out.Build)}
	if out.Agent != "" {
		parts[0] += " on " + out.Agent
	}
	if out.Run > 0 {
		parts = append(parts, fmt.Sprintf("waited %.0f s", out.Queue), fmt.Sprintf("ran %.0f s", out.Run))
	}
	return strings.Join(append(parts, text.Line(out.URL, 300)), ", ")
}
