package task

import (
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/internal/text"
)

// known refuses keys that no one reads, which are mostly typos.
func (d *definition) known(members []pair, prefix string, keys []string) {
	for _, m := range members {
		if slices.Contains(keys, m.key) || d.Full() {
			continue
		}
		text := "known keys: " + strings.Join(keys, ", ")
		if best := nearest(m.key, keys); best != "" {
			text = "write " + quote(best)
		}
		d.Add(m.line, "unknown key %s; %s", quote(prefix+m.key), text)
	}
}

func (d *definition) group(n *yaml.Node, what, hint string) ([]pair, bool) {
	if !d.readable(n) {
		return nil, false
	}
	if n.Kind != yaml.MappingNode {
		d.Add(n.Line, "%s: this is %s; write a group of keys such as %s", what, kind(n), hint)
		return nil, false
	}
	return d.pairs(n), true
}

func (d *definition) list(n *yaml.Node, what, hint string) []*yaml.Node {
	if !d.readable(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		d.Add(n.Line, "%s: this is %s; write a list with a dash before each member, such as - %s", what, kind(n), hint)
		return nil
	}
	return n.Content
}

func (d *definition) words(n *yaml.Node, what, hint string) []string {
	var words []string
	for _, e := range d.list(n, what, hint) {
		if s, ok := d.word(pair{value: e}, what); ok {
			words = append(words, s)
		}
	}
	return words
}

// word returns a text that is not empty.
func (d *definition) word(m pair, what string) (string, bool) {
	n := m.value
	if !d.readable(n) {
		return "", false
	}
	if !isText(n) {
		text := "write a string"
		if n.Kind == yaml.ScalarNode && n.Value != "" {
			text = fmt.Sprintf("write it in quotes if it is a string: %q", n.Value)
		}
		d.Add(n.Line, "%s is %s; %s", what, kind(n), text)
		return "", false
	}
	if n.Value == "" {
		d.Add(n.Line, "%s is empty; write a string", what)
	}
	return n.Value, n.Value != ""
}

func isNull(n *yaml.Node) bool {
	v, err := scalar(n)
	return v == nil && err == nil
}

func isText(n *yaml.Node) bool {
	v, _ := scalar(n)
	_, ok := v.(string)
	return ok
}

func shown(v payload.Value) string {
	switch v := v.(type) {
	case nil:
		return "empty"
	case string:
		return "the string " + quote(v)
	}
	return text.Line(payload.JSON(v), 60)
}

func quote(s string) string { return fmt.Sprintf("%.60q", s) }

// kind names a node's type for people.
func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a group of keys"
	}
	switch {
	case isNull(n):
		return "nothing"
	case isText(n):
		return "the string " + quote(n.Value)
	}
	return quote(n.Value)
}

// nearest returns the word of known that was probably meant, or "".
func nearest(word string, known []string) string {
	best, distance := "", 3
	for _, k := range known {
		if n := text.Edits(word, k); n < distance && n < len(k) {
			best, distance = k, n
		}
	}
	return best
}
