package task

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// Kernelbot reads task.yml with PyYAML, by the rules of YAML 1.1. What those rules and people, or
// YAML 1.2, read differently is refused: octal and base 60 numbers, 1_000, 1e3, dates. The
// expressions are compiled when a file is first read.
var (
	plainInt   = lazy.Regexp(`^(?:0|-?[1-9][0-9]{0,299})$`)
	plainFloat = lazy.Regexp(`^-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+][0-9]+)?$`)
	likeNumber = lazy.Regexp(`^[-+]?(?:\.?[0-9][0-9_:.eE+-]*|0[xXoObB][0-9a-fA-F_]*|\.(?i:inf|nan)|[0-9]{4}-[0-9-]+[Tt \t].*)$`)
	archForm   = lazy.Regexp(`^[0-9]{2,3}[a-z]?$`) // as nvcc names an architecture, without sm_
)

func scalar(n *yaml.Node) (payload.Value, error) {
	s := n.Value
	if n.Kind != yaml.ScalarNode {
		return nil, errors.New("a list or group is no scalar")
	}
	if n.Style&yaml.TaggedStyle != 0 {
		return nil, fmt.Errorf("the tag %s is not read; leave it out, and put a string in quotes", quote(n.Tag))
	}
	if n.Style != 0 { // in quotes, or a block
		return s, nil
	}
	switch s {
	case "", "~", "null", "Null", "NULL":
		return nil, nil
	case "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON":
		return true, nil
	case "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF":
		return false, nil
	case "<<", "=":
		return nil, fmt.Errorf("%s means something else in YAML; put it in quotes", quote(s))
	}
	switch {
	case !strings.ContainsRune("+-.0123456789", rune(s[0])):
		return s, nil
	case plainInt().MatchString(s):
		return payload.Int(s), nil
	case plainFloat().MatchString(s):
		f, _ := strconv.ParseFloat(s, 64) // infinity if it is too large, as in Python
		return payload.Float(f), nil
	case likeNumber().MatchString(s):
		return nil, fmt.Errorf("%s is not a plain number such as 1024 or 0.5; write one, or put it in quotes", quote(s))
	}
	return s, nil
}
