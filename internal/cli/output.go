package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	pretty "github.com/jedib0t/go-pretty/v6/text"
)

// answer is a command's standard output. It keeps the first error, so that no one mistakes a
// table cut off by a full disk for all of it.
type answer struct {
	to  io.Writer
	err error
}

func (a *answer) Write(p []byte) (int, error) {
	n, err := a.to.Write(p)
	if a.err == nil {
		a.err = err
	}
	return n, err
}

// printf writes text for people, on a terminal without breaking words. It ignores errors: an
// answer keeps them, and those of standard error have nowhere else to go.
func printf(w io.Writer, format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	if width, ok := terminal(w); ok && !strings.Contains(s, "\r") {
		s = wrap(s, width)
	}
	verbatim(w, strings.ReplaceAll(s, unbroken, " "))
}

// verbatim writes a text that people save as often as they read it, without wrapping.
func verbatim(w io.Writer, s string) { _, _ = io.WriteString(w, s) }

// printCommand writes a line that ends in a command, so that it can be typed as shown.
func printCommand(w io.Writer, line string) {
	if width, ok := terminal(w); ok {
		line = wrapCommands(line, width)
	}
	verbatim(w, line+"\n")
}

// printWarnings writes what is not as it should be, after a table.
func printWarnings(w io.Writer, warnings []string) {
	if len(warnings) > 0 {
		printf(w, "\n")
	}
	for _, warning := range warnings {
		printf(w, "%s %s\n", paintWord(w, "warning:"), warning)
	}
}

// print writes the answer of a command: v with --json, and what people read without.
func (s Streams) print(asJSON bool, v any, people func()) error {
	if asJSON {
		return printJSON(s.Out, v)
	}
	people()
	return nil
}

// exitUnless returns err or, if there is none, the exit code for an answer that is no.
func exitUnless(yes bool, err error) error {
	if err == nil && !yes {
		return &exitError{code: exitNo}
	}
	return err
}

func printJSON(w io.Writer, v any) error { return encodeJSON(w, "  ", v) }

// encodeJSON writes JSON, as one line if indent is "".
func encodeJSON(w io.Writer, indent string, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// grouped returns the elements of a list with the same key together, at the place of the first.
func grouped[K comparable, V any](list []V, key func(V) K) (groups [][]V) {
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
	"ok": pretty.FgGreen, "passed": pretty.FgGreen, "idle": pretty.FgGreen, "FIT": pretty.FgGreen, "ACCEPTED": pretty.FgGreen,
	"WARN": pretty.FgYellow, "by hand": pretty.FgYellow, "not tried": pretty.FgYellow, "warning:": pretty.FgYellow,
	"busy": pretty.FgYellow, "draining": pretty.FgYellow, "drained": pretty.FgYellow, "starting": pretty.FgYellow, "stopping": pretty.FgYellow,
}

// paintWord colors a verdict or a state.
func paintWord(w io.Writer, word string) string {
	if c, ok := colors[word]; ok {
		return paint(w, c, word)
	}
	return paint(w, pretty.FgRed, word)
}

// paint colors a word on a terminal.
func paint(w io.Writer, c pretty.Color, word string) string {
	if !colored(w) {
		return word
	}
	return c.Sprint(word)
}
