package config

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/yamlfile"
)

// Bounds of a configuration file, and of the faults shown of one. A real file
// has a few hundred bytes.
const (
	maxBytes  = 1 << 20
	shownMost = 100
)

// File is the content of a configuration file.
type File struct {
	Config Config
	// Lines has the line of each key with a value, by dotted path.
	Lines map[string]int
}

// Parse returns the Config that [Read] reads.
func Parse(name string, text []byte) (Config, error) {
	f, err := Read(name, text)
	return f.Config, err
}

// Read reads the text of a configuration file; nil means that there is no file. An error is
// [*yamlfile.Faults], with all faults and not just the first.
func Read(name string, text []byte) (File, error) {
	r := reader{Faults: yamlfile.Faults{File: name}, lines: map[string]int{}}
	var c Config
	if len(text) > maxBytes {
		r.Add(0, "is larger than %d bytes, too large for a configuration; use kbnode's own file", maxBytes)
	} else if root, second, err := yamlfile.Parse(text); (err != nil || second > 0 || root != nil && root.Kind != yaml.MappingNode) && section().Match(text) {
		at := section().FindSubmatchIndex(text)
		r.Add(1+bytes.Count(text[:at[0]], []byte("\n")), "this is TOML; write YAML: %s:, and below it, indented, KEY: VALUE in a line for each", text[at[2]:at[3]])
	} else if err != nil {
		line, says := yamlfile.Explain(text, err)
		r.Add(line, "%s", says)
	} else if root != nil {
		if r.checkKeys(root, reflect.TypeFor[Config](), "") {
			r.decodeFaults(root.Decode(&c))
		}
		for _, p := range Validate(c) {
			r.Add(r.lines[p.Key], "%s: %s", p.Key, p.Text)
		}
		if second > 0 {
			r.Add(0, "has more than one YAML document; keep the first")
		}
	} else if text != nil && len(bytes.TrimSpace(text)) == 0 {
		r.Add(0, "is empty, perhaps because the disk was full; write it again, or remove it to use the defaults")
	}
	if err := r.Err(shownMost); err != nil {
		return File{}, err
	}
	return File{c, r.lines}, nil
}

// section matches the head of a group in TOML.
var section = lazy.Regexp(`(?m)^\[([\w.-]+)\][ \t\r]*(?:#.*)?$`)

// reader collects the findings in a file.
type reader struct {
	yamlfile.Faults
	lines map[string]int
}

// checkKeys checks the keys of a group of type t. It finds what decoding would ignore
// or stop at, and removes it, so that decoding reaches the rest. It returns false if there are no keys at all.
func (r *reader) checkKeys(n *yaml.Node, t reflect.Type, prefix string) bool {
	n = target(n)
	known, names := map[string]reflect.Type{}, []string{}
	for f := range t.Fields() {
		names = append(names, keyOf(f))
		known[keyOf(f)] = f.Type
	}
	group := strings.TrimSuffix(prefix, ".")
	switch {
	case n.Kind == yaml.MappingNode, n.ShortTag() == "!!null":
	case group != "":
		r.Add(n.Line, "%s is a group of keys: %s; write each in a line of its own below it, indented", group, strings.Join(names, ", "))
		return false
	case n.Kind == yaml.SequenceNode:
		r.Add(n.Line, "this is a list; write keys such as queue: b200, without - before them")
		return false
	default:
		r.Add(n.Line, "%s is no key with a value; write a colon and a blank between them, as in queue: b200", quoted(n.Value))
		return false
	}
	first := map[string]int{}
	var content []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		typ, ok := known[key.Value]
		switch before := first[key.Value]; {
		case !ok:
			r.Add(key.Line, "unknown key %s; %s", quoted(key.Value), suggestion{key.Value, names, prefix})
			continue
		case before > 0:
			r.Add(key.Line, "key %q is set twice, first in line %d; remove one of them", key.Value, before)
			continue
		}
		first[key.Value] = key.Line
		if isGroup(typ) {
			if !r.checkKeys(value, typ, prefix+key.Value+".") {
				continue
			}
		} else {
			if !r.fits(prefix+key.Value, value, typ) {
				continue
			}
			if target(value).ShortTag() != "!!null" {
				r.lines[prefix+key.Value] = key.Line
			}
		}
		content = append(content, key, value)
	}
	n.Content = content
	return true
}

// innerOf says which key of a group was meant by one such as loan_until or image.name, or "".
func innerOf(key string) string {
	for f := range reflect.TypeFor[Config]().Fields() {
		if !isGroup(f.Type) {
			continue
		}
		for inner := range f.Type.Fields() {
			if flat(keyOf(f)+keyOf(inner)) == flat(key) {
				return fmt.Sprintf("%s is a group: write %[1]s:, and below it, indented, %s", keyOf(f), keyOf(inner))
			}
		}
	}
	return ""
}

// placeOf says where a key belongs that the group of a prefix does not have, or "".
func placeOf(key, prefix string) string {
	for f := range reflect.TypeFor[Config]().Fields() {
		if keyOf(f) == key && prefix != "" {
			return "write it without indentation"
		}
		if !isGroup(f.Type) {
			continue
		}
		for inner := range f.Type.Fields() {
			if keyOf(inner) == key {
				return fmt.Sprintf("write it below %s, indented", keyOf(f))
			}
		}
	}
	return ""
}

// KeyOf returns the dotted key that the name of a flag means: job.time_limit by time-limit, image.name by image. It is "" if none
// is meant, or several.
func KeyOf(flag string) string {
	var whole string
	var last []string
	eachKey(reflect.ValueOf(&Config{}).Elem(), "", func(key string, _ reflect.Value) {
		group, leaf, _ := strings.Cut(key, ".")
		switch name := flat(flag); {
		case flat(key) == name, leaf == "name" && group == name:
			whole = key
		case leaf != "" && leaf != "name" && (flat(leaf) == name || flat(leaf) == name+"s"):
			last = append(last, key)
		}
	})
	if whole == "" && len(last) == 1 {
		return last[0]
	}
	return whole
}

// fits reports whether a value can be decoded: it has no groups, whose keys would
// each be compared with all others, nothing at which the library gives up, and no
// fraction, which would be truncated.
func (r *reader) fits(key string, n *yaml.Node, t reflect.Type) bool {
	if reflect.PointerTo(t).Implements(reflect.TypeFor[yaml.Unmarshaler]()) {
		return true
	}
	n = target(n)
	items, want := []*yaml.Node{n}, t
	if n.Kind == yaml.SequenceNode && t.Kind() == reflect.Slice {
		items, want = n.Content, t.Elem()
	}
	if first := pair(n); first != "" && slices.Contains(pairLists, key) {
		r.Add(n.Line, "%s: this is not a list; write one such as [%s]", key, first)
		return false
	}
	for _, item := range items {
		if target(item).Style == 0 && strings.TrimFunc(target(item).Value, isQuote) != target(item).Value {
			r.Add(item.Line, "%s: %s has the quotes of a document; write \" in their place, or leave them out", key, quoted(item.Value))
			return false
		}
		if target(item).Kind != yaml.ScalarNode {
			r.Add(item.Line, "%s: this is not %s", key, kindName(want.String()))
			return false
		}
		if err := item.Decode(new(any)); err != nil { // a tag that does not match
			r.Add(item.Line, "%s: %s is not %s", key, quoted(item.Value), kindName(want.String()))
			return false
		}
	}
	if !strings.HasPrefix(t.Kind().String(), "int") {
		return true
	}
	why := undecimal(n)
	switch {
	case n.ShortTag() == "!!float":
		why = "is not " + kindName("int")
	case n.ShortTag() == "!!int" && strings.Trim(n.Value, "+-0") == "":
		why = "is not a number above 0; write one, or leave the key out for its default"
	case why == "":
		return true
	}
	r.Add(n.Line, "%s: %s %s", key, quoted(n.Value), why)
	return false
}

// pairLists are the lists whose entries have a =, which people write as a group of keys.
var pairLists = []string{"agent.tags", "health.xids"}

// pair returns the first key of a group with its value, as KEY=VALUE, or "".
func pair(n *yaml.Node) string {
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 || n.Content[1].Kind != yaml.ScalarNode {
		return ""
	}
	return n.Content[0].Value + "=" + n.Content[1].Value
}

// isQuote reports whether a character is a quote of documents and chats, and not of YAML.
func isQuote(r rune) bool {
	return unicode.In(r, unicode.Pi, unicode.Pf) || r == '\u201a' || r == '\u201e'
}

var decimal = lazy.Regexp(`^-?(0|[1-9][0-9]*)$`)

// undecimal returns what is wrong with a number that people read differently than YAML, such as 010, which is 8; "" if
// nothing is, or it is no number.
func undecimal(n *yaml.Node) string {
	if n.ShortTag() != "!!int" || decimal().MatchString(n.Value) {
		return ""
	}
	return "is not a decimal number; write it without leading zeros, letters and _"
}

// target returns the node that an alias refers to.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// keyOf returns the key of a field.
func keyOf(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return key
}

// isGroup reports whether a type has keys of its own; GPUs is a struct but a single value.
func isGroup(t reflect.Type) bool { return t.Kind() == reflect.Struct && keyOf(t.Field(0)) != "" }
