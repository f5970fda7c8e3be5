package agent

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
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
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}
