package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// maxBytes bounds a configuration file; a real one has a few hundred bytes.
const maxBytes = 1 << 20

// Parse reads the text of a configuration file. Errors name the file, the line
// and what to write instead; all of them are reported, not just the first.
func Parse(name string, text []byte) (Config, error) {
	var c Config
	if len(text) > maxBytes {
		return c, fmt.Errorf("%s: larger than %d bytes, which no configuration is", name, maxBytes)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return c, fmt.Errorf("%s:%s", name, yamlMessage(err.Error()))
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		var te *yaml.TypeError
		if !errors.As(err, &te) {
			return c, fmt.Errorf("%s:%s", name, yamlMessage(err.Error()))
		}
		var errs []error
		for _, e := range te.Errors {
			errs = append(errs, fmt.Errorf("%s:%s", name, yamlMessage(e)))
		}
		return c, errors.Join(errs...)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return c, fmt.Errorf("%s: has more than one YAML document; keep the first", name)
	}
	lines := map[string]int{}
	keyLines(&root, "", lines)
	var errs []error
	for _, p := range Validate(c) {
		errs = append(errs, fmt.Errorf("%s:%d: %s: %s", name, lines[p.Key], p.Key, p.Text))
	}
	return c, errors.Join(errs...)
}

// keyLines collects the line of every key, by its dotted path.
func keyLines(n *yaml.Node, prefix string, lines map[string]int) {
	switch n.Kind {
	case yaml.DocumentNode:
		for _, c := range n.Content {
			keyLines(c, prefix, lines)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := prefix + n.Content[i].Value
			lines[key] = n.Content[i].Line
			keyLines(n.Content[i+1], key+".", lines)
		}
	}
}

var (
	yamlLine    = lazily(`^(?:yaml: )?line (\d+): (.*)$`)
	yamlUnknown = lazily(`^field (\S+) not found in type config\.(\w+)$`)
	yamlType    = lazily("^cannot unmarshal !!(\\w+)(?: `(.*)`)? into (\\S+)$")
	yamlTwice   = lazily(`^mapping key "(.*)" already defined at line (\d+)$`)
)

// yamlMessage turns the library's message into "LINE: sentence".
func yamlMessage(msg string) string {
	m := yamlLine().FindStringSubmatch(strings.TrimSpace(msg))
	if m == nil {
		return " " + strings.TrimPrefix(msg, "yaml: ")
	}
	line, text := m[1], m[2]
	if u := yamlUnknown().FindStringSubmatch(text); u != nil {
		text = fmt.Sprintf("unknown key %q; %s", u[1], suggest(u[1], keysOf(u[2])))
	} else if t := yamlType().FindStringSubmatch(text); t != nil {
		text = fmt.Sprintf("%q is not %s", t[2], kindName(t[3]))
		if t[2] == "" {
			text = "this is not " + kindName(t[3])
		}
	} else if t := yamlTwice().FindStringSubmatch(text); t != nil {
		text = fmt.Sprintf("key %q stands here a second time, first in line %s", t[1], t[2])
	}
	return line + ": " + text
}

func kindName(goType string) string {
	switch {
	case strings.HasPrefix(goType, "int"):
		return "a whole number"
	case goType == "bool":
		return "true or false"
	case goType == "string":
		return "a text"
	case strings.HasPrefix(goType, "[]"):
		return "a list"
	default:
		return "a group of keys"
	}
}

// keysOf lists the keys of a type of this package, by the type's name.
func keysOf(typeName string) []string {
	var walk func(t reflect.Type) []string
	walk = func(t reflect.Type) []string {
		var keys []string
		for f := range t.Fields() {
			if t.Name() == typeName {
				key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
				keys = append(keys, key)
			} else if f.Type.Kind() == reflect.Struct {
				keys = append(keys, walk(f.Type)...)
			}
		}
		return keys
	}
	return walk(reflect.TypeFor[Config]())
}

// suggest names the key that was probably meant, else all of them.
func suggest(key string, known []string) string {
	flat := func(s string) string {
		return strings.NewReplacer("-", "", "_", "", ".", "").Replace(strings.ToLower(s))
	}
	for _, k := range known {
		if flat(k) == flat(key) || len(key) > 3 && (strings.HasPrefix(flat(k), flat(key)) || strings.HasPrefix(flat(key), flat(k))) {
			return fmt.Sprintf("write %q", k)
		}
	}
	return "known here: " + strings.Join(slices.Sorted(slices.Values(known)), ", ")
}

// UnmarshalYAML reads "all", a count, or a list of indices, UUIDs and PCI
// addresses.
func (g *GPUs) UnmarshalYAML(n *yaml.Node) error {
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Tag == "!!int" {
			v, err := strconv.Atoi(n.Value)
			if err != nil || v < 1 {
				return fmt.Errorf("line %d: gpus: %s is not a number of GPUs; write all, a number or a list such as [0, 2, 5]", n.Line, n.Value)
			}
			*g = GPUs{Count: v}
			return nil
		}
		return g.parse(n.Value, n.Line)
	case yaml.SequenceNode:
		var list []string
		for _, c := range n.Content {
			list = append(list, c.Value)
		}
		return g.parse(strings.Join(list, ","), n.Line)
	}
	return fmt.Errorf("line %d: gpus: write all, a number or a list such as [0, 2, 5]", n.Line)
}

func (g *GPUs) parse(s string, line int) error {
	v, err := ParseGPUs(s)
	if err != nil {
		return fmt.Errorf("line %d: gpus: %w", line, err)
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
		return fmt.Errorf("line %d: %w", n.Line, err)
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
