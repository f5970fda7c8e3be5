package task

import (
	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/yamlfile"
)

// Bounds of a task.yml.
const (
	maxYAML   = 1 << 20 // bytes
	shownMost = 20      // faults
)

// document reads one YAML file and collects what is wrong with it.
type document struct{ yamlfile.Faults }

// parse returns the root of the file; nil after a fault.
func (d *document) parse(text []byte) *yaml.Node {
	if len(text) > maxYAML {
		d.Add(1, "is over %d bytes, which no task needs; move large parts to their own files", maxYAML)
		return nil
	}
	root, second, err := yamlfile.Parse(text)
	switch {
	case err != nil:
		line, msg := yamlfile.Line(err.Error())
		d.Add(max(1, line), "is not YAML: %s; check the indentation and the quotes around here", msg)
	case root == nil:
		d.Add(1, "is empty; write files, lang, config and tests, as in the examples")
	case second > 0:
		d.Add(second, "a second YAML document begins; keep the first")
	default:
		return root
	}
	return nil
}
