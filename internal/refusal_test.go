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

// wayOut matches a sentence that says what to do: a verb after what is wrong.
var wayOut = regexp.MustCompile(`(^|[;,:] |\bor |\band )(also )?(add|allow|ask|begin|bring|check|choose|copy|create|delete|fix|give|group|indent|install|keep|leave|list|lower|make|mount|move|name|pass|put|remove|rename|run|see|send|set|shorten|tell|try|turn|unset|update|upgrade|use|wait|write|%s)\b`)

// unfinished matches sentences that end with what another one says, or that another one ends.
var unfinished = regexp.MustCompile(`(%[sv]|: )$|^(not an address or CIDR|%s is not a port|all addresses, .*|an IPv4-mapped IPv6 address|it was written by another version of kbnode|it has no release %q|GPU %s has no part %s: it has %d|the Docker engine does not report the container's image|no earlier CPUs|_- )$`)

// TestRefusals tests that everything that is refused to the author of a job or to an operator
// says what to do instead. Errors that wrap another say what went wrong on the node.
func TestRefusals(t *testing.T) {
	t.Parallel()
	sentences := []string{"Errorf", "New", "forbid", "never", "oneOf", "fault", "mistake", "bad", "BadInput", "refuse", "refuseIf"}
	count := 0
	for _, pattern := range []string{
		"guard/*.go", "guard/spec.go", "guard/network.go", "guard/images.go", "job/*.go", "agent/hook*.go", "agent/exec.go", "plan/*.go", "split/*.go", "config/*.go",
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
						// Elsewhere in the guard, only what it forbids is for a job's author.
						if slices.Contains(sentences, name) && (pattern != "guard/*.go" || name == "forbid") {
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
