package reconcile

import (
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// State is the actual state of a machine, as far as a plan could change it.
type State struct {
	Offline  bool                  `json:"offline,omitempty"` // a tree without a running system
	Slots    []slot.State          `json:"slots"`             // planned and left over, by index
	Units    map[string]slot.Unit  `json:"units"`             // planned and left over, by name
	Slices   map[string]slot.Slice `json:"slices"`            // by unit
	Warnings []string              `json:"warnings,omitempty"`

	users   map[string]host.User // by name
	paths   map[string]pathState // planned or owned, by absolute path
	network *NetworkState        // nil if Host.Network is nil
	tune    tuning
	// refused holds the CPUs for which the kernel refused a cpuset partition.
	refused string
	chown   bool // compare owners
	adopt   bool // Host.Adopt
	now     bool // Host.Now
}

// Slot returns the state of slot k; only its Index is set if it is unknown.
func (s *State) Slot(k int) slot.State {
	for _, ss := range s.Slots {
		if ss.Index == k {
			return ss
		}
	}
	return slot.State{Index: k}
}

// Busy returns what the slots are busy with: see slot.State.Busy.
func (s *State) Busy() (jobs []string) {
	for _, ss := range s.Slots {
		if busy := ss.Busy(); busy != "" {
			jobs = append(jobs, busy)
		}
	}
	return jobs
}

// pathState is what is at a path.
type pathState struct {
	kind     pathKind
	mode     uint32 // permission and sticky bits
	uid, gid int
	content  string // of a regular file, up to 1 MiB; not kept for an input or foreign file
	marked   bool   // kbnode wrote it
	copied   bool   // same as the source or the checksum of a planned copy
	slot     int    // by its name; -1 for the node
	err      error  // why it cannot be read; what is there is unknown
	entries  []string
	owned    plan.OwnedDir // of a directory
}

type pathKind int

const (
	regular pathKind = iota
	directory
	other    // a link, device or socket
	leftover // a temporary file of an interrupted write
	input    // one of plan.OwnedInputs or plan.OwnedCopies that is not planned
	foreign  // one of plan.EarlierFiles
)

// ours reports whether kbnode wrote a file, judging by its content.
func ours(name, content string) bool {
	if strings.HasSuffix(name, ".json") {
		var mark struct {
			WrittenBy string `json:"written_by"`
		}
		if err := json.Unmarshal([]byte(content), &mark); err == nil {
			return mark.WrittenBy == "kbnode"
		}
		// A file that is cut off after the mark is still kbnode's.
		return strings.HasPrefix(strings.Join(strings.Fields(content), ""), `{"written_by":"kbnode"`)
	}
	return plan.IsMarked(content)
}

// cut reports whether a file is what a crash leaves of the planned one: its beginning,
// nothing at all, or zeros in place of what was not written back.
func cut(content, planned string) bool {
	return strings.HasPrefix(planned, strings.TrimRight(content, "\x00"))
}

// emptied reports whether a file that only kbnode writes has nothing left in it.
func emptied(name, content string) bool {
	if strings.TrimRight(content, "\x00") != "" {
		return false
	}
	return slices.ContainsFunc(plan.Owned, func(pattern string) bool {
		_, ok := plan.MatchOwned(pattern, name)
		return ok && path.Base(pattern) != "*" // operators may have files of their own there
	})
}
