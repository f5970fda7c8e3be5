package term

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Document is what commands print with --json: a JSON object that packaging/schemas/NAME.json describes.
type Document[T any] struct {
	Name   string
	Schema int // rises when a field goes away, or changes its type or meaning
}

// Described is a Document of any type.
type Described interface {
	Describe() (name string, schema int, typ reflect.Type)
}

// Describe returns what its schema is written from.
func (d Document[T]) Describe() (name string, schema int, typ reflect.Type) {
	return d.Name, d.Schema, reflect.TypeFor[T]()
}

// Print writes the answer of a command: v with --json, and what people read without.
func (d Document[T]) Print(s Streams, asJSON bool, v T, people func()) error {
	if asJSON {
		return EncodeJSON(s.Out, "  ", numbered[T]{d.Schema, v})
	}
	people()
	return nil
}

// Line writes v as one line of JSON.
func (d Document[T]) Line(w io.Writer, v T) error { return EncodeJSON(w, "", numbered[T]{d.Schema, v}) }

// numbered marshals to an object that begins with the version of its schema.
type numbered[T any] struct {
	schema int
	v      T
}

func (n numbered[T]) MarshalJSON() ([]byte, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(n.v); err != nil {
		return nil, err
	}
	object, ok := strings.CutPrefix(strings.TrimSpace(b.String()), "{")
	switch {
	case !ok:
		return nil, fmt.Errorf("%T is no object", n.v)
	case HasSchema(reflect.TypeFor[T]()):
		return []byte("{" + object), nil
	case object == "}":
		return fmt.Appendf(nil, `{"schema":%d}`, n.schema), nil
	}
	return fmt.Appendf(nil, `{"schema":%d,%s`, n.schema, object), nil
}

// HasSchema reports whether a type has a field for the version itself.
func HasSchema(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && slices.ContainsFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool {
		return f.Tag.Get("json") == "schema"
	})
}

// schemaKey is the annotation of a flag with the names of what it prints.
const schemaKey = "kbnode.schema"

// JSONFlag adds --json to a command that prints these documents.
func JSONFlag(fl *pflag.FlagSet, to *bool, usage string, documents ...Described) {
	fl.BoolVar(to, "json", false, usage)
	var names []string
	for _, d := range documents {
		name, _, _ := d.Describe()
		names = append(names, name)
	}
	_ = fl.SetAnnotation("json", schemaKey, names) // the flag exists
}

// Schemas returns the names of the documents that a flag prints.
func Schemas(f *pflag.Flag) []string { return f.Annotations[schemaKey] }
