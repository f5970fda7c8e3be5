package internal_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Words on screens that neither kbnode nor the recording test has: values of the recorded machine.
const screenValues = `Debian GNU/Linux (trixie)
with cpuset, cpu, io, memory, hugetlb, pids, rdma, misc`

// TestScreensSayWhatKbnodeSays compares the words of the recorded terminals with the texts in the
// source. A screen of a text that was reworded since is stale. Recording makes it right:
// make screenshots. Until then docs/screens/stale.txt may list it.
func TestScreensSayWhatKbnodeSays(t *testing.T) {
	t.Parallel()
	source := newPhrases()
	for _, dir := range []string{"cmd/kbnode", "internal", "systemd"} {
		for _, f := range files(t, dir) {
			switch {
			case strings.HasSuffix(f, "_test.go"), strings.Contains(f, "/testdata/"):
			case path.Ext(f) == ".go":
				source.addGo(t, f)
			case path.Dir(f) == "systemd":
				source.add(read(t, f))
			}
		}
	}
	source.addGo(t, "test/vm/screens_test.go") // reasons, names and files that the recording types
	source.add(screenValues)

	listed := strings.Fields(regexp.MustCompile(`(?m)^#.*$`).ReplaceAllString(read(t, "docs/screens/stale.txt"), ""))
	screens := files(t, "docs/screens")
	for _, f := range screens {
		if path.Ext(f) != ".svg" {
			continue
		}
		name := strings.TrimSuffix(path.Base(f), ".svg")
		lines := svgLines(t, read(t, f))
		if len(lines) < 3 {
			t.Errorf("%s has %d lines", f, len(lines))
		}
		var unknown []string
		for _, text := range cells(lines, columns(name)) {
			if words := source.unknown(text); words != "" {
				unknown = append(unknown, fmt.Sprintf("%q: no text has %q", text, words))
			}
		}
		if len(unknown) > 0 && !slices.Contains(listed, name) {
			t.Errorf("%s is stale; record it with make screenshots, or add %s to docs/screens/stale.txt:\n\t%s", f, name, strings.Join(unknown, "\n\t"))
		}
	}
	for _, name := range listed {
		if !slices.Contains(screens, "docs/screens/"+name+".svg") {
			t.Errorf("docs/screens/stale.txt lists %s, and there is no such screen", name)
		}
	}
}

// TestPhrases reads what the comparison of screens finds and what it lets pass.
func TestPhrases(t *testing.T) {
	t.Parallel()
	p := newPhrases()
	for _, text := range []string{
		"no room on file systems: %s", "file systems", "with", "%s is full", "each slot has %d cores; %d is the minimum", "%s on %s",
		"running", "  type\tsudo kbnode %s", "room", "problem", "look for it with lspci", "else ", "slot takes no jobs",
	} {
		p.add(text)
	}
	for text, want := range map[string]string{
		"no room on file systems: /srv":           "",
		"file systems with room: 1":               "file systems with room",
		"file systems is full":                    "",
		"each slot has 2 cores; 8 is the minimum": "",
		"each slot has 2 cores; 8 are needed":     "are needed",
		"each slot has 2 cores; 8 is the…":        "",
		"each slot has 2 cores; 8 are…":           "are",
		"running on gpu0":                         "",
		"running with room":                       "running with room",
		"PROBLEM":                                 "",
		"sudo kbnode drain":                       "sudo kbnode drain",
		"(slot takes no jobs)":                    "",
		"slot takes jobs":                         "slot takes jobs",
	} {
		if got := p.unknown(text); got != want {
			t.Errorf("%q: unknown are %q, want %q", text, got, want)
		}
	}
	lines := []string{"$ kbnode status", "SLOT  AGENT   PROBLEM", "gpu3  parked  GPU is lost; look", "              for it", "gpu4  idle    -", "  a note", "0123456789012345678901234567890", "tail"}
	want := []string{"SLOT", "AGENT", "PROBLEM", "gpu3", "parked", "GPU is lost; look for it", "gpu4", "idle", "-", "a note", "0123456789012345678901234567890tail"}
	if diff := cmp.Diff(want, cells(lines, 31)); diff != "" {
		t.Errorf("cells (-want +got):\n%s", diff)
	}
}

// columns is how wide a screen is, by its name.
func columns(name string) int {
	if strings.HasSuffix(name, "-160") {
		return 160
	}
	return 80
}

// svgLines returns the lines of a screen: the text elements of an SVG.
func svgLines(t *testing.T, svg string) (lines []string) {
	t.Helper()
	in := xml.NewDecoder(strings.NewReader(svg))
	text := false
	for {
		tok, err := in.Token()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			if tok.Name.Local == "text" {
				text = true
				lines = append(lines, "")
			}
		case xml.EndElement:
			if tok.Name.Local == "text" {
				text = false
			}
		case xml.CharData:
			if text {
				lines[len(lines)-1] += string(tok)
			}
		}
	}
}

var gap = regexp.MustCompile(`  +`)

// cells returns the texts between the gaps of a screen, without what was typed, and with texts that
// the terminal's width broke in one piece again.
func cells(lines []string, cols int) (texts []string) {
	last, edge := -1, 0 // the cell that may go on in the next line, and where it begins
	for i, line := range lines {
		line = strings.TrimRight(line, " ")
		if strings.HasPrefix(line, "$ ") {
			last = -1
			continue
		}
		indent := len(line) - len(strings.TrimLeft(line, " "))
		found := gap.Split(strings.TrimSpace(line), -1)
		if last >= 0 && len(found) == 1 {
			first, _, _ := strings.Cut(found[0], " ")
			before := len([]rune(lines[i-1]))
			switch {
			case indent == 0 && before >= cols && !word.MatchString(lines[i-1][strings.LastIndex(lines[i-1], " ")+1:]):
				texts[last] += found[0] // in the middle of a path
				continue
			case indent >= edge && before+1+len([]rune(first)) > cols:
				texts[last] += " " + found[0]
				continue
			}
		}
		texts = append(texts, found...)
		last, edge = len(texts)-1, strings.LastIndex(line, found[len(found)-1])
	}
	return texts
}

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
	if err != nil {
		t.Fatal(err)
	}
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
