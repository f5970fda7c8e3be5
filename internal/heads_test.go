package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestHeads finds statements in the head of an if or switch that are neither a definition nor the error that is then
// looked at: who reads conditions misses them.
func TestHeads(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"cmd", "hooks", "internal", "packaging", "systemd", "test"} {
		must.Do(t, filepath.WalkDir(filepath.Join("..", dir), func(name string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(name, ".go") {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for n := range ast.Preorder(file) {
				var init ast.Stmt
				switch s := n.(type) {
				case *ast.IfStmt:
					init = s.Init
				case *ast.SwitchStmt:
					init = s.Init
				case *ast.TypeSwitchStmt:
					init = s.Init
				}
				if init != nil && !defines(init) {
					t.Errorf("%s does something in the head of an if or switch; write it on a line of its own", set.Position(init.Pos()))
				}
			}
			return nil
		}))
	}
}

func defines(init ast.Stmt) bool {
	a, ok := init.(*ast.AssignStmt)
	if !ok || a.Tok == token.DEFINE {
		return ok
	}
	for _, left := range a.Lhs {
		if name, ok := left.(*ast.Ident); ok && name.Name == "err" {
			return true
		}
	}
	return false
}
