// Package pipeline writes the steps that kbnode's nodes run, in Buildkite's format: YAML for a
// pipeline's configuration, and JSON for a request that creates a build. It is pure.
package pipeline

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Kinds of pipelines, in the order in which to present them.
const (
	Eval         = "eval"
	DockerTest   = "docker-test"
	ArtifactTest = "artifact-test"
)

// Kinds lists all kinds.
var Kinds = []string{Eval, DockerTest, ArtifactTest}

// Variables for a queue and an image that are not known. A build sets them, and Buildkite
// substitutes them when the steps are uploaded. A build need not name an image.
const (
	QueueVariable = "${KERNELBOT_QUEUE}"
	ImageVariable = "${KERNELBOT_IMAGE:-" + config.DefaultImage + "}"
)

// testTimeout is how long a test may take by default, in minutes; an evaluation has config.StepMinutes.
const testTimeout = 15

// maxTimeout bounds Options.Timeout in minutes: a week.
const maxTimeout = 7 * 24 * 60

// AdminPriority is that of verification runs, with room above and below. maxPriority bounds any, either way.
const (
	AdminPriority = 100
	maxPriority   = 1000
)

// CheckPriority returns an error if a step should not have this priority.
func CheckPriority(priority int) error {
	if priority < -maxPriority || priority > maxPriority {
		return fmt.Errorf("a priority of %d is out of range; give -%d to %[2]d", priority, maxPriority)
	}
	return nil
}

// Options are what differs between nodes. The zero value means any node with NVIDIA GPUs.
type Options struct {
	Queue   string            // "" means QueueVariable
	Image   string            // "" means ImageVariable
	Agents  map[string]string // additional tags that an agent must have, such as gpu-index
	Timeout int               // minutes; 0 means the default of the kind
	AMD     bool              // the GPUs are AMD's, or there are none
	Profile string            // of the container, config.ProfileStrict or ProfileCompatible; "" means strict for evaluations
	Label   string            // of the step; "" means one that says what it does and where
	// Priority of the job among those that wait; 0 is Buildkite's default, and higher is sooner.
	Priority int
}

// Pipeline is a pipeline's configuration. Buildkite also accepts it as JSON.
type Pipeline struct {
	Steps []any `json:"steps" yaml:"steps"`
	text  []byte
}

// YAML returns the pipeline as YAML, with a header that says what it is for.
func (p *Pipeline) YAML() []byte { return p.text }

// The forms allow no character that is special to YAML, Buildkite's interpolation or a shell,
// except in values of tags, which no shell sees.
var (
	// variableForm matches a variable of a build, such as the older launcher's GPU_QUEUE.
	variableForm = lazy.Regexp(`^\$\{[A-Z][A-Z0-9_]{0,99}(:-[A-Za-z0-9][A-Za-z0-9._-]{0,99})?\}$`)
	imageForm    = lazy.Regexp(`^([a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?|[a-z0-9][a-z0-9._-]*)(/[a-z0-9][a-z0-9._-]*)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$`)
	keyForm      = lazy.Regexp(`^[A-Za-z0-9_.-]{1,64}$`)
	valueForm    = lazy.Regexp(`^[^\s,"=$\\\pC]{1,200}$`)
)

// Build makes a pipeline of a kind. If it refuses o, its error says everything that is wrong.
func Build(kind string, o Options) (*Pipeline, error) {
	if !slices.Contains(Kinds, kind) {
		return nil, fmt.Errorf("%.60q is not a kind of pipeline; write one of %s", kind, strings.Join(Kinds, ", "))
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	o.Queue, o.Image = cmp.Or(o.Queue, QueueVariable), cmp.Or(o.Image, ImageVariable)
	label, command := "upload an artifact", artifactScript
	switch kind {
	case Eval:
		label, command, o.Profile = "evaluate", "", cmp.Or(o.Profile, config.ProfileStrict)
		o.Timeout = cmp.Or(o.Timeout, config.StepMinutes)
	case DockerTest:
		label, command = "inspect a container", dockerScript(o.AMD)
	}
	o.Timeout = cmp.Or(o.Timeout, testTimeout)
	o.Label = cmp.Or(o.Label, label+" on "+o.Queue)
	agents := map[string]string{"queue": o.Queue}
	maps.Copy(agents, o.Agents)
	o.Agents = agents
	var b bytes.Buffer
	if err := newLayout().Execute(&b, map[string]any{"Kind": kind, "About": About[kind], "Script": escape(command), "Options": o}); err != nil {
		panic(err)
	}
	p := &Pipeline{text: b.Bytes()}
	if err := yaml.Unmarshal(p.text, p); err != nil {
		panic(err)
	}
	return p, nil
}

// IsImage reports whether a text can be the name of an image, or a variable of a pipeline in its place.
func IsImage(name string) bool { return imageForm().MatchString(name) && len(name) <= 400 }

func (o Options) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.Queue != "" && !config.QueueForm().MatchString(o.Queue) && !variableForm().MatchString(o.Queue) {
		bad("%.120q is not the name of a queue; use letters, digits, '-', '_' and '.', such as b200, or a variable, such as '${GPU_QUEUE}'", o.Queue)
	}
	if o.Image != "" && !IsImage(o.Image) {
		bad("%.120q is not the name of an image; write one such as ghcr.io/gpu-mode/kernelbot:latest", o.Image)
	}
	if !slices.Contains([]string{"", config.ProfileStrict, config.ProfileCompatible}, o.Profile) {
		bad("%.60q is not a profile; write %s or %s", o.Profile, config.ProfileStrict, config.ProfileCompatible)
	}
	for _, k := range slices.Sorted(maps.Keys(o.Agents)) {
		switch v := o.Agents[k]; {
		case k == "queue":
			bad("the tag queue is already set; name the queue with --queue")
		case !keyForm().MatchString(k) || !valueForm().MatchString(v) || !utf8.ValidString(v):
			bad("%.120q is not a tag; write key=value without spaces, commas, quotes, '$' and '\\'", k+"="+v)
		}
	}
	if o.Timeout < 0 || o.Timeout > maxTimeout {
		bad("a time limit of %d minutes is out of range; give 1 to %d", o.Timeout, maxTimeout)
	}
	errs = append(errs, CheckPriority(o.Priority))
	if len(o.Label) > 200 || !utf8.ValidString(o.Label) || strings.ContainsAny(o.Label, `$\`) || !text.Plain(o.Label) {
		bad("%.120q is not a label; write printable text without '$' and '\\', 200 bytes at most", o.Label)
	}
	return errors.Join(errs...)
}
