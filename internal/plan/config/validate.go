package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Problem is an invalid value. Key is its dotted path in the file.
type Problem struct {
	Key  string
	Text string
}

var (
	field        = lazy.Regexp(`\{[^{}]*\}`)
	nodeForm     = lazy.Regexp(`^[A-Za-z0-9][A-Za-z0-9.-]{0,62}$`)
	tagForm      = lazy.Regexp(`^[A-Za-z0-9_.-]{1,64}=[^\s,"=]{1,200}$`)
	pathForm     = lazy.Regexp(`^/`)
	endpointForm = lazy.Regexp(`^https?://[^\s"]+$`)
	proofForm    = lazy.Regexp(`^(` + ProofEvaluation + `|` + NoLimit + `)$`)
	profileForm  = lazy.Regexp(`^(` + ProfileCompatible + `|` + ProfileStrict + `)$`)
	networkForm  = lazy.Regexp(`^(` + NetworkBridge + `|` + NetworkInternet + `|` + NetworkNone + `)$`)
	sumForm      = lazy.Regexp(`^[0-9a-f]{64}$`)
	registryForm = lazy.Regexp(`^[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?$`)
	// hookForm has no characters that a shell or systemd takes apart, and leads through no . or ..
	hookForm    = lazy.Regexp(`^(/\.?[A-Za-z0-9_+-][A-Za-z0-9._+-]*)+$`)
	webhookForm = lazy.Regexp(`^/[^\s"]+$|` + NotifyURL().String())
	imageForm   = lazy.Regexp(`^([a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?|[a-z0-9][a-z0-9._-]*)(/[a-z0-9][a-z0-9._-]*)*:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
)

// QueueForm is the name of a queue. It has no character that is special to YAML, Buildkite's interpolation or a shell.
var QueueForm = lazy.Regexp(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// QueueFields are the names that a queue template may use.
var QueueFields = []string{"vendor", "gpu", "shape", "index", "node"}

// maxHookPath bounds the path of a hook, in characters.
const maxHookPath = 255

// ownTags are the agent tags that kbnode sets itself.
var ownTags = []string{"queue", "gpu", "gpu-index", "node", "gpu-uuid", "gpu-model", "gpu-part", "gpus", "numa", "kbnode", "slots", "time-limit", "out-of-service", "out-since"}

// Validate checks what can be checked without a machine.
func Validate(c Config) []Problem {
	var ps []Problem
	bad := func(key, format string, args ...any) {
		ps = append(ps, Problem{Key: key, Text: fmt.Sprintf(format, args...)})
	}
	validateQueue(c.Queue, bad)
	validateNumbers(c, bad)
	validateForms(c, bad)
	validateShape(c, bad)
	validateAgent(c.Agent, bad)
	validateJob(c.Job, bad)
	validateHealth(c.Health, bad)
	if _, err := ParseSchedule(c.Image.AutoUpdate); err != nil && c.Image.Updates() {
		bad("image.auto_update", "%v", err)
	}
	if until := c.Loan.Until; until != "" && !text.IsDate(until) {
		bad("loan.until", "%q is not a date; write one such as 2026-12-31 or 2026-12-31T18:00", until)
	}
	if l := c.Metrics.Listen; l != "" {
		if a, err := netip.ParseAddrPort(l); err != nil || a.Port() == 0 {
			bad("metrics.listen", "%q is not an IP address and a port; write both, such as 127.0.0.1:9700", l)
		}
	}
	if problem := c.Hygiene.problem(); problem != "" {
		bad("hygiene.clocks", "%s", problem)
	}
	slices.SortStableFunc(ps, func(a, b Problem) int { return strings.Compare(a.Key, b.Key) })
	return ps
}

func validateQueue(queue string, bad func(key, format string, args ...any)) {
	for _, f := range field().FindAllString(queue, -1) {
		if !slices.Contains(QueueFields, strings.Trim(f, "{}")) {
			bad("queue", "%s is not a field; write {%s}", f, strings.Join(QueueFields, "}, {"))
		}
	}
	if queue != "" && !QueueForm().MatchString(field().ReplaceAllString(queue, "x")) {
		bad("queue", "%q is not a queue name; use letters, digits, '-', '_' and '.', such as b200 or nvidia-h100-{index}", queue)
	}
}

func validateNumbers(c Config, bad func(key, format string, args ...any)) {
	for _, n := range []struct {
		key   string
		value int64
	}{
		{"cpus_per_slot", int64(c.CPUsPerSlot)}, {"gpu_count", int64(c.GPUCount)}, {"gpus_per_slot", int64(c.GPUsPerSlot)},
		{"slots", int64(c.Slots)}, {"job.max_minutes", int64(c.Job.MaxMinutes)}, {"job.tasks_max", c.Job.TasksMax},
		{"image.keep", int64(c.Image.Keep)},
	} {
		if n.value < 0 {
			bad(n.key, "%d is negative; write a number above 0 or leave the key out", n.value)
		}
	}
}

// validateForms checks texts, each against the form of its key.
func validateForms(c Config, bad func(key, format string, args ...any)) {
	one := func(v string) []string {
		if v == "" {
			return nil
		}
		return []string{v}
	}
	for _, f := range []struct {
		key    string
		values []string
		form   func() *regexp.Regexp
		want   string
	}{
		{"node", one(c.Node), nodeForm, "a node name; use letters, digits, '-' and '.', 63 at most"},
		{"agent.binary", one(c.Agent.Binary), pathForm, "an absolute path; write one that begins with /"},
		{"agent.endpoint", one(c.Agent.Endpoint), endpointForm, "an address; write one such as " + DefaultEndpoint},
		{"agent.download_sha256", one(c.Agent.DownloadSHA256), sumForm, "a SHA-256; write its 64 hex digits"},
		{"agent.tags", c.Agent.Tags, tagForm, "a tag; write key=value without spaces, commas or quotes"},
		{"notify.command", c.Notify.Command[:min(1, len(c.Notify.Command))], pathForm, "an absolute path; write that of a program, such as /usr/local/bin/page"},
		{"notify.url", one(c.Notify.URL), webhookForm, "an https address or the path of a file that has one; write one such as https://alerts.example/kbnode or /etc/kbnode/notify-url"},
		{"health.xids", c.Health.Xids, xidForm, "an Xid and what follows; write ignore, warn, degraded, drain or park, such as 63=drain, or drain@3/24h for 3 in 24 hours"},
		{"health.repeats", one(c.Health.Repeats), repeatsForm, "a number of faults in a number of hours; write 1 to 20 and the hours, such as 3/168h, or " + NoLimit},
		{"metrics.textfile", one(c.Metrics.Textfile), pathForm, "an absolute path; write the directory of node_exporter's --collector.textfile.directory"},
		{"health.proof", one(c.Health.Proof), proofForm, "valid; write " + ProofEvaluation + " or " + NoLimit},
		{"docker.socket", one(c.Docker.Socket), pathForm, "an absolute path; write one that begins with /"},
		{"job.profile", one(c.Job.Profile), profileForm, "valid; write " + ProfileCompatible + " or " + ProfileStrict},
		{"job.network", one(c.Job.Network), networkForm, "valid; write " + NetworkBridge + " or " + NetworkInternet + " or " + NetworkNone},
		{"job.private_registries", c.Job.PrivateRegistries, registryForm, "a registry; write host or host:port as in the names of its images, such as reg.example:5000"},
		{"image.name", one(c.Image.Name), imageForm, "an image name with a tag; write one such as " + DefaultImage},
	} {
		for _, v := range f.values {
			if f.key == "image.name" && len(v) > 255 || !f.form().MatchString(v) {
				shown, _ := hide(f.key, v)
				bad(f.key, "%.200q is not %s", shown, f.want)
			}
		}
	}
}

func validateAgent(a Agent, bad func(key, format string, args ...any)) {
	for _, t := range a.Tags {
		if key, _, _ := strings.Cut(t, "="); slices.Contains(ownTags, key) {
			bad("agent.tags", "kbnode sets the tag %q; choose another key", key)
		}
	}
	validatePatterns("agent.allowed_repositories", a.AllowedRepositories, bad)
	if a.DownloadURL != "" && a.DownloadSHA256 == "" {
		bad("agent.download_url", "needs agent.download_sha256; add the archive's checksum")
	}
}

func validateJob(j Job, bad func(key, format string, args ...any)) {
	validateNetworks(j, bad)
	validatePatterns("job.allowed_images", j.AllowedImages, bad)
	limit, err := j.Limit()
	if err != nil {
		bad("job.time_limit", "%v", err)
	}
	hookLimit, err := j.HookLimit()
	if err != nil {
		bad("job.hook_time_limit", "%v", err)
	}
	if j.Prolog != "" && limit > 0 && hookLimit >= limit { // one that hangs would not park the slot, but end each job
		bad("job.hook_time_limit", "%s is not less than the %s of job.time_limit, of which the prolog is part; write less, or raise job.time_limit",
			cmp.Or(j.HookTimeLimit, DefaultHookTimeLimit), j.TimeLimit)
	}
	for key, file := range map[string]string{"job.prolog": j.Prolog, "job.epilog": j.Epilog} {
		if file != "" && (len(file) > maxHookPath || !hookForm().MatchString(file)) {
			bad(key, "%.200q is not a plain absolute path; write one such as /usr/local/sbin/slot-prolog, of letters, digits, '.', '-', '_' and '+'", file)
		}
	}
	if j.TasksMax > 0 && j.TasksMax < 64 {
		bad("job.tasks_max", "%d is too few for an agent and a job; write 64 or more", j.TasksMax)
	}
	if j.Disk > 0 && j.Disk < 256<<20 {
		bad("job.disk", "%s is too little for a checkout; write 256MiB or more", j.Disk)
	}
}

// MaxSlots bounds the slots and the GPUs of a node; the largest machines known have 64.
const MaxSlots = 256

// validateShape checks what slots are made of.
func validateShape(c Config, bad func(key, format string, args ...any)) {
	switch {
	case c.GPUCount > 0 && c.GPUs.None:
		bad("gpu_count", "%d and gpus: none contradict each other; leave out one of them", c.GPUCount)
	case c.GPUCount > 0 && len(c.GPUs.List) > 0 && len(c.GPUs.List) != int(c.GPUCount) && !slices.ContainsFunc(c.GPUs.List, notIndex):
		bad("gpu_count", "%d and gpus, which lists %d, contradict each other; leave out one of them", c.GPUCount, len(c.GPUs.List))
	case c.GPUs.None && c.Slots == 0:
		bad("slots", "gpus: none needs a number of slots; write one (--slots)")
	case c.GPUs.None && (c.GPUsPerSlot > 0 || len(c.Groups) > 0):
		bad("gpus", "none cannot be combined with gpus_per_slot or groups; leave them out")
	case c.Slots > MaxSlots:
		bad("slots", "%d slots are too many; write at most %d", c.Slots, MaxSlots)
	case c.GPUsPerSlot > MaxSlots:
		bad("gpus_per_slot", "%d GPUs are more than a machine has; write at most %d", c.GPUsPerSlot, MaxSlots)
	}
	listed := map[string]bool{}
	for _, group := range c.Groups {
		if len(group) < 2 {
			bad("groups", "a group of %d is too small; write at least two GPUs for each, such as [0, 1]", len(group))
		}
		for _, name := range group {
			if listed[strings.ToLower(name)] {
				bad("groups", "GPU %s is listed twice; list each GPU once", name)
			}
			listed[strings.ToLower(name)] = true
			if len(c.GPUs.List) > 0 && !slices.ContainsFunc(c.GPUs.List, func(other string) bool { return maySame(name, other) }) {
				bad("groups", "GPU %s is not among gpus; add it there, or leave it out of groups", name)
			}
		}
	}
}

// maySame reports whether two names may be the same GPU. Two indices are if they are equal; only a machine
// knows the index of a UUID or an address.
func maySame(a, b string) bool {
	i, errA := strconv.Atoi(a)
	j, errB := strconv.Atoi(b)
	return errA != nil || errB != nil || i == j
}

// notIndex reports whether a name may be the same GPU as another name, as a part of it or
// by its UUID.
func notIndex(name string) bool {
	_, err := strconv.Atoi(name)
	return err != nil
}
