package task

import (
	"fmt"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/payload"
)

// follow returns the node that an alias refers to, and counts it. It returns nil
// if a bound is exceeded.
func (d *document) follow(n *yaml.Node, depth int) *yaml.Node {
	line := n.Line
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	d.values++
	d.text += len(n.Value)
	switch {
	case d.spent:
	case depth > maxDepth:
		d.refuse(line, "is nested deeper than %d, or contains itself; flatten it", maxDepth)
	case d.values > maxValues || d.text > maxText:
		d.refuse(line, "with its aliases, the file holds more than %d values or %d bytes of text; write less", maxValues, maxText)
	default:
		return n
	}
	d.spent = true
	return nil
}

// pair is a member of a mapping.
type pair struct {
	key   string
	line  int
	value *yaml.Node
}

// pairs returns the members of a mapping in Python's order: those from merge keys
// first. Keys are as Python's json writes them.
func (d *document) pairs(n *yaml.Node, depth int) []pair {
	var merged, own []pair
	at := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := d.follow(n.Content[i], depth)
		if k == nil {
			return nil
		}
		if tag(k) == "!!merge" {
			merged = append(merged, d.merge(n.Content[i+1], depth+1)...)
			continue
		}
		key, ok := d.key(k, n.Content[i].Line)
		if !ok {
			continue
		}
		if first, ok := at[key]; ok {
			d.refuse(n.Content[i].Line, "key %s is set twice, first in line %d; keep one", quote(key), first)
			continue
		}
		at[key] = n.Content[i].Line
		own = append(own, pair{key, n.Content[i].Line, n.Content[i+1]})
	}
	if len(merged) == 0 {
		return own
	}
	clear(at)
	var all []pair
	for _, p := range append(merged, own...) {
		if i, ok := at[p.key]; ok {
			all[i] = p
			continue
		}
		at[p.key] = len(all)
		all = append(all, p)
	}
	return all
}

// merge returns the members from a merge key. In a list, the first mapping takes
// precedence, and Python puts it last.
func (d *document) merge(n *yaml.Node, depth int) []pair {
	line := n.Line
	if n = d.follow(n, depth); n == nil {
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		return d.pairs(n, depth)
	case yaml.SequenceNode:
		var all []pair
		for _, member := range slices.Backward(n.Content) {
			e := d.follow(member, depth)
			if e == nil {
				return nil
			}
			if e.Kind != yaml.MappingNode {
				d.refuse(member.Line, "<< can bring in groups of keys only; name an anchor of such a group")
				continue
			}
			all = append(all, d.pairs(e, depth+1)...)
		}
		return all
	}
	d.refuse(line, "<< can bring in groups of keys only; name an anchor of such a group")
	return nil
}

// key returns a mapping's key as Python's json writes it.
func (d *document) key(n *yaml.Node, line int) (string, bool) {
	if n.Kind != yaml.ScalarNode {
		d.refuse(line, "a list or group cannot be a key; write a word")
		return "", false
	}
	if tag(n) == "!!value" {
		return n.Value, true
	}
	v, err := scalar(tag(n), n.Value)
	if err != nil {
		d.refuse(line, "key: %v", err)
		return "", false
	}
	if s, ok := v.(string); ok {
		return s, true
	}
	return payload.JSON(v), true
}

// tag returns the tag of a node by PyYAML's rules.
func tag(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode && n.Style == 0 {
		return plainTag(n.Value)
	}
	return n.ShortTag()
}

// value converts a node. The result is invalid after a fault.
func (d *document) value(n *yaml.Node, depth int) payload.Value {
	line := n.Line
	if n = d.follow(n, depth); n == nil {
		return nil
	}
	t := tag(n)
	switch {
	case n.Kind == yaml.ScalarNode:
		v, err := scalar(t, n.Value)
		if err != nil {
			d.refuse(line, "%v", err)
		}
		return v
	case n.Kind == yaml.SequenceNode && t == "!!seq":
		list := []payload.Value{}
		for _, c := range n.Content {
			if list = append(list, d.value(c, depth+1)); d.spent {
				return nil
			}
		}
		return list
	case n.Kind == yaml.MappingNode && t == "!!map":
		o := &payload.Object{}
		for _, p := range d.pairs(n, depth+1) {
			if o.Set(p.key, d.value(p.value, depth+1)); d.spent {
				return nil
			}
		}
		return o
	}
	_, err := scalar(t, "")
	if err == nil {
		err = fmt.Errorf("the tag %s does not fit a list or group; leave it out", quote(t))
	}
	d.refuse(line, "%v", err)
	return nil
}
