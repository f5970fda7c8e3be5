package task

import (
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/yamlfile"
)

// Bounds of a task.yml.
const (
	maxYAML   = 1 << 20 // bytes
	maxDepth  = 100
	shownMost = 20 // faults
)

// document reads one YAML file and collects what is wrong with it.
type document struct {
	yamlfile.Faults
	spent bool // it is nested too deep: read nothing more
}

// parse returns the root of the file; nil after a fault.
func (d *document) parse(text []byte) *yaml.Node {
	if len(text) > maxYAML {
		d.Add(1, "is over %d bytes, which no task needs; move large parts to their own files", maxYAML)
		return nil
	}
	line := 1
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			d.Add(line, "has a byte that is not UTF-8; save the file as UTF-8")
			return nil
		case r == '\n':
			line++
		case r < ' ' && r != '\t' && r != '\r' || r > '~' && r < 0xa0 && r != 0x85 || r == 0xfffe || r == 0xffff:
			d.Add(line, "has the control character %U; remove it, or write it as an escape in double quotes", r)
			return nil
		}
		i += n
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
