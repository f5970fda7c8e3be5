package inventory

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var updateDocument = flag.Bool("update-document", false, "write docs/inventory.md anew")

const documentFile = "../../docs/inventory.md"

// TestDocument holds docs/inventory.md to the types: it is made from them and
// their comments.
func TestDocument(t *testing.T) {
	t.Parallel()
	got := document(t)
	if *updateDocument {
		if err := os.WriteFile(documentFile, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(documentFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("docs/inventory.md differs (-want +got); run go test ./internal/inventory -run TestDocument -update-document:\n%s", diff)
	}
}

func document(t *testing.T) []byte {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "inventory.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `# The inventory as JSON

What `+"`kbnode inventory --json`"+` prints. This page is made from the types in
internal/inventory/inventory.go. `+"`schema`"+` is %d and rises when a field changes its
meaning or goes away, not when one is added. What kbnode makes of it is in [plan and
status](plan.md).
`, Schema)
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.TYPE {
			continue
		}
		spec := gen.Specs[0].(*ast.TypeSpec)
		fields, ok := spec.Type.(*ast.StructType)
		if !ok {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| field | type | |\n|---|---|---|\n", spec.Name.Name, strings.TrimSpace(gen.Doc.Text()))
		for _, f := range fields.Fields.List {
			var typ bytes.Buffer
			if err := printer.Fprint(&typ, fset, f.Type); err != nil {
				t.Fatal(err)
			}
			tag := reflect.StructTag(strings.Trim(f.Tag.Value, "`"))
			name, options, _ := strings.Cut(tag.Get("json"), ",")
			comment := f.Comment.Text()
			if comment == "" {
				comment = f.Doc.Text()
			}
			comment = strings.ReplaceAll(strings.Join(strings.Fields(comment), " "), "|", `\|`)
			if strings.Contains(options, "omitempty") {
				comment = strings.TrimSpace(comment + " (left out when empty)")
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, typeText(typ.String()), comment)
		}
	}
	return b.Bytes()
}

// typeText is a Go type in the words of JSON.
func typeText(goType string) string {
	if elem, ok := strings.CutPrefix(goType, "[]"); ok {
		return "list of " + typeText(elem)
	}
	goType = strings.TrimPrefix(goType, "*")
	switch goType {
	case "int", "int64":
		return "number"
	case "bool", "string":
		return goType
	case "probe.GPU":
		return "object: all that NVML said (internal/inventory/probe/report.go)"
	}
	return "[" + goType + "](#" + strings.ToLower(goType) + ")"
}
