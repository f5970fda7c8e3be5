package slot

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/limit"
)

// ParkedDir is the directory beside a slot's socket in which each file NAME.json is one reason
// why the slot takes no jobs. Its writer removes it when the reason is gone. Only root can write
// there.
const ParkedDir = "parked"

// maxReason bounds a file of ParkedDir, in bytes.
const maxReason = 16 << 10

// Parked is one reason why a planned slot takes no jobs.
type Parked struct {
	Reason string    `json:"reason"` // a sentence
	Since  time.Time `json:"since"`
}

// ReadParked reads from a slot's run directory why it takes no jobs, oldest reason first. A slot
// without reasons takes jobs.
func ReadParked(runDir string) ([]Parked, error) {
	dir := filepath.Join(runDir, ParkedDir)
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
		p, err := ReadReason(filepath.Join(dir, e.Name()))
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

// ReadReason reads one file of ParkedDir.
func ReadReason(name string) (p Parked, err error) {
	text, err := limit.ReadFile(name, maxReason)
	if errors.Is(err, fs.ErrNotExist) {
		return p, err
	}
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		return p, fmt.Errorf("%s: %w; delete the file if no one knows it", name, err)
	}
	return p, nil
}
