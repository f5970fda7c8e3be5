package internal_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/doctest"
)

// pages are what people read: the Markdown files.
func pages(t *testing.T) []string {
	t.Helper()
	list := []string{"README.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md", "STYLE.md"}
	for _, dir := range []string{".github", "docs", "examples", "packaging", "test"} {
		for _, f := range files(t, dir) {
			if path.Ext(f) == ".md" {
				list = append(list, f)
			}
		}
	}
	return list
}

var link = regexp.MustCompile(`\]\(([^()\s]+)\)`)

// TestLinks follows each link within the repository, to the heading. Each page of docs
// can be reached by one, and leads on.
func TestLinks(t *testing.T) {
	t.Parallel()
	linked, leads := map[string]bool{}, map[string]bool{}
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(read(t, page), ""), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := page
			if target != "" {
				file = path.Join(path.Dir(page), target)
			}
			linked[file] = linked[file] || file != page
			leads[page] = leads[page] || file != page
			info, err := os.Stat(filepath.Join(root, file))
			if err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
				continue
			}
			if anchor != "" && !info.IsDir() && !slices.Contains(anchors(read(t, file)), anchor) {
				t.Errorf("%s links to %s, and that page has no such heading", page, m[1])
			}
		}
	}
	for _, f := range files(t, "docs") {
		if !linked[f] && !linked[path.Dir(f)] && path.Ext(f) != ".go" {
			t.Errorf("no page links to %s", f)
		}
		if path.Ext(f) == ".md" && !leads[f] {
			t.Errorf("%s is a dead end: it links to no other page", f)
		}
	}
}

// delimiter is the row below the head of a table.
var delimiter = regexp.MustCompile(`^\|( *:?-+:? *\|)+$`)

// TestTables finds rows without a head: a blank line in a table ends it.
func TestTables(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		lines := append(strings.Split(code.ReplaceAllString(read(t, page), ""), "\n"), "")
		before := ""
		for i, line := range lines {
			if strings.HasPrefix(line, "|") && !strings.HasPrefix(before, "|") && !delimiter.MatchString(lines[i+1]) {
				t.Errorf("%s has a row without a table: %s", page, line)
			}
			before = line
		}
	}
}

var (
	headings = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notWords = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are the headings of a page as links name them.
func anchors(text string) []string {
	var list []string
	for _, m := range headings.FindAllStringSubmatch(text, -1) {
		heading := notWords.ReplaceAllString(strings.ToLower(m[1]), "")
		list = append(list, strings.ReplaceAll(heading, " ", "-"))
	}
	return list
}

// inRepository is a file of the repository, as pages and forms name it.
var inRepository = regexp.MustCompile("`((?:\\.ci|\\.github|cmd|docs|examples|internal|packaging|test)/[\\w./-]+)`|/blob/main/([\\w./-]+)")

func TestNamedFiles(t *testing.T) {
	t.Parallel()
	named := 0
	for _, page := range append(pages(t), files(t, ".github")...) {
		for _, m := range inRepository.FindAllStringSubmatch(read(t, page), -1) {
			named++
			if _, err := os.Stat(filepath.Join(root, m[1]+m[2])); err != nil {
				t.Errorf("%s names %s, which is not there", page, m[1]+m[2])
			}
		}
	}
	if named < 20 {
		t.Errorf("%d files are named; does nothing look for them any more?", named)
	}
}

// TestFirstWords has each page begin with who it is for. Decisions and lists of changes are for all.
func TestFirstWords(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		title, rest, _ := strings.Cut(read(t, page), "\n")
		if !strings.HasPrefix(title, "# ") {
			continue // a note in a directory
		}
		if page == "CHANGELOG.md" || page == "CODE_OF_CONDUCT.md" || strings.HasPrefix(page, "docs/adr/0") {
			continue
		}
		if first := strings.TrimLeft(rest, "\n"); !strings.HasPrefix(first, "For ") {
			t.Errorf("%s begins with %.40q; say who the page is for", page, first)
		}
	}
}

// TestIndex has each page of docs once in their index, and each decision in that of
// the decisions.
func TestIndex(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"docs", "docs/adr"} {
		count := map[string]int{}
		for _, m := range link.FindAllStringSubmatch(read(t, dir+"/README.md"), -1) {
			target, _, _ := strings.Cut(m[1], "#")
			count[path.Join(dir, target)]++
		}
		for _, f := range files(t, dir) {
			if path.Ext(f) == ".md" && path.Dir(f) == dir && path.Base(f) != "README.md" && count[f] != 1 {
				t.Errorf("%s/README.md has %d links to %s, want one", dir, count[f], f)
			}
		}
	}
}

func TestDecisions(t *testing.T) {
	t.Parallel()
	index := read(t, "docs/adr/README.md")
	for _, f := range files(t, "docs/adr") {
		number, _, _ := strings.Cut(path.Base(f), "-")
		if path.Base(f) == "README.md" {
			continue
		}
		text := read(t, f)
		title, ok := strings.CutPrefix(strings.SplitN(text, "\n", 2)[0], "# "+number+": ")
		if !ok {
			t.Errorf("%s does not begin with # %s: and a title", f, number)
		}
		if row := "| [" + number + "](" + path.Base(f) + ") | " + title + " |"; !strings.Contains(index, row) {
			t.Errorf("docs/adr/README.md does not have the row %s", row)
		}
		at := 0
		for _, part := range []string{"\n**Status.** ", "\n**Context.** ", "\n**Decision.** ", "\n**Consequences.** "} {
			i := strings.Index(text[at:], part)
			if i < 0 {
				t.Errorf("%s does not have%s in its place", f, strings.ReplaceAll(part, "\n", " "))
				break
			}
			at += i
		}
	}
}

// TestArchitecture has each package in the list of packages, or the one that it is
// part of.
func TestArchitecture(t *testing.T) {
	t.Parallel()
	_, table, _ := strings.Cut(read(t, "docs/architecture.md"), "\n## Packages\n")
	table, _, _ = strings.Cut(table, "\n## ")
	var listed []string
	for _, m := range regexp.MustCompile("`([a-z]+(?:/[a-z0-9-]+)*)`[,;:]").FindAllStringSubmatch(table, -1) {
		if info, err := os.Stat(filepath.Join(root, m[1])); err == nil && info.IsDir() {
			listed = append(listed, m[1])
		}
	}
	for _, dir := range []string{"cmd", "internal", "examples", "hooks", "packaging", "systemd", "test"} {
		for _, f := range files(t, dir) {
			pkg := path.Dir(f)
			if path.Ext(f) != ".go" || strings.HasSuffix(f, "_test.go") || strings.Contains(f, "/testdata/") {
				continue
			}
			if !slices.ContainsFunc(listed, func(l string) bool { return pkg == l || strings.HasPrefix(pkg, l+"/") }) {
				t.Errorf("docs/architecture.md does not say what %s is for", pkg)
			}
		}
	}
}

// target is one of make's, with its line in make help.
var target = regexp.MustCompile(`(?m)^([a-z-]+):.*## `)

// TestBlocks has each block of the pages that a reader types be run: those of the
// machine by TestTutorial of test/vm, the others are targets of make.
func TestBlocks(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, f := range []string{"Makefile", "test/vm/vm.mk", "test/nvcc/nvcc.mk", "test/postgres/postgres.mk"} {
		for _, m := range target.FindAllStringSubmatch(read(t, f), -1) {
			known[m[1]] = true
		}
	}
	for _, page := range []string{"README.md", "docs/lend.md", "docs/pipelines.md", "docs/tutorial.md"} {
		blocks, err := doctest.Parse(read(t, page))
		if err != nil {
			t.Errorf("%s: %v", page, err)
		}
		for _, b := range blocks {
			if b.Kind != doctest.Host {
				continue
			}
			for line := range strings.Lines(b.Text) {
				words := strings.Fields(strings.SplitN(line, "#", 2)[0])
				if len(words) != 2 || words[0] != "make" || !known[words[1]] {
					t.Errorf("%s:%d: %q is no target of make", page, b.Line, strings.TrimSpace(line))
				}
			}
		}
	}
}
