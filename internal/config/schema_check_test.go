package config

import (
	"bytes"
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/test/must"
)

// readSchema returns packaging/config.schema.json, as an editor reads it.
func readSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text := must.Read(t, schemaFile)
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	must.Do(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	must.Do(t, c.AddResource("config.schema.json", doc))
	s, err := c.Compile("config.schema.json") // checks it against its own schema
	must.Do(t, err)
	return s
}

// refusal returns what the schema says about a file in YAML; nil if it is valid.
func refusal(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		return err
	}
	if v == nil {
		return nil // an empty file: there is nothing to validate
	}
	asJSON, err := json.Marshal(v)
	must.Do(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	must.Do(t, err)
	return s.Validate(doc)
}

// TestSchemaAgreesWithParse checks the same files with both. What only kbnode refuses is
// listed in beyond.
func TestSchemaAgreesWithParse(t *testing.T) {
	t.Parallel()
	s := readSchema(t)
	asked := map[string]bool{} // by whether Parse accepts it
	for _, c := range parseCases {
		asked[c.text] = c.err == ""
		if slices.Contains(beyondCases, c.name) {
			delete(asked, c.text)
		}
	}
	for text, taken := range moreCases {
		asked[text] = taken
		if _, err := Parse("f", []byte(text)); (err == nil) != taken {
			t.Errorf("Parse says of %q: %v", text, err)
		}
	}
	if len(asked) < 100 {
		t.Fatalf("%d files are asked of", len(asked))
	}
	for text, taken := range asked {
		if err := refusal(t, s, text); (err == nil) != taken {
			t.Errorf("the schema says of %q: %v", text, err)
		}
	}
	for _, text := range beyond {
		if _, err := Parse("f", []byte(text)); err == nil {
			t.Errorf("Parse takes %q", text)
		}
		if err := refusal(t, s, text); err != nil {
			t.Errorf("the schema refuses %q too: %v; it belongs in moreCases", text, err)
		}
	}
}

// TestSchemaTakesTheDocumentation validates what people start from.
func TestSchemaTakesTheDocumentation(t *testing.T) {
	t.Parallel()
	s := readSchema(t)
	text, _ := uncommented(t)
	examples := map[string]string{exampleFile: text}
	page := must.Read(t, "../../docs/configuration.md")
	for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(page, -1) {
		examples[m[1]] = m[1]
	}
	if len(examples) < 3 {
		t.Fatalf("docs/configuration.md has %d examples", len(examples)-1)
	}
	for name, text := range examples {
		if err := refusal(t, s, text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// An unknown key is refused anywhere.
		for line := range strings.Lines(text) {
			if key := regexp.MustCompile(`^( *)[a-z0-9_]+:`).FindStringSubmatch(line); key != nil {
				if err := refusal(t, s, strings.Replace(text, line, key[1]+"unheard_of: 1\n"+line, 1)); err == nil {
					t.Errorf("%s: an unknown key above %q is taken", name, line)
				}
			}
		}
	}
	// What kbnode writes itself is valid, too.
	for _, c := range parseCases {
		if c.err != "" {
			continue
		}
		shown, err := Show("f", c.want.WithDefaults())
		must.Do(t, err)
		written, err := Render(c.want, "m")
		must.Do(t, err)
		for _, text := range []string{shown.Text, written} {
			if err := refusal(t, s, text); err != nil {
				t.Errorf("%s: %v in\n%s", c.name, err, text)
			}
		}
	}
}

// TestDocumentedDefaults compares the tables of keys with the code: every key has a row, and every default that
// is a value is the one in use.
func TestDocumentedDefaults(t *testing.T) {
	t.Parallel()
	rows := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_.]+)` \\| ([^|]*) \\|.*\\|$").FindAllStringSubmatch(must.Read(t, "../../docs/configuration.md"), -1) {
		rows[m[1]] = m[2]
	}
	c := Config{GPUs: GPUs{All: true}}.WithDefaults()
	value := regexp.MustCompile("^`([^`]*)`")
	eachKey(reflect.ValueOf(&c).Elem(), "", func(key string, v reflect.Value) {
		row, ok := rows[key]
		if delete(rows, key); !ok {
			t.Errorf("docs/configuration.md has no row for %s", key)
		}
		text, err := yaml.Marshal(v.Interface())
		must.Do(t, err)
		if m := value.FindStringSubmatch(row); m != nil && m[1] != strings.TrimSpace(string(text)) {
			t.Errorf("docs/configuration.md says that the default of %s is %s; it is %s", key, m[1], text)
		}
	})
	if len(rows) > 0 {
		t.Errorf("docs/configuration.md has rows for no key: %q", rows)
	}
}
