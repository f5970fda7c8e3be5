// Package slot knows what a slot is now: its policy, its units and the job they run, whether its
// agent has registered with Buildkite, why it takes no jobs, and its state in one word.
package slot

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// RegisterTime is how long an agent has to register with Buildkite after its start.
const RegisterTime = 2 * time.Minute

// State is one slot: its units, its limits and what it runs.
type State struct {
	Index      int      `json:"index"`
	Name       string   `json:"name"`
	Agent      Unit     `json:"agent"`
	Socket     Unit     `json:"socket"` // on which it takes jobs
	Slice      Slice    `json:"slice"`
	Job        *Job     `json:"job,omitempty"`
	Containers []string `json:"containers,omitempty"` // running below the slice
	Registered bool     `json:"registered,omitempty"` // the agent that runs now, with Buildkite
	Parked     []Parked `json:"parked,omitempty"`     // why it takes no jobs, oldest reason first

	// Implausible is how many jobs since the boot had times that cannot be.
	Implausible int `json:"-"`
	// CutOff is why its agent cannot reach its socket; "" if it can.
	CutOff string `json:"-"`
}

// Slice is the kernel's state of a slice.
type Slice struct {
	Unit   string `json:"unit"`
	Slot   int    `json:"slot"` // -1 for the slice above all slots
	Cgroup string `json:"cgroup,omitempty"`
	// Files maps files of the cgroup to their contents, without the newline. A file that
	// the kernel does not have is absent.
	Files map[string]string `json:"files"`
	// Devices is the device policy that was last set on the running slice: the policy,
	// then sorted lines. The kernel's own copy is a program that cannot be read back.
	Devices []string `json:"devices"`
}

// ReadRunDir adds whether the slot's agent has registered, and why it takes no jobs. The units must be
// known. No job can make it wait.
func (s State) ReadRunDir(root string) State {
	parked, err := ReadParked(filepath.Join(root, plan.RunDir(s.Index)))
	if err != nil { // it takes no job either
		parked = []Parked{{Reason: err.Error()}}
	}
	s.Parked = parked
	s.Implausible = implausible(filepath.Join(root, plan.RunDir(s.Index)))
	_, err = os.Lstat(filepath.Join(root, RegisteredMarker(s.Index)))
	s.Registered = s.Agent.Active == "active" && err == nil
	return s
}

// ReadProcesses adds what the slot runs. The units must be known. A job can make this hang. On an error,
// what the slot runs is unknown.
func (s State) ReadProcesses(root string) (_ State, err error) {
	if s.Agent.Cgroup != "" {
		if s.Job, err = CurrentJob(root, s.Agent.Cgroup, s.Agent.MainPID); err != nil {
			return s, err
		}
	}
	if s.Slice.Cgroup != "" {
		if s.Containers, err = Containers(root, s.Slice.Cgroup); err != nil {
			return s, err
		}
	}
	return s, nil
}

// Files without content in a slot's run directory, which say how far its agent came. Each agent begins with none.
const (
	RegisteredName = "registered" // Buildkite accepted the agent
	WorkedName     = "worked"     // it was given a job
)

// RegisteredMarker returns the file that a slot's agent has if it has registered with Buildkite.
func RegisteredMarker(k int) string { return filepath.Join(plan.RunDir(k), RegisteredName) }

// IdleFile, in the slot's run directory, records how much memory its GPU has in use when it is most idle,
// and GPUSlack is how much more is idle still, in bytes: drivers keep a little after the first use.
const (
	IdleFile = "gpu-idle.json"
	GPUSlack = 64 << 20
)

// implausibleName is the file in a slot's run directory with the number of jobs whose times cannot be.
const implausibleName = "implausible"

// maxCount bounds that file, in bytes.
const maxCount = 32

// CountImplausible counts one more of these jobs. Only one process may call it.
func CountImplausible(runDir string) error {
	name := filepath.Join(runDir, implausibleName)
	text := strconv.Itoa(implausible(runDir)+1) + "\n"
	err := os.WriteFile(name+".new", []byte(text), 0o644) //nolint:gosec // status reads it
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		return fmt.Errorf("count an implausible job: %w", err)
	}
	return nil
}

func implausible(runDir string) int {
	text, err := limit.ReadFile(filepath.Join(runDir, implausibleName), maxCount)
	n, cerr := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || cerr != nil { // none yet
		return 0
	}
	return max(n, 0)
}

// Busy returns what a slot is busy with, as in "waits for …"; "" if it is idle.
func (s State) Busy() string {
	switch {
	case s.Job != nil:
		return fmt.Sprintf("job %s of slot %s", s.Job.ID, s.Name)
	case len(s.Containers) > 0:
		return fmt.Sprintf("container %s of slot %s", s.Containers[0], s.Name)
	}
	return ""
}

// Away returns why a planned slot takes no jobs, whatever it runs; "" if it takes them.
func (s State) Away(p plan.Slot) string {
	switch {
	case p.Parked != "":
		return "it is parked: " + p.Parked
	case len(p.Drains) > 0:
		return "it is " + p.Drains[0].String()
	case len(s.Parked) > 0:
		return "it is parked: " + s.Parked[0].Reason
	}
	return ""
}

// Failed reports whether the agent has given up, or ends with an error again and again.
func (s State) Failed() bool { return s.Agent.Active == "failed" || s.Agent.Failing() }

// Disconnected returns why an agent that should wait for jobs does not; "" if it does, or
// need not.
func (s State) Disconnected(p plan.Slot, now time.Time) string {
	unit := plan.AgentUnit(s.Index)
	switch {
	case !p.Serves() || s.Job != nil || s.Agent.Stopping():
		return ""
	case s.Failed():
		return fmt.Sprintf("its agent keeps failing; sudo journalctl -u %s shows why", unit)
	case !s.Agent.Running() || now.Sub(s.Agent.Since).Abs() < RegisterTime || s.Registered: // less than 0: the clock was set back
		return ""
	case len(s.Parked) > 0:
		return "" // it waits, and reports why
	case s.Agent.Preparing():
		return fmt.Sprintf("its agent waits for the slot to be cleared; sudo kbnode logs %s shows why", s.Name)
	}
	return fmt.Sprintf("its agent runs but has not registered; sudo journalctl -u %s shows why", unit)
}

// Words are all results of Word.
var Words = []string{"idle", "busy", "draining", "drained", "parked", "starting", "stopping", "failed", "down"}

// Word returns the state of a planned slot in one word.
func (s State) Word(p plan.Slot) string {
	parked := len(s.Parked) > 0
	switch {
	case s.Job != nil && (parked || len(p.Drains) > 0 || s.Agent.Stopping()):
		return "draining"
	case s.Job != nil:
		return "busy"
	case parked || p.Parked != "":
		return "parked"
	case s.Failed():
		return "failed"
	case s.Agent.Stopping():
		return "stopping"
	case len(p.Drains) > 0 && !s.Agent.Running():
		return "drained"
	case s.Agent.Active == "active":
		return "idle"
	case s.Agent.Running():
		return "starting"
	default:
		return "down"
	}
}

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

// Unit is a systemd unit as the manager reports it.
type Unit struct {
	Name       string    `json:"name"`
	Load       string    `json:"load"`           // "loaded", "not-found", "masked", …
	Active     string    `json:"active"`         // "active", "activating", "deactivating", "inactive", "failed"
	Sub        string    `json:"sub"`            // "running", "auto-restart", …
	Pending    string    `json:"-"`              // "start", "stop", "restart", …: what systemd was asked for and has not done
	Enabled    bool      `json:"enabled"`        // linked from a target in /etc
	Since      time.Time `json:"since,omitzero"` // when its state last changed
	MainPID    int       `json:"main_pid,omitempty"`
	ControlPID int       `json:"-"`                    // of the program of ExecStartPre= that runs
	Started    time.Time `json:"-"`                    // when its main process was; a busy systemd says later that it is active
	Restarts   int       `json:"restarts,omitempty"`   // by Restart=, since it was started
	Skipped    bool      `json:"skipped,omitempty"`    // its last start was, because a condition of the unit did not hold
	Result     string    `json:"result,omitempty"`     // "success", "exit-code", … of a service
	ExitStatus int       `json:"exit_status"`          // of the last main process
	Cgroup     string    `json:"cgroup,omitempty"`     // below /sys/fs/cgroup
	NeedReload bool      `json:"need_reload"`          // the unit file on disk is newer
	Generation string    `json:"generation,omitempty"` // KBNODE_GENERATION of the main process, or that of ExecStartPre=
}

// Exists reports whether systemd knows a file for the unit.
func (u Unit) Exists() bool { return u.Load != "" && u.Load != "not-found" }

// Running reports whether the unit is up, or on its way up or down.
func (u Unit) Running() bool {
	return u.Active == "active" || u.Active == "activating" || u.Active == "deactivating" || u.Active == "reloading"
}

// Failing reports whether the unit's process ended with an error and is about to be
// started again. An agent that ends after its job is not failing.
func (u Unit) Failing() bool {
	return u.Result != "success" && (u.Sub == "auto-restart" || u.Sub == "auto-restart-queued" || u.Sub == "stop-post")
}

// Preparing reports whether the programs of ExecStartPre= run: an agent's slot is cleared, or is parked.
func (u Unit) Preparing() bool { return u.Active == "activating" && u.Sub == "start-pre" }

// Stopping reports whether the unit was asked to stop and has not stopped yet.
func (u Unit) Stopping() bool { return u.Active == "deactivating" && !u.Clearing() }

// Clearing reports whether the programs of ExecStopPost= run after the unit's process has ended by itself, as after each job of
// an agent: what the job left is removed, and the agent starts again.
func (u Unit) Clearing() bool {
	return u.Active == "deactivating" && u.Sub == "stop-post" && u.Pending != "stop"
}

// LookupUser returns the IDs of a user that kbnode makes.
func LookupUser(name string) (uid, gid int, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, fmt.Errorf("look up user %s: %w; run kbnode reconcile", name, err)
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	if err := errors.Join(err1, err2); err != nil {
		return 0, 0, fmt.Errorf("look up user %s: %w", name, err)
	}
	return uid, gid, nil
}
