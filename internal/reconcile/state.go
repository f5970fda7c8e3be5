package reconcile

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// State is the actual state of a machine, as far as a plan could change it.
type State struct {
	Offline  bool                  `json:"offline,omitempty"` // a tree without a running system
	Slots    []SlotState           `json:"slots"`             // planned and left over, by index
	Units    map[string]UnitState  `json:"units"`             // planned and left over, by name
	Slices   map[string]SliceState `json:"slices"`            // by unit
	Warnings []string              `json:"warnings,omitempty"`

	users   map[string]UserState // by name
	paths   map[string]pathState // planned or owned, by absolute path
	network *NetworkState        // nil if Host.Network is nil
	tune    tuning
	backups map[string]int // number of backups, by path of the original
	// refused holds the CPUs for which the kernel refused a cpuset partition.
	refused string
	// kept holds directories that this uninstall has restored, so that it does not delete
	// them as its own when they are empty.
	kept  map[string]bool
	chown bool // compare owners
	adopt bool // Host.Adopt
	now   bool // Host.Now
}

// SlotState is one slot: its units, its limits and what it runs.
type SlotState struct {
	Index      int        `json:"index"`
	Name       string     `json:"name"`
	Agent      UnitState  `json:"agent"`
	Guard      UnitState  `json:"guard"`
	Slice      SliceState `json:"slice"`
	Job        *agent.Job `json:"job,omitempty"`
	Containers []string   `json:"containers,omitempty"` // running below the slice

	cutOff string // why its agent cannot reach its running guard; "" if it can
}

// Busy returns what a slot is busy with, as in "waits for …"; "" if it is idle.
func (s SlotState) Busy() string {
	switch {
	case s.Job != nil:
		return fmt.Sprintf("job %s of slot %s", s.Job.ID, s.Name)
	case len(s.Containers) > 0:
		return fmt.Sprintf("container %s of slot %s", s.Containers[0], s.Name)
	}
	return ""
}

// pathState is what is at a path.
type pathState struct {
	kind     pathKind
	mode     uint32 // permission and sticky bits
	uid, gid int
	content  string // of a regular file, up to 1 MiB; not kept for an input or foreign file
	marked   bool   // kbnode wrote it
	copied   bool   // same size and time as the source of a planned copy
	backedUp bool   // the newest backup has the same content, so replacing it was agreed to
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
	for i, line := range strings.SplitN(content, "\n", 4) {
		if i < 3 && strings.Contains(line, plan.Marker) {
			return true
		}
	}
	return false
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
