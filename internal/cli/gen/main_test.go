package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli"
	"github.com/gpu-mode/kbnode/test/must"
)

// tree returns all files below a directory.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"man/*", "completions/*", "changelog"} {
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
		must.Do(t, write(dir, "1.2.3-rc.1", date))
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
	if err := write(t.TempDir(), "1.2.3", ""); err == nil {
		t.Error("a build without a date is taken")
	}
}
