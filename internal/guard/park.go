package guard

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
)

// parkedDir is the directory beside a slot's socket in which each file NAME.json is one reason
// why the slot takes no jobs. Its writer removes it when the reason is gone. Only root can write
// there.
const parkedDir = "parked"

// maxReason bounds a file of parkedDir, in bytes.
const maxReason = 16 << 10

// Parked is one reason why a planned slot takes no jobs.
type Parked struct {
	Reason string    `json:"reason"` // a sentence
	Since  time.Time `json:"since"`
}

// ReadParked reads from a slot's run directory why it takes no jobs, oldest reason first. A slot
// without reasons takes jobs.
func ReadParked(runDir string) ([]Parked, error) {
	dir := filepath.Join(runDir, parkedDir)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read why the slot is parked: %w", err)
	}
	var all []Parked
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		p, err := readReason(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("read why the slot is parked: %w", err)
		}
		all = append(all, p)
	}
	slices.SortStableFunc(all, func(a, b Parked) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Reason, b.Reason)) })
	return all, nil
}

func readReason(name string) (p Parked, err error) {
	f, err := os.Open(name)
	if err != nil {
		return p, err
	}
	defer hangUp(f)
	text, err := io.ReadAll(io.LimitReader(f, maxReason))
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		return p, fmt.Errorf("%s: %w; delete the file if no one knows it", name, err)
	}
	return p, nil
}

// park records a reason. fresh is false if the same reason was there. A reason that only changes
// its words keeps its time.
func park(runDir, name, reason string) (fresh bool, err error) {
	file := filepath.Join(runDir, parkedDir, name+".json")
	p := Parked{Reason: reason, Since: time.Now().UTC().Truncate(time.Second)}
	if before, err := readReason(file); err == nil {
		if before.Reason == reason {
			return false, nil
		}
		p.Since = before.Since
	}
	text, err := json.Marshal(p)
	if err == nil {
		err = ownDir(filepath.Dir(file), 0o755, 0, 0)
	}
	if err == nil {
		err = renameio.WriteFile(file, append(text, '\n'), 0o644)
	}
	if err != nil {
		return false, fmt.Errorf("write why the slot is parked: %w", err)
	}
	return true, nil
}

// unpark removes a reason.
func unpark(runDir, name string) error {
	err := os.Remove(filepath.Join(runDir, parkedDir, name+".json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove why the slot was parked: %w", err)
	}
	return nil
}
