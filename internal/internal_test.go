// Package internal_test holds the repository to its own conventions: what the
// documentation says is there, and what is there is in the documentation.
package internal_test

import (
	"flag"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-mode/kbnode/internal/cli"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

var update = flag.Bool("update", false, "update docs/cli.md")

// root is the repository, seen from this directory.
const root = ".."

func read(t *testing.T, name string) string {
	t.Helper()
	return must.Read(t, filepath.Join(root, name))
}

// files are all files below a directory of the repository, by slashed path.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(filepath.Join(root, dir), func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() {
			rel, err := filepath.Rel(root, name)
			found = append(found, filepath.ToSlash(rel))
			return err
		}
		return nil
	})
	must.Do(t, err)
	return found
}

func TestCommandPage(t *testing.T) {
	t.Parallel()
	generated(t, "docs/cli.md", reference())
}

// generated compares a page with what a program says, or writes it.
func generated(t *testing.T, name, want string) {
	t.Helper()
	if *update {
		must.Do(t, os.WriteFile(filepath.Join(root, name), []byte(want), 0o644))
	}
	if diff := cmp.Diff(want, read(t, name)); diff != "" {
		t.Errorf("%s is not what the program says; run go test ./internal -update: %s", name, diff)
	}
}

// code finds code in a page: fenced and indented blocks, and spans.
var code = regexp.MustCompile("(?s)```[a-z]*\n.*?```|`[^`\n]+`|(?m:^    [^\n]*$)")

// command is kbnode with a command, where someone would type it.
var command = regexp.MustCompile("(?m)(?:^ *|[`=;|&] *|sudo (?:[A-Z_]+=\\S+ )*|command: |# )kbnode ([a-z][a-z0-9-]*)([^\n`|;]*)")

// TestCommandsExist keeps the documentation from telling people to type what
// does not exist.
func TestCommandsExist(t *testing.T) {
	t.Parallel()
	flags := map[string][]string{} // by command
	var visit func(cmd *cobra.Command, name string)
	visit = func(cmd *cobra.Command, name string) {
		flags[name] = []string{}
		cmd.Flags().VisitAll(func(f *pflag.Flag) { flags[name] = append(flags[name], "--"+f.Name) })
		cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { flags[name] = append(flags[name], "--"+f.Name) })
		for _, sub := range cmd.Commands() {
			visit(sub, strings.TrimSpace(name+" "+sub.Name()))
		}
	}
	visit(cli.Commands(), "")
	documented := map[string]bool{}
	for _, page := range pages(t) {
		if page == "docs/cli.md" {
			continue
		}
		for _, block := range code.FindAllString(read(t, page), -1) {
			for _, m := range command.FindAllStringSubmatch(block, -1) {
				known, ok := flags[m[1]]
				if words := strings.Fields(m[2]); len(words) > 0 && flags[m[1]+" "+words[0]] != nil {
					known = flags[m[1]+" "+words[0]]
				}
				if !ok {
					t.Errorf("%s: there is no command kbnode %s", page, m[1])
					continue
				}
				documented[m[1]] = true
				for _, f := range regexp.MustCompile(`--[a-z][a-z-]*`).FindAllString(m[2], -1) {
					if f != "--help" && !slices.Contains(known, f) {
						t.Errorf("%s: kbnode %s has no flag %s", page, m[1], f)
					}
				}
			}
		}
	}
	for _, name := range []string{"install", "uninstall", "status", "plan", "inventory", "runner"} {
		if !documented[name] {
			t.Errorf("no page shows kbnode %s: %v", name, slices.Sorted(maps.Keys(documented)))
		}
	}
}

func TestHooks(t *testing.T) {
	t.Parallel()
	hooks := files(t, "hooks")
	if len(hooks) < 2 {
		t.Fatalf("hooks are %q", hooks)
	}
	for _, f := range hooks {
		if path.Ext(f) == ".go" {
			continue
		}
		lines := strings.SplitN(read(t, f), "\n", 3)
		if lines[0] != "#!/bin/bash" {
			t.Errorf("%s begins with %q, want #!/bin/bash", f, lines[0])
		}
		if !strings.HasPrefix(lines[1], "# "+plan.Marker) {
			t.Errorf("%s does not say %q in its second line", f, plan.Marker)
		}
		if info, err := os.Stat(filepath.Join(root, f)); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s has mode %v (%v), want 0755", f, info.Mode(), err)
		}
	}
}

// TestNamedTests looks for each test that a page names.
func TestNamedTests(t *testing.T) {
	t.Parallel()
	there := map[string]bool{}
	for _, dir := range []string{"internal", "packaging", "test"} {
		for _, f := range files(t, dir) {
			if strings.HasSuffix(f, "_test.go") {
				for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllStringSubmatch(read(t, f), -1) {
					there[m[1]] = true
				}
			}
		}
	}
	minimum := map[string]int{"test/security.md": 40, "docs/engine.md": 25}
	for _, page := range pages(t) {
		named := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w+)`").FindAllStringSubmatch(read(t, page), -1)
		if len(named) < minimum[page] {
			t.Errorf("%s names %d tests; is its table gone?", page, len(named))
		}
		for _, m := range named {
			if !there[m[1]] {
				t.Errorf("%s names %s, and there is no such test", page, m[1])
			}
		}
	}
}

// TestTextIsForEverybody looks through all tracked text for what only means
// something where it was written.
func TestTextIsForEverybody(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("not a git checkout: %v", err)
	}
	list := strings.Split(strings.Trim(string(out), "\x00"), "\x00")
	// Package registries, spelled so that this file does not name them.
	never := regexp.MustCompile(`(?i)\b(py` + `pi\.org|python` + `hosted\.org|registry\.npm` + `js|static\.crates\.|proxy\.go` + `lang\.org|deb\.deb` + `ian\.org|archive\.ubun` + `tu\.com)` +
		`|(^|[\s"'=:(` + "`" + `])/wor` + `k/(main|shared)` +
		`|(?-i:\b(TO` + `DO|FIX` + `ME)\b)`)
	if len(list) < 100 {
		t.Fatalf("git lists %d files", len(list))
	}
	for _, f := range list {
		text, err := os.ReadFile(filepath.Join(root, f))
		if err != nil || !utf8.Valid(text) || path.Base(f) == "go.sum" {
			continue // deleted in the working tree, or not text
		}
		if m := never.Find(text); m != nil {
			t.Errorf("%s has %q in it", f, m)
		}
	}
}
