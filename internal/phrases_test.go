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

// run is some words with nothing else between them, and whether a value is beside them.
type run struct {
	words         []string
	before, after bool
}

// split returns the runs of words in a text.
func split(text string) (runs []run) {
	var r run
	value := text != strings.TrimLeft(text, " ") // what a text with a space at its edge is put together with
	end := func(after bool) {
		if len(r.words) > 0 {
			r.after = after
			runs = append(runs, r)
		}
		r = run{}
	}
	for w := range strings.FieldsSeq(text) {
		bare := strings.Trim(w, `.,:;()"'[]…&|`)
		if bare == "" || !word.MatchString(bare) || unit.MatchString(bare) {
			value = bare != ""
			end(value)
			continue
		}
		if !strings.HasPrefix(w, bare) {
			end(false)
			value = false
		}
		if len(r.words) == 0 {
			r.before = value
		}
		r.words = append(r.words, bare)
		value = false
		if !strings.HasSuffix(w, bare) {
			end(false)
		}
	}
	end(text != strings.TrimRight(text, " "))
	return runs
}

// phrases are the fixed parts of the texts that a program can print, and which have a value before
// and after them.
type phrases struct{ known, before, after map[string]bool }

func newPhrases() phrases {
	return phrases{map[string]bool{}, map[string]bool{}, map[string]bool{}}
}

// variable is a value in a text.
const variable = "\x00"

var verb = regexp.MustCompile(`%[-+# 0]*[0-9*]*(?:\.[0-9*]+)?(?:\[[0-9]+\])?[a-zA-Z]`)

// add adds a text, whose verbs are values.
func (p phrases) add(text string) {
	text = strings.ReplaceAll(verb.ReplaceAllString(text, variable), "%%", "%")
	for line := range strings.SplitSeq(strings.ReplaceAll(text, "\t", "\n"), "\n") {
		for _, cell := range gap.Split(line, -1) {
			for _, r := range split(cell) {
				key := strings.Join(r.words, " ")
				p.known[key] = true
				p.before[key] = p.before[key] || r.before
				p.after[key] = p.after[key] || r.after
				p.known[strings.ToUpper(key)] = true // as a heading
			}
		}
	}
}

// addGo adds the string constants of a Go file. What is added to one with + is a value, unless it is
// another one.
func (p phrases) addGo(t *testing.T, file string) {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
	must.Do(t, err)
	part := map[ast.Expr]bool{} // of a sum that was added
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BinaryExpr, *ast.BasicLit:
			e := n.(ast.Expr)
			if sum, ok := e.(*ast.BinaryExpr); ok {
				part[sum.X], part[sum.Y] = sum.Op == token.ADD, sum.Op == token.ADD
			}
			if text, ok := constant(e); ok && !part[e] {
				p.add(text)
			}
		}
		return true
	})
}

// constant is a string expression with variable for what is not constant; ok if anything is.
func constant(e ast.Expr) (text string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			x, xok := constant(e.X)
			y, yok := constant(e.Y)
			return x + y, xok || yok
		}
	}
	return variable, false
}

// unknown returns the words of a text that no phrases add up to; "" if there are none.
func (p phrases) unknown(text string) string {
	runs := split(text)
	for i, r := range runs {
		if !p.adds(r.words, i == len(runs)-1 && strings.HasSuffix(text, "…")) {
			return strings.Join(r.words, " ")
		}
	}
	return ""
}

// adds reports whether phrases add up to a run of words, whose last one goes on if cut is true. A phrase
// of one word follows another one only where a value is: single words would add up to anything.
func (p phrases) adds(words []string, cut bool) bool {
	type end struct{ any, open bool } // whether phrases end here; whether a single word may follow
	ends := make([]end, len(words)+1)
	ends[0] = end{true, true}
	for i := range words {
		if !ends[i].any {
			continue
		}
		for j := i + 1; j <= len(words); j++ {
			key, single := strings.Join(words[i:j], " "), j == i+1
			if p.known[key] && (!single || ends[i].open || p.before[key]) {
				ends[j] = end{true, ends[j].open || !single || p.after[key]}
			}
		}
		if rest := strings.Join(words[i:], " "); cut {
			for key := range p.known {
				if strings.HasPrefix(key, rest) {
					return true
				}
			}
		}
	}
	return ends[len(words)].any
}
