package cli

import (
	"encoding"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/e2e"
	"github.com/gpu-mode/kbnode/internal/node"
)

// TestJSONDocuments compares the lists of the pages with the types: the same fields
// in the same order, with the same JSON types, each with a meaning.
func TestJSONDocuments(t *testing.T) {
	t.Parallel()
	row := regexp.MustCompile("(?m)^- `([a-zA-Z_.\\[\\]]+)` \\(([^)]+)\\): (?:.*(fields as in `plan`|fields of `plan\\.[A-Z][a-zA-Z]*`)|.+)$")
	var ofPlan []string
	for _, tt := range []struct {
		page, heading string
		typ           reflect.Type
	}{
		{"docs/plan.md", "## kbnode plan --json", reflect.TypeFor[planOutput]()},
		{"docs/plan.md", "## kbnode status --json", reflect.TypeFor[node.Status]()},
		{"docs/operators.md", "### kbnode queue --json", reflect.TypeFor[buildkite.QueueReport]()},
		{"docs/operators.md", "### kbnode e2e --json", reflect.TypeFor[e2e.Report]()},
	} {
		text, err := os.ReadFile("../../" + tt.page)
		if err != nil {
			t.Fatal(err)
		}
		_, section, found := strings.Cut(string(text), "\n"+tt.heading+"\n")
		if !found {
			t.Errorf("%s has no section %q", tt.page, tt.heading)
		}
		section, _, _ = strings.Cut(section, "\n## ")
		var documented, coded []string
		fieldsOf(tt.typ, "", &coded)
		if ofPlan == nil {
			ofPlan = slices.Clone(coded)
		}
		for _, m := range row.FindAllStringSubmatch(section, -1) {
			documented = append(documented, m[1]+" "+m[2])
			if m[3] != "" {
				coded = slices.DeleteFunc(coded, func(f string) bool {
					return strings.HasPrefix(f, m[1]+"[].") && slices.Contains(ofPlan, f)
				})
			}
		}
		if d := cmp.Diff(coded, documented); d != "" {
			t.Errorf("%s: %s (+) differs from the code (-):\n%s", tt.heading, tt.page, d)
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
			kind += ", optional"
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
	case typ.Kind() == reflect.Float64:
		return "number"
	}
	return typ.String()
}
