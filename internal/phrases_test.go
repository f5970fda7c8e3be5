package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// word is a word of a text; what else is in one, such as a number, a path and an identifier, differs
// from screen to screen, and so do units.
var (
	word = regexp.MustCompile(`^\pL+(?:['’-]\pL+)*$`)
	unit = regexp.MustCompile(`^([KMGTkM]i?B|[µmn]?s|MHz|W)$`)
)

// words are those of a text in order, between the edges of the text, with "" for what is none.
func words(text string) []string {
	list := []string{""}
	for w := range strings.FieldsSeq(text) {
		bare := strings.Trim(w, `.,:;()"'[]&|`)
		if !word.MatchString(bare) || unit.MatchString(bare) {
			bare = ""
		}
		list = append(list, bare)
	}
	return append(list, "")
}

// phrases are the words that stand side by side in the texts that a program can print. A value or an
// edge of a text is "", and so is where texts are put together.
type phrases map[[2]string]bool

var verb = regexp.MustCompile(`%[-+# 0]*[0-9*]*(?:\.[0-9*]+)?(?:\[[0-9]+\])?[a-zA-Z]`)

// add adds a text, whose verbs are values.
func (p phrases) add(text string) {
	text = strings.ReplaceAll(verb.ReplaceAllString(text, "\x00"), "%%", "%")
	for line := range strings.SplitSeq(strings.ReplaceAll(text, "\t", "\n"), "\n") {
		for _, cell := range gap.Split(line, -1) {
			list := words(cell)
			for i := 1; i < len(list); i++ {
				p[[2]string{list[i-1], list[i]}] = true
				p[[2]string{strings.ToUpper(list[i-1]), strings.ToUpper(list[i])}] = true // as a heading
			}
		}
	}
}

// addGo adds the string constants of a Go file.
func (p phrases) addGo(t *testing.T, file string) {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
	must.Do(t, err)
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				text, err := strconv.Unquote(n.Value)
				must.Do(t, err)
				p.add(text)
			}
		}
		return true
	})
}

// unknown returns two words of a text that stand side by side in no phrase; "" if there are none.
func (p phrases) unknown(text string) string {
	list := words(text)
	for i := 1; i < len(list); i++ {
		a, b := list[i-1], list[i]
		if !p[[2]string{a, b}] && !(p[[2]string{a, ""}] && p[[2]string{"", b}]) {
			return a + " " + b
		}
	}
	return ""
}
