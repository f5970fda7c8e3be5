package job

import (
	"errors"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Bounds on a job, in bytes or values. The kernel takes 128 KiB in one argument or variable.
const (
	maxArg       = 128<<10 - 1
	maxCommand   = 256 << 10 // of all its words
	maxWords     = 4096
	maxEnv       = 2 << 20
	maxVars      = 4096
	maxName      = 256
	maxPath      = 4096
	maxMounts    = 64 // with tmpfs
	maxList      = 64 // of ulimits, groups, capabilities
	maxArtifacts = 256
	maxPatterns  = 1024    // of names to redact
	maxFiles     = 1 << 20 // open files
	maxRepo      = 1024
	// maxExec is what Linux takes for all arguments and variables of a command, with a stack of 8 MiB, less what the
	// slot and an image add.
	maxExec = 2<<20 - 32<<10
)

// defaultStack is the limit of a container's stack, in bytes, of which execve(2) takes a quarter. pointer is what it
// takes for each argument and variable besides its text.
const (
	defaultStack = 8 << 20
	pointer      = 8
)

// leastMemory is what Docker takes for a container, in bytes.
const leastMemory = 6 << 20

// leastLimits are what runc needs to start a container, measured with runc 1.1.
var leastLimits = map[string]int64{"cpu": 1, "data": 256 << 20, "as": 1 << 30}

// The IDs of users and groups that an author may choose besides root: above those of the system and of
// the slots, and below those that systemd and user namespaces give out.
const (
	FirstID = 1000
	LastID  = 60000
)

// AgentPath is where AgentProgram is in a container, as with the docker plugin.
const AgentPath = "/usr/bin/buildkite-agent"

// InitPath is where Docker mounts its init.
const InitPath = "/sbin/docker-init"

// UserForm is a user, or a user and a group, by name or number: of the forms that the engine takes, those that mean
// the same to everyone who reads them.
var UserForm = lazy.Regexp(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?$`)

const (
	imageHost = `[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?`
	imagePart = `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`
)

var (
	idForm = lazy.Regexp(`^[A-Za-z0-9][A-Za-z0-9-]{0,63}$`)
	// The engine's grammar (github.com/distribution/reference), in which 64 hexadecimal digits are an ID.
	imageForm = lazy.Regexp(`^(` + imageHost + `(\.` + imageHost + `)*(:[0-9]{1,5})?/)?` + imagePart + `(/` + imagePart + `)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$`)
	// The engine takes it for a name, and does not pull it.
	scratch    = lazy.Regexp(`^((index\.)?docker\.io/)?(library/)?scratch([:@]|$)`)
	imageID    = lazy.Regexp(`^[0-9a-f]{64}$`)
	groupForm  = lazy.Regexp(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)
	capForm    = lazy.Regexp(`^[A-Z_]{1,40}$`)
	tmpfsForm  = lazy.Regexp(`^(rw|ro|exec|noexec|suid|nosuid|dev|nodev|sync|async|noatime|size=([1-9][0-9]{0,15}|[1-9][0-9]{0,11}[kK]|[1-9][0-9]{0,8}[mM]|[1-9][0-9]{0,5}[gG]|[1-9][0-9]?%|100%)|nr_inodes=[1-9][0-9]{0,11}[kK]?|mode=[0-7]{1,4}|(uid|gid)=(0|[1-9][0-9]{0,8}))$`)
	repoForm   = lazy.Regexp(`^https://[A-Za-z0-9][A-Za-z0-9.-]{0,252}(:[0-9]{1,5})?(/[A-Za-z0-9_][A-Za-z0-9._-]*)+$`)
	commitForm = lazy.Regexp(`^(HEAD|[0-9a-f]{7,64})$`)
	// A branch has nothing that git gives a meaning: options, ranges, reflogs, refspecs, patterns.
	branchForm  = lazy.Regexp(`^[\pL\pN_][\pL\pN_./+@#=,%-]{0,249}$`)
	badBranch   = lazy.Regexp(`\.\.|//|/\.|\.lock$|[./]$`)
	patternForm = lazy.Regexp(`^[A-Za-z0-9_*?\[\]{}^!,-]{1,256}$`)
	ulimits     = []string{"nofile", "core", "memlock", "stack", "fsize", "nproc", "cpu", "data", "as", "rss"}
)

// Validate returns a *Refusal if s is not a job that may run. What depends on the node, such as
// allowed images and the IDs of other slots, is for guard.
func (s *Spec) Validate() error {
	var v checker
	s.validateKind(&v)
	s.validateCommand(&v)
	s.validateEnv(&v)
	s.validateMounts(&v)
	s.validateUser(&v)
	s.validateLimits(&v)
	s.validateCheckout(&v)
	s.validateUploads(&v)
	if v.bad != nil {
		return v.bad
	}
	return nil
}

// checker keeps all refusals, the first of them on top.
type checker struct{ bad *Refusal }

func (v *checker) refuse(field, format string, args ...any) { v.refuseIf(true, field, format, args...) }

func (v *checker) refuseIf(wrong bool, field, format string, args ...any) {
	if wrong {
		v.add(refuse(field, format, args...))
	}
}

// add adds a refusal, unless there is one of the same thing: of a field, or of the element of it that it begins with.
func (v *checker) add(r *Refusal) {
	if v.bad == nil {
		v.bad = r
		return
	}
	same := func(o *Refusal) bool { return o.Field == r.Field && o.element() == r.element() }
	if len(v.bad.More) < maxRefusals && !same(v.bad) && !slices.ContainsFunc(v.bad.More, same) {
		v.bad.More = append(v.bad.More, r)
	}
}

// element returns what a refusal quotes at its beginning, or the variable that it names there; "" if it does not.
func (r *Refusal) element() string {
	if first, _, _ := strings.Cut(r.Text, " "); strings.HasPrefix(first, "$") {
		return first
	}
	quoted, err := strconv.QuotedPrefix(r.Text)
	if err != nil {
		return ""
	}
	return quoted
}

func (v *checker) oneOf(field, value string, words ...string) {
	v.refuseIf(!slices.Contains(words, value), field, "%.60q is not valid; write %s", value, strings.Join(words, " or "))
}

func (s *Spec) validateKind(v *checker) {
	v.oneOf("kind", string(s.Kind), string(KindPlugin), string(KindNode), string(KindUpload))
	if s.Kind == KindPlugin {
		v.refuseIf(!imageForm().MatchString(s.Image) || imageID().MatchString(s.Image) || len(s.Image) > 400, "image", "%.120q is not the name of an image; write one such as %s", s.Image, config.DefaultImage)
		v.refuseIf(badPort(s.Image), "image", "%.120q has no port from 1 to 65535; write one such as 5000", s.Image)
		v.refuseIf(scratch().MatchString(s.Image), "image", "scratch is no image that runs; write one such as %s", config.DefaultImage)
	} else {
		v.refuseIf(s.Image != "", "image", "a step without the docker plugin runs in the node's image; leave the name out")
	}
	if s.Kind == KindUpload {
		v.refuseIf(s.Checkout.Mode != CheckoutMirror, "BUILDKITE_REPO", "there is no checkout with a pipeline to upload; set the repository of the pipeline in Buildkite")
		v.refuseIf(s.PipelineFile != "" && (!isBelow(s.PipelineFile) || s.PipelineFile == "." || s.PipelineFile[0] == '-'), "command",
			"%.120q is not a file of the checkout; write its path relative to it, such as .buildkite/pipeline.yml", s.PipelineFile)
	} else {
		v.refuseIf(s.PipelineFile != "", "command", "only buildkite-agent pipeline upload has a file to upload; leave it out")
	}
	v.refuseIf(!idForm().MatchString(s.JobID), "BUILDKITE_JOB_ID", "%.80q is not an ID; run the step with buildkite-agent, or set it to the job's ID", s.JobID)
	v.refuseIf(s.BuildID != "" && !idForm().MatchString(s.BuildID), "BUILDKITE_BUILD_ID", "%.80q is not an ID; remove it from the build", s.BuildID)
	v.oneOf("always-pull", s.Pull, PullMissing, PullAlways)
}

// badPort reports whether the registry of an image has a port that no service has.
func badPort(image string) bool {
	registry, _, named := strings.Cut(image, "/")
	_, port, has := strings.Cut(registry, ":")
	n, err := strconv.Atoi(port)
	return named && has && (err != nil || n < 1 || n > math.MaxUint16)
}

func (s *Spec) validateCommand(v *checker) {
	words := s.Command
	if s.Entrypoint != nil {
		words = append([]string{*s.Entrypoint}, words...)
	}
	size, all := 0, 0
	for _, e := range s.Env {
		all += len(e.Name) + len(e.Value) + 2 + pointer
	}
	for _, w := range words {
		size += len(w)
		all += len(w) + 1 + pointer
		v.refuseIf(len(w) > maxArg, "command", "%d bytes are more than Linux takes in one argument; put it into a file of the checkout, and run that", len(w))
		v.refuseIf(!clean(w), "command", "it has a NUL or is not UTF-8; remove such bytes, or put it into a file of the checkout")
	}
	v.refuseIf(size > maxCommand || len(words) > maxWords, "command", "it has %d words and %d bytes; use at most %d and %d, or put it into a file of the checkout", len(words), size, maxWords, maxCommand)
	most := maxExec
	for _, u := range s.Ulimits {
		if u.Name == "stack" && u.Soft >= 0 && u.Soft < defaultStack {
			most = int(max(u.Soft/4, maxArg)) // execve(2)
		}
	}
	v.refuseIf(all > most, "environment", "with the command it has %d bytes, more than the %d that Linux takes for a program; put long values into files of the checkout", all, most)
	if s.Workdir != "" {
		// Through /proc/self/fd a process would start in a directory that the engine has open.
		v.refuseIf(KernelDir(s.Workdir) != "", "workdir", "%.80q: a job cannot start below %s; choose another directory", s.Workdir, KernelDir(s.Workdir))
		v.absolute("workdir", s.Workdir)
	}
}

func (s *Spec) validateEnv(v *checker) {
	names, size := map[string]bool{}, 0
	for _, e := range s.Env {
		size += len(e.Name) + len(e.Value) + 2
		v.refuseIf(e.Name == "" || len(e.Name) > maxName || strings.Contains(e.Name, "=") || !clean(e.Name), "environment", "%.80q is not the name of a variable; write NAME or NAME=value", e.Name)
		v.refuseIf(names[e.Name] || reserved(e.Name), "environment", "the slot sets %.80q, or it is there twice; leave it out", e.Name)
		v.refuseIf(len(e.Name)+1+len(e.Value) > maxArg, "environment", "%.80q has %d bytes, more than Linux takes in one variable; put them into a file of the checkout", e.Name, len(e.Value))
		v.refuseIf(!clean(e.Value), "environment", "%.80q has a NUL or is not UTF-8; remove such bytes, or encode the value", e.Name)
		names[e.Name] = true
	}
	v.refuseIf(len(s.Env) > maxVars || size > maxEnv, "environment", "%d variables of %d bytes are too many; pass at most %d of %d bytes, or put them into a file of the checkout", len(s.Env), size, maxVars, maxEnv)
	v.oneOf(profileVariable, s.Profile, config.ProfileStrict, config.ProfileCompatible)
}

func (s *Spec) validateMounts(v *checker) {
	n := len(s.Mounts) + len(s.Tmpfs)
	v.refuseIf(n > maxMounts, "volumes", "%d mounts are too many; use at most %d, or mount a directory that contains several of them", n, maxMounts)
	const program, twice = "; choose another directory", ", from another source or in another mode; remove one of the two mounts"
	taken := map[string]string{plan.ContainerBinary: program} // what to say about another mount at a target
	if s.AgentProgram {
		taken[AgentPath] = program
	}
	if s.Init {
		taken[InitPath] = program
	}
	target := func(field, p, advice string) {
		v.mountTarget(field, p)
		v.refuseIf(taken[p] != "", field, "%.80q is mounted already%s", p, taken[p])
		taken[p] = advice
	}
	for _, m := range s.Mounts {
		v.refuseIf(m.Source != "" && !isBelow(m.Source), "volumes", "%.80q is not in the checkout; write a path relative to it, such as ./data:/data, or copy it into the image", m.Source)
		if m == (Mount{Source: ".", Target: s.Workdir}) {
			target("workdir", m.Target, ", for the checkout; remove this mount, or set mount-checkout to false")
		} else {
			target("volumes", m.Target, twice)
		}
	}
	for _, t := range s.Tmpfs {
		target("tmpfs", t.Target, twice)
		for _, o := range t.Options {
			v.refuseIf(!tmpfsForm().MatchString(o), "tmpfs", "%.40q is not an option that a job may set; leave it out, or write one such as size=1g, mode=1777, exec or ro", o)
		}
	}
}

func (s *Spec) validateUser(v *checker) {
	if s.User != "" {
		uid, gid, _ := strings.Cut(s.User, ":")
		v.refuseIf(s.SlotUser, "user", "it and propagate-uid-gid are set; leave out one of them")
		v.refuseIf(!UserForm().MatchString(s.User), "user", "%.80q is not a user; write one such as 1000:1000", s.User)
		v.refuseIf(!ofSlot(uid) && !FreeID(uid), "user", "%.80q is a system account of the node; use root, a number from %d to %d, or propagate-uid-gid", s.User, FirstID, LastID)
		v.refuseIf(ofSlot(uid) || ofSlot(gid), "user", "%.80q is a slot's; use propagate-uid-gid for the slot's own", s.User)
	}
	for _, g := range s.Groups {
		v.refuseIf(!groupForm().MatchString(g) || ofSlot(g), "additional-groups", "%.80q is not a group that a job may have; use video, render, or a number", g)
	}
	for _, c := range s.DropCaps {
		v.refuseIf(!capForm().MatchString(c), "drop-caps", "%.80q is not a capability; write one such as CHOWN, or ALL", c)
	}
	v.refuseIf(len(s.Groups) > maxList || len(s.DropCaps) > maxList, "additional-groups", "there are too many groups or capabilities; write at most %d", maxList)
}

func (s *Spec) validateLimits(v *checker) {
	names := map[string]bool{}
	for _, u := range s.Ulimits {
		v.refuseIf(!slices.Contains(ulimits, u.Name) || names[u.Name], "ulimits", "%.40q is not a limit that a job may set, or it is there twice; leave it out", u.Name)
		most := int64(math.MaxInt64)
		switch u.Name {
		case "nofile":
			most = maxFiles
		case "core":
			most = 0
		}
		unlimited := u.Hard == -1 && u.Soft >= -1 && most == math.MaxInt64
		v.refuseIf(!unlimited && (u.Soft < 0 || u.Soft > u.Hard || u.Hard > most), "ulimits", "%s is out of range; write one such as nofile=1024:2048, with at most %d open files and no core files", u.Name, maxFiles)
		least := leastLimits[u.Name]
		v.refuseIf(u.Soft >= 0 && u.Soft < least || u.Hard >= 0 && u.Hard < least, "ulimits", "%s is so low that no container starts; write at least %d, or leave it out", u.Name, least)
		names[u.Name] = true
	}
	const size = "%d is not a size; write one such as 8g, or leave it out"
	v.refuseIf(s.Memory < 0, "memory", size, s.Memory)
	v.refuseIf(s.Memory > 0 && s.Memory < leastMemory, "memory", "%d bytes are less than Docker takes for a container; write at least 6m, or leave it out", s.Memory)
	v.refuseIf(s.ShmSize < 0, "shm-size", size, s.ShmSize)
	v.oneOf("network", s.Network, NetworkBridge, NetworkNone)
}

func (s *Spec) validateCheckout(v *checker) {
	c := s.Checkout
	v.oneOf("checkout", c.Mode, CheckoutNone, CheckoutMirror)
	if c.Mode == CheckoutNone {
		v.refuseIf(c != Checkout{Mode: CheckoutNone}, "BUILDKITE_REPO", "a job without a checkout has no repository; leave it out")
		return
	}
	v.refuseIf(!repoForm().MatchString(c.Repository) || len(c.Repository) > maxRepo || strings.Contains(c.Repository, ".."), "BUILDKITE_REPO",
		"%.200q is not an address that kbnode fetches; use a public repository as https://github.com/OWNER/NAME", withoutUser(c.Repository))
	v.refuseIf(!commitForm().MatchString(c.Commit), "BUILDKITE_COMMIT", "%.80q is not a commit; set it to the hash of one, or to HEAD", c.Commit)
	v.refuseIf(c.Branch == "" && c.Commit == "HEAD", "BUILDKITE_BRANCH", "HEAD of no branch is no commit; set the branch of the build")
	v.refuseIf(strings.Contains(c.Branch, ":"), "BUILDKITE_BRANCH", "%.120q is of a fork, which kbnode does not fetch; push it to the pipeline's repository", c.Branch)
	v.refuseIf(c.Branch != "" && (!branchForm().MatchString(c.Branch) || badBranch().MatchString(c.Branch)), "BUILDKITE_BRANCH",
		"%.120q is not a branch that kbnode fetches; rename it to letters, digits, and -_./ in between", c.Branch)
}

func (s *Spec) validateUploads(v *checker) {
	v.refuseIf(len(s.Artifacts) > maxArtifacts, "artifact_paths", "there are %d paths; write at most %d, or a pattern such as profile_data/**", len(s.Artifacts), maxArtifacts)
	for _, p := range s.Artifacts[:min(len(s.Artifacts), maxArtifacts)] {
		why := "is not a path; write printable text"
		if p != "" && len(p) <= maxPath && printable(p) {
			why = artifactPattern(p)
		}
		v.refuseIf(why != "", "artifact_paths", "%.100q %s", p, why)
	}
	v.refuseIf(len(s.Redact) > maxPatterns, "BUILDKITE_REDACTED_VARS", "there are %d patterns; write at most %d in the agent's configuration", len(s.Redact), maxPatterns)
	for _, p := range s.Redact {
		v.refuseIf(!patternForm().MatchString(p), "BUILDKITE_REDACTED_VARS", "%.80q is not a pattern of names; write one such as *_TOKEN in the agent's configuration", p)
	}
}

// clean reports whether the kernel and JSON keep a text as it is.
func clean(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

func printable(s string) bool { return clean(s) && text.Plain(s) }

// isBelow reports whether p is a clean relative path that does not lead out.
func isBelow(p string) bool {
	return p != "" && p == path.Clean(p) && p[0] != '/' && p != ".." && !strings.HasPrefix(p, "../") && len(p) <= maxPath && printable(p)
}

// absolute refuses what is not a clean absolute path.
func (v *checker) absolute(field, p string) {
	v.refuseIf(!path.IsAbs(p) || p != path.Clean(p) || len(p) > maxPath || strings.Contains(p, ":") || !printable(p), field,
		"%.80q is not an absolute path of printable text without .. and colons; write one such as /work", p)
}

// MountTarget returns where an image wants a volume, or why a job cannot mount there.
func MountTarget(volume string) (string, error) {
	var v checker
	target := path.Clean(volume)
	v.mountTarget("volume", target)
	if v.bad != nil {
		return "", errors.New(v.bad.Text)
	}
	return target, nil
}

func (v *checker) mountTarget(field, p string) {
	v.refuseIf(p == "/dev/shm", field, "%.80q: a job cannot mount there; leave it out, and set shm-size for more shared memory", p)
	v.refuseIf(KernelDir(p) != "", field, "%.80q: a job cannot mount over %s; leave it out, nothing replaces it", p, KernelDir(p))
	// The engine reads the accounts as root when a container starts, from where a mount leads.
	v.refuseIf(slices.Contains([]string{"/etc", "/etc/passwd", "/etc/group"}, p), field, "%.80q: a job cannot mount over the image's accounts; choose another place, such as a file below /etc", p)
	v.refuseIf(p == "/", field, "a job cannot mount over the container's root; choose a directory in it, such as /work")
	v.absolute(field, p)
}

// KernelDir returns the kernel's directory that p is in, or "". Below /dev/shm are files of the job.
func KernelDir(p string) string {
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		if p == dir || strings.HasPrefix(p, dir+"/") && !strings.HasPrefix(p, "/dev/shm/") {
			return dir
		}
	}
	return ""
}

// FreeID reports whether a job may run as a user or group: root, a name, which has a meaning only in the
// image, a number from FirstID to LastID, or "".
func FreeID(id string) bool {
	if strings.Trim(id, "0123456789") != "" {
		return !ofSlot(id)
	}
	n, err := strconv.ParseInt(id, 10, 64)
	return id == "" || err == nil && (n == 0 || n >= FirstID && n <= LastID)
}

func ofSlot(name string) bool { return strings.HasPrefix(name, "kbnode-") }

// reserved reports whether no job may set this variable: the slot does, or it would let the job act
// as the agent.
func reserved(name string) bool { return Matches(plan.ReservedEnv, name) }

// Matches reports whether a name is in a list of names, of which some begin or end with a star.
func Matches(list []string, name string) bool {
	return slices.ContainsFunc(list, func(pattern string) bool {
		prefix, begins := strings.CutSuffix(pattern, "*")
		suffix, ends := strings.CutPrefix(pattern, "*")
		return name == pattern || begins && strings.HasPrefix(name, prefix) || ends && strings.HasSuffix(name, suffix)
	})
}
