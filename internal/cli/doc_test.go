package cli

import (
	"encoding"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestPlanDocument holds the tables of docs/plan.md to the types: the same
// fields, in the same order, with the same JSON types, each with a meaning.
func TestPlanDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/plan.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `([a-zA-Z_.\\[\\]]+)` \\| ([^|]+) \\|[^|]*\\| [^|]+ \\|$")
	for heading, typ := range map[string]reflect.Type{
		"## kbnode plan --json":   reflect.TypeFor[planOutput](),
		"## kbnode status --json": reflect.TypeFor[nodeStatus](),
	} {
		_, section, found := strings.Cut(string(text), "\n"+heading+"\n")
		if !found {
			t.Errorf("docs/plan.md has no section %q", heading)
		}
		section, _, _ = strings.Cut(section, "\n## ")
		var documented, coded []string
		for _, m := range row.FindAllStringSubmatch(section, -1) {
			documented = append(documented, m[1]+" "+m[2])
		}
		fieldsOf(typ, "", &coded)
		if d := cmp.Diff(coded, documented); d != "" {
			t.Errorf("%s: docs/plan.md (+) differs from the code (-):\n%s", heading, d)
		}
	}
}

// fieldsOf lists the JSON fields of a type with their paths and JSON types.
func fieldsOf(typ reflect.Type, path string, list *[]string) {
	for f := range typ.Fields() {
		inner := f.Type
		for inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && tag == "" {
			fieldsOf(inner, path, list)
			continue
		}
		if !f.IsExported() || tag == "-" {
			continue
		}
		kind := jsonType(inner)
		if strings.HasPrefix(options, "omit") {
			kind += " or absent"
		}
		*list = append(*list, path+tag+" "+kind)
		sub := path + tag + "."
		if inner.Kind() == reflect.Slice {
			inner, sub = inner.Elem(), path+tag+"[]."
		}
		if inner.Kind() == reflect.Struct && inner != reflect.TypeFor[time.Time]() {
			fieldsOf(inner, sub, list)
		}
	}
}

func jsonType(typ reflect.Type) string {
	switch {
	case typ.Implements(reflect.TypeFor[encoding.TextMarshaler]()), typ.Kind() == reflect.String:
		return "string"
	case typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Struct:
		return "list of objects"
	case typ.Kind() == reflect.Slice:
		return "list of " + jsonType(typ.Elem()) + "s"
	case typ.Kind() == reflect.Struct:
		return "object"
	case typ.Kind() == reflect.Bool:
		return "boolean"
	case typ.Kind() >= reflect.Int && typ.Kind() <= reflect.Uint64:
		return "integer"
	}
	return typ.String()
}
