package task

import (
	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
)

// readable refuses what kbnode does not read of YAML.
func (d *definition) readable(n *yaml.Node) bool {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		d.Add(n.Line, "anchors and aliases (&name, *name) are not read; write out what they stand for, or put a string in quotes")
	case n.Kind != yaml.ScalarNode && n.Style&yaml.TaggedStyle != 0:
		d.Add(n.Line, "the tag %s is not read; leave it out", quote(n.Tag))
	default:
		return true
	}
	return false
}

type pair struct {
	key   string
	line  int
	value *yaml.Node
}

func (d *definition) pairs(n *yaml.Node) []pair {
	var all []pair
	at := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if !d.readable(k) {
			continue
		}
		if k.Kind != yaml.ScalarNode {
			d.Add(k.Line, "a list or group cannot be a key; write a word")
			continue
		}
		v, err := scalar(k)
		if err != nil {
			d.Add(k.Line, "key: %v", err)
			continue
		}
		key, ok := v.(string)
		if !ok {
			d.Add(k.Line, "key %s is not a word; put it in quotes", quote(k.Value))
			continue
		}
		if first, ok := at[key]; ok {
			d.Add(k.Line, "key %s is set twice, first in line %d; keep one", quote(key), first)
			continue
		}
		at[key] = k.Line
		all = append(all, pair{key, k.Line, n.Content[i+1]})
	}
	return all
}

// value converts a node. The result is invalid after a fault.
func (d *definition) value(n *yaml.Node) payload.Value {
	if !d.readable(n) {
		return nil
	}
	switch n.Kind {
	case yaml.SequenceNode:
		list := []payload.Value{}
		for _, c := range n.Content {
			list = append(list, d.value(c))
		}
		return list
	case yaml.MappingNode:
		o := &payload.Object{}
		for _, p := range d.pairs(n) {
			o.Set(p.key, d.value(p.value))
		}
		return o
	}
	v, err := scalar(n)
	if err != nil {
		d.Add(n.Line, "%v", err)
	}
	return v
}
