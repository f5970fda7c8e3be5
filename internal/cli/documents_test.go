package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	outcome "github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/test/must"
)

// foreign are the commands whose JSON others define: result.json is kernelbot's, and a pipeline Buildkite's. Only
// kbnode evaluate has JSON of its own, too: a comparison.
var foreign = []string{"kbnode evaluate", "kbnode runner", "kbnode pipeline"}

var schemaOf = sync.OnceValues(func() (map[string]*jsonschema.Schema, error) {
	const dir = "../../packaging/schemas"
	files, err := filepath.Glob(dir + "/*.json")
	all := map[string]*jsonschema.Schema{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		c := jsonschema.NewCompiler()
		c.AssertFormat()
		name := filepath.Base(file)
		if err := c.AddResource(name, doc); err != nil {
			return nil, err
		}
		if all[strings.TrimSuffix(name, ".json")], err = c.Compile(name); err != nil {
			return nil, err
		}
	}
	return all, err
})

// checkJSON compares what a command line printed with --json with the schemas of the command.
func checkJSON(t testing.TB, args []string, out string) {
	t.Helper()
	cmd, rest, err := Commands().Find(args)
	if err != nil || !slices.Contains(rest, "--json") || isForeign(cmd) && !strings.Contains(out, `"schema":`) || strings.TrimSpace(out) == "" {
		return
	}
	flag := cmd.Flags().Lookup("json")
	if flag == nil {
		return
	}
	schemas, err := schemaOf()
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(out))
	for dec.More() {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return // its own test says what it prints then
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		var wrong []string
		for _, name := range term.Schemas(flag) {
			s := schemas[name]
			if s == nil {
				t.Fatalf("there is no packaging/schemas/%s.json", name)
			}
			err := s.Validate(doc)
			if err == nil {
				wrong = nil
				break
			}
			wrong = append(wrong, err.Error())
		}
		if wrong != nil {
			t.Errorf("%q prints what is not in its schemas:\n%s\n%.2000s", args, strings.Join(wrong, "\n"), raw)
		}
	}
}

func isForeign(cmd *cobra.Command) bool {
	return slices.ContainsFunc(foreign, func(name string) bool {
		return cmd.CommandPath() == name || strings.HasPrefix(cmd.CommandPath(), name+" ")
	})
}

// TestJSONFlags holds that what is printed with --json has a schema.
func TestJSONFlags(t *testing.T) {
	t.Parallel()
	unused := map[string]bool{}
	for _, d := range Documents() {
		name, _, _ := d.Describe()
		unused[name] = true
	}
	known := len(unused)
	commands := 0
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if flag := cmd.Flags().Lookup("json"); flag != nil {
			commands++
			names := term.Schemas(flag)
			if len(names) == 0 && !isForeign(cmd) {
				t.Errorf("%s: what --json prints has no schema; add the flag with term.JSONFlag", cmd.CommandPath())
			}
			for _, name := range names {
				delete(unused, name)
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(Commands())
	if len(unused) > 0 || commands < 15 || known < commands-5 {
		t.Errorf("%d commands; no command prints %v", commands, unused)
	}
}

// TestDocuments prints each document, empty and with all that it may have, and compares it with its schema.
func TestDocuments(t *testing.T) {
	t.Parallel()
	schemas, err := schemaOf()
	must.Do(t, err)
	for _, d := range Documents() {
		name, version, typ := d.Describe()
		for _, v := range []reflect.Value{filled(typ, false), filled(typ, true)} {
			var out bytes.Buffer
			reflect.ValueOf(d).MethodByName("Line").Call([]reflect.Value{reflect.ValueOf(&out), v})
			text := out.String()
			if !term.HasSchema(typ) && !strings.HasPrefix(text, fmt.Sprintf(`{"schema":%d`, version)) || strings.Count(text, "\n") != 1 {
				t.Errorf("%s is printed as %.200s", name, text)
			}
			if term.HasSchema(typ) { // that of the filled value is any number
				text = regexp.MustCompile(`"schema":[0-9]+`).ReplaceAllString(text, fmt.Sprintf(`"schema":%d`, version))
			}
			doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
			must.Do(t, err)
			if err := schemas[name].Validate(doc); err != nil {
				t.Errorf("%v\n%s", err, text)
			}
		}
	}
}

// filled returns a value whose lists are not nil, and with all, one in which nothing is left out.
func filled(t reflect.Type, all bool) reflect.Value {
	v := reflect.New(t).Elem()
	switch t.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		v.Elem().Set(filled(t.Elem(), all))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(t, 0, 1))
		if all {
			v.Set(reflect.Append(v, filled(t.Elem(), all)))
		}
	case reflect.Array:
		for i := range t.Len() {
			v.Index(i).Set(filled(t.Elem(), all))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(t))
		if all {
			v.SetMapIndex(filled(t.Key(), all), filled(t.Elem(), all))
		}
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			return reflect.ValueOf(time.Unix(1e9, 0))
		}
		for i := range t.NumField() {
			f := t.Field(i)
			if f.IsExported() && (all || f.Type.Kind() != reflect.Pointer || f.Anonymous) && f.Tag.Get("json") != "-" && f.Type != reflect.TypeFor[*outcome.Result]() {
				v.Field(i).Set(filled(f.Type, all))
			}
		}
	case reflect.Interface:
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(all)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(1.5)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint:
		v.SetUint(1)
	default:
		v.SetInt(1)
	}
	return v
}
