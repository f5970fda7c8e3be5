package config

import (
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/lazy"
)

// GPUs chooses GPUs: those in List by index, UUID or PCI address, all, or none. At most
// one of its fields is set; the zero value means all. A part of a GPU is written as the
// GPU's name, a colon and the part's number: 0:3.
type GPUs struct {
	All  bool // explicitly all, which overrides the choice of a lower layer
	None bool // slots without a GPU
	List []string
}

// Count is a number of GPUs above 0; the zero value means not set.
type Count int

// Threads is a number of hardware threads to reserve. The zero value means "decide";
// NoThreads, which is 0 in a file, means none.
type Threads int

// NoThreads means that the operator wants nothing reserved.
const NoThreads Threads = -1

// Groups are lists of GPUs, each of which is one slot.
type Groups [][]string

var (
	gpuName  = lazy.Regexp(`^(\d{1,4}|GPU-[0-9a-fA-F-]{1,64}|([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])(:\d{1,2})?$`)
	gpuRange = lazy.Regexp(`^(\d{1,4})-(\d{1,4})$`)
)

// ParseGPUs reads "all", "none" or a comma-separated list, with ranges of indices such as
// 0-3.
func ParseGPUs(s string) (GPUs, error) {
	s = strings.TrimSpace(s)
	switch s {
	case "all":
		return GPUs{All: true}, nil
	case "none":
		return GPUs{None: true}, nil
	}
	var g GPUs
	for part := range strings.SplitSeq(s, ",") {
		names, err := expand(strings.TrimSpace(part))
		if err != nil {
			return GPUs{}, err
		}
		for _, name := range names {
			if slices.Contains(g.List, name) {
				return GPUs{}, fmt.Errorf("GPU %s is listed twice; list each GPU once", name)
			}
			g.List = append(g.List, name)
		}
	}
	return g, nil
}

// expand returns a name as it is, or all indices of a range.
func expand(part string) (names []string, err error) {
	ends := gpuRange().FindStringSubmatch(part)
	if ends == nil {
		if !gpuName().MatchString(part) {
			return nil, fmt.Errorf("%q is not a GPU; write all, none, or indices, UUIDs or PCI addresses such as 0,2,5", part)
		}
		return []string{part}, nil
	}
	first, _ := strconv.Atoi(ends[1]) // gpuRange matches only digits
	last, _ := strconv.Atoi(ends[2])
	switch {
	case first > last:
		return nil, fmt.Errorf("%q runs backward; write %d-%d", part, last, first)
	case last-first >= MaxSlots:
		return nil, fmt.Errorf("%q lists more GPUs than a machine has; write at most %d", part, MaxSlots)
	}
	for k := first; k <= last; k++ {
		names = append(names, strconv.Itoa(k))
	}
	return names, nil
}

// Size is a number of bytes, written as 32GiB, 32G or 34359738368B.
type Size int64

var sizeForm = lazy.Regexp(`^(\d{1,19}(?:\.\d{1,6})?)\s*([kKmMgGtT]?)(i?[bB]?)$`)

// ParseSize reads a size. Units are powers of 1024, as in systemd and Docker;
// it refuses "GB", which means something else.
func ParseSize(s string) (Size, error) {
	s = strings.TrimSpace(s)
	m := sizeForm().FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("%q is not a size; write one such as 32GiB", s)
	}
	unit := strings.ToUpper(m[2])
	if unit == "" && m[3] == "" {
		return 0, fmt.Errorf("%q has no unit; write %s", s, sizeMeant(m[1]))
	}
	if strings.EqualFold(m[3], "b") && unit != "" {
		return 0, fmt.Errorf("%q is not a size; write %q", s, m[1]+unit+"iB")
	}
	v, err := strconv.ParseFloat(m[1], 64)
	v *= math.Pow(1024, float64(strings.Index("KMGT", unit)+1)*float64(min(len(unit), 1)))
	if err != nil || v >= math.MaxInt64 || v < 1 {
		return 0, fmt.Errorf("%q is out of range; write a size such as 32GiB", s)
	}
	return Size(v), nil
}

// sizeMeant returns the size that a number without a unit probably means: GiB if it is
// small, else bytes.
func sizeMeant(number string) string {
	if n, err := strconv.ParseInt(number, 10, 64); err == nil && n >= 1<<16 {
		return Size(n).String()
	}
	return number + "GiB"
}

// String returns the size with the largest unit that is exact, in the format of ParseSize.
func (s Size) String() string {
	v, unit := int64(s), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for unit < len(units)-1 && v != 0 && v%1024 == 0 {
		v /= 1024
		unit++
	}
	return strconv.FormatInt(v, 10) + units[unit]
}

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
	profileForm  = lazy.Regexp(`^(` + ProfileCompatible + `|` + ProfileStrict + `)$`)
	networkForm  = lazy.Regexp(`^(` + NetworkBridge + `|` + NetworkInternet + `|` + NetworkNone + `)$`)
	sumForm      = lazy.Regexp(`^[0-9a-f]{64}$`)
	registryForm = lazy.Regexp(`^[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?$`)
	imageForm    = lazy.Regexp(`^([a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?|[a-z0-9][a-z0-9._-]*)(/[a-z0-9][a-z0-9._-]*)*:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
)

// QueueForm is the name of a queue. It has no character that is special to YAML, Buildkite's interpolation or a shell.
var QueueForm = lazy.Regexp(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// QueueFields are the names that a queue template may use.
var QueueFields = []string{"vendor", "gpu", "shape", "index", "node"}

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

// Validate checks what can be checked without a machine.
func Validate(c Config) []Problem {
	var ps []Problem
	bad := func(key, format string, args ...any) {
		ps = append(ps, Problem{Key: key, Text: fmt.Sprintf(format, args...)})
	}
	for _, f := range field().FindAllString(c.Queue, -1) {
		if !slices.Contains(QueueFields, strings.Trim(f, "{}")) {
			bad("queue", "%s is not a field; write {%s}", f, strings.Join(QueueFields, "}, {"))
		}
	}
	if c.Queue != "" && !QueueForm().MatchString(field().ReplaceAllString(c.Queue, "x")) {
		bad("queue", "%q is not a queue name; use letters, digits, '-', '_' and '.', such as b200 or nvidia-h100-{index}", c.Queue)
	}
	for _, n := range []struct {
		key   string
		value int64
	}{
		{"cpus_per_slot", int64(c.CPUsPerSlot)}, {"gpu_count", int64(c.GPUCount)}, {"gpus_per_slot", int64(c.GPUsPerSlot)}, {"slots", int64(c.Slots)},
		{"job.max_minutes", int64(c.Job.MaxMinutes)}, {"job.tasks_max", c.Job.TasksMax}, {"image.keep", int64(c.Image.Keep)},
	} {
		if n.value < 0 {
			bad(n.key, "%d is negative; write a number above 0 or leave the key out", n.value)
		}
	}
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
	for _, t := range c.Agent.Tags {
		if key, _, _ := strings.Cut(t, "="); slices.Contains(ownTags, key) {
			bad("agent.tags", "kbnode sets the tag %q; choose another key", key)
		}
	}
	validateShape(c, bad)
	validateNetworks(c.Job, bad)
	validatePatterns("agent.allowed_repositories", c.Agent.AllowedRepositories, bad)
	validatePatterns("job.allowed_images", c.Job.AllowedImages, bad)
	if _, err := c.Job.Limit(); err != nil {
		bad("job.time_limit", "%v", err)
	}
	if c.Job.TasksMax > 0 && c.Job.TasksMax < 64 {
		bad("job.tasks_max", "%d is too few for an agent and a job; write 64 or more", c.Job.TasksMax)
	}
	if c.Job.Disk > 0 && c.Job.Disk < 256<<20 {
		bad("job.disk", "%s is too little for a checkout; write 256MiB or more", c.Job.Disk)
	}
	if c.Image.Updates() {
		if _, err := ParseSchedule(c.Image.AutoUpdate); err != nil {
			bad("image.auto_update", "%v", err)
		}
	}
	if l := c.Metrics.Listen; l != "" {
		if a, err := netip.ParseAddrPort(l); err != nil || a.Port() == 0 {
			bad("metrics.listen", "%q is not an IP address and a port; write both, such as 127.0.0.1:9700", l)
		}
	}
	if text := c.Hygiene.problem(); text != "" {
		bad("hygiene.clocks", "%s", text)
	}
	if c.Agent.DownloadURL != "" && c.Agent.DownloadSHA256 == "" {
		bad("agent.download_url", "needs agent.download_sha256; add the archive's checksum")
	}
	slices.SortStableFunc(ps, func(a, b Problem) int { return strings.Compare(a.Key, b.Key) })
	return ps
}

// validatePatterns checks a list of regular expressions.
func validatePatterns(key string, list Patterns, bad func(key, format string, args ...any)) {
	for _, re := range list {
		if _, err := regexp.Compile(re); err != nil {
			bad(key, "%q is not a regular expression; write one such as ^name-[a-z]+$: %v", hidePattern(re), hidePattern(err.Error()))
		} else if !strings.HasPrefix(re, "^") || !strings.HasSuffix(re, "$") {
			bad(key, "%q matches anywhere in a name; write %q", hidePattern(re), "^"+strings.Trim(hidePattern(re), "^$")+"$")
		}
	}
}

// ownTags are the agent tags that kbnode sets itself.
var ownTags = []string{"queue", "gpu", "gpu-index", "node", "gpu-uuid", "gpu-model", "gpu-part", "gpus", "numa", "kbnode", "slots", "time-limit"}
