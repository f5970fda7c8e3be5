package internal_test

import (
	"go/scanner"
	"go/token"
	"html"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// screenValues are words on screens that neither kbnode nor the recording test has: those of the recorded
// machine.
const screenValues = "Debian trixie hugetlb"

// TestScreensSayWhatKbnodeSays tests that each word of the recorded terminals is one of a text in the source.
// A screen of a text that was reworded since is stale. Recording makes it right: make screenshots. Until then
// docs/screens/stale.txt may list it.
func TestScreensSayWhatKbnodeSays(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	add := func(text string) {
		for _, w := range words(text) {
			known[strings.ToLower(w)] = true
		}
	}
	for _, dir := range []string{"cmd/kbnode", "internal", "systemd"} {
		for _, f := range files(t, dir) {
			switch {
			case strings.HasSuffix(f, "_test.go"), strings.Contains(f, "/testdata/"):
			case path.Ext(f) == ".go":
				add(literals(read(t, f)))
			case path.Dir(f) == "systemd":
				add(read(t, f))
			}
		}
	}
	add(literals(read(t, "test/vm/screens_test.go"))) // reasons, names and files that the recording types
	add(screenValues)

	listed := strings.Fields(regexp.MustCompile(`(?m)^#.*$`).ReplaceAllString(read(t, "docs/screens/stale.txt"), ""))
	screens := files(t, "docs/screens")
	for _, f := range screens {
		name, isScreen := strings.CutSuffix(path.Base(f), ".svg")
		if !isScreen {
			continue
		}
		var said []string
		for _, line := range svgLine.FindAllString(read(t, f), -1) {
			said = append(said, words(html.UnescapeString(svgTag.ReplaceAllString(line, "")))...)
		}
		if len(said) < 10 {
			t.Errorf("%s has %d words", f, len(said))
		}
		unknown := slices.DeleteFunc(said, func(w string) bool { return known[strings.ToLower(w)] })
		if len(unknown) > 0 && !slices.Contains(listed, name) {
			t.Errorf("%s is stale: no text has %q; record it with make screenshots, or add %s to docs/screens/stale.txt", f, unknown, name)
		}
	}
	for _, name := range listed {
		if !slices.Contains(screens, "docs/screens/"+name+".svg") {
			t.Errorf("docs/screens/stale.txt lists %s, and there is no such screen", name)
		}
	}
}

var (
	svgLine = regexp.MustCompile(`(?s)<text.*?</text>`)
	svgTag  = regexp.MustCompile(`<[^>]*>`)
	word    = regexp.MustCompile(`^\pL{4,}$`) // a shorter one may be the end of a path that the terminal's width broke
	verb    = regexp.MustCompile(`%[^a-zA-Z%]*[a-zA-Z]`)
)

// words returns the words of a text, without what is in a number, a path or an identifier.
func words(text string) (list []string) {
	for w := range strings.FieldsSeq(text) {
		w = strings.Trim(w, `.,:;()"'[]…&|`)
		if word.MatchString(w) {
			list = append(list, w)
		}
	}
	return list
}

// literals returns the string literals of a Go file, a line each. A verb is a space.
func literals(source string) string {
	set := token.NewFileSet()
	var s scanner.Scanner
	s.Init(set.AddFile("", -1, len(source)), []byte(source), nil, 0)
	var b strings.Builder
	for {
		_, tok, text := s.Scan()
		switch tok {
		case token.EOF:
			return b.String()
		case token.STRING:
			unquoted, _ := strconv.Unquote(text) // the compiler has read it
			b.WriteString(verb.ReplaceAllString(unquoted, " ") + "\n")
		}
	}
}
