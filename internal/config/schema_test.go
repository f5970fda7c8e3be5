package config

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/invopop/jsonschema"
)

var update = flag.Bool("update", false, "write packaging/config.schema.json again")

const (
	schemaFile  = "../../packaging/config.schema.json"
	exampleFile = "../../packaging/config.yaml"
)

// JSONSchema describes all that UnmarshalYAML accepts.
func (GPUs) JSONSchema() *jsonschema.Schema {
	one := "(" + strings.Trim(gpuName().String(), "^$") + "|" + strings.Trim(gpuRange().String(), "^$") + ")"
	list := &jsonschema.Schema{Type: "array", MinItems: new(uint64(1)), UniqueItems: true}
	list.Items = anyOf(&jsonschema.Schema{Type: "integer", Minimum: "0", Maximum: "9999"}, &jsonschema.Schema{Type: "string", Pattern: "^" + one + "$"})
	return anyOf(
		&jsonschema.Schema{Enum: []any{"all", "none"}},
		list,
		&jsonschema.Schema{Type: "string", Pattern: "^" + one + `(\s*,\s*` + one + ")*$"},
	)
}

// JSONSchema describes all that UnmarshalYAML accepts.
func (Groups) JSONSchema() *jsonschema.Schema {
	list, ranged := GPUs{}.JSONSchema().AnyOf[1], GPUs{}.JSONSchema().AnyOf[1]
	list.MinItems = new(uint64(2))
	ranged.Items = &jsonschema.Schema{Type: "string", Pattern: gpuRange().String()}
	return &jsonschema.Schema{Type: "array", Items: anyOf(list, ranged), MaxItems: new(uint64(maxSlots))}
}

// JSONSchema is sizeForm without the units of 1000, which ParseSize refuses.
func (Size) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Pattern: `^\d{1,19}(\.\d{1,6})?\s*([kKmMgGtT](i[bB]?)?|[bB])$`}
}

func anyOf(of ...*jsonschema.Schema) *jsonschema.Schema { return &jsonschema.Schema{AnyOf: of} }

// rules are what Validate requires of each key, as far as a schema can express it.
// 0, an empty text and nothing after a key mean that it is not set, which Parse
// accepts; the schema requires it to be left out.
func rules() map[string]func(*jsonschema.Schema) {
	pattern := func(p string) func(*jsonschema.Schema) {
		return func(s *jsonschema.Schema) { s.Pattern = p }
	}
	words := func(words ...any) func(*jsonschema.Schema) {
		return func(s *jsonschema.Schema) { s.Enum = words }
	}
	least := func(n int) func(*jsonschema.Schema) {
		return func(s *jsonschema.Schema) { s.Minimum = json.Number(fmt.Sprint(n)) }
	}
	between := func(n, most int) func(*jsonschema.Schema) {
		return func(s *jsonschema.Schema) { least(n)(s); s.Maximum = json.Number(fmt.Sprint(most)) }
	}
	patterns := func(s *jsonschema.Schema) {
		s.Items.Pattern, s.Items.Format = `^\^[^\n]*\$$`, "regex"
	}
	queue := `([A-Za-z0-9]|F)([A-Za-z0-9._-]|F){0,99}`
	return map[string]func(*jsonschema.Schema){
		"queue":                      pattern("^" + strings.ReplaceAll(queue, "F", `\{(`+strings.Join(QueueFields, "|")+`)\}`) + "$"),
		"node":                       pattern(nodeForm().String()),
		"gpus":                       nil,
		"gpu_count":                  least(1),
		"gpus_per_slot":              between(1, maxSlots),
		"groups":                     nil,
		"slots":                      between(1, maxSlots),
		"cpus_per_slot":              least(1),
		"memory_per_slot":            nil,
		"reserve.cpus":               least(0),
		"reserve.memory":             nil,
		"agent.binary":               pattern("^/"),
		"agent.endpoint":             pattern(`^https?://[^\s"]+$`),
		"agent.download_url":         nil,
		"agent.download_sha256":      pattern(sumForm().String()),
		"agent.allowed_repositories": patterns,
		"agent.tags": func(s *jsonschema.Schema) {
			s.Items.Pattern = tagForm().String()
			s.Items.Not = &jsonschema.Schema{Pattern: "^(" + strings.Join(ownTags, "|") + ")="}
		},
		"job.profile": words(ProfileCompatible, ProfileStrict),
		"job.network": func(s *jsonschema.Schema) {
			s.Enum, s.Default = []any{NetworkBridge, NetworkInternet, NetworkNone}, nil // the profile decides which one
		},
		"job.allowed_networks": func(s *jsonschema.Schema) {
			s.Items.Pattern, s.MaxItems = destinationForm().String(), new(uint64(maxDestinations))
		},
		"job.allowed_images":     patterns,
		"job.private_registries": func(s *jsonschema.Schema) { s.Items.Pattern = registryForm().String() },
		"job.max_minutes":        least(1),
		"job.tasks_max":          least(64),
		"job.shm_size":           nil,
		"job.disk":               nil,
		"job.cpu_quota":          nil,
		"job.time_limit": func(s *jsonschema.Schema) {
			s.Type = ""
			s.AnyOf = []*jsonschema.Schema{
				{Enum: []any{NoLimit, 0}},
				{Type: "string", Pattern: limitForm().String(), MinLength: new(uint64(2))},
			}
		},
		"image.name": func(s *jsonschema.Schema) {
			s.Pattern, s.MaxLength = imageForm().String(), new(uint64(255))
		},
		"image.auto_update": func(s *jsonschema.Schema) { s.Pattern = schedulePattern() },
		"image.keep":        least(1),
		"image.first_jobs":  least(1),
		"docker.socket":     pattern("^/"),
		"metrics.listen":    pattern(`^(\d{1,3}(\.\d{1,3}){3}|\[[0-9A-Fa-f:.]+(%[^\]\s]+)?\]):[1-9]\d{0,4}$`),
		"hygiene.disabled":  nil,
		"hygiene.clocks": func(s *jsonschema.Schema) {
			s.Type = ""
			s.AnyOf = []*jsonschema.Schema{
				{Enum: []any{ClocksDefault, ClocksBase}},
				{Type: "integer", Minimum: json.Number(fmt.Sprint(minClock)), Maximum: json.Number(fmt.Sprint(maxClock))},
				{Type: "string", Pattern: `^([1-9]\d{2,3}|10000)$`},
			}
		},
	}
}

// schedulePattern matches what ParseSchedule reads, except for the names of months
// and days, the order of a range and the size of a step.
func schedulePattern() string {
	var fields []string
	for i, number := range [5]string{`[0-5]?\d`, `[01]?\d|2[0-3]`, `0?[1-9]|[12]\d|3[01]`, `0?[1-9]|1[0-2]`, `0?[0-7]`} {
		if cronFields[i].words != nil {
			number += "|[A-Za-z]{3}"
		}
		part := `(\*|(` + number + ")(-(" + number + `))?)(/\d{1,2})?`
		fields = append(fields, part+"(,"+part+")*")
	}
	words := append(slices.Sorted(maps.Keys(cronWords)), Off)
	return `^\s*(` + strings.Join(words, "|") + "|" + strings.Join(fields, `\s+`) + `)\s*$`
}

// uncommented returns packaging/config.yaml with all its keys, and its comment on each.
func uncommented(t *testing.T) (text string, comments map[string]string) {
	t.Helper()
	raw, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	comments = map[string]string{}
	var above []string
	group := ""
	for line := range strings.Lines(string(raw)) {
		key := regexp.MustCompile(`^#((?:  )?)([a-z0-9_]+):`).FindStringSubmatch(line)
		switch {
		case key != nil && key[1] == "":
			group = key[2]
			comments[group] = strings.Join(above, " ")
		case key != nil:
			comments[group+"."+key[2]] = strings.Join(above, " ")
		case strings.HasPrefix(line, "# ") && line[2] != ' ':
			above = append(above, strings.TrimSpace(line[1:]))
			continue
		}
		above = nil
	}
	return regexp.MustCompile(`(?m)^#((?:  )*(?:[a-z0-9_]+:|- ).*)$`).ReplaceAllString(string(raw), "$1"), comments
}

// makeSchema returns the schema of Config: its structure from the type, its
// words and examples from packaging/config.yaml, its defaults from WithDefaults.
func makeSchema(t *testing.T) []byte {
	t.Helper()
	r := jsonschema.Reflector{FieldNameTag: "yaml", DoNotReference: true, ExpandedStruct: true, Anonymous: true}
	root := r.Reflect(Config{})
	root.Title = "kbnode configuration"
	root.Description = "/etc/kbnode/config.yaml. kbnode config check finds what a schema cannot say."
	text, comments := uncommented(t)
	examples, err := Parse(exampleFile, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	example, defaults := byKey(examples), byKey(Config{GPUs: GPUs{All: true}}.WithDefaults())
	rule := rules()
	var walk func(s *jsonschema.Schema, typ reflect.Type, prefix string)
	walk = func(s *jsonschema.Schema, typ reflect.Type, prefix string) {
		for f := range typ.Fields() {
			key := prefix + keyOf(f)
			sub, ok := s.Properties.Get(keyOf(f))
			if !ok || comments[key] == "" {
				t.Fatalf("%s: in the schema %v, described as %q", key, ok, comments[key])
			}
			sub.Description = comments[key]
			if isGroup(f.Type) {
				walk(sub, f.Type, key+".")
				// A group may have all its keys in comments.
				sub.Type, sub.Extras = "", map[string]any{"type": []string{"object", "null"}}
				continue
			}
			narrow, ok := rule[key]
			if !ok {
				t.Fatalf("%s has no rule; write nil where Validate has none", key)
			}
			v, isDefault := defaults[key], true
			if v.IsZero() && v.Kind() != reflect.Bool {
				v, isDefault = example[key], false
			}
			value, err := plain(v.Interface())
			if err != nil {
				t.Fatal(err)
			}
			if isDefault {
				sub.Default = value
			} else {
				sub.Examples = []any{value}
			}
			if narrow != nil {
				narrow(sub)
			}
		}
	}
	walk(root, reflect.TypeFor[Config](), "")
	agent, _ := root.Properties.Get("agent")
	agent.DependentRequired = map[string][]string{"download_url": {"download_sha256"}}
	out, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	var pretty strings.Builder
	enc := json.NewEncoder(&pretty)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(json.RawMessage(out)); err != nil {
		t.Fatal(err)
	}
	return []byte(pretty.String())
}

// byKey returns the values of every key, by dotted path.
func byKey(c Config) map[string]reflect.Value {
	values := map[string]reflect.Value{}
	eachKey(reflect.ValueOf(c), "", func(key string, v reflect.Value) { values[key] = v })
	return values
}

func TestSchemaIsWhatTheCodeSays(t *testing.T) {
	t.Parallel()
	want := makeSchema(t)
	if *update {
		if err := os.WriteFile(schemaFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is not what the code says; run go test ./internal/config -update and review: %s", schemaFile, diff)
	}
}
