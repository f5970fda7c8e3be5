package guard

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/gpu-mode/kbnode/internal/std/limit"
)

const (
	// maxViews is how many images are remembered, each if what is remembered has at most maxView bytes.
	maxViews, maxView = 64, 64 << 10
)

// views is a directory with what jobs saw of the images that they ran, for the next ones. Only root can write in it, and it
// ends with the boot.
type views struct{ dir string }

func (v views) file(image string) string {
	sum := sha256.Sum256([]byte(image))
	return filepath.Join(v.dir, hex.EncodeToString(sum[:])+".json")
}

func (v views) load(image string) (entry view, ok bool) {
	text, err := limit.ReadFile(v.file(image), maxView)
	return entry, err == nil && json.Unmarshal(text, &entry) == nil && entry.Steps != nil
}

func (v views) store(image string, entry view) error {
	text, err := json.Marshal(entry) //nolint:gosec // /etc/passwd has no passwords
	if err != nil || len(text) > maxView {
		return err
	}
	if err := os.Mkdir(v.dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	entries, err := os.ReadDir(v.dir)
	if err == nil && len(entries) >= maxViews {
		for _, e := range entries {
			err = errors.Join(err, ignoreAbsent(os.Remove(filepath.Join(v.dir, e.Name()))))
		}
	}
	if err != nil {
		return err
	}
	return renameio.WriteFile(v.file(image), text, 0o600)
}
