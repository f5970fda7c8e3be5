package result

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestResultDocument compares the list of docs/results.md with the types: the same
// fields, in the same order, with the same JSON types, each with a meaning.
func TestResultDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/results.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	row := regexp.MustCompile("(?m)^- `([a-zA-Z_.]+)` \\(([^)]+)\\): .+$")
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, m[1]+" "+m[2])
	}
	var coded []string
	collect(reflect.TypeFor[Result](), "", &coded)
	if d := cmp.Diff(coded, documented); d != "" {
		t.Errorf("docs/results.md (+) differs from the code (-):\n%s", d)
	}
}

// collect lists the JSON fields of a type with their paths and JSON types.
func collect(typ reflect.Type, path string, list *[]string) {
	for f := range typ.Fields() {
		name := path + f.Tag.Get("json")
		*list = append(*list, name+" "+jsonType(f.Type))
		inner := f.Type
		if strings.HasPrefix(inner.Name(), "Pairs[") { // NAME stands for each member
			inner, name = inner.Elem().Field(1).Type, name+".NAME"
			if inner.Kind() != reflect.Pointer {
				continue
			}
			*list = append(*list, name+" object")
		}
		if inner.Kind() == reflect.Pointer && inner.Elem().Kind() == reflect.Struct {
			collect(inner.Elem(), name+".", list)
		}
	}
}

func jsonType(typ reflect.Type) string {
	switch {
	case typ == reflect.TypeFor[Time](), typ.Kind() == reflect.String && typ.Name() == "string":
		return "string"
	case typ.Name() == "Number":
		return "number"
	case typ.Kind() == reflect.Bool:
		return "boolean"
	case typ.Kind() == reflect.Int:
		return "integer"
	case typ == reflect.TypeFor[*System](), strings.HasPrefix(typ.Name(), "Pairs["), typ.Kind() == reflect.Struct:
		return "object"
	case typ.Kind() == reflect.Pointer:
		return jsonType(typ.Elem()) + " or null"
	}
	return typ.String()
}
