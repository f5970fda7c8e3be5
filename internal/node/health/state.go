package health

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// stateSchema is the version of State's JSON. A State with another version is dropped.
const stateSchema = 1

const (
	maxMarks = 512     // far more than eight GPUs can have
	maxGPUs  = 64      //
	maxLines = 32      // lines of the kernel's log remembered per GPU
	maxState = 1 << 20 // bytes of JSON
	maxText  = 300     // characters of text from the kernel or a driver
	jobGrace = 2 * time.Minute
)

// State is what Judge remembers. The zero value is an empty memory.
type State struct {
	Schema int `json:"schema"`
	Moment
	// Age is how long the node has run, in all boots since the State began. It ages the faults: no
	// clock that jumps makes them older.
	Age   time.Duration `json:"age,omitempty"`
	Next  uint64        `json:"next"` // sequence number of the kernel's first line not yet judged
	Marks []Mark        `json:"marks,omitempty"`
	GPUs  []gpu         `json:"gpus,omitempty"`
	Jobs  []ran         `json:"jobs,omitempty"`
}

// Mark is a problem, or a suspected one.
type Mark struct {
	key
	Level  Level     `json:"level"`
	Effect Effect    `json:"effect"`
	Reason string    `json:"reason"`
	Fix    string    `json:"fix"`
	Since  time.Time `json:"since"`
	// First and Last are when it was seen, by Moment.Up. Once seen for After, it becomes
	// a verdict (Shown). Once not seen for Quiet, it is over.
	First time.Duration `json:"first"`
	Last  time.Duration `json:"last"`
	After time.Duration `json:"after,omitempty"`
	Quiet time.Duration `json:"quiet,omitempty"`
	Shown bool          `json:"shown,omitempty"`
	// Latched marks come from the kernel's log, which reports once. They end when the GPU
	// is reset, when the node boots, or after Quiet unless that is 0.
	Latched bool `json:"latched,omitempty"`
}

type key struct {
	Check  string `json:"check"`
	GPU    string `json:"gpu,omitempty"`
	Slot   int    `json:"slot"` // -1 if it is about a GPU or the node
	Detail string `json:"detail,omitempty"`
}

// gpu is what Judge remembers about a GPU.
type gpu struct {
	ID       string        `json:"id"` // UUID, or PCI address if the UUID is unknown
	PCI      string        `json:"pci,omitempty"`
	Vendor   string        `json:"vendor,omitempty"`
	Reset    time.Duration `json:"reset,omitempty"`    // when its reset was seen, by Moment.Up
	Released time.Duration `json:"released,omitempty"` // when it answered after Reset
	Away     bool          `json:"away,omitempty"`     // seen lost, missing or in need of a reset
	Links    int           `json:"links,omitempty"`    // most NVLinks ever seen up
	Replays  *int          `json:"replays,omitempty"`
	Energy   *uint64       `json:"energy,omitempty"` // at the last reading with persistence on
	Read     time.Duration `json:"read,omitempty"`   // when Replays was read
	RAS      uint64        `json:"ras,omitempty"`    // uncorrected errors at the last reset
	Recent   []line        `json:"recent,omitempty"` // what recently produced an event
	// Returned is when an operator returned it, by Moment.Up, as far as that was followed: the daemon judges by one report
	// until it is answered.
	Returned time.Duration `json:"returned,omitempty"`
	record
}

// record is what neither a reset nor a reboot ends.
type record struct {
	Xids      []fault       `json:"xids,omitempty"`       // of policies with a rate
	Faults    []fault       `json:"faults,omitempty"`     // in the policy's window
	Faulty    bool          `json:"faulty,omitempty"`     // the last of Faults is not over
	Out       string        `json:"out,omitempty"`        // why it stays out of service; "" if it need not
	Fault     string        `json:"fault,omitempty"`      // check of the fatal verdict that keeps jobs from it; "" if none does
	Proof     *proof        `json:"proof,omitempty"`      // what it owes since the last one ended
	RemovedAt time.Duration `json:"removed_at,omitempty"` // by State.Age, when it was first missed and no slot's; 0 if it is there
}

// union returns what two records of one GPU say.
func (r record) union(o record) record {
	both := func(a, b []fault) []fault {
		return slices.SortedFunc(slices.Values(slices.Concat(a, b)), func(x, y fault) int { return cmp.Compare(x.At, y.At) })
	}
	return record{
		Xids: both(r.Xids, o.Xids), Faults: both(r.Faults, o.Faults), Faulty: r.Faulty || o.Faulty,
		Out: cmp.Or(r.Out, o.Out), Fault: cmp.Or(r.Fault, o.Fault), Proof: cmp.Or(r.Proof, o.Proof),
	}
}

// fault is a fault of a GPU.
type fault struct {
	At   time.Duration `json:"at"` // by State.Age
	What string        `json:"what"`
}

// line is a line of the kernel's log with its job.
type line struct {
	At   time.Duration `json:"at"`
	Text string        `json:"text"`
}

// ran records when a slot was last seen with a job.
type ran struct {
	Slot int           `json:"slot"`
	Job  string        `json:"job"`
	At   time.Duration `json:"at"`
}

// ParseState parses a State from JSON. After an error, the zero State can be used: the
// kernel's log of this boot is then judged again.
func ParseState(text []byte) (State, error) {
	if len(text) > maxState {
		return State{}, fmt.Errorf("read health state: more than %d bytes", maxState)
	}
	var s State
	if err := json.Unmarshal(text, &s); err != nil {
		return State{}, fmt.Errorf("read health state: %w", err)
	}
	if s.Schema != stateSchema {
		return State{}, errors.New("read health state: it was written by another version of kbnode")
	}
	// Another version may judge what this one has no check for.
	s.Marks = slices.DeleteFunc(s.Marks, func(m Mark) bool { return !slices.Contains(Checks, m.Check) })
	return s, nil
}

// clone returns a copy that shares nothing with s.
func (s State) clone() State {
	s.Schema = stateSchema
	s.Marks, s.Jobs, s.GPUs = slices.Clone(s.Marks), slices.Clone(s.Jobs), slices.Clone(s.GPUs)
	for i := range s.GPUs {
		g := &s.GPUs[i]
		g.Recent, g.Xids, g.Faults = slices.Clone(g.Recent), slices.Clone(g.Xids), slices.Clone(g.Faults)
		if g.Proof != nil {
			owed := *g.Proof
			owed.Passed, owed.Bad = slices.Clone(owed.Passed), slices.Clone(owed.Bad)
			g.Proof = &owed
		}
	}
	return s
}

// truncate limits the size of the State: the worst and newest marks stay, and the GPUs that are there or went last.
func (s *State) truncate() {
	if len(s.Marks) > maxMarks {
		slices.SortStableFunc(s.Marks, func(a, b Mark) int {
			return cmp.Or(cmp.Compare(b.Effect, a.Effect), cmp.Compare(b.Level, a.Level), cmp.Compare(b.Last, a.Last))
		})
		s.Marks = s.Marks[:maxMarks]
	}
	slices.SortFunc(s.Marks, func(a, b Mark) int {
		return cmp.Or(cmp.Compare(a.Check, b.Check), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Detail, b.Detail))
	})
	if len(s.GPUs) > maxGPUs {
		slices.SortStableFunc(s.GPUs, func(a, b gpu) int {
			if (a.RemovedAt == 0) != (b.RemovedAt == 0) {
				return cmp.Compare(a.RemovedAt, b.RemovedAt)
			}
			return cmp.Compare(b.RemovedAt, a.RemovedAt)
		})
		s.GPUs = s.GPUs[:maxGPUs]
	}
}
