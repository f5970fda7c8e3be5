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

// Journal is the end of what a unit logged since it was last started, newest
// last. The journal has no reader for a static Go program, so journalctl reads
// it.
func Journal(ctx context.Context, unit string, lines int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "journalctl", "--unit", unit, "--lines", strconv.Itoa(lines), "--output", "cat", "--no-pager", "--quiet").Output()
	if err != nil {
		return nil, fmt.Errorf("read journal of %s: %w", unit, err)
	}
	return journalLines(string(out)), nil
}

// journalLines are the lines of a log, without what could drive a terminal:
// what an agent logs may come from a job or the network.
func journalLines(log string) []string {
	var lines []string
	for line := range strings.Lines(log) {
		if line = text.Line(line, maxField); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// LastWords is the last line of a log that tells of an error, else its last.
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
