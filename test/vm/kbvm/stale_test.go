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
	s := scenario{name: "TestDisk", covers: []string{"internal/machine/disk", "test/vm/disk_test.go"}}
	rows := map[string]row{"TestDisk": {commit: "aaa+"}}
	for _, tt := range []struct {
		rows map[string]row
		diff []string
		err  error
		want string
	}{
		{want: "has not been green"},
		{rows: rows},
		{rows: rows, diff: []string{"internal/machine/disk.go", "internal/machine/disks/a.go", "internal/machine/disk/disk_test.go", "internal/machine/disk/README.md", "internal/machine/disk/testdata/a.go"}},
		{rows: rows, diff: []string{"go.mod", "internal/machine/disk/mkfs.go"}, want: "1 files changed since aaa+, such as internal/machine/disk/mkfs.go"},
		{rows: rows, diff: []string{"internal/machine/disk/b/c.go", "test/vm/disk_test.go"}, want: "2 files changed since aaa+, such as internal/machine/disk/b/c.go"},
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

func TestRecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Write(t, dir, "page", tableHead+
		"| TestDaemon | aaa | 2026-01-01 | 20.0 | 1 |\n| TestDisk | bbb | 2026-01-02 | 3.0 | 0 |\n| TestOld | ccc | 2026-01-02 | 3.0 | 0 |\n")
	must.Write(t, dir, "scenarios", "# what they cover\nTestDaemon a\nTestDisk b c\nTestImage d\nTestShapes e\n")
	must.Write(t, dir, "results", `{"Action":"run","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestDaemon"}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestDaemon/rest","Elapsed":60}
{"Action":"fail","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestDaemon","Elapsed":1000}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestImage/first","Elapsed":60}
{"Action":"fail","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestImage","Elapsed":900}
{"Action":"fail","Package":"github.com/gpu-mode/kbnode/test/vm","Elapsed":1900}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestCpioArchive","Elapsed":0}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/internal/machine/disk","Test":"TestDisk","Elapsed":6}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestDaemon","Elapsed":1500}
{"Action":"run","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestShapes"}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestShapes/mig/first","Elapsed":90}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestShapes/mig","Elapsed":600}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestShapes/groups","Elapsed":300}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestShapes","Elapsed":0}
`)
	page := filepath.Join(dir, "page")
	args := []string{page, filepath.Join(dir, "scenarios"), filepath.Join(dir, "results"), "ccc+", "2026-02-03"}
	_, err := record(args)
	must.Do(t, err)
	want := tableHead + "| TestDaemon | ccc+ | 2026-02-03 | 25.0 | 2 |\n| TestDisk | bbb | 2026-01-02 | 3.0 | 0 |\n| TestShapes | ccc+ | 2026-02-03 | 15.0 | 0 |\n"
	must.Equal(t, want, must.Read(t, page))

	must.Write(t, dir, "results", "ok\n")
	_, err = record(args)
	must.Err(t, err, "read test results")
	must.Write(t, dir, "page", "a page of something else\n")
	_, err = record(args)
	must.Err(t, err, "read the row")
}
