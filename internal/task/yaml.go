package task

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/internal/lazy"
	"gopkg.in/yaml.v3"
)

// Bounds of a task.yml.
const (
	maxYAML   = 1 << 20 // bytes
	maxDepth  = 100
	maxFaults = 200 // recorded
	shownMost = 20  // of those, in the error
)

// document reads one YAML file and collects what is wrong with it.
type document struct {
	name   string // of the file, in errors
	faults []fault
	spent  bool // it is nested too deep: read nothing more
}

// fault is an error in a line.
type fault struct {
	line int
	err  error
}

// refuse records a fault in a line.
func (d *document) refuse(line int, format string, args ...any) {
	if !d.full() {
		d.faults = append(d.faults, fault{line, fmt.Errorf("%s:%d: "+format, append([]any{d.name, line}, args...)...)})
	}
}

// full reports whether no more faults are recorded.
func (d *document) full() bool { return len(d.faults) == maxFaults }

// err returns all faults, in the order of their lines.
func (d *document) err() error {
	slices.SortStableFunc(d.faults, func(a, b fault) int { return a.line - b.line })
	var errs []error
	for i, f := range d.faults {
		if i == shownMost {
			errs = append(errs, fmt.Errorf("%s: and %d more", d.name, len(d.faults)-i))
			break
		}
		errs = append(errs, f.err)
	}
	return errors.Join(errs...)
}

// parse returns the root of the file; nil after a fault.
func (d *document) parse(text []byte) *yaml.Node {
	if len(text) > maxYAML {
		d.refuse(1, "is over %d bytes, which no task needs; move large parts to their own files", maxYAML)
		return nil
	}
	line := 1
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			d.refuse(line, "has a byte that is not UTF-8; save the file as UTF-8")
			return nil
		case r == '\n':
			line++
		case r < ' ' && r != '\t' && r != '\r' || r > '~' && r < 0xa0 && r != 0x85 || r == 0xfffe || r == 0xffff:
			d.refuse(line, "has the control character %U; remove it, or write it as an escape in double quotes", r)
			return nil
		}
		i += n
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var root, more yaml.Node
	if err := dec.Decode(&root); err != nil && !errors.Is(err, io.EOF) {
		d.syntax(err)
		return nil
	}
	if len(root.Content) == 0 {
		d.refuse(1, "is empty; write files, lang, config and tests, as in the examples")
		return nil
	}
	if err := dec.Decode(&more); err == nil {
		d.refuse(more.Line, "a second YAML document begins; keep the first")
	} else if !errors.Is(err, io.EOF) {
		d.syntax(err)
	}
	if len(d.faults) > 0 {
		return nil
	}
	return root.Content[0]
}

var yamlLine = lazy.Regexp(`^(?:yaml: )?(?:line (\d+): )?(?s:(.*))$`)

// syntax records the library's error.
func (d *document) syntax(err error) {
	m := yamlLine().FindStringSubmatch(err.Error())
	line, msg := 1, m[2]
	if n, err := strconv.Atoi(m[1]); err == nil {
		line = n
	}
	d.refuse(line, "is not YAML: %s; check the indentation and the quotes around here", msg)
}
