package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/cli"
	"github.com/gpu-mode/kbnode/test/must"
)

// tree returns all files below a directory.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"man/*", "completions/*", "docs/*", "changelog"} {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		must.Do(t, err)
		for _, name := range names {
			text, err := os.ReadFile(name)
			must.Do(t, err)
			all[strings.TrimPrefix(name, dir+"/")] = string(text)
		}
	}
	return all
}

func TestWrite(t *testing.T) {
	t.Parallel()
	const date = "2026-11-22T23:30:00-05:00"
	a, b := t.TempDir(), t.TempDir()
	for _, dir := range []string{a, a, b} {
		must.Do(t, write(source, dir, "1.2.3-rc.1", date))
	}
	got := tree(t, a)
	must.Equal(t, got, tree(t, b))
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		name := "man/" + strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
		if _, ok := got[name]; ok != (cmd.IsAvailableCommand() || !cmd.HasParent()) {
			t.Errorf("%s: there is a page: %v", name, ok)
		}
		if cmd.Hidden { // and so are its own
			return
		}
		for _, sub := range cmd.Commands() {
			if sub.Name() != "completion" {
				walk(sub)
			}
		}
	}
	walk(cli.Commands())
	for name, has := range map[string][]string{
		"man/kbnode.1":            {`"Nov 2026" "kbnode 1.2.3-rc.1"`, `\fBkbnode-install(1)\fP`, ".EX\n  sudo kbnode install"},
		"man/kbnode-e2e.1":        {"submission.*, wrong*", ".EX\n  artifact  ", "use KBNODE_DB"},
		"man/kbnode-drain.1":      {".TP\n\\fB--all\\fP\nall slots", ".TP\n\\fB--reason\\fP=VALUE\nreason to show "},
		"changelog":               {"kbnode (1.2.3~rc.1) unstable;", ">  Mon, 23 Nov 2026 04:30:00 +0000\n"},
		"completions/kbnode.bash": {"complete -o default -F __start_kbnode kbnode"},
		"completions/_kbnode":     {"#compdef kbnode"},
		"completions/kbnode.fish": {"complete -c kbnode"},
	} {
		must.Contain(t, got[name], has...)
	}
	for name, text := range got {
		if strings.HasPrefix(name, "man/") && (strings.Contains(text, "Auto generated") || strings.Contains(text, "=false]") || strings.Contains(text, `\fI`)) {
			t.Errorf("%s has what is for no reader, or emphasis that nobody wrote:\n%s", name, text)
		}
	}
	if err := write(source, t.TempDir(), "1.2.3", ""); err == nil {
		t.Error("a build without a date is taken")
	}
}

// TestPageLinks follows the links of the installed pages.
func TestPageLinks(t *testing.T) {
	t.Parallel()
	const where = "/usr/share/doc/kbnode"
	var conf struct {
		NFPMs []struct{ Contents []struct{ Src, Dst string } }
	}
	must.Do(t, yaml.Unmarshal([]byte(must.Read(t, source+"/.goreleaser.yaml")), &conf))
	there := map[string]bool{}
	add := func(name string) {
		for ; name != "/"; name = filepath.Dir(name) {
			there[name] = true
		}
	}
	for _, c := range conf.NFPMs[0].Contents {
		files, err := filepath.Glob(filepath.Join(source, c.Src))
		must.Do(t, err)
		for _, file := range files {
			if strings.HasSuffix(c.Dst, "/") {
				add(c.Dst + filepath.Base(file))
			} else {
				add(c.Dst)
			}
		}
	}
	for version, at := range map[string]string{"1.2.3": repository + "v1.2.3/", "1.2.3-rc.1": repository + "v1.2.3-rc.1/", "1.2.4-dev.1790000000": repository + "main/"} {
		dir := filepath.Join(t.TempDir(), "docs")
		must.Do(t, readable(source+"/docs", dir, version))
		pages, err := filepath.Glob(dir + "/*.md")
		must.Do(t, err)
		for _, page := range pages {
			add(where + "/" + filepath.Base(page))
		}
		local := 0
		for _, page := range pages {
			for _, m := range link.FindAllStringSubmatch(must.Read(t, page), -1) {
				to := m[2]
				if rest, ok := strings.CutPrefix(to, at); ok {
					if _, err := os.Stat(filepath.Join(source, rest)); err != nil {
						t.Errorf("%s: %v", page, err)
					}
				} else if !strings.Contains(to, ":") {
					local++
					if !there[filepath.Join(where, to)] {
						t.Errorf("%s: packages have no %s", page, to)
					}
				}
			}
		}
		if local < 100 {
			t.Errorf("%d links stay on the machine", local)
		}
	}
}
