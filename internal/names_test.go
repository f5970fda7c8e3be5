package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

// wayOut matches a sentence that says what to do: a verb after what is wrong.
var wayOut = regexp.MustCompile(`(^|[;,:] |\bor |\band )(also )?(add|allow|ask|begin|bring|check|choose|copy|create|delete|fix|give|group|indent|install|keep|leave|list|lower|make|mount|move|name|pass|push|put|remove|rename|run|see|send|set|shorten|tell|try|turn|unset|update|upgrade|use|wait|write|%s)\b`)

// unfinished matches sentences that end with what another one says, or that another one ends.
var unfinished = regexp.MustCompile(`(%[sv]|: )$|^(not an address or CIDR|%s is not a port|all addresses, .*|an IPv4-mapped IPv6 address|it was written by another version of kbnode|it has no release %q|GPU %s has no part %s: it has %d|the Docker engine does not report the container's image|no earlier CPUs|_- )$`)

// TestRefusals tests that everything that is refused to the author of a job or to an operator
// says what to do instead. Errors that wrap another say what went wrong on the node.
func TestRefusals(t *testing.T) {
	t.Parallel()
	sentences := []string{"Errorf", "New", "forbid", "never", "oneOf", "fault", "mistake", "bad", "BadInput", "refuse", "refuseIf"}
	count := 0
	for _, pattern := range []string{
		"job/guard/*.go", "job/guard/spec.go", "job/guard/network.go", "job/guard/images.go", "job/*.go", "job/agent/tokenfile.go", "plan/*.go", "plan/split/*.go", "plan/config/*.go",
	} {
		files, err := filepath.Glob(pattern)
		if err != nil || files == nil {
			t.Fatalf("%s: no files, %v", pattern, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			tree, err := parser.ParseFile(fset, file, nil, 0)
			must.Do(t, err)
			judge := func(e ast.Expr) {
				text := literal(e)
				switch {
				case !strings.Contains(text, " ") || strings.Contains(text, "%w") || unfinished.MatchString(text):
				case !wayOut.MatchString(text):
					t.Errorf("%s: %q does not say what to do instead", fset.Position(e.Pos()), text)
				default:
					count++
				}
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					name := ""
					switch f := n.Fun.(type) {
					case *ast.Ident:
						name = f.Name
					case *ast.SelectorExpr:
						name = f.Sel.Name
					}
					for _, arg := range n.Args {
						// Elsewhere in package guard, only what it forbids is for a job's author.
						if slices.Contains(sentences, name) && (pattern != "job/guard/*.go" || name == "forbid") {
							judge(arg)
						}
					}
				case *ast.FuncDecl:
					return !strings.HasSuffix(n.Name.Name, "Error")
				case *ast.ReturnStmt:
					for _, e := range n.Results {
						if file == "job/artifact.go" {
							judge(e)
						}
					}
				}
				return true
			})
		}
	}
	if count < 150 {
		t.Errorf("%d refusals were found; the test no longer sees them", count)
	}
}

// literal returns the text of a literal, or of several that are added.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.BinaryExpr:
		return literal(e.X) + literal(e.Y)
	case *ast.CallExpr: // fmt.Sprintf(…)
		if len(e.Args) > 0 && literal(e.Fun) == "" {
			return literal(e.Args[0])
		}
	}
	return ""
}
