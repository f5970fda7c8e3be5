// Package task reads a kernelbot problem: a directory with a task.yml and the
// files that it names. From a problem and a submission it makes the same payload
// as kernelbot's build_task_config, key for key and in the same order.
package task

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/std/yamlfile"
)

// FileName is the file that describes a problem, in the problem's directory.
const FileName = "task.yml"

// Submission is the source that marks a file as the submission.
const Submission = "@SUBMISSION@"

// Languages of a problem.
const (
	Python = "py"
	CUDA   = "cu"
)

// Modes are what a payload can ask for.
var Modes = []string{"test", "benchmark", "leaderboard", "private", "profile"}

// kernelbotModes are the names that kernelbot's commands have for modes, where they are others.
var kernelbotModes = map[string]string{"ranked": "leaderboard"}

// Task is a problem. Its texts are as in the files: escape control characters
// before you show them.
type Task struct {
	Dir        string            // of task.yml
	Root       fs.FS             // has Dir; nil for the files of this machine
	Lang       string            // Python or CUDA
	Templates  map[string]string // starting points for a submission, by language: CUDA, Python, Triton, HIP, CuteDSL
	Tests      int               // how many there are
	Benchmarks int
	RankingBy  string // last, mean or geom
	MultiGPU   bool
	GPUs       []string // kinds of GPU that the problem is for; empty if not given
	Submission string   // the name of the submission's file
	Arch       string   // cu: for nvcc if no GPU is given; "" if not given

	// How long one evaluation of a kind may take.
	TestTimeout, BenchmarkTimeout, RankedTimeout time.Duration

	files    []file
	config   payload.Object // the language's part of a payload, without the files
	common   payload.Object // the rest, without arch and mode
	compiled []string       // cu: names of the files that are compiled
}

type file struct {
	name, text string
	submission bool
}

// ReadFS reads the problem in a directory of files that are not on this machine.
func ReadFS(files fs.FS, dir string) (*Task, error) {
	return load(&Task{Dir: dir, Root: files}, path.Join(dir, FileName))
}

func load(t *Task, name string) (*Task, error) {
	t.RankingBy = "last"
	text, err := t.readFile(name, maxYAML)
	if err != nil {
		return nil, fmt.Errorf("%s %w", name, err)
	}
	d := &definition{Faults: yamlfile.Faults{File: name}, t: t}
	if root := d.parse(text); root != nil {
		d.read(root)
	}
	if err := d.Err(shownMost); err != nil {
		return nil, err
	}
	return d.t, nil
}

// Config returns the payload's JSON text for a submission. arch is the GPU's
// architecture as nvcc names it, without sm_ (90a); "" becomes null, as for GPUs
// of other vendors than NVIDIA.
func (t *Task) Config(submission, arch, mode string) (string, error) {
	if !slices.Contains(Modes, mode) {
		return "", fmt.Errorf("%s is not a mode; write %s", quote(mode), cmp.Or(kernelbotModes[mode], nearest(mode, Modes), strings.Join(Modes, ", ")))
	}
	o, err := t.object(submission, arch, mode)
	if err != nil {
		return "", err
	}
	return encode(o)
}

// Comparison returns the payload's JSON text for a job that compares two submissions in rounds.
func (t *Task) Comparison(both [2]string, arch string, rounds int) (string, error) {
	if t.Benchmarks == 0 {
		return "", fmt.Errorf("%s has no benchmarks, by which submissions are compared; write one there", filepath.Join(t.Dir, FileName))
	}
	o, err := t.object(both[0], arch, result.ModeCompare)
	if err == nil && !utf8.ValidString(both[1]) {
		err = errNotUTF8
	}
	if err != nil {
		return "", err
	}
	other := &payload.Object{}
	for _, f := range t.files {
		if f.submission {
			other.Set(f.name, both[1])
		}
	}
	o.Set("rounds", payload.Int(strconv.Itoa(rounds)))
	o.Set("other_sources", other)
	return encode(o)
}

var errNotUTF8 = errors.New("the submission is not UTF-8; save it as UTF-8")

// object returns the payload for a submission.
func (t *Task) object(submission, arch, mode string) (*payload.Object, error) {
	switch {
	case !utf8.ValidString(submission):
		return nil, errNotUTF8
	case t.Benchmarks == 0 && t.RankingBy == "last" && mode != "test" && mode != "profile":
		return nil, fmt.Errorf("%s has no benchmarks, which mode %s needs; write one there, or use mode test", filepath.Join(t.Dir, FileName), mode)
	}
	sources, headers := &payload.Object{}, &payload.Object{}
	for _, f := range t.files {
		to := sources
		if t.Lang == CUDA && !slices.Contains(t.compiled, f.name) {
			to = headers
		}
		if f.submission {
			f.text = submission
		}
		to.Set(f.name, f.text)
	}
	o := &payload.Object{}
	if t.Lang == CUDA {
		o.Set("sources", sources)
		o.Set("headers", headers)
	}
	for k, v := range t.config.All() {
		o.Set(k, v)
	}
	if t.Lang == Python {
		o.Set("sources", sources)
	}
	o.Set("lang", t.Lang)
	o.Set("arch", nil)
	if arch != "" {
		o.Set("arch", arch)
	}
	for k, v := range t.common.All() {
		o.Set(k, v)
		if k == "tests" {
			o.Set("mode", mode)
		}
	}
	return o, nil
}

func encode(o *payload.Object) (string, error) {
	doc := payload.JSON(o)
	if len(doc) > maxText {
		return "", fmt.Errorf("the payload is %d bytes of JSON and may have %d; send a smaller submission", len(doc), maxText)
	}
	return doc, nil
}

// Definition returns the problem as JSON text in the form that kernelbot stores with a
// leaderboard: its files by name, with the constant Submission in place of the submission.
func (t *Task) Definition() string {
	files, config := &payload.Object{}, &payload.Object{}
	for _, f := range t.files {
		if f.submission {
			f.text = Submission
		}
		files.Set(f.name, f.text)
	}
	if t.Lang == CUDA {
		var sources []payload.Value
		for _, name := range t.compiled {
			sources = append(sources, name)
		}
		config.Set("sources", sources)
	}
	for k, v := range t.config.All() {
		config.Set(k, v)
	}
	o := &payload.Object{}
	o.Set("lang", t.Lang)
	o.Set("files", files)
	o.Set("config", config)
	o.Set("libraries", []payload.Value{})
	for k, v := range t.common.All() {
		o.Set(k, v)
	}
	return payload.JSON(o)
}
