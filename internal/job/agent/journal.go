package agent

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Journal returns the last lines that a unit logged, newest last.
func Journal(ctx context.Context, unit string, lines int) (all []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = journalctl(ctx, func(line string) {
		if line != "" {
			all = append(all, line)
		}
	}, "--unit", unit, "--lines", strconv.Itoa(lines), "--output", "cat")
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return nil, fmt.Errorf("read journal of %s: %w", unit, err)
	}
	return all, nil
}

// logLines is how many lines Log shows of what was logged before.
const logLines = "200"

// Log calls show with the last lines that units logged, oldest first, and with follow also with
// new ones, until ctx ends. A slice's lines are those of everything in it.
func Log(ctx context.Context, units []string, follow bool, show func(line string)) error {
	args := []string{"--lines", logLines, "--output", "short-iso"}
	if follow {
		args = append(args, "--follow")
	}
	for _, unit := range units {
		args = append(args, "--unit", unit)
	}
	if err := journalctl(ctx, show, args...); err != nil && ctx.Err() == nil {
		return fmt.Errorf("read journal: %w", err)
	}
	return nil
}

// journalctl calls show with the lines that journalctl prints, without anything that could
// control a terminal: what an agent logs may come from a job or the network. There is no
// journal reader for a static Go program.
func journalctl(ctx context.Context, show func(line string), args ...string) error {
	cmd := exec.CommandContext(ctx, "journalctl", append([]string{"--no-pager", "--quiet"}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	lines := bufio.NewReader(out)
	for err == nil {
		var line []byte
		if line, err = lines.ReadSlice('\n'); len(line) > 0 {
			show(text.Line(string(line), maxLine))
		}
		for errors.Is(err, bufio.ErrBufferFull) { // the rest of a line that is longer than any that is shown
			_, err = lines.ReadSlice('\n')
		}
	}
	if err = cmd.Wait(); err != nil {
		err = fmt.Errorf("%w: %s", err, text.Line(stderr.String(), maxLine))
	}
	return err
}

// maxLine bounds a line of a log that is shown, in bytes.
const maxLine = 512

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
