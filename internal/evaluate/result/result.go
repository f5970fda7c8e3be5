// Package result is result.json: its types, its reader, and what people see of it. A result
// comes from a job, so its texts may be anyone's.
package result

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// The names of the files that a node delivers of a job.
const (
	File     = "result.json" // holds the Result
	NodeFile = "node.json"   // the noise record, beside File
)

// Cancelled begins the error of a job that was told to stop.
const Cancelled = "the job was cancelled before its end"

// IsOwnName reports whether a file with this name could be taken for File or NodeFile. kernelbot's launchers
// find an artifact by its name, whatever its directory, and the agent's download takes \ for a separator.
func IsOwnName(name string) bool {
	name = name[strings.LastIndexByte(name, '\\')+1:]
	return strings.EqualFold(name, File) || strings.EqualFold(name, NodeFile)
}

// Bounds on what a runner writes.
const (
	MaxText  = 16384   // characters of stdout and of stderr
	MaxNames = 1 << 16 // that the task's program reports in one run
)

// Exit codes of the task's program with a meaning.
const (
	ExitWrong   = 112 // the submission's results are wrong
	ExitTimeout = 114 // the program exceeded its time limit
)

// Result is the content of result.json; docs/results.md describes every field. Do not
// add fields to System, Evaluation, Compilation, Run or Profile: consumers refuse keys
// they do not know.
type Result struct {
	Success bool               `json:"success"`
	Error   string             `json:"error"`
	System  *System            `json:"system"`
	Runs    Pairs[*Evaluation] `json:"runs"`
}

// System describes the machine as the job saw it.
type System struct {
	GPU         string `json:"gpu"`
	DeviceCount int    `json:"device_count"`
	CPU         string `json:"cpu"`
	Runtime     string `json:"runtime"` // CUDA, ROCm or empty
	Platform    string `json:"platform"`
	Torch       string `json:"torch"`
	Hostname    string `json:"hostname"`
}

// Evaluation is one run of the task's program and what preceded it.
type Evaluation struct {
	Start       Time         `json:"start"`
	End         Time         `json:"end"`
	Compilation *Compilation `json:"compilation"`
	Run         *Run         `json:"run"`
	Profile     *Profile     `json:"profile"`
}

// Compilation reports a compiler's run, or a pre-run that compiled something.
type Compilation struct {
	NvccFound   bool   `json:"nvcc_found"`
	NvccVersion string `json:"nvcc_version"`
	Success     bool   `json:"success"`
	Command     string `json:"command"`
	Stdout      string `json:"stdout"`
	Stderr      string `json:"stderr"`
	ExitCode    int    `json:"exit_code"`
}

// Run reports the run of the task's program. Success means that it ended in a way that
// the protocol knows, Passed that the task found the submission correct.
type Run struct {
	Success  bool          `json:"success"`
	Passed   bool          `json:"passed"`
	Command  string        `json:"command"`
	Stdout   string        `json:"stdout"`
	Stderr   string        `json:"stderr"`
	ExitCode int           `json:"exit_code"`
	Duration json.Number   `json:"duration"` // seconds
	Result   Pairs[string] `json:"result"`
}

// Profile is a profiler's output.
type Profile struct {
	Profiler    string  `json:"profiler"`
	Trace       string  `json:"trace"` // base64 of a zip archive
	DownloadURL *string `json:"download_url"`
}

// Pair is one member of a Pairs.
type Pair[T any] struct {
	Key   string
	Value T
}

// Pairs is a JSON object whose members keep their order.
type Pairs[T any] []Pair[T]

// MarshalJSON writes the members in order; nil is an empty object.
func (p Pairs[T]) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		for _, v := range []any{m.Key, m.Value} {
			text, err := marshal(v)
			if err != nil {
				return nil, err
			}
			b.Write(text)
			b.WriteByte(':')
		}
		b.Truncate(b.Len() - 1)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// index returns where a key is, -1 if it is nowhere.
func (p Pairs[T]) index(key string) int {
	return slices.IndexFunc(p, func(m Pair[T]) bool { return m.Key == key })
}

// Get returns the value of a key, or the zero value.
func (p Pairs[T]) Get(key string) (v T) {
	if i := p.index(key); i >= 0 {
		return p[i].Value
	}
	return v
}

// Has reports whether p has a key.
func (p Pairs[T]) Has(key string) bool { return p.index(key) >= 0 }

// Set sets the value of a key, which may be new.
func (p *Pairs[T]) Set(key string, v T) {
	if i := p.index(key); i >= 0 {
		(*p)[i].Value = v
	} else {
		*p = append(*p, Pair[T]{key, v})
	}
}

// Time is a time that is written like Python's naive datetime.isoformat: without a zone. One
// that was read without a zone is in UTC, which most containers use.
type Time time.Time

// MarshalJSON writes the fraction with six digits, or none when it is zero.
func (t Time) MarshalJSON() ([]byte, error) {
	layout := "2006-01-02T15:04:05.000000"
	if time.Time(t).Nanosecond()/1000 == 0 {
		layout = "2006-01-02T15:04:05"
	}
	return json.Marshal(time.Time(t).Format(layout))
}

// MarshalJSON writes a nil System as an empty object.
func (r *Result) MarshalJSON() ([]byte, error) {
	type plain Result
	if r.System != nil {
		return marshal((*plain)(r))
	}
	return marshal(struct {
		*plain
		System struct{} `json:"system"`
	}{plain: (*plain)(r)})
}

// Encode returns the content of result.json.
func (r *Result) Encode() ([]byte, error) {
	text, err := marshal(r)
	return append(text, '\n'), err
}

// marshal is json.Marshal without escapes for HTML.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
