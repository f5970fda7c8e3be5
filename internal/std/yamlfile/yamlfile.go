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

var lineForm = lazy.Regexp(`^(?:yaml: )?(?:line (\d+): )?(?s:(.*))$`)

// Line returns the line that an error of the YAML library names, 0 if none, and the rest of it.
func Line(message string) (line int, rest string) {
	m := lineForm().FindStringSubmatch(strings.TrimSpace(message))
	line, _ = strconv.Atoi(m[1])
	return line, m[2]
}
