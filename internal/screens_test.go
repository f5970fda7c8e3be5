package internal_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// Words on screens that neither kbnode nor the recording test has: values of the recorded machine.
const screenValues = `Debian GNU/Linux (trixie)
with cpuset, cpu, io, memory, hugetlb, pids, rdma, misc
protect inet kbnode`

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
		must.Do(t, err)
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
			inPath := !word.MatchString(lines[i-1][strings.LastIndex(lines[i-1], " ")+1:])
			switch {
			case indent == 0 && before >= cols && (inPath || strings.HasPrefix(lines[i-1], "      type  ")):
				texts[last] += found[0] // in the middle of a path, or of a command
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
