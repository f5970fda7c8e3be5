package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStay(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, d := range []string{"profile/deep", "empty", "locked"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"result.json", "profile/deep/trace"} {
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"stays": "result.json", "profile/stays": "deep/trace", "profile/deep/up": "../../result.json", "profile/dir": "deep",
		"absolute": outside + "/secret", "environ": "/proc/self/environ", "proc": "/proc/self", "itself": dir + "/result.json",
		"profile/deep/out": "../../../../../../../../../../etc/passwd", "profile/out": ".." + strings.Repeat("/..", 20) + outside,
		"nowhere": "gone", "loop": "loop", "twice": "absolute", "through": "proc/environ",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "locked"), 0); err != nil {
		t.Fatal(err)
	}
	if err := stay(t.Context(), dir, []string{"result.json", "**/*"}); err != nil {
		t.Error(err)
	}
	var left []string
	if err := fs.WalkDir(os.DirFS(dir), ".", func(path string, e fs.DirEntry, _ error) error {
		if path != "." {
			left = append(left, path)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(left)
	want := []string{"empty", "locked", "profile", "profile/deep", "profile/deep/trace", "profile/deep/up", "profile/dir", "profile/stays", "result.json", "stays"}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(filepath.Join(outside, "secret")); err != nil {
		t.Error(err)
	}
}

// TestStayReaches leaves alone what no pattern finds, such as the links of a Python
// environment, which may belong to root and lead to /usr.
func TestStayReaches(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		patterns string
		gone     []string
	}{
		{"", nil},
		{"result.json;profile/**", []string{"result.json"}},
		{"leak/environ", []string{"leak"}},
		{"leak/**/*;./profile/*", []string{"leak"}},
		{"*.json", []string{"result.json", "leak", "pipe"}},
		{"venv/bin/*", []string{"venv/bin/python"}},
		{" pipe ; nothing/**", []string{"pipe"}},
		{"*/bin/python", []string{"result.json", "leak", "pipe", "venv/bin/python"}},
		{"{leak,venv}/x", []string{"result.json", "leak", "pipe", "venv/bin/python"}},
	} {
		dir := t.TempDir()
		for _, d := range []string{"venv/bin", "profile"} {
			if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for name, target := range map[string]string{"venv/bin/python": "/usr/bin/python3", "result.json": "/proc/self/environ", "leak": "/proc/self", "profile/latest": "../venv"} {
			if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := stay(t.Context(), dir, strings.Split(row.patterns, ";")); err != nil {
			t.Errorf("%s: %v", row.patterns, err)
		}
		var gone []string
		for _, name := range []string{"result.json", "leak", "pipe", "venv/bin/python", "profile/latest"} {
			if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
				gone = append(gone, name)
			}
		}
		if diff := cmp.Diff(row.gone, gone); diff != "" {
			t.Errorf("%s: %s", row.patterns, diff)
		}
	}
}

func TestStayIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", maxDepth+1)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := stay(t.Context(), dir, []string{"**"}); err == nil || !strings.Contains(err.Error(), "deeper than 100 directories") {
		t.Errorf("%v", err)
	}
	if err := stay(t.Context(), dir, []string{"result.json", "d/d/*", "*/*/d/*.json"}); err != nil {
		t.Errorf("patterns that do not reach as deep: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := stay(ctx, dir, []string{"*"}); err == nil {
		t.Error("it went on without time")
	}
}

// TestStayBoundsSizes uploads nothing where an upload would not end: a sparse file takes no space.
func TestStayBoundsSizes(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		patterns string
		sizes    map[string]int64
		link     string // of two names to it
		says     string
	}{
		{"result.json", map[string]int64{"result.json": 1 << 43}, "", `"result.json" has `},
		{"*.json", map[string]int64{"result.json": maxFileSize + 1}, "", "upload files of at most 5.0 GiB"},
		{"profile_data/**", map[string]int64{"profile_data/x": 1 << 43}, "", `"profile_data/x" has `},
		{"a;d/**", map[string]int64{"a": 4 << 30, "d/1": 5 << 30, "d/2": 5 << 30, "d/3": 5 << 30, "d/4": 5 << 30}, "", ""},
		{"d/**", map[string]int64{"d/1": 5 << 30, "d/2": 5 << 30, "d/3": 5 << 30, "d/4": 5 << 30, "d/5": 1}, "", "more than 20 GiB together"},
		{"*", map[string]int64{"1": 5 << 30, "2": 5 << 30, "3": 5 << 30}, "1", "more than 20 GiB together"},
		{"result.json", map[string]int64{"result.json": 1, "core": 1 << 43}, "", ""},
		{"**/*.json", map[string]int64{"d/result.json": 1, "d/core": 1 << 43}, "", ""},
		{"**/*.{json,md}", map[string]int64{"d/result.json": 1, "d/core": 1 << 43}, "", `"d/core" has `},
	} {
		dir := t.TempDir()
		for name, size := range row.sizes {
			file := filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600), os.Truncate(file, size)); err != nil {
				t.Fatal(err)
			}
		}
		if row.link != "" {
			if err := errors.Join(os.Symlink(row.link, filepath.Join(dir, "l1")), os.Symlink(row.link, filepath.Join(dir, "l2"))); err != nil {
				t.Fatal(err)
			}
		}
		err := stay(t.Context(), dir, strings.Split(row.patterns, ";"))
		if (err != nil) != (row.says != "") || err != nil && !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s of %v: %v, want %q", row.patterns, row.sizes, err, row.says)
		}
	}
}

// TestStayBoundsNumbers takes no pattern that finds very many files.
func TestStayBoundsNumbers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range maxUploads {
		if err := os.WriteFile(filepath.Join(dir, "x"+strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := stay(t.Context(), dir, []string{"x*", "*"}); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "one-more"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := stay(t.Context(), dir, []string{"x*", "one-more"}); err != nil {
		t.Error(err)
	}
	if err := stay(t.Context(), dir, []string{"**"}); err == nil || !strings.Contains(err.Error(), "more than 10000 files") {
		t.Errorf("%v", err)
	}
}

// TestPrepare removes what must not be uploaded.
func TestPrepare(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"result.json": `{"success": true, "runs": {}}`, "node.json": "forged", "log": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/proc/self/environ", filepath.Join(dir, "environ")); err != nil {
		t.Fatal(err)
	}
	if err := Prepare(t.Context(), dir, []string{"log", "*.json", " environ"}, "137", false); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(dir + "/*"); err != nil || len(left) != 1 || filepath.Base(left[0]) != "log" {
		t.Errorf("left: %v, %v", left, err)
	}
}
