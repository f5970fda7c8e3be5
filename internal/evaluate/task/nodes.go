package task

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// group returns the nodes of a group of keys, nil after a fault. It refuses keys that no one reads, which
// are mostly typos.
func (d *definition) group(n *yaml.Node, prefix string, keys []string) map[string]*yaml.Node {
	if n.Kind != yaml.MappingNode {
		d.Add(n.Line, "%s is %s; write a group of keys: %s", strings.TrimSuffix("top level."+prefix, "."), kind(n), strings.Join(keys, ", "))
		return nil
	}
	at := map[string]*yaml.Node{}
	for _, m := range d.pairs(n) {
		if slices.Contains(keys, m.key) {
			at[m.key] = m.value
			continue
		}
		says := "known keys: " + strings.Join(keys, ", ")
		if best := nearest(m.key, keys); best != "" {
			says = "write " + quote(best)
		} else if akin := text.Akin(m.key, keys); akin != nil {
			says = "write " + strings.Join(akin, " or ")
		}
		d.Add(m.line, "unknown key %s; %s", quote(prefix+m.key), says)
	}
	return at
}

// decode decodes a node if it is there, and refuses one that does not fit.
func (d *definition) decode(n *yaml.Node, key string, into any, want string) {
	if n != nil && (n.Tag == "!!null" || n.Decode(into) != nil) {
		d.Add(n.Line, "%s is %s; write %s", key, kind(n), want)
	}
}

// word returns a string. What PyYAML reads as something else is none, such as 010 or on.
func (d *definition) word(n *yaml.Node, key string) string {
	if n == nil {
		return ""
	}
	faults := len(d.List)
	word, ok := d.value(n).(string)
	if !ok && len(d.List) == faults {
		d.Add(n.Line, "%s is %s; write a string, in quotes if it looks like something else", key, kind(n))
	}
	return word
}

func (d *definition) words(n *yaml.Node, key string) (words []string) {
	if n != nil && n.Kind != yaml.SequenceNode {
		d.Add(n.Line, "%s is %s; write a list of strings, such as [a, b]", key, kind(n))
	} else if n != nil {
		for _, c := range n.Content {
			faults := len(d.List)
			if word := d.word(c, key); len(d.List) == faults {
				words = append(words, word)
			}
		}
	}
	return words
}

func (d *definition) choice(n *yaml.Node, key, otherwise string, words ...string) string {
	switch {
	case n == nil:
		return otherwise
	case n.Kind == yaml.ScalarNode && slices.Contains(words, n.Value):
		return n.Value
	}
	d.Add(n.Line, "%s is %s; write %s", key, kind(n), strings.Join(words, " or "))
	return ""
}

// single returns the value of a key that may be left out, and refuses one that does not fit. Null fits
// where the key's default is null.
func (d *definition) single(n *yaml.Node, key string, otherwise payload.Value, fits func(payload.Value) bool, want string) payload.Value {
	if n == nil {
		return otherwise
	}
	v := d.value(n)
	if !fits(v) && (v != nil || otherwise != nil) {
		d.Add(n.Line, "%s is %s; write %s", key, kind(n), want)
	}
	return v
}

func is[T payload.Value](v payload.Value) bool { _, ok := v.(T); return ok }

func (d *definition) timeout(n *yaml.Node, key string, to *time.Duration) payload.Value {
	want := fmt.Sprintf("a number of seconds above 0 and up to %d, or leave the key out for %s", maxTimeout, defaultTimeout)
	v := d.single(n, key, defaultTimeout, func(v payload.Value) bool { return seconds(v) > 0 && seconds(v) <= maxTimeout }, want)
	*to = time.Duration(math.Ceil(seconds(v) * float64(time.Second)))
	return v
}

// seconds returns the value of a number, 0 for what is none.
func seconds(v payload.Value) (n float64) {
	switch v := v.(type) {
	case payload.Int:
		n, _ = strconv.ParseFloat(string(v), 64) // infinity if it is too large
	case payload.Float:
		n = float64(v)
	}
	return n
}

func quote(s string) string { return fmt.Sprintf("%.60q", s) }

// kind names a node for people.
func kind(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.MappingNode:
		return "a group of keys"
	case n.Value == "":
		return "empty"
	}
	return quote(n.Value)
}

// nearest returns the word of known that was probably meant, or "": a typo begins right, so fast is not test.
func nearest(word string, known []string) string {
	best, distance := "", 3
	for _, k := range known {
		n := text.Edits(word, k)
		if len(word) > 2 && strings.HasPrefix(k, strings.ToLower(word)) {
			n = min(n, 2)
		}
		if n < distance && n < len(k) && (n < 2 || strings.EqualFold(word[:1], k[:1])) {
			best, distance = k, n
		}
	}
	return best
}
