// Package cache keeps the results of submissions in mode test on an operator's machine, to answer identical submissions
// without a node. A key has all that decides a result, and only what the node itself says of a job decides whether its
// result is kept: a job can write nothing but the result of its own submission.
package cache

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/operate/fleet"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
)

const (
	// Kept is how long a result is an answer: a submission may pass or fail by luck.
	Kept = 7 * 24 * time.Hour
	// skew is how far in the future a result may be from: machines that share a home have clocks of their own.
	skew = 5 * time.Minute

	schema = 1
	// Bounds of one file and of all, in bytes, and of their number.
	maxEntry   = 2 << 20
	maxBytes   = 128 << 20
	maxEntries = 1000
)

// Cache is a directory with a file for each key. Each is written as a whole, so that of two writers the last one wins.
type Cache struct{ dir string }

// entry is the content of a file.
type entry struct {
	WrittenBy string         `json:"written_by"` // "kbnode"
	Schema    int            `json:"schema"`
	Key       Key            `json:"key"`
	Stored    time.Time      `json:"stored"`
	Outcome   submit.Outcome `json:"outcome"`     // without its result
	Result    []byte         `json:"result_json"` // as fetched
}

// errOther keeps a file from being read, and from being replaced.
var errOther = errors.New("it was written by another version of kbnode; remove it to keep results of this one")

// Open returns the user's cache.
func Open() (*Cache, error) {
	state, err := fleet.StateDir()
	if err != nil {
		return nil, err
	}
	return &Cache{filepath.Join(state, "results")}, nil
}

func (c *Cache) path(k Key) string { return filepath.Join(c.dir, string(k)+".json") }

// Get returns the outcome with a key, or nil if there is none that is an answer now.
func (c *Cache) Get(k Key, now time.Time) (*submit.Outcome, error) {
	e, err := c.read(k)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil //nolint:nilnil // said above
	case err != nil:
		return nil, fmt.Errorf("read cached result %s: %w", c.path(k), err)
	}
	if age := now.Sub(e.Stored); age > Kept || age < -skew {
		return nil, nil //nolint:nilnil // said above
	}
	out := e.Outcome
	out.Cached, out.Raw = e.Stored, e.Result
	if out.Result, err = result.Read(e.Result); err == nil {
		err = complete(out)
	}
	if err != nil {
		return nil, fmt.Errorf("read cached result %s: %w", c.path(k), err)
	}
	return &out, nil
}

// read reads a file that no one else can have written.
func (c *Cache) read(k Key) (*entry, error) {
	f, err := os.OpenFile(c.path(k), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o022 != 0 || !known || int(owner.Uid) != os.Geteuid() {
		return nil, errors.New("others may have written it; remove it")
	}
	text, err := io.ReadAll(io.LimitReader(f, maxEntry+1))
	if err != nil {
		return nil, err
	}
	var head struct {
		Schema int `json:"schema"`
	}
	if json.Unmarshal(text, &head) == nil && head.Schema != schema {
		return nil, errOther
	}
	e := &entry{}
	if err := json.Unmarshal(text, e); err != nil {
		return nil, err
	}
	if e.Key != k {
		return nil, errors.New("it is the result of another submission")
	}
	return e, nil
}

// Put keeps an outcome, which must be complete.
func (c *Cache) Put(k Key, out submit.Outcome, now time.Time) error {
	if err := complete(out); err != nil {
		return err
	}
	switch _, old := c.read(k); {
	case errors.Is(old, errOther):
		return fmt.Errorf("%s: %w", c.path(k), old)
	case old != nil: // the new file would have its mode
		if err := c.Forget(k); err != nil {
			return err
		}
	}
	e := entry{WrittenBy: "kbnode", Schema: schema, Key: k, Stored: now.UTC().Truncate(time.Second), Outcome: out, Result: out.Raw}
	e.Outcome.Result = nil // which is e.Result
	content, err := json.Marshal(e)
	if err == nil && len(content) > maxEntry {
		err = fmt.Errorf("it has %d bytes, and at most %d are kept", len(content), maxEntry)
	}
	if err == nil {
		err = os.MkdirAll(c.dir, 0o700)
	}
	if err == nil {
		err = renameio.WriteFile(c.path(k), content, 0o600)
	}
	if err == nil {
		err = c.prune(now)
	}
	if err != nil {
		return fmt.Errorf("write cached result: %w", err)
	}
	return nil
}

// Forget removes the outcome with a key, if there is one.
func (c *Cache) Forget(k Key) error {
	err := os.Remove(c.path(k))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove cached result: %w", err)
	}
	return nil
}

// prune removes files that are no answer any more, what writers that were killed left, and the oldest of too many.
func (c *Cache) prune(now time.Time) error {
	list, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	var files []fs.FileInfo
	for _, d := range list {
		info, err := d.Info()
		if err == nil && info.Mode().IsRegular() { // else another prune was faster, or it is not ours
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	var errs []error
	bytes, count := int64(0), 0
	for _, f := range files {
		name, age := f.Name(), now.Sub(f.ModTime()).Abs()
		part := strings.HasPrefix(name, ".")
		if !part && !strings.HasSuffix(name, ".json") {
			continue
		}
		if !part {
			bytes, count = bytes+f.Size(), count+1
		}
		if age > Kept || part && age > time.Hour || !part && (bytes > maxBytes || count > maxEntries) {
			if err := os.Remove(filepath.Join(c.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
