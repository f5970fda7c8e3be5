package config

import (
	"bytes"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// mistake is an error of UnmarshalYAML in the one type after which decoding goes on.
func mistake(n *yaml.Node, format string, args ...any) error {
	return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: ", n.Line) + fmt.Sprintf(format, args...)}}
}

// UnmarshalYAML reads "all", a count, or a list of indices, UUIDs and PCI
// addresses.
func (g *GPUs) UnmarshalYAML(n *yaml.Node) error {
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Tag == "!!int" {
			v, err := strconv.Atoi(n.Value)
			if err != nil || v < 1 {
				return mistake(n, "gpus: %s is not a number of GPUs; write all, a number or a list such as [0, 2, 5]", n.Value)
			}
			*g = GPUs{Count: v}
			return nil
		}
		return g.parse(n, n.Value)
	case yaml.SequenceNode:
		var list []string
		for _, c := range n.Content {
			list = append(list, c.Value)
		}
		return g.parse(n, strings.Join(list, ","))
	}
	return mistake(n, "gpus: write all, a number or a list such as [0, 2, 5]")
}

func (g *GPUs) parse(n *yaml.Node, s string) error {
	v, err := ParseGPUs(s)
	if err != nil {
		return mistake(n, "gpus: %v", err)
	}
	*g = v
	return nil
}

// MarshalYAML writes what UnmarshalYAML reads.
func (g GPUs) MarshalYAML() (any, error) {
	if g.Count > 0 {
		return g.Count, nil
	}
	if len(g.List) == 0 {
		return "all", nil
	}
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, s := range g.List {
		tag := "!!str"
		if _, err := strconv.Atoi(s); err == nil {
			tag = "!!int"
		}
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: s})
	}
	return n, nil
}

// IsZero says that nothing was said, which means all GPUs.
func (g GPUs) IsZero() bool { return !g.All && g.Count == 0 && len(g.List) == 0 }

// UnmarshalYAML reads a size such as 32GiB.
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	v, err := ParseSize(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode {
		return mistake(n, "%v", err)
	}
	*s = v
	return nil
}

// MarshalYAML writes the size with the largest unit that is exact.
func (s Size) MarshalYAML() (any, error) { return s.String(), nil }

// Render is the text of a configuration file that kbnode owns. marker is the
// line that says so.
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
