package job

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/go-units"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// An expandable text is one that eval would change only by the values of variables. The plugin's hook
// runs the rest.
var (
	expandable = lazy.Regexp(`^([A-Za-z0-9_./:@,=+%-]|\$[A-Za-z_][A-Za-z0-9_]*|\$\{[A-Za-z_][A-Za-z0-9_]*\})*$`)
	reference  = lazy.Regexp(`\$[A-Za-z_][A-Za-z0-9_]*|\$\{[A-Za-z_][A-Za-z0-9_]*\}`)
)

// checkOptions refuses options that are not the plugin's, or not for a job.
func (r *reader) checkOptions() {
	for _, name := range slices.Sorted(maps.Keys(r.options)) {
		// The agent takes always_pull for always-pull.
		meant := strings.ToLower(strings.NewReplacer("_", "-", " ", "-").Replace(name))
		switch o := option(meant); {
		case name == "":
			r.refuse("plugins", "an option of the docker plugin has no name; remove it")
		case o == nil:
			r.refuse(name, "it is not an option of the docker plugin; remove it")
		case name != meant:
			r.refuse(name, "it is not an option of the docker plugin; write %s", meant)
		case o.Verdict == Refused && asks(r.options[name]):
			r.refuse(name, "%s", o.Note)
		}
	}
}

// asks reports whether a value asks for something.
func asks(v any) bool {
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, asks)
	case map[string]any:
		return len(v) > 0
	}
	return !slices.Contains([]any{nil, false, "", "false", "off", "0"}, v)
}

// scalar returns a value as the agent writes it into a variable.
func scalar(v any) (text string, ok bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", v == nil
}

// text returns an option that is one value; "" if it is not set.
func (r *reader) text(name string) string {
	s, ok := scalar(r.options[name])
	if !ok {
		r.refuse(name, "it is a list or has options; write one value")
	}
	return s
}

// flag returns an option that is true or false.
func (r *reader) flag(name string, unset bool) bool {
	switch s := r.text(name); s {
	case "":
		return unset
	case "true", "on", "1":
		return true
	case "false", "off", "0":
	default:
		r.refuse(name, "%.60q is neither true nor false; write one of them", s)
	}
	return false
}

// list returns an option that is a list, which ends before its first empty element as in the plugin.
func (r *reader) list(name string) []string {
	list := r.all(name)
	if i := slices.Index(list, ""); i >= 0 {
		return list[:i]
	}
	return list
}

// listAdvice says what to write instead of what is not a list.
var listAdvice = map[string]string{
	"command":     "write it as the step's command, or as a list of words",
	"shell":       `write a list of words, such as ["/bin/bash", "-e", "-c"], or leave it out`,
	"environment": "write a list of NAME or NAME=value",
	"ulimits":     "write a list, such as [nofile=1024:2048]",
}

func (r *reader) all(name string) (list []string) {
	value := r.options[name]
	values, ok := value.([]any)
	if !ok && value != nil && value != "" {
		r.refuse(name, "it is not a list; %s", cmp.Or(listAdvice[name], "write a list of texts"))
	}
	for _, v := range values {
		s, ok := scalar(v)
		if !ok || v == nil {
			r.refuse(name, "it has more than texts in the list, or null; write a list of texts")
		}
		list = append(list, s)
	}
	return list
}

// size returns an option in bytes; 0 if it is not set.
func (r *reader) size(name string) int64 {
	s := r.text(name)
	if s == "" {
		return 0
	}
	n, err := units.RAMInBytes(s)
	if err != nil || n < 0 {
		r.refuse(name, "%.60q is not a size; write one such as 8g", s)
	} else if n == 0 {
		r.refuse(name, "%.60q is no size; write one such as 8g, or leave it out for all that the slot has", s)
	}
	return n
}

// maxExpanded bounds a text with its variables, in bytes: a source, a target and options.
const maxExpanded = 16 << 10

// expand replaces variables where the author asked for it. ok is false if that is refused.
func (r *reader) expand(name, text string, enabled bool) (expanded string, ok bool) {
	if !enabled {
		return text, true
	}
	if !expandable().MatchString(text) {
		r.refuse(name, "%.80q has more than letters, digits, _./:@,=+%%- and $NAME; write the value itself", text)
		return "", false
	}
	ok = true
	room := maxExpanded
	expanded = reference().ReplaceAllStringFunc(text, func(ref string) string {
		v := strings.Trim(ref, "${}")
		switch {
		case v == "PWD" || v == "BUILDKITE_BUILD_CHECKOUT_PATH":
			r.refuse(name, "$%s is a path of the node; write ./ for the checkout", v)
		case r.sent[v] == "" || reserved(v):
			r.refuse(name, "$%.60s has no value that a job may see; set it in the build, or write the value itself", v)
		default:
			value := r.open(name, v)
			room -= len(value)
			if room < 0 {
				r.refuse(name, "%.80q has more than %d bytes with its variables; write a shorter one", text, maxExpanded)
				value = ""
			}
			ok = ok && value != ""
			return value
		}
		ok = false
		return ""
	})
	if !ok { // no later refusal may quote a value
		return "", false
	}
	return expanded, true
}

// open returns the value of a variable that the log does not hide: a refusal quotes names and paths, cut or
// with escapes, in which no one would find a secret.
func (r *reader) open(field, name string) string {
	if Hides(r.Redact, name) {
		r.refuse(field, "the log hides $%.60s, so it is no part of a name; write the value itself", name)
		return ""
	}
	return r.sent[name]
}

// Hides reports whether one of the patterns of BUILDKITE_REDACTED_VARS matches a variable, as for the agent.
func Hides(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { ok, err := path.Match(strings.TrimSpace(p), name); return ok && err == nil })
}

// docker fills in what the docker plugin would ask of docker run.
func (r *reader) docker() {
	r.checkOptions()
	r.Kind = KindPlugin
	r.Image, _ = r.expand("image", r.text("image"), r.flag("expand-image-vars", false))
	if r.flag("always-pull", false) {
		r.Pull = PullAlways
	}
	r.dockerCommand()
	r.Init, r.TTY, r.Interactive = r.flag("init", true), r.flag("tty", true), r.flag("interactive", true)
	r.dockerMounts()
	r.dockerEnv()

	r.User, r.SlotUser = r.text("user"), r.flag("propagate-uid-gid", false)
	r.Groups = append(r.Groups, r.all("additional-groups")...)
	r.Groups = unique(r.Groups, func(g string) string { return g })
	for _, c := range r.list("drop-caps") {
		r.DropCaps = append(r.DropCaps, strings.TrimPrefix(strings.ToUpper(c), "CAP_"))
	}
	r.DropCaps = unique(r.DropCaps, func(c string) string { return c })
	r.Memory, r.ShmSize = r.size("memory"), r.size("shm-size")
	for _, text := range r.list("ulimits") {
		u, err := units.ParseUlimit(text)
		if err != nil {
			r.refuse("ulimits", "%.60q is not a limit; write one such as nofile=1024:2048", text)
			continue
		}
		r.Ulimits = append(r.Ulimits, Ulimit{u.Name, u.Soft, u.Hard})
	}
	r.Ulimits = unique(r.Ulimits, func(u Ulimit) string { return u.Name })
	if n := r.text("network"); n != "" && n != "default" {
		r.Network = n
	}
	if ipc := r.text("ipc"); ipc != "" && ipc != "private" {
		r.refuse("ipc", "a job has a namespace of its own; leave it out, and set shm-size for more shared memory")
	}
}

// dockerCommand puts a shell around the step's command unless there is an entrypoint.
func (r *reader) dockerCommand() {
	own := r.list("command")
	if r.command != "" {
		if len(own) > 0 {
			r.refuse("command", "the step has a command as well; leave out one of them")
		}
		own = []string{r.command}
	}
	words := own
	if v := r.options["entrypoint"]; v != nil {
		text := r.text("entrypoint")
		if v == false {
			r.refuse("entrypoint", `it is false; write "" for no entrypoint`)
		}
		r.Entrypoint = &text
		words = append([]string{text}, own...)
	}
	r.runs(strings.Join(words, " "))

	var shell []string
	if v := r.options["shell"]; !slices.Contains([]any{false, "false", "off", "0"}, v) {
		shell = r.list("shell")
		if len(shell) == 0 && r.command != "" && r.Entrypoint == nil {
			shell = []string{"/bin/sh", "-e", "-c"}
		}
	}
	r.Command = append(append(r.Command, shell...), own...)
}

func (r *reader) dockerMounts() {
	mounted, expands := r.flag("mount-checkout", true), r.flag("expand-volume-vars", false)
	r.Workdir = tidy(r.text("workdir"))
	if r.Workdir == "" && mounted {
		r.Workdir = workdir
	}
	r.skip = r.flag("skip-checkout", false)
	if mounted {
		r.Mounts = append(r.Mounts, Mount{Source: ".", Target: r.Workdir})
	}
	for _, name := range []string{"volumes", "mounts"} {
		for _, text := range r.list(name) {
			r.volume(name, text, expands)
		}
	}
	// Before empty directories lose their source: two of them at one target are a contradiction.
	r.Mounts = unique(r.Mounts, func(m Mount) Mount { return m })
	for i, m := range r.Mounts {
		if path.IsAbs(m.Source) {
			r.Mounts[i].Source = ""
		}
	}
	for _, text := range r.list("tmpfs") {
		text, ok := r.expand("tmpfs", text, expands)
		if !ok {
			continue
		}
		target, options, _ := strings.Cut(text, ":")
		t := Tmpfs{Target: tidy(target), Options: []string{}}
		if options != "" {
			t.Options = strings.Split(options, ",")
		}
		r.Tmpfs = append(r.Tmpfs, t)
	}
	r.Tmpfs = unique(r.Tmpfs, func(t Tmpfs) string { return t.Target })
	r.AgentProgram = r.flag("mount-buildkite-agent", false)
}

// unique returns a list in which each key is there once, with its last element, as docker run takes what it
// is given twice. A list that is too long stays as it is: Validate refuses it.
func unique[T any, K comparable](list []T, key func(T) K) []T {
	if len(list) > maxList {
		return list
	}
	index, kept := map[K]int{}, []T{}
	for _, e := range list {
		i, ok := index[key(e)]
		if !ok {
			i = len(kept)
			index[key(e)], kept = i, append(kept, e)
		}
		kept[i] = e
	}
	return kept
}

// tidy cleans a path that has no .. elements; Validate refuses the others.
func tidy(p string) string {
	if p == "" || slices.Contains(strings.Split(p, "/"), "..") {
		return p
	}
	return path.Clean(p)
}

// dockerEnv takes the variables in the plugin's order.
func (r *reader) dockerEnv() {
	if r.AgentProgram {
		r.pass("BUILDKITE_JOB_ID")
		r.pass("BUILDKITE_BUILD_ID")
	}
	for _, e := range r.all("environment") {
		r.variable(e)
		if e == "" {
			r.refuse("environment", "it has an empty element; remove it")
		}
	}
	if list := r.text("env-propagation-list"); list != "" {
		names := strings.Fields(r.open("env-propagation-list", list))
		if len(names) == 0 {
			r.refuse("env-propagation-list", "%.60q is not a variable with names; set it in the build, or list the names in environment", list)
		}
		for _, name := range names {
			r.variable(name)
		}
	}
	if r.flag("propagate-environment", false) {
		r.propagate()
	}
}

// propagate passes what Buildkite sent.
func (r *reader) propagate() {
	for _, v := range r.in.Sent {
		r.pass(v.Name)
	}
}

// variable takes NAME=value, or the NAME of a variable that Buildkite sent.
func (r *reader) variable(text string) {
	if name, value, ok := strings.Cut(text, "="); ok {
		r.set(name, value)
	} else {
		r.pass(name)
	}
}

// pass gives the container a variable that Buildkite sent, with its value in the environment.
func (r *reader) pass(name string) {
	if value, ok := r.sent[name]; ok {
		r.set(name, value)
	}
}

// set gives the container a variable, unless the slot does.
func (r *reader) set(name, value string) {
	if name == profileVariable && value != "" {
		r.Profile = value
	}
	if reserved(name) {
		return
	}
	if i, ok := r.index[name]; ok {
		r.Env[i].Value = value // the last one wins, as with docker run
		return
	}
	r.index[name] = len(r.Env)
	r.Env = append(r.Env, Var{name, value})
}
