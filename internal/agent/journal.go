package agent

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/text"
)

// Journal returns the last lines that a unit logged, newest last. There is no journal
// reader for a static Go program, so journalctl reads it.
func Journal(ctx context.Context, unit string, lines int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "journalctl", "--unit", unit, "--lines", strconv.Itoa(lines), "--output", "cat", "--no-pager", "--quiet").Output()
	if err != nil {
		return nil, fmt.Errorf("read journal of %s: %w", unit, err)
	}
	return journalLines(string(out)), nil
}

// maxLine bounds a line of a log that is shown, in bytes.
const maxLine = 512

// journalLines returns the lines of a log without anything that could control a terminal:
// what an agent logs may come from a job or the network.
func journalLines(log string) []string {
	var lines []string
	for line := range strings.Lines(log) {
		if line = text.Line(line, maxLine); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// LastWords returns the last line of a log that reports an error, or else its last line.
func LastWords(lines []string) string {
	last := ""
	for _, l := range slices.Backward(lines) {
		l = strings.TrimSpace(l)
		low := strings.ToLower(l)
		if strings.Contains(low, "fatal") || strings.Contains(low, "error") || strings.Contains(l, "kbnode:") {
			return l
		}
		last = cmp.Or(last, l)
	}
	return last
}
