package guard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/plan"
)

const (
	// collectEvery is the time between two checks for images that no job needs any more.
	collectEvery = time.Hour
	// idleImage is how long an image that a job pulled is kept after its last use.
	idleImage = 24 * time.Hour
)

// pulledImages records the images that jobs pulled. Images belong to the node, so the guards
// share the record: one file per image, named by a hash, that contains the image's name and was
// modified at its last use. A reboot clears the record.
type pulledImages struct {
	dir   string
	named func(image string) bool             // by the operator, and so kept
	untag func(context.Context, string) error // fails for an image that a container uses
}

func newPulledImages(p plan.JobPolicy, engine *docker.Engine) pulledImages {
	node, _ := docker.ParseRef(p.NodeImage)
	return pulledImages{
		dir: filepath.Join(filepath.Dir(filepath.Dir(p.Socket)), "pulled"), untag: engine.Untag,
		named: func(image string) bool {
			full, err := docker.ParseRef(image)
			return err != nil || full == node || len(p.Images) > 0 && allowImage(p, image) == nil
		},
	}
}

// file returns the path of an image's record, the same for each of the image's names.
func (l pulledImages) file(image string) string {
	if full, err := docker.ParseRef(image); err == nil {
		image = full
	}
	sum := sha256.Sum256([]byte(image))
	return filepath.Join(l.dir, hex.EncodeToString(sum[:16]))
}

// used records that a job used an image or, if fresh, pulled one that was not there. Only the
// latter begins a record: other images are the operator's.
func (l pulledImages) used(image string, fresh bool) error {
	if !fresh || l.named(image) {
		now := time.Now()
		return ignoreAbsent(os.Chtimes(l.file(image), now, now))
	}
	err := os.MkdirAll(l.dir, 0o700)
	if err == nil {
		err = os.WriteFile(l.file(image), []byte(image), 0o600)
	}
	if err != nil {
		return fmt.Errorf("record the use of image %.120q: %w", image, err)
	}
	return nil
}

// collect removes images that no job has used for a day.
func (l pulledImages) collect(ctx context.Context, now time.Time) (removed []string, err error) {
	entries, err := os.ReadDir(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		path := filepath.Join(l.dir, e.Name())
		info, infoErr := e.Info()
		if infoErr != nil || now.Sub(info.ModTime()) < idleImage {
			continue // gone, or in use
		}
		image, readErr := os.ReadFile(path)
		if readErr != nil {
			err = errors.Join(err, ignoreAbsent(readErr))
			continue
		}
		if untagErr := l.untag(ctx, string(image)); untagErr != nil {
			err = errors.Join(err, untagErr) // a container uses it; the next check tries again
			continue
		}
		removed = append(removed, string(image))
		err = errors.Join(err, ignoreAbsent(os.Remove(path)))
	}
	slices.Sort(removed)
	return removed, err
}

// collectImages collects images until ctx is done.
func (g *guard) collectImages(ctx context.Context) {
	for limit.Sleep(ctx, collectEvery) == nil {
		removed, err := g.pulled.collect(ctx, time.Now())
		if len(removed) > 0 {
			g.log.Info("job images removed", "images", removed)
		}
		if err != nil && ctx.Err() == nil {
			g.log.Info("job images not removed", "err", err)
		}
	}
}
