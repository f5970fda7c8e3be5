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
	parts := strings.Split(fmt.Sprintf(format, args...), unbroken)
	for i, part := range parts {
		parts[i] = spell(w, part)
	}
	s := strings.Join(parts, unbroken)
	if width, ok := terminal(w); ok && !strings.Contains(s, "\r") {
		s = wrap(s, width)
	}
	_, _ = io.WriteString(w, strings.ReplaceAll(s, unbroken, " "))
}

// verbatim writes a text that people save as often as they read it, without wrapping.
func verbatim(w io.Writer, s string) { _, _ = io.WriteString(document(w), s) }

// printCommand writes a line that ends in a command, so that it can be typed as shown.
func printCommand(w io.Writer, line string) {
	if width, ok := terminal(w); ok {
		line = commands(line, width)
	}
	_, _ = io.WriteString(w, line+"\n")
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(data(w))
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// paint colors a word on a terminal.
func paint(w io.Writer, c pretty.Color, word string) string {
	if !colored(w) {
		return word
	}
	return c.Sprint(word)
}
