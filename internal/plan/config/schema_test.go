package config

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/test/must"
)

const (
	schemaFile  = "../../../packaging/config.schema.json"
	exampleFile = "../../../packaging/config.yaml"
)

// uncommented returns packaging/config.yaml with all its keys, and its comment on each.
func uncommented(t *testing.T) (text string, comments map[string]string) {
	t.Helper()
	raw := must.Read(t, exampleFile)
	comments = map[string]string{}
	var comment []string
	group := ""
	for line := range strings.Lines(raw) {
		key := regexp.MustCompile(`^#((?:  )?)([a-z0-9_]+):`).FindStringSubmatch(line)
		switch {
		case key != nil && key[1] == "":
			group = key[2]
			comments[group] = strings.Join(comment, " ")
		case key != nil:
			comments[group+"."+key[2]] = strings.Join(comment, " ")
		case strings.HasPrefix(line, "# ") && line[2] != ' ':
			comment = append(comment, strings.TrimSpace(line[1:]))
			continue
		}
		comment = nil
	}
	return regexp.MustCompile(`(?m)^#((?:  )*(?:[a-z0-9_]+:|- ).*)$`).ReplaceAllString(raw, "$1"), comments
}

// byKey returns the values of every key, by dotted path.
func byKey(c Config) map[string]reflect.Value {
	values := map[string]reflect.Value{}
	eachKey(reflect.ValueOf(c), "", func(key string, v reflect.Value) { values[key] = v })
	return values
}

// schemaNode is what the tests read of a part of the schema.
type schemaNode struct {
	Description      string
	Default          any
	Examples         []any
	Pattern          string
	Minimum, Maximum *int
	MaxItems         int
	Enum             []any
	Items, Not       *schemaNode
	Properties       map[string]*schemaNode
}

// TestSchemaIsWhatTheCodeSays compares the schema with the types, the words and examples of
// packaging/config.yaml, the defaults, and what Validate requires of each key.
func TestSchemaIsWhatTheCodeSays(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(schemaFile)
	var root schemaNode
	if err == nil {
		err = json.Unmarshal(raw, &root)
	}
	text, comments := uncommented(t)
	var examples Config
	if err == nil {
		examples, err = Parse(exampleFile, []byte(text))
	}
	must.Do(t, err)
	// What config.yaml says is a default must be it, and as it is, it sets nothing.
	must.Equal(t, examples.WithDefaults(), Merge(examples, Config{}.WithDefaults()))
	asItIs, err := Parse(exampleFile, []byte(must.Read(t, exampleFile)))
	must.Do(t, err)
	must.Equal(t, Config{}, asItIs)
	example, defaults := byKey(examples), byKey(Config{GPUs: GPUs{All: true}}.WithDefaults())
	nodes := map[string]*schemaNode{}
	var walk func(s *schemaNode, typ reflect.Type, prefix string)
	walk = func(s *schemaNode, typ reflect.Type, prefix string) {
		if len(s.Properties) != typ.NumField() {
			t.Errorf("the schema has %d keys below %q, and %s has %d", len(s.Properties), prefix, typ, typ.NumField())
		}
		for f := range typ.Fields() {
			key, sub := prefix+keyOf(f), s.Properties[keyOf(f)]
			if sub == nil {
				t.Errorf("the schema lacks %s", key)
				continue
			}
			if sub.Description != comments[key] {
				t.Errorf("%s: the schema says %q, and config.yaml %q", key, sub.Description, comments[key])
			}
			nodes[key] = sub
			if isGroup(f.Type) {
				walk(sub, f.Type, key+".")
				continue
			}
			v, got := defaults[key], sub.Default
			if v.IsZero() && v.Kind() != reflect.Bool {
				v, got = example[key], append(sub.Examples, nil)[0]
			}
			text, err := yaml.Marshal(v.Interface())
			must.Do(t, err)
			var value any
			must.Do(t, yaml.Unmarshal(text, &value))
			want, _ := json.Marshal(value)
			if have, _ := json.Marshal(got); string(have) != string(want) && key != "job.network" { // by the profile
				t.Errorf("%s: the schema has the default or example %s, want %s", key, have, want)
			}
		}
	}
	walk(&root, reflect.TypeFor[Config](), "")
	for key, want := range map[string]string{
		"node": nodeForm().String(), "agent.endpoint": endpointForm().String(), "agent.download_sha256": sumForm().String(), "image.name": imageForm().String(),
		"agent.binary": pathForm().String(), "notify.url": webhookForm().String(), "job.prolog": hookForm().String(), "job.epilog": hookForm().String(), "job.hook_time_limit": limitForm().String(), "docker.socket": pathForm().String(), "metrics.textfile": pathForm().String(), "health.repeats": repeatsForm().String(),
	} {
		if nodes[key].Pattern != want {
			t.Errorf("%s: the schema has %s, want %s", key, nodes[key].Pattern, want)
		}
	}
	for key, want := range map[string]string{
		"agent.tags": tagForm().String(), "health.xids": xidForm().String(), "job.private_registries": registryForm().String(), "job.allowed_networks": destinationForm().String(),
	} {
		if nodes[key].Items.Pattern != want {
			t.Errorf("%s: the schema has %s, want %s", key, nodes[key].Items.Pattern, want)
		}
	}
	if want := "^(" + strings.Join(ownTags, "|") + ")="; nodes["agent.tags"].Items.Not.Pattern != want {
		t.Errorf("agent.tags: the schema refuses %s, want %s", nodes["agent.tags"].Items.Not.Pattern, want)
	}
	for key, want := range map[string]int{"slots": MaxSlots, "gpus_per_slot": MaxSlots} {
		if nodes[key].Maximum == nil || *nodes[key].Maximum != want {
			t.Errorf("%s: the schema's maximum is not %d", key, want)
		}
	}
	if nodes["groups"].MaxItems != MaxSlots || nodes["job.allowed_networks"].MaxItems != maxDestinations || nodes["health.xids"].MaxItems != maxXidRules {
		t.Error("the schema takes longer lists, or only shorter ones")
	}
	must.Equal(t, []any{NetworkBridge, NetworkInternet, NetworkNone}, nodes["job.network"].Enum)
}
