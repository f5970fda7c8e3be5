package checkout

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/test/must"
)

const address = "https://git.example/gpu-mode/kernelbot"

// origin is a repository on a server, which only the file protocol reaches.
type origin struct {
	t   *testing.T
	dir string
}

func (o origin) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(o.t.Context(), "git", append([]string{"-C", o.dir, "-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	return cmd
}

func (o origin) git(args ...string) string {
	o.t.Helper()
	out, err := o.command(args...).CombinedOutput()
	if err != nil {
		o.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (o origin) put(name, text string, mode fs.FileMode) {
	o.t.Helper()
	path := filepath.Join(o.dir, name)
	must.Do(o.t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode)))
}

func (o origin) commit() string {
	o.t.Helper()
	o.git("add", "-A")
	o.git("commit", "-qm", "x", "--allow-empty")
	return o.git("rev-parse", "HEAD")
}

// setUp makes a repository with a branch main and no commit, and mirrors of it.
func setUp(t *testing.T) (origin, Mirrors) {
	t.Helper()
	o := origin{t, filepath.Join(t.TempDir(), "gpu-mode", "kernelbot")}
	must.Do(t, os.MkdirAll(o.dir, 0o755))
	o.git("init", "-q", "-b", "main")
	m := Mirrors{Dir: t.TempDir(), system: filepath.Join(t.TempDir(), "gitconfig")}
	config := fmt.Sprintf("[url \"file://%s/\"]\n\tinsteadOf = https://git.example/\n[safe]\n\tdirectory = *\n", filepath.Dir(filepath.Dir(o.dir)))
	must.Do(t, os.WriteFile(m.system, []byte(config), 0o644))
	return o, m
}

func checkOut(t *testing.T, m Mirrors, s Source) (dir, hash string, err error) {
	t.Helper()
	dir = t.TempDir()
	root, err := os.OpenRoot(dir)
	must.Do(t, err)
	defer root.Close() //nolint:errcheck // only read
	if s.Repository == "" {
		s.Repository = address
	}
	ctx, cancel := context.WithTimeout(t.Context(), must.Patience)
	defer cancel()
	hash, err = m.Checkout(ctx, s, root, 0, 0)
	return dir, hash, err
}

// unpacked ends the test if a checkout fails.
func unpacked(t *testing.T, m Mirrors, s Source) {
	t.Helper()
	_, _, err := checkOut(t, m, s)
	must.Do(t, err)
}

// listing describes all below a directory.
func listing(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		line := info.Mode().String() + " " + name
		switch {
		case info.Mode().IsRegular():
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + string(text)
		case info.Mode().Type() == fs.ModeSymlink:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + to
		}
		list = append(list, line)
		return nil
	})
	must.Do(t, err)
	return list
}

// TestCheckout unpacks what was committed and nothing else: filters, attributes, hooks and
// submodules do not act.
func TestCheckout(t *testing.T) {
	t.Parallel()
	o, m := setUp(t)
	planted := filepath.Join(t.TempDir(), "planted")
	sub := filepath.Join(filepath.Dir(o.dir), "sub")
	must.Do(t, os.MkdirAll(sub, 0o755))
	origin{t, sub}.git("init", "-q")
	origin{t, sub}.commit()
	o.git("submodule", "--quiet", "add", "file://"+sub, "vendored")
	o.put(".gitattributes", "* text eol=crlf ident\nhidden export-ignore\nfilter.txt filter=plant\n", 0o644)
	o.put("hidden", "$Id$ $Format:%H$\n", 0o644)
	o.put("deep/er/run.sh", "#!/bin/sh\n", 0o755)
	o.put("filter.txt", "a\n", 0o600)
	must.Do(t, errors.Join(os.Symlink("/etc/passwd", filepath.Join(o.dir, "deep", "absolute")), os.Symlink("..", filepath.Join(o.dir, "up"))))
	hash := o.commit()
	// Filters and hooks that would act in a clone, if a repository could bring its own configuration.
	for _, key := range []string{"filter.plant.smudge", "core.fsmonitor"} {
		o.git("config", key, "touch "+planted)
	}
	o.put(".git/hooks/post-checkout", "#!/bin/sh\ntouch "+planted, 0o755)

	for _, commit := range []string{hash, "HEAD"} {
		dir, got, err := checkOut(t, m, Source{Commit: commit, Branch: "main"})
		if err != nil || got != hash {
			t.Fatalf("%s: %s, %v", commit, got, err)
		}
		want := []string{
			"-rw-r--r-- .gitattributes * text eol=crlf ident\nhidden export-ignore\nfilter.txt filter=plant\n",
			"-rw-r--r-- .gitmodules [submodule \"vendored\"]\n\tpath = vendored\n\turl = file://" + sub + "\n",
			"drwxr-xr-x deep", "Lrwxrwxrwx deep/absolute -> /etc/passwd", "drwxr-xr-x deep/er", "-rwxr-xr-x deep/er/run.sh #!/bin/sh\n",
			"-rw-r--r-- filter.txt a\n", "-rw-r--r-- hidden $Id$ $Format:%H$\n", "Lrwxrwxrwx up -> ..", "drwxr-xr-x vendored",
		}
		must.Equal(t, want, listing(t, dir))
	}
	if _, err := os.Lstat(planted); err == nil {
		t.Error("a program of the repository ran")
	}
}

// TestSources reads the names that builds have for commits.
func TestSources(t *testing.T) {
	t.Parallel()
	o, m := setUp(t)
	o.put("a", "1", 0o644)
	first := o.commit()
	o.git("tag", "-a", "v1", "-m", "x")
	o.git("branch", "feature/x-1")
	o.put("a", "2", 0o644)
	second := o.commit()
	absent := strings.Repeat("0123456789", 4)
	for _, row := range []struct {
		commit, branch string
		want           string // hash
		says           string
		absent         bool
	}{
		{commit: first, want: first},
		{commit: second, branch: "no-such-branch", want: second},
		{commit: "HEAD", branch: "main", want: second},
		{commit: "HEAD", branch: "feature/x-1", want: first},
		{commit: "HEAD", branch: "v1", want: first},
		{commit: absent, branch: "main", says: "has no commit, branch or tag", absent: true},
		{commit: "HEAD", branch: "gone", says: "has no commit, branch or tag", absent: true},
		{commit: first[:12], branch: "main", says: "has no commit, branch or tag", absent: true},
	} {
		_, got, err := checkOut(t, m, Source{Commit: row.commit, Branch: row.branch})
		_, isAbsent := errors.AsType[*RefusedError](err)
		if got != row.want || isAbsent != row.absent || (row.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), row.says) {
			t.Errorf("%q of %q: %s, %v", row.commit, row.branch, got, err)
		}
	}
	if _, _, err := checkOut(t, m, Source{Repository: "https://git.example/gpu-mode/none", Commit: first}); err == nil || !strings.Contains(err.Error(), "fetch https://git.example") {
		t.Errorf("a repository that is not there: %v", err)
	}
	// A branch that has moved is fetched again.
	o.put("a", "3", 0o644)
	third := o.commit()
	if _, got, err := checkOut(t, m, Source{Commit: "HEAD", Branch: "main"}); got != third || err != nil {
		t.Errorf("a branch that has moved: %s, %v", got, err)
	}
}

// TestShared fetches once for eight slots, and makes a damaged mirror again.
func TestShared(t *testing.T) {
	t.Parallel()
	o, m := setUp(t)
	o.put("a", "1", 0o644)
	hash := o.commit()
	all := func() {
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				if _, got, err := checkOut(t, m, Source{Commit: hash}); got != hash || err != nil {
					t.Errorf("%s, %v", got, err)
				}
			})
		}
		group.Wait()
	}
	all()
	packs, err := filepath.Glob(filepath.Join(m.Dir, "*.git/objects/pack/*.pack"))
	if len(packs) != 1 || err != nil {
		t.Errorf("%d packs, %v", len(packs), err)
	}
	// The mirror serves while the server is away, and while another slot fetches.
	must.Do(t, os.Rename(o.dir, o.dir+"-away"))
	fetching, err := m.lock(t.Context(), mirrorName(address)+fetchSuffix, unix.LOCK_EX)
	must.Do(t, err)
	all()
	unlock(fetching)
	must.Do(t, os.Rename(o.dir+"-away", o.dir))
	for _, damage := range []string{"HEAD", "objects"} {
		heads, err := filepath.Glob(filepath.Join(m.Dir, "*.git", damage))
		if err != nil || len(heads) != 1 || os.RemoveAll(heads[0]) != nil {
			t.Fatal(heads, err)
		}
		all()
	}
}

// TestDamage makes a mirror again that the node's disk damaged, and blames the repository for nothing.
func TestDamage(t *testing.T) {
	t.Parallel()
	flip := func(data []byte) []byte { // all but the head, and the sum at the end
		for i := 12; i < len(data)-20; i++ {
			data[i] ^= 0xff
		}
		return data
	}
	zero := func(data []byte) []byte { return make([]byte, len(data)) }
	none := func([]byte) []byte { return nil }
	for _, row := range []struct {
		name, files string // those of the mirror that are damaged
		damage      func(data []byte) []byte
	}{
		{"bits of a pack", "objects/pack/*.pack", flip},
		{"a pack of zeros", "objects/pack/*.pack", zero},
		{"an empty pack", "objects/pack/*.pack", none},
		{"an index of zeros", "objects/pack/*.idx", zero},
		{"bits of an index", "objects/pack/*.idx", flip},
		{"no pack is whole", "objects/pack/*", none},
		{"shallow", "shallow", zero},
		{"references", "refs/kbnode/*", zero},
		{"configuration", "config", zero},
	} {
		for _, next := range []string{"the same commit", "a new commit", "HEAD"} {
			t.Run(row.name+", "+next, func(t *testing.T) {
				t.Parallel()
				o, m := setUp(t)
				o.put("a", "one", 0o644)
				o.put("b", "stays", 0o644)
				want := Source{Commit: o.commit(), Branch: "main"}
				unpacked(t, m, want)
				files, err := filepath.Glob(filepath.Join(m.path(mirrorName(address)), row.files))
				if err != nil || len(files) == 0 {
					t.Fatal(files, err)
				}
				for _, file := range files {
					data, err := os.ReadFile(file)
					must.Do(t, errors.Join(err, os.Remove(file), os.WriteFile(file, row.damage(data), 0o600)))
				}
				if next != "the same commit" {
					// A process was killed while it made the mirror again.
					must.Do(t, os.MkdirAll(m.path(mirrorName(address)+spare)+"/objects", 0o700))
					o.put("a", "two", 0o644)
					want.Commit = o.commit()
				}
				if next == "HEAD" {
					want.Commit = next
				}
				// A mirror that has the commit is removed, and the next job makes it again.
				if _, _, err = checkOut(t, m, want); err != nil && next == "the same commit" && !refused(err, "") {
					_, _, err = checkOut(t, m, want)
				}
				must.Do(t, err)
				if left, _ := filepath.Glob(filepath.Join(m.Dir, "*"+spare+"*")); len(left) > 0 {
					t.Error(left)
				}
			})
		}
	}
}

// TestLimits refuses commits that are too large, and ends git with its caller.
func TestLimits(t *testing.T) {
	t.Parallel()
	o, m := setUp(t)
	for i := range 20 {
		o.put(fmt.Sprintf("f%d", i), strings.Repeat("x", 1000), 0o644)
	}
	hash := o.commit()
	for _, row := range []struct {
		limits limits
		says   string
	}{
		{limits{files: 20, bytes: 20_000}, ""},
		{limits{files: 19}, "more than 19 files"},
		{limits{bytes: 19_999}, "too large"},
	} {
		m.limits = row.limits
		_, _, err := checkOut(t, m, Source{Commit: hash})
		must.Err(t, err, row.says)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	root, err := os.OpenRoot(t.TempDir())
	must.Do(t, err)
	if _, err := m.Checkout(ctx, Source{Repository: address, Commit: hash}, root, 0, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("a job that was canceled: %v", err)
	}
}

// TestTrees refuses what a server could send that no git makes.
func TestTrees(t *testing.T) {
	t.Parallel()
	const hash = "0123456789012345678901234567890123456789"
	entry := func(mode, path string) string { return mode + " blob " + hash + "\t" + path + "\x00" }
	for _, row := range []struct{ tree, says string }{
		{entry("100644", "a") + entry("120000", "b/c"), ""},
		{entry("100644", "../a"), "use paths"},
		{entry("100644", "/a"), "use paths"},
		{entry("100644", "a//b"), "use paths"},
		{entry("100644", "a/./b"), "use paths"},
		{entry("100644", "a\xff"), "rename it to UTF-8"},
		{entry("100644", "a/.GIT/config"), "git's own"},
		{entry("100644", strings.Repeat("a/", 65)+"b"), "use paths"},
		{entry("100644", strings.Repeat("abc/", 30)+strings.Repeat("a", 1025)), "use paths"},
		{entry("100644", strings.Repeat("a", 10_000)), "more than 1024 bytes"},
		{entry("100644", strings.Repeat("a", 256)), "names of at most 255"},
		{"100644 blob\ta\x00", "git lists"},
		{"100644 blob " + hash + "\ta", "unexpected EOF"},
	} {
		_, err := readTree(strings.NewReader(row.tree), 10)
		must.Err(t, err, row.says)
	}
	for _, row := range []struct {
		files []file
		blobs string
		says  string
	}{
		{[]file{{"100644", "h", "a"}}, "h blob 3\nxyz\n", ""},
		{[]file{{"100644", "h", "a"}}, "h blob 3\nxy", "EOF"},
		{[]file{{"100644", "h", "a"}}, "h missing\n", "git says"},
		{[]file{{"100644", "h", "a"}}, "other blob 3\nxyz\n", "git says"},
		{[]file{{"100644", "h", "a"}, {"100644", "h", "a"}}, "h blob 1\nx\nh blob 1\ny\n", "two files"},
		{[]file{{"120000", "h", "a"}, {"100644", "h", "a/b"}}, "h blob 1\n/\nh blob 1\ny\n", "two files"},
		{[]file{{"120000", "h", "a"}}, "h blob 2000\n" + strings.Repeat("x", 2000), "has more than"},
		{[]file{{"120000", "h", "a"}}, "h blob 0\n\n", "no target"},
		{[]file{{"120000", "h", "a"}}, "h blob 1\n\x00\n", "no target"},
		{[]file{{"100644", "h", "a"}, {"100644", "h", "a/b"}}, "h blob 1\nx\nh blob 1\ny\n", "two files"},
		{[]file{{"104755", "h", "a"}}, "h blob 1\nx\n", "of mode"},
	} {
		root, err := os.OpenRoot(t.TempDir())
		must.Do(t, err)
		w := &writer{to: root, left: 1000_000, dirs: map[string]bool{".": true}}
		err = w.all(row.files, bufio.NewReader(strings.NewReader(row.blobs)))
		must.Err(t, err, row.says)
	}
}

// TestTail keeps the end.
func TestTail(t *testing.T) {
	t.Parallel()
	var got tail
	for i := range 3000 {
		if _, err := fmt.Fprintf(&got, "line %d of what git says\n", i); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := got.Write(bytes.Repeat([]byte("y"), 10)); err != nil || len(got) != maxOutput || !strings.HasSuffix(string(got), "2999 of what git says\nyyyyyyyyyy") {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestUser runs git as a user that has nothing but the mirror, and gives the files to the job's.
func TestUser(t *testing.T) {
	t.Parallel()
	must.Root(t, "only root can become another user")
	o, m := setUp(t)
	m.UID, m.GID = 65534, 65534
	o.put("a/b", "1", 0o644)
	hash := o.commit()
	for dir := m.Dir; dir != os.TempDir(); dir = filepath.Dir(dir) { // as /var/lib is
		must.Do(t, os.Chmod(dir, 0o711))
	}
	root, err := os.OpenRoot(t.TempDir())
	must.Do(t, err)
	if _, err := m.Checkout(t.Context(), Source{Repository: address, Commit: hash}, root, 1234, 1235); err != nil {
		t.Fatal(err)
	}
	owner := func(path string) string {
		info, err := os.Lstat(path)
		must.Do(t, err)
		st := info.Sys().(*syscall.Stat_t)
		return fmt.Sprint(st.Uid, ":", st.Gid)
	}
	for _, name := range []string{"a", "a/b"} {
		must.Equal(t, "1234:1235", owner(filepath.Join(root.Name(), name)))
	}
	entries, err := os.ReadDir(m.Dir)
	if err != nil || len(entries) != 3 {
		t.Fatal(entries, err)
	}
	for _, e := range entries {
		want := map[bool]string{true: "65534:65534", false: "0:0"}[e.IsDir()]
		if got := owner(filepath.Join(m.Dir, e.Name())); got != want {
			t.Errorf("%s belongs to %s", e.Name(), got)
		}
	}
}
