package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/test/must"
)

// sift sifts the artifacts of a job that has succeeded.
func sift(t *testing.T, dir, patterns string) error {
	t.Helper()
	_, err := Sift(t.Context(), dir, strings.Split(patterns, ";"), "0", false)
	return err
}

// TestSift leaves what the agent may read: files, and links to files in the checkout.
func TestSift(t *testing.T) {
	t.Parallel()
	elsewhere, dir := t.TempDir(), t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(elsewhere, "secret"), nil, 0o600))
	for _, f := range []string{"result.json", "profile/deep/trace", "locked/x", "node.json/forged"} {
		file := filepath.Join(dir, f)
		must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600)))
	}
	for name, target := range map[string]string{
		"stays": "result.json", "profile/stays": "deep/trace", "profile/deep/up": "../../result.json", "profile/dir": "deep",
		"absolute": elsewhere + "/secret", "environ": "/proc/self/environ", "proc": "/proc/self", "itself": dir + "/result.json",
		"profile/deep/out": "../../../../../../../../../../etc/passwd", "profile/out": ".." + strings.Repeat("/..", 20) + elsewhere,
		"nowhere": "gone", "loop": "loop", "twice": "absolute", "through": "proc/environ", "1": "profile/pipe", "2": "profile/pipe", "profile/3": "pipe",
	} {
		must.Do(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	must.Do(t, errors.Join(syscall.Mkfifo(filepath.Join(dir, "profile/pipe"), 0o600), os.Chmod(filepath.Join(dir, "locked"), 0o2000)))
	must.Err(t, sift(t, dir, "result.json"), "")
	var left []string
	if err := fs.WalkDir(os.DirFS(dir), ".", func(path string, e fs.DirEntry, _ error) error {
		info, err := e.Info()
		if path != "." && info.Mode().Type() != fs.ModeSymlink && (err != nil || info.Mode().Perm()&0o444 != 0o444 || info.IsDir() && info.Mode().Perm()&0o111 != 0o111) {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		left = append(left, path)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{".", "locked", "locked/x", "profile", "profile/deep", "profile/deep/trace", "profile/deep/up", "profile/dir", "profile/stays", "result.json", "stays"}
	if diff := cmp.Diff(want, left); diff != "" && os.Getuid() == 0 {
		t.Error(diff)
	}
	if info, err := os.Stat(filepath.Join(elsewhere, "secret")); err != nil || info.Mode() != 0o600 {
		t.Error(info, err)
	}
}

// TestSiftIsBounded gives up on a tree that is too deep, and without time.
func TestSiftIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Do(t, os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", maxDepth)), 0o700))
	must.Err(t, sift(t, dir, "**"), "")
	must.Do(t, os.Mkdir(filepath.Join(dir, strings.Repeat("d/", maxDepth), "d"), 0o700))
	must.Err(t, sift(t, dir, "**"), "deeper than 100 directories")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Sift(ctx, dir, []string{"*"}, "0", false); !errors.Is(err, context.Canceled) {
		t.Errorf("without time: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err := Sift(ctx, dir, []string{"*"}, "0", false)
	if _, own := errors.AsType[LimitError](err); !own {
		t.Error("files that take too long to look at are not the job's doing")
	}
}

// TestSiftBoundsSizes uploads nothing where an upload would not end: a sparse file takes no space.
func TestSiftBoundsSizes(t *testing.T) {
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
		{"a;d/**", map[string]int64{"a": 4 << 30, "d/1": 5 << 30, "d/2": 5 << 30, "d/3": 5 << 30, "d/4": 5 << 30}, "", "more than 20 GiB together"},
		{"d/**;d/*;**", map[string]int64{"d/1": 5 << 30, "d/2": 5 << 30, "d/3": 5 << 30, "d/4": 5 << 30}, "", ""},
		{"d/**", map[string]int64{"d/1": 5 << 30, "d/2": 5 << 30, "d/3": 5 << 30, "d/4": 5 << 30, "d/5": 1}, "", "more than 20 GiB together"},
		{"*", map[string]int64{"1": 5 << 30, "2": 5 << 30, "3": 5 << 30}, "1", "more than 20 GiB together"},
		{"result.json", map[string]int64{"result.json": 1, "core": 1 << 43}, "", ""},
		{"**/*.json", map[string]int64{"d/result.json": 1, "d/core": 1 << 43}, "", ""},
		{"d*/*.json", map[string]int64{"d1/a.json": 1, "d1/e/b.json": 1 << 43, "c/b.json": 1 << 43}, "", ""},
		{"e/[a-c]/x", map[string]int64{"d/a/x": 1 << 43, "e/x": 1}, "", ""},
		{"**/*.{json,md}", map[string]int64{"d/result.json": 1, "d/core": 1 << 43}, "", `"d/core" has `},
	} {
		dir := t.TempDir()
		for name, size := range row.sizes {
			file := filepath.Join(dir, name)
			must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600), os.Truncate(file, size)))
		}
		if row.link != "" {
			must.Do(t, errors.Join(os.Symlink(row.link, filepath.Join(dir, "l1")), os.Symlink(row.link, filepath.Join(dir, "l2"))))
		}
		err := sift(t, dir, row.patterns)
		must.Err(t, err, row.says)
	}
}

// TestSiftBoundsNumbers takes no pattern that finds very many files.
func TestSiftBoundsNumbers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range maxUploads {
		must.Do(t, os.WriteFile(filepath.Join(dir, "x"+strconv.Itoa(i)), nil, 0o600))
	}
	must.Err(t, sift(t, dir, "x*; x0*;;y/[ab]/**"), "")
	must.Do(t, os.WriteFile(filepath.Join(dir, "one-more"), nil, 0o600))
	must.Err(t, sift(t, dir, "x*;x1*"), "")
	must.Err(t, sift(t, dir, "x*;one-more"), "more than 10000 files")
	must.Err(t, sift(t, dir, "**"), "more than 10000 files")
}

// TestSiftBoundsPaths takes no path that is too long for an upload, and no more paths of links than it may keep.
func TestSiftBoundsPaths(t *testing.T) {
	t.Parallel()
	dir, name := t.TempDir(), strings.Repeat("d", 250)
	deep := strings.Repeat(name+"/", maxPath/len(name)-1)
	must.Do(t, os.MkdirAll(filepath.Join(dir, deep, "s"), 0o700))
	for i := range maxLinks/(len(deep)+200) + 1 {
		if i == 10 {
			must.Err(t, sift(t, dir, "none"), "")
		}
		must.Do(t, os.Symlink("s", filepath.Join(dir, deep, strings.Repeat("l", 200)+strconv.Itoa(i))))
	}
	must.Err(t, sift(t, dir, "none"), "the checkout's links have more than 32 MiB together")

	dir = t.TempDir()
	must.Do(t, os.MkdirAll(filepath.Join(dir, deep, name, name), 0o700))
	must.Err(t, sift(t, dir, "none"), "has a path of 3262 bytes; use at most 3072")

	dir = t.TempDir() // through links
	must.Do(t, errors.Join(os.MkdirAll(filepath.Join(dir, "near"), 0o700), os.MkdirAll(filepath.Join(dir, deep), 0o700),
		os.Symlink(strings.Repeat("../", strings.Count(deep, "/"))+"near", filepath.Join(dir, deep, "l")), os.WriteFile(filepath.Join(dir, "near", name), nil, 0o600),
		os.Mkdir(filepath.Join(dir, "near", name[1:]), 0o700), os.WriteFile(filepath.Join(dir, "near", name[1:], name), nil, 0o600)))
	must.Err(t, sift(t, dir, "near/*"), "")
	must.Err(t, sift(t, dir, "**"), "use at most 3072")
}

// TestSiftDropsACLs leaves nothing that is closed to the agent's user in spite of its mode.
func TestSiftDropsACLs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Do(t, errors.Join(os.Mkdir(filepath.Join(dir, "d"), 0o700), os.WriteFile(filepath.Join(dir, "d", "f"), nil, 0o600)))
	// user::rwx, user:990:---, group::r--, mask::rwx, other::r--
	list := []byte{2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 0, 0, 222, 3, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255}
	files := map[string][]string{"": {"access", "default"}, "d": {"access", "default"}, "d/f": {"access"}}
	for name, kinds := range files {
		for _, kind := range kinds {
			if err := syscall.Setxattr(filepath.Join(dir, name), "system.posix_acl_"+kind, list, 0); errors.Is(err, syscall.EOPNOTSUPP) {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	must.Err(t, sift(t, dir, "none"), "")
	for name, kinds := range files {
		for _, kind := range kinds {
			if n, err := syscall.Getxattr(filepath.Join(dir, name), "system.posix_acl_"+kind, nil); !errors.Is(err, syscall.ENODATA) {
				t.Errorf("%q keeps its %s list: %d bytes, %v", name, kind, n, err)
			}
		}
	}
}

// TestSiftOnAFullDisk blames the job for lists that cannot be removed because the disk that it filled has no room.
func TestSiftOnAFullDisk(t *testing.T) {
	t.Parallel()
	must.Root(t, "mounts a file system")
	dir, image := t.TempDir(), must.Write(t, t.TempDir(), "disk", "")
	must.Do(t, os.Truncate(image, 8<<20))
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-O", "^has_journal", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%v: %s", err, out)
		}
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	list := []byte{2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255}
	for user := range byte(50) { // too many for the inode
		list = append(list, 2, 0, 0, 0, user, 3, 0, 0)
	}
	list = append(list, 4, 0, 4, 0, 255, 255, 255, 255, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255)
	for _, name := range []string{"a", "b"} {
		file := must.Write(t, dir, name, "")
		must.Do(t, errors.Join(unix.Setxattr(file, "user.x", make([]byte, 3000), 0), unix.Setxattr(file, "system.posix_acl_access", list, 0)))
	}
	fill, err := os.Create(filepath.Join(dir, "fill"))
	must.Do(t, err)
	for size, at := int64(8<<20), int64(0); size >= 4096; {
		if unix.Fallocate(int(fill.Fd()), 0, at, size) == nil {
			at += size
		} else {
			size /= 2
		}
	}
	must.Do(t, fill.Close())
	err = sift(t, dir, "*")
	if _, own := errors.AsType[LimitError](err); !own {
		t.Error(err)
	}
}

// TestSiftDropsBrokenLinks removes links whose target was removed after them: the upload would end at one.
func TestSiftDropsBrokenLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Do(t, errors.Join(os.Mkdir(filepath.Join(dir, "z"), 0o700), os.Symlink("..", filepath.Join(dir, "z", "up")),
		os.WriteFile(filepath.Join(dir, "f"), nil, 0o600), os.WriteFile(filepath.Join(dir, "z", "node.json"), nil, 0o600)))
	for n := range 20 { // some come before what they lead through, in the order of the directory
		for name, target := range map[string]string{"f": "z/up/f", "d": "z/up/z", "n": "z/node.json", "twice": "n" + strconv.Itoa(n)} {
			must.Do(t, os.Symlink(target, filepath.Join(dir, name+strconv.Itoa(n))))
		}
	}
	must.Do(t, os.Symlink("f", filepath.Join(dir, "good")))
	must.Err(t, sift(t, dir, "**"), "")
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	must.Do(t, err)
	for i := range left {
		left[i] = filepath.Base(left[i])
	}
	if diff := cmp.Diff([]string{"f", "good", "z"}, left); diff != "" {
		t.Error(diff)
	}
}

// TestSiftDropsLinksToUnfinished removes links to a result that was not finished, as the result itself.
func TestSiftDropsLinksToUnfinished(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Do(t, errors.Join(os.WriteFile(filepath.Join(dir, "result.json"), []byte(`{"success": true, "runs": {}}`), 0o600),
		os.Symlink("result.json", filepath.Join(dir, "a")), os.Symlink("a", filepath.Join(dir, "b"))))
	_, err := Sift(t.Context(), dir, []string{"*"}, "1", false)
	must.Err(t, err, "")
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
}

// TestOnlyOneResult removes files that a launcher could take for the job's own, which are at the top.
func TestOnlyOneResult(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, f := range []string{
		"result.json", "Result.json", "NODE.JSON", "node.json", "profile_data/result.json", "profile_data/a/RESULT.JSON", "profile_data/node.json",
		`.\result.json`, `x\node.json`, "profile_data/trace", "closed/result.json", "result.json.d/x", "profile_data/result.json.gz", "dir/result.json.d/result.json", "other/x",
	} {
		file := filepath.Join(dir, f)
		must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600)))
	}
	for name, target := range map[string]string{
		"other/result.json": "x", "other/up": "..", "other/down": "../profile_data", "other/self": ".", "link": "profile_data/a", "here": ".",
		"other/absolute": dir, "mutual1": "m1", "m1/other": "../m2", "m2/other": "../m1", "m1/node.json": "../m2",
	} {
		must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700), os.Symlink(target, filepath.Join(dir, name))))
		must.Do(t, os.MkdirAll(filepath.Join(dir, "m2"), 0o700))
	}
	must.Do(t, os.Chmod(filepath.Join(dir, "closed"), 0))
	forged, err := Sift(t.Context(), dir, []string{"**"}, "0", false)
	must.Err(t, err, "")
	if len(forged) != maxForged {
		t.Errorf("names %q", forged)
	}
	var follow func(at string, depth int)
	follow = func(at string, depth int) {
		entries, err := os.ReadDir(at)
		if err != nil || depth > 10 {
			t.Fatalf("%s: %v", at, err)
		}
		for _, e := range entries {
			path := filepath.Join(at, e.Name())
			if info, err := os.Stat(path); err == nil && info.IsDir() {
				follow(path, depth+1)
			} else if result.IsOwnName(e.Name()) && path != filepath.Join(dir, result.File) {
				t.Errorf("%s is left", path)
			}
		}
	}
	follow(dir, 0)
	for _, name := range []string{"result.json", "profile_data/trace", "profile_data/result.json.gz", "other/down/trace", "result.json.d/x"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// TestSiftFollowsLinks bounds what a pattern finds behind links to directories, as the upload does.
func TestSiftFollowsLinks(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		pattern string
		links   map[string]string
		says    string
	}{
		{"out/*", map[string]string{"out": "big"}, `"out/x" has `},
		{"out/**", map[string]string{"out": "far", "far/more": "../big"}, `"out/more/x" has `},
		{"a/b/c/x", map[string]string{"a": "far", "far/b": "../near", "near/c": "../big"}, `"a/b/c/x" has `},
		{"out/*", map[string]string{"other": "big"}, ""},
		{"l*/*", map[string]string{"l1": "many", "l2": "many", "l3": "many"}, "find more than 10000 files"},
		// Not behind links that no pattern goes through.
		{"result.json", map[string]string{"l1": "many", "l2": "many", "l3": "many", "l4": "big"}, ""},
		{"l1/*", map[string]string{"l1": "near", "l2": "many", "l3": "big"}, ""},
		{"far**", map[string]string{"far/x": "../big"}, `"far/x/x" has `},
		{"{big/x,near/y}", nil, `"big/x" has `},
		{"{big,near}/{x,y}", nil, `"big/x" has `},
		{"{far/,}x", map[string]string{"far/x": "../big/x"}, `"far/x" has `},
	} {
		dir := t.TempDir()
		for _, d := range []string{"big", "far", "near", "many"} {
			must.Do(t, os.Mkdir(filepath.Join(dir, d), 0o700))
		}
		must.Do(t, errors.Join(os.WriteFile(filepath.Join(dir, "big", "x"), nil, 0o600), os.Truncate(filepath.Join(dir, "big", "x"), 1<<40)))
		for i := range maxUploads/3 + 1 {
			must.Do(t, os.WriteFile(filepath.Join(dir, "many", strconv.Itoa(i)), nil, 0o600))
		}
		for name, target := range row.links {
			must.Do(t, os.Symlink(target, filepath.Join(dir, name)))
		}
		must.Err(t, sift(t, dir, row.pattern), row.says)
	}
}

// TestSiftKeepsLinks keeps links that lead to a directory through many others, and names only forged results that
// would have been uploaded.
func TestSiftKeepsLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const packages = 20
	for n := range packages {
		pkg := filepath.Join(dir, "p"+strconv.Itoa(n))
		must.Do(t, errors.Join(os.Mkdir(pkg, 0o700), os.WriteFile(filepath.Join(pkg, "node.json"), nil, 0o600)))
		if n+1 < packages {
			must.Do(t, os.Symlink("../p"+strconv.Itoa(n+1), filepath.Join(pkg, "next")))
		}
	}
	for _, pattern := range []string{"result.json", "**"} {
		forged, err := Sift(t.Context(), dir, []string{pattern}, "0", false)
		must.Err(t, err, "")
		if pattern == "result.json" && forged != nil {
			t.Errorf("names %q", forged)
		}
		for n := range packages - 1 {
			if info, err := os.Stat(filepath.Join(dir, "p"+strconv.Itoa(n), "next")); err != nil || !info.IsDir() {
				t.Errorf("package %d: %v", n, err)
			}
		}
	}
}
