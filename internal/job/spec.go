// Package job turns what Buildkite says about a job into data: a Spec, from which guard
// makes the job's container, or a Refusal, which names what the pipeline must change. A Spec can
// express only what a job may have. Pure: no file, clock, environment or log.
package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Kind says what a job runs.
type Kind string

// The kinds of jobs.
const (
	KindPlugin Kind = "plugin" // a container that the docker plugin describes
	KindNode   Kind = "node"   // a command in the node's own image, for a step without plugin
	KindUpload Kind = "upload" // buildkite-agent pipeline upload, done by kbnode with a file of the checkout
)

// The ways to get an image.
const (
	PullMissing = "missing"
	PullAlways  = "always"
)

// The networks of a container. NetworkBridge is the slot's own.
const (
	NetworkBridge = "bridge"
	NetworkNone   = "none"
)

// The checkouts of a job.
const (
	CheckoutNone   = "none"   // an empty directory
	CheckoutMirror = "mirror" // the files of a commit, from the node's mirror of the repository
)

// Spec is a job as data. What it does not have, such as GPUs, CPUs, capabilities and labels, the
// slot decides. The zero value of an optional field leaves it to the image or the slot.
type Spec struct {
	Kind    Kind   `json:"kind"`
	JobID   string `json:"job_id"`
	BuildID string `json:"build_id"` // "" if Buildkite sent none

	Image string `json:"image"` // "" for the node's own
	Pull  string `json:"pull"`
	// Entrypoint replaces the image's, and its command too. nil keeps both, "" is none.
	Entrypoint *string  `json:"entrypoint"`
	Command    []string `json:"command"` // empty means the image's
	Workdir    string   `json:"workdir"` // "" means the image's
	Env        []Var    `json:"env"`     // each name once

	Mounts  []Mount  `json:"mounts"`
	Tmpfs   []Tmpfs  `json:"tmpfs"`
	Memory  int64    `json:"memory"`   // bytes
	ShmSize int64    `json:"shm_size"` // bytes
	Ulimits []Ulimit `json:"ulimits"`

	User     string   `json:"user"`      // user or user:group, by name or number
	SlotUser bool     `json:"slot_user"` // runs as the slot's own user; User is "" then
	Groups   []string `json:"groups"`    // by name or number
	DropCaps []string `json:"drop_caps"` // names without CAP_, or ALL
	Profile  string   `json:"profile"`   // config.ProfileStrict or ProfileCompatible; the node's may be stricter

	Init         bool   `json:"init"`
	TTY          bool   `json:"tty"`
	Interactive  bool   `json:"interactive"` // its standard input is open, and empty
	Network      string `json:"network"`
	AgentProgram bool   `json:"agent_program"` // has buildkite-agent, without a token

	Checkout Checkout `json:"checkout"`
	// PipelineFile is what KindUpload uploads, below the checkout; "" means the agent's usual places.
	PipelineFile string   `json:"pipeline_file"`
	Artifacts    []string `json:"artifacts"` // patterns of paths below the checkout
	Redact       []string `json:"redact"`    // patterns of names of variables whose values the log hides
}

// Var is a variable of the container's environment.
type Var struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Mount is a directory or file of the checkout in the container.
type Mount struct {
	// Source is a clean path below the checkout, and "." is the checkout. "" is an empty directory
	// that ends with the job.
	Source   string `json:"source"`
	Target   string `json:"target"` // a clean absolute path
	ReadOnly bool   `json:"read_only"`
}

// Tmpfs is an empty file system in the slot's memory.
type Tmpfs struct {
	Target  string   `json:"target"`
	Options []string `json:"options"`
}

// Ulimit is a limit of the container's processes; -1 means none.
type Ulimit struct {
	Name string `json:"name"`
	Soft int64  `json:"soft"`
	Hard int64  `json:"hard"`
}

// Checkout says what is in the job's directory at first.
type Checkout struct {
	Mode       string `json:"mode"`
	Repository string `json:"repository"` // an https URL without user; "" without a mirror
	Commit     string `json:"commit"`     // lower-case hex, or HEAD, which is the branch's last
	Branch     string `json:"branch"`     // "" only if Commit is not HEAD
}

// Override gives the job's container variables of the node's operator, which win over the job's own.
// Those that only the slot sets have no effect.
func (s *Spec) Override(vars []Var) error {
	for _, v := range vars {
		if reserved(v.Name) {
			continue
		}
		if i := slices.IndexFunc(s.Env, func(e Var) bool { return e.Name == v.Name }); i >= 0 {
			s.Env[i].Value = v.Value
		} else {
			s.Env = append(s.Env, v)
		}
	}
	return s.Validate()
}

// Refusal says why a job does not run and what its author can write instead. Field is the docker
// plugin's option, Buildkite's variable, or "command". More are what else the author must change.
type Refusal struct {
	Field, Text string
	More        []*Refusal
}

// Bounds on what a refusal says: how many things, and bytes of them all.
const (
	maxRefusals = 64
	maxRefused  = 8 << 10
)

// ExitRefused is the exit status of a refused step. No pipeline retries it.
const ExitRefused = 96

func (r *Refusal) Error() string { return strings.Join(r.Lines(), "; ") }

// Lines are what the author must change, one thing in each.
func (r *Refusal) Lines() []string {
	lines, size := []string{r.line()}, 0
	for i, more := range r.More {
		line := more.line()
		size += len(line)
		if size > maxRefused {
			return append(lines, fmt.Sprintf("and %d more", len(r.More)-i))
		}
		lines = append(lines, line)
	}
	return lines
}

func (r *Refusal) line() string {
	field := r.Field
	if len(field) > maxName || !printable(field) { // an option's name comes from the build
		field = fmt.Sprintf("%.100q", field)
	}
	return field + ": " + r.Text
}

func refuse(field, format string, args ...any) *Refusal {
	return &Refusal{Field: field, Text: fmt.Sprintf(format, args...)}
}

var errVersion = errors.New("the job comes from another version of kbnode than the slot; run it again")

const (
	// MaxSpec bounds a Spec, in bytes of JSON.
	MaxSpec = 16 << 20
	// MaxPipeline bounds the file of a pipeline that is uploaded, in bytes.
	MaxPipeline = 1 << 20
)

// Parse reads what Marshal wrote, for a reader that does not trust the writer. Any other form of the
// same Spec, such as one with a field twice, is no *Refusal but an error: another version of kbnode wrote it.
func Parse(text []byte) (*Spec, error) {
	var s Spec
	if len(text) > MaxSpec {
		return nil, refuse("spec", "it has more than %d bytes; send a smaller one", MaxSpec)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("%w: %w", errVersion, err)
	}
	if again, err := s.Marshal(); err != nil || !bytes.Equal(again, text) {
		return nil, errVersion
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return &s, nil
}

// Marshal returns the one JSON text of a Spec.
func (s *Spec) Marshal() ([]byte, error) { return json.Marshal(s) }
