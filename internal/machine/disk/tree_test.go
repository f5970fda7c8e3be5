package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// deepTree makes directories below each other, and a link in the last one.
func deepTree(t *testing.T, dir string, depth int) {
	t.Helper()
	at, err := os.OpenRoot(dir)
	must.Do(t, err)
	for range depth {
		must.Do(t, at.Mkdir("d", 0o700))
		next, err := at.OpenRoot("d")
		must.Do(t, err)
		must.Do(t, at.Close())
		at = next
	}
	must.Do(t, errors.Join(at.Symlink(dir, "out"), at.Close()))
}

// TestWipe: whatever a job puts into its checkouts can be deleted in one go.
func TestWipe(t *testing.T) {
	t.Parallel()
	secretDir, dir := t.TempDir(), t.TempDir()
	secret := filepath.Join(secretDir, "secret")
	must.Do(t, os.WriteFile(secret, nil, 0o600))
	// The tree is deeper than a path can be long.
	deepTree(t, dir, 2100)
	for name, mode := range map[string]os.FileMode{"closed": 0, "locked": 0o500} {
		must.Do(t, os.MkdirAll(filepath.Join(dir, "e", name, "in"), 0o700))
		for i := range 1500 {
			must.Do(t, os.WriteFile(filepath.Join(dir, "e", name, "in", "f"+strconv.Itoa(i)), nil, 0o600))
		}
		for _, d := range []string{"e/" + name + "/in", "e/" + name} {
			must.Do(t, os.Chmod(filepath.Join(dir, d), mode))
		}
	}
	must.Do(t, os.Symlink(secret, filepath.Join(dir, "link")))
	must.Do(t, Wipe(dir))
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%d entries are left, %v", len(left), err)
	}
	if _, err := os.Stat(secret); err != nil {
		t.Errorf("behind a link: %v", err)
	}
}

// TestLinkInPlaceOfCheckouts checks that nothing outside the user's directory is reached.
func TestLinkInPlaceOfCheckouts(t *testing.T) {
	t.Parallel()
	for name, secretDir := range map[string]string{"elsewhere": t.TempDir(), "beside it": "neighbor"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			linkInPlace(t, secretDir)
		})
	}
}

func linkInPlace(t *testing.T, link string) {
	t.Helper()
	home, secretDir := t.TempDir(), link
	if !filepath.IsAbs(link) {
		secretDir = filepath.Join(home, link)
		must.Do(t, os.Mkdir(secretDir, 0o700))
	}
	file := filepath.Join(secretDir, "file")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	builds := filepath.Join(home, "builds")
	must.Do(t, os.Symlink(link, builds))
	if err := Wipe(builds); err == nil {
		t.Error("the link was followed to delete")
	}
	var st syscall.Stat_t
	if err := syscall.Lstat(file, &st); err != nil || int(st.Uid) != os.Geteuid() {
		t.Errorf("the file outside: %v, of %d", err, st.Uid)
	}
}
