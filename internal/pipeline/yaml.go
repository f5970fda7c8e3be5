package pipeline

import (
	"bytes"
	"fmt"
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
