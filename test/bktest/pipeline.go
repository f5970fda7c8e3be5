package bktest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/buildkite/go-pipeline"
	"gopkg.in/yaml.v3"
)

// maxSteps bounds the command steps of one build.
const maxSteps = 500

// step is one command step: what the library parses, and the keys that it only keeps.
type step struct {
	*pipeline.CommandStep
	fields
}

type fields struct {
	Agents        rules  `yaml:"agents"`
	Timeout       number `yaml:"timeout_in_minutes"` // 0 is none
	Priority      int    `yaml:"priority"`           // Buildkite refuses a text
	ArtifactPaths list   `yaml:"artifact_paths"`
	Retry         struct {
		Automatic retryRules `yaml:"automatic"`
		Manual    any        `yaml:"manual"`
	} `yaml:"retry"`

	// They do not affect where and how the command runs.
	Type     any `yaml:"type"`
	Notify   any `yaml:"notify"`
	Branches any `yaml:"branches"`
}

// number is a whole number, which a variable makes a text.
type number int

func (i *number) UnmarshalYAML(n *yaml.Node) (err error) {
	*(*int)(i), err = strconv.Atoi(n.Value)
	return err
}

// list is a text or a list of texts.
type list []string

func (l *list) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.SequenceNode {
		return n.Decode((*[]string)(l))
	}
	*l = list{""}
	return n.Decode(&(*l)[0])
}

// rules are agent query rules, such as queue=b200, of {queue: b200} or ["queue=b200"].
type rules []string

func (r *rules) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.SequenceNode {
		return n.Decode((*[]string)(r))
	}
	var tags map[string]string
	err := n.Decode(&tags)
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		*r = append(*r, k+"="+tags[k])
	}
	return err
}

// retryRule is one entry of retry.automatic.
type retryRule struct {
	Status list   `yaml:"exit_status"`   // "*" matches all
	Signal string `yaml:"signal_reason"` // "*" matches all
	Limit  int    `yaml:"limit"`
}

// retryRules are true, a rule, or a list of rules.
type retryRules []retryRule

func (r *retryRules) UnmarshalYAML(n *yaml.Node) error {
	nodes := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		nodes = n.Content
	}
	for _, n := range nodes {
		rule := retryRule{Status: list{"*"}, Signal: "*", Limit: 2}
		if n.Kind == yaml.ScalarNode {
			var retries bool
			if err := n.Decode(&retries); err != nil || !retries {
				return err
			}
		} else if err := n.Decode(&rule); err != nil {
			return err
		}
		if !slices.Contains(signalReasons, rule.Signal) {
			return fmt.Errorf("signal_reason %q: write one of %s", rule.Signal, strings.Join(signalReasons, ", "))
		}
		*r = append(*r, rule)
	}
	return nil
}

// agentLost is the signal reason of a job whose agent went silent. Rules do not treat it as
// a reason:
// https://buildkite.com/changelog/193-signal-and-signal-reason-in-automatic-retry-rules.
const agentLost = "agent_lost"

// signalReasons are the reasons that rules may name:
// https://buildkite.com/docs/pipelines/configure/retry.
var signalReasons = []string{"*", "none", "cancel", "agent_stop", "agent_refused", "agent_incompatible", "process_run_error", "signature_rejected", "stack_error"}

func (r retryRule) match(status, reason string) bool {
	if r.Signal == "none" && reason != "" && reason != agentLost || !slices.Contains([]string{"*", "none", reason}, r.Signal) {
		return false
	}
	return slices.Contains(r.Status, "*") || slices.Contains(r.Status, status)
}

// environ is the environment that an upload interpolates with.
type environ map[string]string

func (e environ) Get(name string) (string, bool) { v, ok := e[name]; return v, ok }
func (e environ) Set(name, value string)         { e[name] = value }

// parsePipeline parses a pipeline, which is YAML or a value for JSON, and interpolates it; the
// environment wins over the document's own.
// It returns the steps and the document's own environment.
func parsePipeline(doc any, env map[string]string) ([]step, map[string]string, error) {
	text, ok := doc.(string)
	if !ok {
		encoded, err := json.Marshal(doc)
		if err != nil {
			return nil, nil, fmt.Errorf("parse pipeline: %w", err)
		}
		text = string(encoded)
	}
	if strings.TrimSpace(text) == "" {
		return nil, nil, errors.New("the pipeline has no steps")
	}
	p, err := pipeline.Parse(strings.NewReader(text))
	if err == nil {
		err = p.Interpolate(environ(maps.Clone(env)), true)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("parse pipeline: %w", err)
	}
	var top struct{ Agents rules }
	if err := decode(map[string]any{"agents": p.RemainingFields["agents"]}, &top); err != nil {
		return nil, nil, fmt.Errorf("agents: %w", err)
	}
	if n := len(p.Steps); n == 0 || n > maxSteps {
		return nil, nil, fmt.Errorf("the pipeline has %d steps; write 1 to %d", n, maxSteps)
	}
	steps := make([]step, len(p.Steps))
	for i, s := range p.Steps {
		if steps[i], err = parseStep(s, top.Agents); err != nil {
			return nil, nil, fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return steps, maps.Collect(p.Env.All), nil
}

func parseStep(s pipeline.Step, agents rules) (step, error) {
	command, ok := s.(*pipeline.CommandStep)
	if !ok || command.Matrix != nil {
		text, _ := json.Marshal(s) // it was parsed
		return step{}, fmt.Errorf("%s: only command steps without a matrix run here; remove it", text)
	}
	st := step{CommandStep: command}
	if err := decode(command.RemainingFields, &st.fields); err != nil {
		return st, err
	}
	if command.Command == "" && len(command.Plugins) == 0 {
		return st, errors.New("no command and no plugins")
	}
	if len(st.Agents) == 0 {
		st.Agents = slices.Clone(agents)
	}
	if !slices.ContainsFunc(st.Agents, func(r string) bool { return strings.HasPrefix(r, "queue=") }) {
		st.Agents = append(st.Agents, "queue=default")
	}
	return st, nil
}

// decode decodes what the library keeps of a document, and refuses unknown keys.
func decode(doc map[string]any, into any) error {
	text, err := yaml.Marshal(doc)
	if err != nil {
		return err
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	return dec.Decode(into)
}

// matches reports whether an agent with these tags may run a job with these rules. The
// value * matches any; an agent without a queue is in queue default.
func matches(rules, tags []string) bool {
	if !slices.ContainsFunc(tags, func(t string) bool { return strings.HasPrefix(t, "queue=") }) {
		tags = append(slices.Clone(tags), "queue=default")
	}
	for _, rule := range rules {
		key, want, _ := strings.Cut(rule, "=")
		if !slices.ContainsFunc(tags, func(t string) bool {
			k, have, _ := strings.Cut(t, "=")
			return k == key && (have == want || want == "*")
		}) {
			return false
		}
	}
	return true
}
