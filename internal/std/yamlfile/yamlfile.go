// Package yamlfile reads a YAML file that people write, and collects all that is wrong with it,
// by line. Pure.
package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const (
	maxFaults = 200 // recorded
	maxText   = 500 // characters of one
)

// Fault is an error in a file.
type Fault struct {
	Line int    `json:"line"` // 0 if unknown
	Text string `json:"text"` // what is wrong, and what to write instead
}

// Faults are what is wrong with a file.
type Faults struct {
	File string
	List []Fault
	more int // beyond those recorded
}

// Add records a fault in a line.
func (f *Faults) Add(line int, format string, args ...any) {
	if f.Full() {
		f.more++
		return
	}
	f.List = append(f.List, Fault{line, text.Line(fmt.Sprintf(format, args...), maxText)})
}

// Full reports whether no more faults are recorded, only counted.
func (f *Faults) Full() bool { return len(f.List) == maxFaults }

// Err returns the faults by line, not more than shown; nil if there are none.
func (f *Faults) Err(shown int) error {
	if len(f.List) == 0 {
		return nil
	}
	slices.SortStableFunc(f.List, func(a, b Fault) int { return a.Line - b.Line })
	if n := len(f.List) - shown; n > 0 {
		f.List = append(f.List[:shown], Fault{Text: fmt.Sprintf("and %d more", n+f.more)})
	}
	return f
}

// Error returns one line for each fault.
func (f *Faults) Error() string {
	var lines []string
	for _, fault := range f.List {
		at := f.File
		if fault.Line > 0 {
			at += ":" + strconv.Itoa(fault.Line)
		}
		lines = append(lines, at+": "+fault.Text)
	}
	return strings.Join(lines, "\n")
}

// Parse returns the root of a file's first document, nil without one, and the line in which a second one
// begins, 0 without one. Line reads its error.
func Parse(doc []byte) (root *yaml.Node, second int, err error) {
	dec := yaml.NewDecoder(bytes.NewReader(doc))
	var first, more yaml.Node
	if err := dec.Decode(&first); errors.Is(err, io.EOF) {
		return nil, 0, nil
	} else if err != nil {
		return nil, 0, err
	}
	switch err := dec.Decode(&more); {
	case err == nil:
		second = more.Line
	case !errors.Is(err, io.EOF):
		line, _ := Line(err.Error())
		second = max(1, line)
	}
	return first.Content[0], second, nil
}

// explanations are what errors of the YAML library mean to those who wrote a file.
var explanations = []struct{ part, text string }{
	{"UTF-8", "it is not UTF-8 text; save it as UTF-8"},
	{"control characters", "it is not text; name a YAML file"},
	{"Unicode character", "it is not text; name a YAML file"},
	{"mapping values are not allowed", "a second colon, or more indentation than in the line before; indent keys of a group alike, and quote a value with a colon"},
	{"did not find expected key", "this line is no KEY: VALUE of its group; indent keys of a group alike, and end what is in quotes or brackets"},
	{"could not find expected ':'", "a key has no colon, here or in the line before; write KEY: VALUE"},
	{"unexpected end of stream", "a quote or a bracket is not closed; close it"},
	{"did not find expected ','", "a bracket is not closed, or a comma is missing; write [a, b] or {a: 1, b: 2}"},
	{"unknown anchor", "a value that begins with * needs quotes"},
	{"did not find expected alphabetic", "a value that begins with *, & or ! needs quotes"},
	{"cannot start any token", "a value that begins with @, % or a backquote needs quotes, and a tab is no indentation"},
}

// Explain returns the line of an error of Parse, 0 if unknown, and what is wrong for those who wrote the file.
func Explain(doc []byte, err error) (line int, says string) {
	line, rest := Line(err.Error())
	lines := strings.Split(string(doc), "\n")
	for n := max(0, line-2); n < min(line+1, len(lines)); n++ { // the library may name the line before or after
		if indent := lines[n][:len(lines[n])-len(strings.TrimLeft(lines[n], " \t"))]; strings.Contains(indent, "\t") {
			return n + 1, "a tab in the indentation; write blanks"
		}
	}
	for _, e := range explanations {
		if strings.Contains(rest, e.part) {
			return line, e.text
		}
	}
	return line, rest + "; check the quotes, brackets and indentation there"
}

var lineForm = lazy.Regexp(`^(?:yaml: )?(?:line (\d+): )?(?s:(.*))$`)

// Line returns the line that an error of the YAML library names, 0 if none, and the rest of it.
func Line(message string) (line int, rest string) {
	m := lineForm().FindStringSubmatch(strings.TrimSpace(message))
	line, _ = strconv.Atoi(m[1])
	return line, m[2]
}
