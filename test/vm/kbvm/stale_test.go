package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestScenarios compares the list with the tests of the virtual machine.
func TestScenarios(t *testing.T) {
	t.Parallel()
	scenarios, err := readScenarios("../scenarios")
	must.Do(t, err)
	listed := map[string]scenario{}
	for _, s := range scenarios {
		if _, ok := listed[s.name]; ok {
			t.Errorf("%s is listed twice", s.name)
		}
		listed[s.name] = s
		for _, c := range s.covers {
			if _, err := os.Stat("../../../" + c); err != nil {
				t.Errorf("%s covers %s: %v", s.name, c, err)
			}
		}
	}
	files, err := filepath.Glob("../*_test.go")
	must.Do(t, err)
	found := 0
	for _, file := range files {
		text := must.Read(t, file)
		if !strings.HasPrefix(text, "//go:build vm\n") {
			continue
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllStringSubmatch(text, -1) {
			found++
			own := "test/vm/" + filepath.Base(file)
			if s, ok := listed[m[1]]; !ok || !s.covered(own) {
				t.Errorf("test/vm/scenarios does not list %s with %s", m[1], own)
			}
		}
	}
	must.Equal(t, len(scenarios), found)
}

func TestStale(t *testing.T) {
	t.Parallel()
	s := scenario{name: "TestDisk", covers: []string{"internal/disk", "test/vm/disk_test.go"}}
	rows := map[string]row{"TestDisk": {commit: "aaa+"}}
	for _, tt := range []struct {
		rows map[string]row
		diff []string
		err  error
		want string
	}{
		{want: "has not been green"},
		{rows: rows},
		{rows: rows, diff: []string{"internal/disk.go", "internal/disks/a.go", "internal/disk/disk_test.go", "internal/disk/README.md", "internal/disk/testdata/a.go"}},
		{rows: rows, diff: []string{"go.mod", "internal/disk/mkfs.go"}, want: "1 files changed since aaa+, such as internal/disk/mkfs.go"},
		{rows: rows, diff: []string{"internal/disk/b/c.go", "test/vm/disk_test.go"}, want: "2 files changed since aaa+, such as internal/disk/b/c.go"},
		{rows: rows, err: errNoCommit, want: "was green at aaa+, which this repository does not have"},
	} {
		got, err := s.stale(tt.rows, func(commit string) ([]string, error) {
			must.Equal(t, "aaa", commit)
			return tt.diff, tt.err
		})
		if err != nil || got != tt.want {
			t.Errorf("%q, %v; want %q", got, err, tt.want)
		}
	}
}
