package pipeline

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"gopkg.in/yaml.v3"
)

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
		if name := mentions(&doc, names); name != "" {
			return name, nil
		}
	}
}

func mentions(n *yaml.Node, names []string) string {
	for _, name := range names {
		if strings.Contains(n.Value, name) {
			return name
		}
	}
	for _, c := range n.Content {
		if name := mentions(c, names); name != "" {
			return name
		}
	}
	return ""
}
