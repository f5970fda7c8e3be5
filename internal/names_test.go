package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// forbiddenNames say nothing about what they name, and cannot be searched for.
const forbiddenNames = "told untold unheard above gone of seen think wishes fate fates suits stay asAdvised quietly unless outside past frugal beFrugal few look looked tell heard hear"

// TestNames tests that nothing is declared under a name that STYLE.md forbids.
func TestNames(t *testing.T) {
	t.Parallel()
	forbidden := map[string]bool{}
	for name := range strings.FieldsSeq(forbiddenNames) {
		forbidden[name] = true
	}
	for _, dir := range []string{"cmd", "docs", "internal", "packaging", "test"} {
		for _, name := range files(t, dir) {
			if !strings.HasSuffix(name, ".go") {
				continue
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, filepath.Join(root, name), nil, parser.SkipObjectResolution)
			must.Do(t, err)
			for _, id := range declared(file) {
				if forbidden[id.Name] {
					t.Errorf("%s declares %q; use a noun or a verb that can be searched for (STYLE.md)", set.Position(id.Pos()), id.Name)
				}
			}
		}
	}
}

// declared returns the names that a file declares, those of parameters, fields and variables too.
func declared(file *ast.File) (names []*ast.Ident) {
	ast.Inspect(file, func(n ast.Node) bool {
		var exprs []ast.Expr
		switch n := n.(type) {
		case *ast.FuncDecl:
			names = append(names, n.Name)
		case *ast.TypeSpec:
			names = append(names, n.Name)
		case *ast.ValueSpec:
			names = append(names, n.Names...)
		case *ast.Field:
			names = append(names, n.Names...)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				exprs = n.Lhs
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				exprs = []ast.Expr{n.Key, n.Value}
			}
		}
		for _, e := range exprs {
			if id, ok := e.(*ast.Ident); ok {
				names = append(names, id)
			}
		}
		return true
	})
	return names
}
