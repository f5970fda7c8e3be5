package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	buildkite "github.com/buildkite/go-pipeline"
	"github.com/buildkite/go-pipeline/warning"

	"github.com/gpu-mode/kbnode/internal/job/pipeline"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// profileVariable lets a step choose its profile.
const profileVariable = "KBNODE_PROFILE"

// workdir is where the checkout is unless the step says otherwise.
const workdir = "/workdir"

// Bounds on BUILDKITE_PLUGINS. A step of kernelbot's has depth 4 and 20 values.
const (
	maxDepth  = 8
	maxTokens = 10_000
)

// Input is what Buildkite's agent says about a job.
type Input struct {
	Sent []Var             // the agent's environment file: what Buildkite sent
	Env  map[string]string // the environment of the process that the agent started
	// Repositories are regular expressions of BUILDKITE_REPO.
	Repositories config.Patterns
}

// get returns one of Buildkite's own variables. The agent puts all that was sent into the
// environment, where its own values win.
func (in Input) get(name string) string {
	if value, ok := in.Env[name]; ok {
		return value
	}
	for _, v := range in.Sent {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

// refusedVars change what a job means in a way that kbnode does not follow. All other variables of
// the agent's bootstrap, such as BUILDKITE_GIT_*, BUILDKITE_BOOTSTRAP_PHASES and
// BUILDKITE_BUILD_CHECKOUT_PATH, have no effect.
var refusedVars = []struct{ name, why string }{
	{"BUILDKITE_SECRETS_CONFIG", "a job gets no secrets of the agent; remove them from the step"},
	{"BUILDKITE_ARTIFACT_UPLOAD_DESTINATION", "artifacts go to Buildkite; remove it from the build"},
	{"BUILDKITE_REFSPEC", "kbnode fetches the branch and the commit only; remove the refspec from the pipeline's settings"},
}

var (
	pluginForm  = lazy.Regexp(`^[A-Za-z0-9@:/._-]{1,160}(#[A-Za-z0-9._-]{1,40})?$`)
	dockerForm  = lazy.Regexp(`^(https://)?github\.com/buildkite-plugins/docker-buildkite-plugin(\.git)?#v5\.(1[1-9]|[2-9][0-9])\.[0-9]{1,3}$`)
	uploadForm  = lazy.Regexp(`^buildkite-agent +pipeline +upload(?: +([^\s'"$` + "`" + `\\;&|<>()*?-][^\s'"$` + "`" + `\\;&|<>()*?]*))?$`)
	uploadWords = lazy.Regexp(`\bbuildkite-agent\s+pipeline\s+upload\b`)
	runnerForm  = lazy.Regexp(`^(exec\s+)?(/usr/local/bin/)?kbnode\s+runner([\s;&|<>]|$)`)
	// bareForm is a runner that reads no file of the checkout: its payload is in variables.
	bareForm  = lazy.Regexp(`^(exec +)?(/usr/local/bin/)?kbnode +runner$`)
	userInfo  = lazy.Regexp(`(?s)//.*@`)
	githubSSH = lazy.Regexp(`^(git@github\.com:|ssh://git@github\.com/)`)
)

// reader makes a Spec. Its methods keep all refusals.
type reader struct {
	Spec
	in      Input
	command string         // of the step
	options map[string]any // of the docker plugin, as go-pipeline reads them; nil without it
	needed  bool           // the command may read a file of the checkout
	skip    bool           // the step wants no checkout
	index   map[string]int // of Env by name
	// sent are the variables that a job may have: what only the agent knows stays with it.
	sent map[string]string
	checker
}

// Read returns the job, or a *Refusal.
func Read(in Input) (*Spec, error) {
	r := &reader{in: in, command: in.get("BUILDKITE_COMMAND"), index: map[string]int{}, sent: map[string]string{}, Spec: Spec{
		JobID: in.get("BUILDKITE_JOB_ID"), BuildID: in.get("BUILDKITE_BUILD_ID"),
		Pull: PullMissing, Network: NetworkBridge, Checkout: Checkout{Mode: CheckoutNone},
		Command: []string{}, Env: []Var{}, Mounts: []Mount{}, Tmpfs: []Tmpfs{}, Ulimits: []Ulimit{},
		Groups: []string{}, DropCaps: []string{}, Artifacts: []string{}, Redact: []string{},
	}}
	// From the agent alone: a build must not say what the log hides.
	r.Redact = append(r.Redact, split(in.Env["BUILDKITE_REDACTED_VARS"], ",")...)
	for _, v := range in.Sent {
		if value, ok := in.Env[v.Name]; ok {
			r.sent[v.Name] = value
		}
	}
	for _, v := range refusedVars {
		for _, value := range []string{in.get(v.name), Input{Sent: in.Sent}.get(v.name)} {
			if !slices.Contains([]string{"", "[]", "{}", "null"}, strings.TrimSpace(value)) {
				r.refuse(v.name, "%s", v.why)
			}
		}
	}
	if len(r.command) > maxCommand { // before anything searches it
		r.refuse("command", "it has %d bytes; put it into a file of the checkout, and run that", len(r.command))
	}
	r.readPlugins(in.get("BUILDKITE_PLUGINS"))
	if r.bad != nil {
		return nil, r.bad
	}
	if r.options != nil {
		r.docker()
	} else {
		r.node()
	}
	r.checkout()
	r.rest()
	r.addOthers(r.Validate())
	if r.bad != nil {
		return nil, r.bad
	}
	return &r.Spec, nil
}

// lists are the fields of which each element can be refused.
var lists = []string{"volumes", "tmpfs", "environment", "ulimits", "additional-groups", "drop-caps", "artifact_paths"}

// addOthers adds what Validate refuses, but of what could not be read, which is empty.
func (r *reader) addOthers(err error) {
	no, ok := errors.AsType[*Refusal](err)
	if !ok {
		return
	}
	unread := map[string]bool{}
	if r.bad != nil {
		for _, b := range append([]*Refusal{r.bad}, r.bad.More...) {
			unread[b.Field] = !slices.Contains(lists, b.Field)
		}
	}
	for _, n := range append([]*Refusal{no}, no.More...) {
		if !unread[n.Field] {
			r.add(&Refusal{Field: n.Field, Text: n.Text})
		}
	}
}

// readPlugins reads the options of the docker plugin, if the step has it, and refuses all others.
func (r *reader) readPlugins(list string) {
	const field = "BUILDKITE_PLUGINS"
	if slices.Contains([]string{"", "[]", "null"}, strings.TrimSpace(list)) {
		return
	}
	if len(list) > maxArg {
		r.refuse(field, "%d bytes are more than Linux takes in one variable; put long texts into files of the checkout", len(list))
		return
	}
	if why := ambiguous(list, maxDepth, maxTokens); why != "" {
		r.refuse(field, "it %s; write plugins: [docker#v5.13.0: {image: …}]", why)
		return
	}
	var plugins buildkite.Plugins
	if err := plugins.UnmarshalJSON(quoteNumbers(list)); err != nil {
		r.refuse(field, "it is not a list of plugins; write plugins: [docker#v5.13.0: {image: …}]")
	}
	for _, p := range plugins {
		if !pluginForm().MatchString(p.Source) || !dockerForm().MatchString(p.FullSource()) {
			r.refuse("plugins", "kbnode cannot do what %.100q does; write docker#v5.13.0, which is the only plugin that a job can use", withoutUser(p.Source))
		}
	}
	if len(plugins) == 0 {
		r.refuse("plugins", "it names no plugin; write docker#v5.13.0: {image: …}, or leave plugins out")
	}
	if len(plugins) != 1 {
		r.refuse("plugins", "there are %d docker plugins; write one, and more steps for the others", len(plugins))
		return
	}
	options, ok := plugins[0].Config.(map[string]any)
	if !ok && plugins[0].Config != nil {
		r.refuse("plugins", "the docker plugin has no options by name; write docker#v5.13.0: {image: …}")
	}
	r.options = options
	if options == nil {
		r.options = map[string]any{}
	}
}

// quoteNumbers makes texts of numbers, as the agent does, which would lose digits otherwise. What is no JSON stays.
func quoteNumbers(list string) []byte {
	var v any
	d := json.NewDecoder(strings.NewReader(list))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return []byte(list)
	}
	quoted, err := json.Marshal(withoutNumbers(v))
	if err != nil {
		return []byte(list)
	}
	return quoted
}

func withoutNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		return v.String()
	case []any:
		for i, e := range v {
			v[i] = withoutNumbers(e)
		}
	case map[string]any:
		for k, e := range v {
			v[k] = withoutNumbers(e)
		}
	}
	return v
}

// withoutUser returns an address without a password that may be in it.
func withoutUser(address string) string { return userInfo().ReplaceAllString(address, "//…@") }

// runs notes what the container's command line means for the profile and the checkout.
func (r *reader) runs(line string) {
	line = strings.TrimSpace(line)
	r.needed = !pipeline.Runs(line) && !bareForm().MatchString(line)
	r.Profile = config.ProfileCompatible
	if runnerForm().MatchString(line) {
		r.Profile = config.ProfileStrict
	}
}

// node fills in a step without plugin: in the node's image, as the agent would run it on the host.
func (r *reader) node() {
	r.runs(r.command)
	line := strings.TrimSpace(r.command)
	if upload := uploadForm().FindStringSubmatch(line); upload != nil {
		r.Kind, r.PipelineFile = KindUpload, tidy(upload[1])
		return
	}
	switch {
	case line == "":
		r.refuse("command", "the step has neither a command nor the docker plugin; write one of them")
	case uploadWords().MatchString(line):
		r.refuse("command", "a pipeline that a job makes is not uploaded; write buildkite-agent pipeline upload FILE alone, with a file of the checkout")
	}
	r.Kind, r.Init, r.TTY, r.Workdir = KindNode, true, true, workdir
	r.Entrypoint, r.Command = new(string), []string{"/bin/bash", "-e", "-c", r.command}
	r.Mounts = append(r.Mounts, Mount{Source: ".", Target: workdir})
	r.propagate()
}

// checkout says which files the job needs.
func (r *reader) checkout() {
	repo := r.in.get("BUILDKITE_REPO")
	// As the agent reads it: "" is false, and its bootstrap does not start with anything else that is no boolean.
	const skips = "BUILDKITE_SKIP_CHECKOUT"
	if text := r.in.get(skips); text != "" {
		skip, err := strconv.ParseBool(text)
		r.refuseIf(err != nil, skips, "%.60q is neither true nor false; write one of them, or leave it out", text)
		r.refuseIf(skip && r.Kind == KindUpload, skips, "without a checkout there is no pipeline to upload; leave it out for this step")
		r.skip = r.skip || skip && r.Kind != KindUpload
	}
	others := slices.ContainsFunc(r.Mounts, func(m Mount) bool { return m.Source != "" && m.Source != "." })
	mounted := slices.ContainsFunc(r.Mounts, func(m Mount) bool { return m.Source == "." })
	// The agent makes no checkout of no repository either.
	if repo == "" || r.skip || r.Kind != KindUpload && !others && (!mounted || !r.needed) {
		return
	}
	if len(repo) > maxRepo || !r.in.Repositories.Allow(repo) {
		advice := "use one that is, or add it to agent.allowed_repositories"
		if other := allowedSpelling(repo, r.in.Repositories); other != "" {
			advice = fmt.Sprintf("it allows %.200q, so write that into the pipeline's settings", withoutUser(other))
		}
		r.refuse("BUILDKITE_REPO", "%.200q is not a repository that this node allows; %s", withoutUser(repo), advice)
	}
	r.Checkout = Checkout{
		Mode: CheckoutMirror, Repository: githubSSH().ReplaceAllString(repo, github),
		Commit: r.in.get("BUILDKITE_COMMIT"), Branch: r.in.get("BUILDKITE_BRANCH"),
	}
	if hash := strings.ToLower(r.Checkout.Commit); commitForm().MatchString(hash) {
		r.Checkout.Commit = hash
	}
}

// allowedSpelling returns how a repository that is not allowed would be: without a slash at its end, in lower case, or by
// https. It is "" if that changes nothing.
func allowedSpelling(repo string, allowed config.Patterns) string {
	if len(repo) > maxRepo {
		return ""
	}
	plain := strings.TrimRight(strings.TrimSpace(repo), "/")
	_, rest, _ := strings.Cut(plain, "://")
	host, name, _ := strings.Cut(rest, "/")
	secure := "https://" + strings.ToLower(host) + "/" + name
	for _, other := range []string{plain, secure, strings.ToLower(plain), strings.ToLower(secure)} {
		if allowed.Allow(other) {
			return other
		}
	}
	return ""
}

// rest fills in what does not depend on the kind of job.
func (r *reader) rest() {
	r.Artifacts = append(r.Artifacts, split(r.in.get("BUILDKITE_ARTIFACT_PATHS"), ";")...)
}

func split(list, sep string) (parts []string) {
	for p := range strings.SplitSeq(list, sep) {
		p = strings.TrimSpace(p)
		if p != "" {
			parts = append(parts, p)
		}
	}
	return parts
}

const github = "https://github.com/"

// Allows reports whether a node's list of regular expressions allows the repository of a Spec. They
// match what a build names, which may have been one of GitHub's SSH addresses.
func Allows(patterns config.Patterns, repository string) bool {
	if patterns.Allow(repository) {
		return true
	}
	name, ok := strings.CutPrefix(repository, github)
	return ok && (patterns.Allow("git@github.com:"+name) || patterns.Allow("ssh://git@github.com/"+name))
}

// FillPipeline fills variables into a pipeline, of which the last with a name counts, as `buildkite-agent pipeline upload`
// does, which would also fill in what only the agent knows. It returns JSON of at most pipeline.MaxFilled bytes.
func FillPipeline(yaml string, vars []Var) (filled []byte, err error) {
	no := func(err error) error {
		return refuse("command", "read the pipeline: %s; correct it in the repository", text.Line(err.Error(), 300))
	}
	if err := pipeline.CheckExtent(yaml); err != nil {
		return nil, no(err)
	}
	defer func() { // the library does, at the sum in ${A:1:9223372036854775807}
		if p := recover(); p != nil {
			filled, err = nil, no(errors.New("a variable in it cannot be filled in; write ${NAME:OFFSET:LENGTH} with small numbers"))
		}
	}()
	values := &environ{values: map[string]string{}, room: pipeline.MaxFilled}
	for _, v := range vars {
		values.Set(v.Name, v.Value)
	}
	for p, err := range buildkite.ParseAll(strings.NewReader(yaml)) {
		if warning.Is(err) {
			err = nil // Buildkite says what is wrong
		}
		if filled != nil {
			err = errors.New("a second YAML document begins, and earlier agents upload the first alone; put all steps into it")
		}
		if err == nil {
			err = p.Interpolate(values, false)
		}
		if values.room >= 0 && err == nil {
			filled, err = json.Marshal(p)
		}
		if values.room < 0 || len(filled) > pipeline.MaxFilled {
			err = fmt.Errorf("with its variables it has more than %d MiB; write a smaller one", pipeline.MaxFilled>>20)
		}
		if err != nil {
			return nil, no(err)
		}
	}
	if filled == nil {
		return nil, refuse("command", "the pipeline is empty; write its steps into the file")
	}
	return filled, nil
}

// environ has the variables of a pipeline, which may use each other, and room for all that they are filled in for, in
// bytes. Without room they are empty.
type environ struct {
	values map[string]string
	room   int
}

func (e *environ) Get(name string) (string, bool) {
	v, ok := e.values[name]
	e.room -= len(v)
	if e.room < 0 {
		return "", ok
	}
	return v, ok
}

func (e *environ) Set(name, value string) { e.values[name] = value }
