package config

import (
	"fmt"
	"reflect"
	"strings"

	"gopkg.in/yaml.v3"
)

// Origin is where a value comes from.
type Origin string

// The layers of a node's configuration, the lowest first. Flags are not a layer: they
// end up in the file.
const (
	FromDefault     Origin = "default"
	FromFile        Origin = "file"
	FromEnvironment Origin = "environment"
)

// Setting is the effective value of one configuration key.
type Setting struct {
	Key string // dotted path
	// Value is the value as in a YAML file, without secrets. It is nil if the
	// machine decides, or nothing is set.
	Value  any
	Origin Origin
	Note   string // what applies if Value is nil; for FromEnvironment, the variable's name
	Hidden bool   // a secret was removed
}

// decided describes what applies for each key whose default is no value.
var decided = map[string]string{
	"queue":                  "from the slot's shape: b200, b200x4, b200-1g-23gb, mi300-cpx",
	"node":                   "the host name",
	"gpus":                   "the first gpu_count",
	"gpu_count":              "as many as gpus lists",
	"groups":                 "none",
	"slots":                  "none",
	"cpus_per_slot":          "an even share",
	"memory_per_slot":        "an even share",
	"reserve.cpus":           "one core in 16, at least 2 cores and at most 8",
	"reserve.memory":         "a twentieth, at least 2 GiB, at most a quarter",
	"agent.binary":           "the installed one",
	"agent.download_url":     "Buildkite's release on GitHub",
	"agent.download_sha256":  "from the release's list of checksums",
	"agent.tags":             "none",
	"job.allowed_networks":   "none",
	"job.allowed_images":     "all",
	"job.private_registries": "none",
	"job.shm_size":           "a quarter of the slot's memory, 8 GiB at most",
	"job.disk":               "half of the disk that holds /var/lib/buildkite-agent, shared evenly, 50 GiB at most",
	"image.auto_update":      "never",
	"metrics.listen":         "off",
}

// Effective lists every key, in the order of the documentation, with its value from
// the environment, else from the file, else from the defaults.
func Effective(f File, env Config) ([]Setting, error) {
	full := Merge(f.Config, env).WithDefaults()
	if full.GPUs.IsZero() && full.GPUCount == 0 {
		full.GPUs.All = true
	}
	inEnv, inFile := map[string]bool{}, map[string]bool{}
	eachKey(reflect.ValueOf(env), "", func(key string, v reflect.Value) { inEnv[key] = !v.IsZero() })
	eachKey(reflect.ValueOf(f.Config), "", func(key string, v reflect.Value) {
		inFile[key] = !v.IsZero() || v.Kind() == reflect.Bool && f.Lines[key] > 0
		if v.Kind() == reflect.Slice && v.Type() != reflect.TypeFor[Patterns]() && v.Len() == 0 {
			inFile[key] = false // means the default
		}
	})
	var list []Setting
	var err error
	eachKey(reflect.ValueOf(full), "", func(key string, v reflect.Value) {
		s := Setting{Key: key, Origin: FromDefault}
		switch {
		case v.IsZero() && v.Kind() != reflect.Bool:
			s.Note = decided[key]
		case inEnv[key]:
			s.Origin, s.Note = FromEnvironment, variables[key]
		case inFile[key]:
			s.Origin = FromFile
		}
		if !v.IsZero() || v.Kind() == reflect.Bool {
			var e error
			s.Value, s.Hidden = hide(key, v.Interface())
			if s.Value, e = plain(s.Value); e != nil {
				err = fmt.Errorf("encode %s: %w", key, e)
			}
		}
		list = append(list, s)
	})
	return list, err
}

// plain returns a value as in YAML, without types of this package.
func plain(v any) (out any, err error) {
	var node yaml.Node
	if err := node.Encode(v); err != nil {
		return nil, err
	}
	err = node.Decode(&out)
	return out, err
}

// eachKey calls f for every key below v, by its dotted path.
func eachKey(v reflect.Value, prefix string, f func(string, reflect.Value)) {
	for field, value := range v.Fields() {
		if isGroup(field.Type) {
			eachKey(value, prefix+keyOf(field)+".", f)
		} else {
			f(prefix+keyOf(field), value)
		}
	}
}

// commentColumn is the column of comments, except after long values.
const commentColumn = 40

// Text formats settings as a configuration file, each with its origin in a comment.
// Keys without a value are commented out.
func Text(list []Setting) (string, error) {
	var b strings.Builder
	group := ""
	for i, s := range list {
		indent, key := "", s.Key
		if parent, name, nested := strings.Cut(s.Key, "."); nested {
			if parent != group {
				fmt.Fprintf(&b, "%s%s:\n", map[bool]string{true: "#"}[!anySet(list[i:], parent+".")], parent)
			}
			indent, key, group = "  ", name, parent
		}
		lines := []string{"#" + indent + key + ":"}
		if s.Value != nil {
			text, err := yamlText(key, s.Value)
			if err != nil {
				return "", err
			}
			lines = strings.Split(strings.TrimSuffix(text, "\n"), "\n")
			for j := range lines {
				lines[j] = indent + lines[j]
			}
		}
		lines[0] = fmt.Sprintf("%-*s # %s", commentColumn-1, lines[0], s.From())
		b.WriteString(strings.Join(lines, "\n") + "\n")
	}
	return b.String(), nil
}

// From describes the origin, and what applies if there is no value.
func (s Setting) From() string {
	text := string(s.Origin)
	switch {
	case s.Origin == FromEnvironment:
		text += " (" + s.Note + ")"
	case s.Note != "":
		text += ": " + s.Note
	}
	if s.Hidden {
		text += ", without its secrets"
	}
	return text
}

func anySet(list []Setting, prefix string) bool {
	for _, s := range list {
		if strings.HasPrefix(s.Key, prefix) && s.Value != nil {
			return true
		}
	}
	return false
}

// yamlText formats a key and its value as YAML. Short lists are on one line.
func yamlText(key string, value any) (string, error) {
	var node yaml.Node
	if err := node.Encode(map[string]any{key: value}); err != nil {
		return "", fmt.Errorf("encode %s: %w", key, err)
	}
	length := 0
	for _, item := range node.Content[1].Content {
		length += len(item.Value)
	}
	if length < commentColumn/2 {
		node.Content[1].Style = yaml.FlowStyle
	}
	var b strings.Builder
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(&node); err != nil {
		return "", fmt.Errorf("encode %s: %w", key, err)
	}
	return b.String(), nil
}
