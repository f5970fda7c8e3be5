package pipeline

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"gopkg.in/yaml.v3"
)

// YAML returns the pipeline as YAML, with a header that says what it is for.
func (p *Pipeline) YAML() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# kbnode pipeline %s\n", p.kind)
	for line := range strings.Lines(About[p.kind]) {
		b.WriteString("# " + line)
	}
	var doc yaml.Node
	if err := doc.Encode(p); err != nil {
		panic(err) // structs of strings and numbers
	}
	setStyle(&doc)
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		panic(err)
	}
	_ = enc.Close() // writes to memory
	return b.Bytes()
}

// setStyle styles a document as people write it.
func setStyle(n *yaml.Node) {
	for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		key, v := n.Content[i], n.Content[i+1]
		switch {
		case key.Value == "retry":
			key.HeadComment = retryComment
		case v.Kind == yaml.ScalarNode && v.Tag == "!!str" && strings.Contains(v.Value, "\n"):
			v.Style = yaml.LiteralStyle
		case key.Value == "label", key.Value == "image":
			v.Style = yaml.DoubleQuotedStyle
		case key.Value == "agents":
			// Versions of YAML differ in what they read as a number.
			for j := 1; j < len(v.Content); j += 2 {
				v.Content[j].Style = yaml.DoubleQuotedStyle
			}
		}
	}
	for _, c := range n.Content {
		setStyle(c)
	}
}

// Mentions returns the first of names that a pipeline's YAML or JSON has in a key or value, however it is
// escaped there; "" if it has none. Buildkite's agent fills in variables after it has read the same text
// with the same parser.
func Mentions(text []byte, names []string) (string, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return "", nil
		}
		if err != nil {
			return "", fmt.Errorf("read the pipeline: %w", err)
		}
		for nodes := []*yaml.Node{&doc}; len(nodes) > 0; nodes = append(nodes[1:], nodes[0].Content...) {
			for _, name := range names {
				if strings.Contains(nodes[0].Value, name) {
					return name, nil
				}
			}
		}
	}
}
