// Package pipeline writes the steps that kbnode's nodes run, in Buildkite's format: YAML for a
// pipeline's configuration, and JSON for a request that creates a build. It is pure.
package pipeline

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/text"
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

// DefaultTimeout is how long a job may take by default, in minutes.
const DefaultTimeout = 15

// maxTimeout bounds Options.Timeout in minutes: a week.
const maxTimeout = 7 * 24 * 60

// Options are what differs between nodes. The zero value means any node with NVIDIA GPUs.
type Options struct {
	Queue   string            // "" means QueueVariable
	Image   string            // "" means ImageVariable
	Agents  map[string]string // additional tags that an agent must have, such as gpu-index
	Timeout int               // minutes; 0 means DefaultTimeout
	AMD     bool              // the GPUs are AMD's, or there are none
	Profile string            // of the container, config.ProfileStrict or ProfileCompatible; "" means strict for evaluations
	Label   string            // of the step; "" means one that says what it does and where
}

// Pipeline is a pipeline's configuration. Buildkite also accepts it as JSON.
type Pipeline struct {
	Steps []Step `json:"steps" yaml:"steps"`
	kind  string
}

// Step is a command step:
// https://buildkite.com/docs/pipelines/configure/step-types/command-step.
// Strings have $$ where the command sees a dollar sign.
type Step struct {
	Label         string            `json:"label" yaml:"label"`
	Command       string            `json:"command" yaml:"command"`
	Agents        map[string]string `json:"agents" yaml:"agents"`
	Plugins       []Plugin          `json:"plugins,omitempty" yaml:"plugins,omitempty"`
	ArtifactPaths []string          `json:"artifact_paths,omitempty" yaml:"artifact_paths,omitempty"`
	Timeout       int               `json:"timeout_in_minutes" yaml:"timeout_in_minutes"`
	Retry         Retry             `json:"retry" yaml:"retry"`
}

// Plugin maps the docker plugin's name and version to its options.
type Plugin map[string]Docker

// Docker holds the options of the docker plugin that the steps use.
type Docker struct {
	Image                string   `json:"image" yaml:"image"`
	GPUs                 string   `json:"gpus,omitempty" yaml:"gpus,omitempty"`
	Init                 *bool    `json:"init,omitempty" yaml:"init,omitempty"`
	Environment          []string `json:"environment,omitempty" yaml:"environment,omitempty"`
	PropagateEnvironment bool     `json:"propagate-environment" yaml:"propagate-environment"`
}

// Retry says which jobs Buildkite retries automatically.
type Retry struct {
	Automatic []Rule `json:"automatic" yaml:"automatic"`
}

// Rule matches jobs that failed with one of the exit statuses and for the reason:
// https://buildkite.com/docs/pipelines/configure/retry.
type Rule struct {
	ExitStatus   []int  `json:"exit_status,omitempty" yaml:"exit_status,omitempty,flow"` // empty means 1 to 255
	SignalReason string `json:"signal_reason" yaml:"signal_reason"`
	Limit        int    `json:"limit" yaml:"limit"`
}

// The forms allow no character that is special to YAML, Buildkite's interpolation or a shell,
// except in values of tags, which no shell sees.
var (
	queueForm = lazy.Regexp(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	// variableForm matches a variable of a build, such as the older launcher's GPU_QUEUE.
	variableForm = lazy.Regexp(`^\$\{[A-Z][A-Z0-9_]{0,99}(:-[A-Za-z0-9][A-Za-z0-9._-]{0,99})?\}$`)
	imageForm    = lazy.Regexp(`^[a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?(/[a-z0-9][a-z0-9._-]*)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$`)
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
	if o.Queue == "" {
		o.Queue = QueueVariable
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	st := Step{
		Label: o.Label, Agents: map[string]string{"queue": o.Queue},
		Timeout: o.Timeout, Retry: Retry{Automatic: slices.Clone(infrastructure)},
	}
	maps.Copy(st.Agents, o.Agents)
	label := fill(&st, kind, o)
	if st.Label == "" {
		st.Label = label + " on " + o.Queue
	}
	return &Pipeline{Steps: []Step{st}, kind: kind}, nil
}

func (o Options) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.Queue != "" && !queueForm().MatchString(o.Queue) && !variableForm().MatchString(o.Queue) {
		bad("%.120q is not the name of a queue; use letters, digits, '-', '_' and '.', such as b200, or a variable, such as '${GPU_QUEUE}'", o.Queue)
	}
	if o.Image != "" && (!imageForm().MatchString(o.Image) || len(o.Image) > 400) {
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
	if len(o.Label) > 200 || !utf8.ValidString(o.Label) || strings.ContainsAny(o.Label, `$\`) || !text.Plain(o.Label) {
		bad("%.120q is not a label; write printable text without '$' and '\\', 200 bytes at most", o.Label)
	}
	return errors.Join(errs...)
}
