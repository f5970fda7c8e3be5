package pipeline

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"gopkg.in/yaml.v3"
)

// Bounds on a pipeline whose variables are to be filled in, with its aliases resolved.
const (
	// MaxFilled is the most that it may become, in bytes.
	MaxFilled = 16 << 20
	maxNodes  = 1 << 18
	maxNested = 64 // levels of YAML
	// maxBraces is how deep ${A:-${B}} may nest. The library parses what is in $${…} twice at each level.
	maxBraces = 8
	// maxSteps is how many characters the library may read for that.
	maxSteps = 64 << 20
)

var errTooLarge = fmt.Errorf("it has more than %d MiB or %d values with its aliases and variables; write a smaller one", MaxFilled>>20, maxNodes)

// extent is what a part of a pipeline needs.
type extent struct{ bytes, nodes, steps, depth int }

// CheckExtent returns why a pipeline would take more than its bounds before its variables have values, or nil. It
// leaves to others what else is wrong with it.
func CheckExtent(text string) error {
	if len(text) > MaxFilled {
		return errTooLarge
	}
	var all extent
	for dec := yaml.NewDecoder(strings.NewReader(text)); ; {
		var n yaml.Node
		err := dec.Decode(&n)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return nil // the next reader says so better
		}
		part, err := measure(&n, map[*yaml.Node]*extent{}, 0)
		if err != nil {
			return err
		}
		if err := all.add(part); err != nil {
			return err
		}
	}
}

// add adds a part, or returns why there is no room for it.
func (e *extent) add(part extent) error {
	e.bytes, e.nodes, e.steps, e.depth = e.bytes+part.bytes, e.nodes+part.nodes, e.steps+part.steps, max(e.depth, part.depth)
	if e.bytes > MaxFilled || e.nodes > maxNodes || e.steps > maxSteps {
		return errTooLarge
	}
	if e.depth > maxNested {
		return fmt.Errorf("it has more than %d levels; write a flatter one", maxNested)
	}
	return nil
}

// measure returns the extent of a node as often as it is there. known has those that it knows; nil is one that it
// is in.
func measure(n *yaml.Node, known map[*yaml.Node]*extent, level int) (extent, error) {
	if e, ok := known[n]; ok {
		if e == nil {
			return extent{}, errors.New("an alias contains itself; write out what it means")
		}
		return *e, nil
	}
	if level > 2*maxNested {
		return extent{}, fmt.Errorf("it has more than %d levels; write a flatter one", maxNested)
	}
	known[n] = nil
	braces := depthOfBraces(n.Value)
	if braces > maxBraces {
		return extent{}, fmt.Errorf("variables are nested more than %d deep; write fewer defaults in defaults", maxBraces)
	}
	e := extent{bytes: len(n.Value), nodes: 1, steps: len(n.Value) << braces}
	parts := n.Content
	if n.Alias != nil {
		parts = []*yaml.Node{n.Alias}
	}
	for _, c := range parts {
		part, err := measure(c, known, level+1)
		if err == nil {
			err = e.add(part)
		}
		if err != nil {
			return e, err
		}
	}
	e.depth++
	if n.Alias != nil || n.Kind == yaml.DocumentNode {
		e.depth--
	}
	known[n] = &e
	return e, nil
}

// depthOfBraces returns how deep expressions such as ${A:-${B}} nest, closed or not.
func depthOfBraces(s string) (most int) {
	for open, i := 0, 0; i < len(s); i++ {
		switch {
		case s[i] == '{' && i > 0 && s[i-1] == '$':
			open++
			most = max(most, open)
		case s[i] == '}' && open > 0:
			open--
		}
	}
	return most
}
