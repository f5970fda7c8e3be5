package term

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	pretty "github.com/jedib0t/go-pretty/v6/text"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Answer is a command's standard output. It keeps the first error, so that no one mistakes a
// table cut off by a full disk for all of it.
type Answer struct {
	To  io.Writer
	Err error
}

func (a *Answer) Write(p []byte) (int, error) {
	n, err := a.To.Write(p)
	if a.Err == nil {
		a.Err = err
	}
	return n, err
}

// Printf writes text for people, on a terminal without breaking words. It ignores errors: an
// Answer keeps them, and those of standard error have nowhere else to go.
func Printf(w io.Writer, format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	if width, ok := Terminal(w); ok && !strings.Contains(s, "\r") {
		s = Wrap(s, width)
	}
	Verbatim(w, strings.ReplaceAll(s, Unbroken, " "))
}

// Verbatim writes a text that people save as often as they read it, without wrapping.
func Verbatim(w io.Writer, s string) { _, _ = io.WriteString(w, s) }

// PrintWarnings writes what is not as it should be, after a table.
func PrintWarnings(w io.Writer, warnings []string) {
	if len(warnings) > 0 {
		Printf(w, "\n")
	}
	for _, warning := range warnings {
		Printf(w, "%s %s\n", PaintWord(w, "warning:"), warning)
	}
}

// ExitUnless returns err or, if there is none, the exit code for an answer that is no.
func ExitUnless(yes bool, err error) error {
	if err == nil && !yes {
		return &ExitError{Code: ExitNo}
	}
	return err
}

// PrintJSON writes JSON, indented.
func PrintJSON(w io.Writer, v any) error { return EncodeJSON(w, "  ", v) }

// EncodeJSON writes JSON, as one line if indent is "". A terminal acts on no character of it.
func EncodeJSON(w io.Writer, indent string, v any) error {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	err := enc.Encode(v)
	if err == nil {
		_, err = io.WriteString(w, text.JSON(b.String()))
	}
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// Grouped returns the elements of a list with the same key together, at the place of the first.
func Grouped[K comparable, V any](list []V, key func(V) K) (groups [][]V) {
	index := map[K]int{}
	for _, v := range list {
		i, ok := index[key(v)]
		if !ok {
			i = len(groups)
			index[key(v)] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], v)
	}
	return groups
}

// colors are those of verdicts and states. What is in no list here is wrong, and red.
var colors = map[string]pretty.Color{
	"ok": pretty.FgGreen, "passed": pretty.FgGreen, "idle": pretty.FgGreen, "FIT": pretty.FgGreen, "ACCEPTED": pretty.FgGreen, "stopped": pretty.FgGreen,
	"WARN": pretty.FgYellow, "by hand": pretty.FgYellow, "not tried": pretty.FgYellow, "warning:": pretty.FgYellow, "broken": pretty.FgYellow, "skipped": pretty.FgYellow,
	"busy": pretty.FgYellow, "draining": pretty.FgYellow, "drained": pretty.FgYellow, "starting": pretty.FgYellow, "stopping": pretty.FgYellow,
}

// PaintWord colors a verdict or a state.
func PaintWord(w io.Writer, word string) string {
	if c, ok := colors[word]; ok {
		return Paint(w, c, word)
	}
	return Paint(w, pretty.FgRed, word)
}

// Paint colors a word on a terminal.
func Paint(w io.Writer, c pretty.Color, word string) string {
	if !colored(w) {
		return word
	}
	return c.Sprint(word)
}

// Ago returns a time as people say it: "3m", "2h10m", "5d".
func Ago(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	switch d := max(0, now.Sub(t)); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}
