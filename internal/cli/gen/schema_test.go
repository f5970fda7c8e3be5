package main

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/cli"
	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/test/must"
)

var update = flag.Bool("update", false, "write packaging/schemas again")

const (
	module  = "github.com/gpu-mode/kbnode/"
	source  = "../../.."
	schemas = source + "/packaging/schemas"
)

// schema is a JSON Schema of draft 2020-12, as far as Go types need it. A value of another type than those of
// Go has an empty one.
type schema struct {
	Dialect     string             `json:"$schema,omitempty"`
	Title       string             `json:"title,omitempty"`
	Description string             `json:"description,omitempty"`
	Type        string             `json:"type,omitempty"`
	Const       int                `json:"const,omitempty"`
	Format      string             `json:"format,omitempty"`
	Encoding    string             `json:"contentEncoding,omitempty"`
	Items       *schema            `json:"items,omitempty"`
	Properties  map[string]*schema `json:"properties,omitempty"`
	Required    []string           `json:"required,omitempty"`
	Values      *schema            `json:"additionalProperties,omitempty"` // of a map
	AnyOf       []*schema          `json:"anyOf,omitempty"`
}

// writer writes schemas of types. It reads what the sources say of fields.
type writer struct {
	t    *testing.T
	docs map[string]map[string]string // by package, of "Type" and "Type.Field"
	in   []reflect.Type
}

func (w *writer) document(d term.Described) *schema {
	name, version, typ := d.Describe()
	s := w.schema(typ)
	if s.Type != "object" || s.Properties == nil {
		w.t.Fatalf("%s is no object", name)
	}
	s.Dialect, s.Title = "https://json-schema.org/draft/2020-12/schema", "kbnode "+name
	s.Properties["schema"] = &schema{Const: version, Description: "Version of this schema. It rises when a field goes away, or changes its type or meaning."}
	if !slices.Contains(s.Required, "schema") {
		s.Required = append([]string{"schema"}, s.Required...)
	}
	return s
}

func (w *writer) schema(t reflect.Type) *schema {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return &schema{Type: "string", Format: "date-time"}
	case t.Implements(reflect.TypeFor[json.Marshaler]()), reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]()):
		return &schema{} // it has a form of its own
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return &schema{Type: "string"}
	case slices.Contains(w.in, t):
		w.t.Fatalf("%s contains itself", t)
	}
	w.in = append(w.in, t)
	defer func() { w.in = w.in[:len(w.in)-1] }()
	switch t.Kind() {
	case reflect.Pointer:
		return w.schema(t.Elem())
	case reflect.Interface:
		return &schema{}
	case reflect.Bool:
		return &schema{Type: "boolean"}
	case reflect.String:
		return &schema{Type: "string"}
	case reflect.Float32, reflect.Float64:
		return &schema{Type: "number"}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return &schema{Type: "string", Encoding: "base64"}
		}
		return &schema{Type: "array", Items: w.schema(t.Elem())}
	case reflect.Map:
		return &schema{Type: "object", Values: w.schema(t.Elem())}
	case reflect.Struct:
		return w.object(t)
	default:
		if !t.ConvertibleTo(reflect.TypeFor[int64]()) {
			w.t.Fatalf("%s has no JSON", t)
		}
		return &schema{Type: "integer"}
	}
}

func (w *writer) object(t reflect.Type) *schema {
	s := &schema{Type: "object", Properties: map[string]*schema{}, Description: w.comment(t, "")}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" || f.Anonymous {
			continue
		}
		if name == "" {
			w.t.Fatalf("%s.%s has no name for JSON", t, f.Name)
		}
		p := w.schema(f.Type)
		optional := strings.HasPrefix(options, "omit")
		if f.Type.Kind() == reflect.Pointer && !optional {
			p = &schema{AnyOf: []*schema{p, {Type: "null"}}}
		}
		owner := t
		for _, i := range f.Index[:len(f.Index)-1] { // through embedded types
			owner = owner.Field(i).Type
			if owner.Kind() == reflect.Pointer {
				owner = owner.Elem()
			}
		}
		if about := w.comment(owner, f.Name); about != "" {
			p.Description = about
		}
		s.Properties[name] = p
		if !optional {
			s.Required = append(s.Required, name)
		}
	}
	return s
}

// comment returns what the source says of a type or, if one is named, of its field.
func (w *writer) comment(t reflect.Type, field string) string {
	dir, ours := strings.CutPrefix(t.PkgPath(), module)
	if !ours || t.Name() == "" {
		return ""
	}
	if w.docs[dir] == nil {
		w.docs[dir] = comments(w.t, filepath.Join(source, dir))
	}
	name, key := t.Name(), t.Name()
	if field != "" {
		name, key = field, key+"."+field
	}
	about := w.docs[dir][key]
	for _, verb := range []string{" is ", " are "} { // readers of JSON do not know Go's names
		if rest, ok := strings.CutPrefix(about, name+verb); ok {
			return strings.ToUpper(rest[:1]) + rest[1:]
		}
	}
	return about
}

func comments(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	text := func(groups ...*ast.CommentGroup) string {
		var all []string
		for _, g := range groups {
			all = append(all, strings.Fields(g.Text())...)
		}
		return strings.Join(all, " ")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	must.Do(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		must.Do(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			decl, ok := n.(*ast.GenDecl)
			if !ok {
				return true
			}
			for _, spec := range decl.Specs {
				typ, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				found[typ.Name.Name] = text(decl.Doc, typ.Doc)
				fields, ok := typ.Type.(*ast.StructType)
				if !ok {
					continue
				}
				for _, f := range fields.Fields.List {
					for _, name := range f.Names {
						found[typ.Name.Name+"."+name.Name] = text(f.Doc, f.Comment)
					}
				}
			}
			return false
		})
	}
	return found
}

// broken returns what a reader of the old documents does not find in new ones.
func broken(at string, before, after *schema) (all []string) {
	if after == nil {
		return []string{at + " went away"}
	}
	if before.Type != after.Type || before.Format != after.Format || before.Encoding != after.Encoding || len(before.AnyOf) != len(after.AnyOf) {
		return []string{at + " has another type"}
	}
	for _, name := range slices.Sorted(maps.Keys(before.Properties)) {
		all = append(all, broken(at+"."+name, before.Properties[name], after.Properties[name])...)
		if slices.Contains(before.Required, name) && !slices.Contains(after.Required, name) {
			all = append(all, at+"."+name+" may be absent")
		}
	}
	for i := range before.AnyOf {
		all = append(all, broken(at, before.AnyOf[i], after.AnyOf[i])...)
	}
	if before.Items != nil {
		all = append(all, broken(at+"[]", before.Items, after.Items)...)
	}
	if before.Values != nil {
		all = append(all, broken(at+"{}", before.Values, after.Values)...)
	}
	return all
}

// TestSchemas compares packaging/schemas with the types, and refuses a change that breaks readers unless the
// version rises.
func TestSchemas(t *testing.T) {
	t.Parallel()
	w := &writer{t: t, docs: map[string]map[string]string{}}
	known := map[string]bool{}
	for _, d := range cli.Documents() {
		name, version, _ := d.Describe()
		if known[name+".json"] {
			t.Errorf("two documents are called %s", name)
		}
		known[name+".json"] = true
		s := w.document(d)
		var text bytes.Buffer
		enc := json.NewEncoder(&text)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		must.Do(t, enc.Encode(s))
		file := filepath.Join(schemas, name+".json")
		if old, err := os.ReadFile(file); err == nil {
			var before schema
			must.Do(t, json.Unmarshal(old, &before))
			if was := before.Properties["schema"].Const; version == was {
				if bad := broken(name, &before, s); len(bad) > 0 {
					t.Errorf("%s: raise its schema to %d in Documents and on its page, because readers of %d find:\n%s", file, was+1, was, strings.Join(bad, "\n"))
					continue // and do not write it
				}
			} else if version != was+1 {
				t.Errorf("%s: schema %d follows %d", file, version, was)
				continue
			}
		}
		must.Golden(t, file, *update, text.String())
	}
	files, err := os.ReadDir(schemas)
	must.Do(t, err)
	for _, f := range files {
		if !known[f.Name()] {
			t.Errorf("%s/%s is of no document; remove it", schemas, f.Name())
		}
	}
}

func TestBroken(t *testing.T) {
	t.Parallel()
	const old = `{"type":"object","required":["a"],"properties":{"a":{"type":"string"},"b":{"type":"array","items":{"type":"object","properties":{"c":{"type":"integer"}}}},"d":{"anyOf":[{"type":"string"},{"type":"null"}]}}}`
	read := func(text string) (s *schema) {
		must.Do(t, json.Unmarshal([]byte(text), &s))
		return s
	}
	for _, tt := range []struct{ from, to, want string }{
		{"", "", ""},
		{`"required":["a"]`, `"required":["a","b"]`, ""},
		{`"properties":{"a"`, `"properties":{"new":{"type":"string"},"a"`, ""},
		{`"type":"string"},"b"`, `"type":"string","description":"reworded"},"b"`, ""},
		{`"required":["a"],`, ``, "[x.a may be absent]"},
		{`"a":{"type":"string"},`, ``, "[x.a went away]"},
		{`"type":"integer"`, `"type":"number"`, "[x.b[].c has another type]"},
		{`"c":{`, `"e":{`, "[x.b[].c went away]"},
		{`{"type":"string"},{"type":"null"}`, `{"type":"integer"},{"type":"null"}`, "[x.d has another type]"},
		{`"a":{"type":"string"}`, `"a":{"type":"string","format":"date-time"}`, "[x.a has another type]"},
	} {
		got := broken("x", read(old), read(strings.Replace(old, tt.from, tt.to, 1)))
		if want := tt.want; fmt.Sprint(got) != want && (want != "" || got != nil) {
			t.Errorf("%s -> %s: %v, want %s", tt.from, tt.to, got, want)
		}
	}
}
