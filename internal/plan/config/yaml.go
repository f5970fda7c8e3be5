package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// mistake returns an UnmarshalYAML error of the only type after which decoding continues.
func mistake(n *yaml.Node, format string, args ...any) error {
	return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: ", n.Line) + fmt.Sprintf(format, args...)}}
}

// UnmarshalYAML reads "all", "none", or a list of indices, ranges of them, UUIDs and PCI
// addresses.
func (g *GPUs) UnmarshalYAML(n *yaml.Node) (err error) {
	text := n.Value
	switch {
	case n.Kind == yaml.SequenceNode:
		text = joined(n)
	case n.Kind != yaml.ScalarNode:
		return mistake(n, "gpus: write all, none or a list such as [0, 2, 5] or 0-3")
	case n.ShortTag() == "!!int":
		return mistake(n, "gpus: %s may be a number of GPUs or a GPU; write gpu_count: 4 for four, or a list such as [0, 2, 5]", n.Value)
	}
	if err = undecimals(n, "gpus"); err != nil {
		return err
	}
	if *g, err = ParseGPUs(text); err != nil {
		return mistake(n, "gpus: %v", err)
	}
	return nil
}

// undecimals is undecimal for the elements of a list.
func undecimals(list *yaml.Node, key string) error {
	for _, c := range list.Content {
		if why := undecimal(target(c)); why != "" {
			return mistake(c, "%s: %.80q %s", key, target(c).Value, why)
		}
	}
	return nil
}

// UnmarshalYAML reads a whole number above 0.
func (c *Count) UnmarshalYAML(n *yaml.Node) error {
	v, err := strconv.Atoi(n.Value)
	if why := undecimal(n); why != "" {
		return mistake(n, "gpu_count: %.80q %s", n.Value, why)
	}
	if err != nil || v < 1 || n.ShortTag() != "!!int" {
		return mistake(n, "gpu_count: %.80q is not a number of GPUs; write one above 0, or gpus: none for slots without any", n.Value)
	}
	*c = Count(v)
	return nil
}

// MarshalYAML writes what UnmarshalYAML reads.
func (g GPUs) MarshalYAML() (any, error) {
	switch {
	case g.None:
		return "none", nil
	case len(g.List) == 0:
		return "all", nil
	}
	return flow(g.List), nil
}

// joined returns the list of a node as one text.
func joined(n *yaml.Node) string {
	var list []string
	for _, c := range n.Content {
		list = append(list, target(c).Value)
	}
	return strings.Join(list, ",")
}

// flow returns a list of GPUs on one line, with indices as numbers.
func flow(gpus []string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, s := range gpus {
		tag := "!!str"
		if _, err := strconv.Atoi(s); err == nil {
			tag = "!!int"
		}
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: s})
	}
	return n
}

// UnmarshalYAML reads a list of lists of indices, UUIDs and PCI addresses.
func (g *Groups) UnmarshalYAML(n *yaml.Node) error {
	var groups Groups
	const form = "groups: write a list of lists such as [[0, 1], [2, 3]]"
	if n.Kind != yaml.SequenceNode || len(n.Content) > MaxSlots {
		return mistake(n, form)
	}
	for _, item := range n.Content {
		item = target(item)
		if item.Kind != yaml.SequenceNode || len(item.Content) > MaxSlots {
			return mistake(item, form)
		}
		if err := undecimals(item, "groups"); err != nil {
			return err
		}
		list, err := ParseGPUs(joined(item))
		if err != nil || list.List == nil {
			return mistake(item, "groups: %v", cmp.Or(err, errors.New("list the GPUs of each group, such as [0, 1]")))
		}
		groups = append(groups, list.List)
	}
	*g = groups
	return nil
}

// MarshalYAML writes what UnmarshalYAML reads.
func (g Groups) MarshalYAML() (any, error) {
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, list := range g {
		n.Content = append(n.Content, flow(list))
	}
	return n, nil
}

// IsZero reports whether nothing is set, which means all GPUs.
func (g GPUs) IsZero() bool { return !g.All && !g.None && len(g.List) == 0 }

// UnmarshalYAML reads a whole number, 0 for none.
func (t *Threads) UnmarshalYAML(n *yaml.Node) error {
	var v int
	if why := undecimal(n); why != "" {
		return mistake(n, "reserve.cpus: %.80q %s", n.Value, why)
	}
	if err := n.Decode(&v); err != nil || n.ShortTag() != "!!int" {
		return mistake(n, "reserve.cpus: %.80q is not a whole number; write one such as 4", n.Value)
	}
	if v < 0 {
		return mistake(n, "reserve.cpus: %d is negative; write 0 for none, a positive number, or leave the key out", v)
	}
	*t = Threads(v)
	if v == 0 {
		*t = NoThreads
	}
	return nil
}

// MarshalYAML writes what UnmarshalYAML reads.
func (t Threads) MarshalYAML() (any, error) { return max(int(t), 0), nil }

// UnmarshalYAML reads a size such as 32GiB.
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	v, err := ParseSize(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode {
		return mistake(n, "%v", err)
	}
	*s = v
	return nil
}

// MarshalYAML returns the size with the largest unit that is exact.
func (s Size) MarshalYAML() (any, error) { return s.String(), nil }

// Render returns the text of a configuration file that kbnode owns. marker is
// the line that says so.
func Render(c Config, marker string) (string, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n", marker)
	if reflect.ValueOf(c).IsZero() {
		return b.String(), nil
	}
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(c); err != nil {
		return "", fmt.Errorf("render configuration: %w", err)
	}
	return b.String(), nil
}
