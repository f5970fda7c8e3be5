package cli

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpu-mode/kbnode/test/doctest"
)

// TestSubmitPage types what docs/submit.md says, and compares what it shows.
func TestSubmitPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/submit.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := doctest.Parse(string(page))
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, bin := t.TempDir(), t.TempDir()
	if err := os.Symlink(self, filepath.Join(bin, "kbnode")); err != nil {
		t.Fatal(err)
	}
	typed := 0
	for _, b := range blocks {
		if b.Kind != doctest.Machine {
			continue
		}
		typed++
		cmd := process(t, "-ec", b.Text)
		cmd.Path, cmd.Args[0], cmd.Dir = "/bin/sh", "sh", dir
		cmd.Env = slices.Insert(cmd.Env, len(cmd.Env)-1, "PATH="+bin+":"+os.Getenv("PATH"))
		r := runs(t, cmd)
		if r.code != b.Exit {
			t.Fatalf("docs/submit.md:%d: exit code %d, want %d\n%s%s", b.Line, r.code, b.Exit, r.out, r.err)
		}
		if b.Output == nil {
			continue
		}
		if differs := doctest.Differ(b.Output.Text, r.out); differs != "" {
			t.Errorf("docs/submit.md:%d: %s\n%s", b.Output.Line, differs, r.out)
		}
	}
	if typed < 4 {
		t.Errorf("only %d blocks are typed", typed)
	}
}
