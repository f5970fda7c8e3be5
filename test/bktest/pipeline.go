package bktest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	pipeline "github.com/buildkite/go-pipeline"
	"gopkg.in/yaml.v3"
)

// maxSteps bounds the command steps of one build.
const maxSteps = 500

// Pipeline is a pipeline as configured in Buildkite.
type Pipeline struct {
	Slug  string
	Steps string // YAML, interpolated when a build is created
	// Repo is the repository that agents check out; "" is one on the server itself, with
	// the content of Files on its branch main.
	Repo  string
	Files map[string]string // path to content; nil is a README
}

// step is one command step.
type step struct {
	label, key, command string
	rules               []string // agent query rules, such as queue=b200
	plugins             []any    // as BUILDKITE_PLUGINS has them
	env                 map[string]string
	timeout             int // minutes; 0 is none
	artifactPaths       string
	retry               []retryRule
	softFail            []string // exit statuses; "*" matches all
	priority            int
}

// retryRule is one entry of retry.automatic.
type retryRule struct {
	status []string // exit statuses; "*" matches all
	signal string   // signal_reason; "" and "*" match all
	limit  int
}

func parseYAML(text string) (any, error) {
	dec := yaml.NewDecoder(strings.NewReader(text))
	var v any
	if err := dec.Decode(&v); errors.Is(err, io.EOF) {
		return nil, nil // an empty pipeline, which parseSteps reports
	} else if err != nil {
		return nil, fmt.Errorf("parse pipeline: %w", err)
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("parse pipeline: more than one document")
	}
	return v, nil
}

// expandPipeline does what an upload does before it parses the steps: it interpolates the
// document with env and the document's own env, where env wins. It returns the document and
// its own env.
func expandPipeline(doc any, env map[string]string) (any, map[string]string, error) {
	in := &interpolator{env: maps.Clone(env)}
	own := map[string]string{}
	if top, ok := doc.(map[string]any); ok {
		declared, err := stringMap(top["env"])
		if err != nil {
			return nil, nil, fmt.Errorf("env: %w", err)
		}
		for _, k := range slices.Sorted(maps.Keys(declared)) {
			v, err := in.expand(declared[k])
			if err != nil {
				return nil, nil, fmt.Errorf("env %s: %w", k, err)
			}
			own[k] = v
		}
		for k, v := range own {
			if _, ok := in.env[k]; !ok {
				in.env[k] = v
			}
		}
	}
	v, err := in.value(doc, 0)
	return v, own, err
}

// parseSteps parses a decoded pipeline: a list of steps, or a map with steps.
func parseSteps(doc any) ([]step, error) {
	list, ok := doc.([]any)
	var rules []string
	if top, isMap := doc.(map[string]any); isMap {
		list, ok = top["steps"].([]any)
		var err error
		if rules, err = agentRules(top["agents"]); err != nil {
			return nil, fmt.Errorf("agents: %w", err)
		}
	}
	switch {
	case !ok:
		return nil, errors.New("the pipeline has no list of steps")
	case len(list) == 0:
		return nil, errors.New("the pipeline has no steps")
	case len(list) > maxSteps:
		return nil, fmt.Errorf("%d steps; at most %d", len(list), maxSteps)
	}
	steps := make([]step, len(list))
	for i, v := range list {
		st, err := parseStep(v)
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", i+1, err)
		}
		if len(st.rules) == 0 {
			st.rules = rules
		}
		if !slices.ContainsFunc(st.rules, func(r string) bool { return strings.HasPrefix(r, "queue=") }) {
			st.rules = append(slices.Clone(st.rules), "queue=default")
		}
		steps[i] = st
	}
	return steps, nil
}

func parseStep(v any) (step, error) {
	var st step
	m, ok := v.(map[string]any)
	if !ok {
		return st, fmt.Errorf("%v: only command steps run here; remove it", v)
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if err := st.set(k, m[k]); err != nil {
			return st, fmt.Errorf("%s: %w", k, err)
		}
	}
	if st.command == "" && len(st.plugins) == 0 {
		return st, errors.New("no command and no plugins")
	}
	return st, nil
}

func (st *step) set(key string, v any) (err error) {
	switch key {
	case "label", "name":
		st.label, err = scalar(v)
	case "key", "id", "identifier":
		st.key, err = scalar(v)
	case "command", "commands":
		var lines []string
		lines, err = stringList(v)
		st.command = strings.Join(lines, "\n")
	case "agents":
		st.rules, err = agentRules(v)
	case "plugins":
		st.plugins, err = pluginList(v)
	case "env":
		st.env, err = stringMap(v)
	case "timeout_in_minutes":
		st.timeout, err = number(v)
	case "priority":
		st.priority, err = number(v)
	case "artifact_paths":
		var paths []string
		paths, err = stringList(v)
		st.artifactPaths = strings.Join(paths, ";")
	case "soft_fail":
		st.softFail, err = softFail(v)
	case "retry":
		st.retry, err = retryRules(v)
	case "type", "signature", "notify", "branches":
		// They do not affect where and how the command runs.
	default:
		err = errors.New("not a key of the command steps that run here; remove it")
	}
	return err
}

// agentRules parses agents: {queue: x} or ["queue=x"].
func agentRules(v any) ([]string, error) {
	if list, ok := v.([]any); ok {
		return stringList(list)
	}
	m, err := stringMap(v)
	if err != nil {
		return nil, err
	}
	var rules []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		rules = append(rules, k+"="+m[k])
	}
	return rules, nil
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

// pluginList converts plugins to the form that agents get: a list of one-key maps with the
// full source, or of sources alone.
func pluginList(v any) ([]any, error) {
	var list []any
	switch v := v.(type) {
	case nil:
		return nil, nil
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			list = append(list, map[string]any{k: v[k]})
		}
	case []any:
		list = v
	default:
		return nil, fmt.Errorf("%T; want a list", v)
	}
	out := make([]any, len(list))
	for i, e := range list {
		switch e := e.(type) {
		case string:
			out[i] = (&pipeline.Plugin{Source: e}).FullSource()
		case map[string]any:
			m := make(map[string]any, len(e))
			for k, conf := range e {
				m[(&pipeline.Plugin{Source: k}).FullSource()] = conf
			}
			out[i] = m
		default:
			return nil, fmt.Errorf("entry %d is a %T; want a name or a map", i+1, e)
		}
	}
	if _, err := json.Marshal(out); err != nil { // a key that is not a string
		return nil, err
	}
	return out, nil
}
