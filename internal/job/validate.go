package job

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/text"
)

// Bounds on a job, in bytes or values. The kernel takes 128 KiB in one argument or variable.
const (
	maxSpec      = 16 << 20
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
	maxPatterns  = 1024 // of names to redact
	maxPayload   = 8 << 20
	maxMinutes   = 7 * 24 * 60
	maxFiles     = 1 << 20 // open files
)

// The IDs of users that an author may choose besides root: above those of the system, and below those
// that systemd gives out.
const firstUser, lastUser = 1000, 60000

// agentPath is where AgentProgram is in a container.
const agentPath = "/usr/bin/buildkite-agent"

var (
	idForm     = lazy.Regexp(`^[A-Za-z0-9][A-Za-z0-9-]{0,63}$`)
	imageForm  = lazy.Regexp(`^[a-z0-9][a-z0-9._-]*(:[0-9]{1,5})?(/[a-z0-9][a-z0-9._-]*)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$`)
	userForm   = lazy.Regexp(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?$`)
	groupForm  = lazy.Regexp(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)
	capForm    = lazy.Regexp(`^[A-Z_]{1,40}$`)
	tmpfsForm  = lazy.Regexp(`^(rw|ro|exec|noexec|suid|nosuid|dev|nodev|sync|async|noatime|(size|nr_inodes)=[0-9]{1,15}[kKmMgG%]?|mode=[0-7]{1,4}|(uid|gid)=[0-9]{1,10})$`)
	repoForm   = lazy.Regexp(`^https://[A-Za-z0-9][A-Za-z0-9.-]{0,252}(:[0-9]{1,5})?(/[A-Za-z0-9_][A-Za-z0-9._-]*)+$`)
	commitForm = lazy.Regexp(`^(HEAD|[0-9a-f]{7,64})$`)
	// branchForm leaves out what git gives a meaning: options, ranges, reflogs, refspecs, patterns.
	branchForm  = lazy.Regexp(`^[\pL\pN_][\pL\pN_./+@#=,%-]{0,249}$`)
	patternForm = lazy.Regexp(`^[A-Za-z0-9_*?\[\]{}^!,-]{1,256}$`)
	ulimits     = []string{"nofile", "core", "memlock", "stack", "fsize", "nproc", "cpu", "data", "as", "rss"}
)

// Validate returns a *Refusal if s is not a job that may run. What depends on the node, such as
// allowed images and the IDs of other slots, is for the slot's service.
func (s *Spec) Validate() error {
	return cmp.Or(
		s.validateKind(), s.validateCommand(), s.validateEnv(), s.validateMounts(), s.validateUser(),
		s.validateLimits(), s.validateCheckout(), s.validateUploads(),
	).orNil()
}

// orNil makes an error that compares with nil.
func (r *Refusal) orNil() error {
	if r == nil {
		return nil
	}
	return r
}

func (s *Spec) validateKind() *Refusal {
	switch s.Kind {
	case KindPlugin:
		if !imageForm().MatchString(s.Image) || len(s.Image) > 400 {
			return refuse("image", "%.120q is not the name of an image; write one such as %s", s.Image, config.DefaultImage)
		}
	case KindNode, KindUpload:
		if s.Image != "" {
			return refuse("image", "a step without the docker plugin runs in the node's image; leave the name out")
		}
	default:
		return refuse("kind", "%.40q is not a kind of job; write %s, %s or %s", s.Kind, KindPlugin, KindNode, KindUpload)
	}
	switch {
	case s.Kind == KindUpload && s.Checkout.Mode != CheckoutMirror:
		return refuse("BUILDKITE_REPO", "there is no checkout with a pipeline to upload; set the repository of the pipeline in Buildkite")
	case s.PipelineFile != "" && (s.Kind != KindUpload || !below(s.PipelineFile) || s.PipelineFile == "." || s.PipelineFile[0] == '-'):
		return refuse("command", "%.120q is not a file of the checkout; write its path relative to it, such as .buildkite/pipeline.yml", s.PipelineFile)
	case !idForm().MatchString(s.JobID):
		return refuse("BUILDKITE_JOB_ID", "%.80q is not an ID; run the step with buildkite-agent, or set it to the job's ID", s.JobID)
	case s.BuildID != "" && !idForm().MatchString(s.BuildID):
		return refuse("BUILDKITE_BUILD_ID", "%.80q is not an ID; remove it from the build", s.BuildID)
	}
	return oneOf("always-pull", s.Pull, PullMissing, PullAlways)
}

func (s *Spec) validateCommand() *Refusal {
	words := s.Command
	if s.Entrypoint != nil {
		words = append([]string{*s.Entrypoint}, words...)
	}
	size := 0
	for _, w := range words {
		size += len(w)
		switch {
		case len(w) > maxArg:
			return refuse("command", "%d bytes are more than Linux takes in one argument; put it into a file of the checkout, and run that", len(w))
		case !clean(w):
			return refuse("command", "it has a NUL or is not UTF-8; remove such bytes, or put it into a file of the checkout")
		}
	}
	if size > maxCommand || len(words) > maxWords {
		return refuse("command", "it has %d words and %d bytes; use at most %d and %d, or put it into a file of the checkout", len(words), size, maxWords, maxCommand)
	}
	if s.Workdir == "" {
		return nil
	}
	// Through /proc/self/fd a process would start in a directory that the engine has open.
	if kernel := kernelDir(s.Workdir); kernel != "" {
		return refuse("workdir", "%.80q: a job cannot start below %s; choose another directory", s.Workdir, kernel)
	}
	return absolute("workdir", s.Workdir)
}

func (s *Spec) validateEnv() *Refusal {
	seen, size := map[string]bool{}, 0
	for _, v := range s.Env {
		size += len(v.Name) + len(v.Value) + 2
		switch {
		case v.Name == "" || len(v.Name) > maxName || strings.Contains(v.Name, "=") || !clean(v.Name):
			return refuse("environment", "%.80q is not the name of a variable; write NAME or NAME=value", v.Name)
		case seen[v.Name] || reserved(v.Name):
			return refuse("environment", "the slot sets %.80q, or it is there twice; leave it out", v.Name)
		case len(v.Name)+1+len(v.Value) > maxArg:
			return refuse("environment", "%.80q has %d bytes, more than Linux takes in one variable; put them into a file of the checkout", v.Name, len(v.Value))
		case !clean(v.Value):
			return refuse("environment", "%.80q has a NUL or is not UTF-8; remove such bytes, or encode the value", v.Name)
		}
		seen[v.Name] = true
	}
	if len(s.Env) > maxVars || size > maxEnv {
		return refuse("environment", "%d variables of %d bytes are too many; pass at most %d of %d bytes, or put them into a file of the checkout", len(s.Env), size, maxVars, maxEnv)
	}
	return oneOf("KBNODE_PROFILE", s.Profile, config.ProfileStrict, config.ProfileCompatible)
}

func (s *Spec) validateMounts() *Refusal {
	if len(s.Mounts)+len(s.Tmpfs) > maxMounts {
		return refuse("volumes", "%d mounts are too many; use at most %d, or mount a directory that contains several of them", len(s.Mounts)+len(s.Tmpfs), maxMounts)
	}
	targets := map[string]bool{plan.ContainerBinary: true, agentPath: s.AgentProgram}
	target := func(field, p string) *Refusal {
		switch kernel := kernelDir(p); {
		case p == "/dev/shm":
			return refuse(field, "%.80q: a job cannot mount there; leave it out, and set shm-size for more shared memory", p)
		case kernel != "":
			return refuse(field, "%.80q: a job cannot mount over %s; leave it out, nothing replaces it", p, kernel)
		case p == "/":
			return refuse(field, "a job cannot mount over the container's root; choose a directory in it, such as /work")
		case targets[p]:
			return refuse(field, "%.80q is mounted already; choose another directory", p)
		}
		targets[p] = true
		return absolute(field, p)
	}
	for _, m := range s.Mounts {
		if m.Source != "" && !below(m.Source) {
			return refuse("volumes", "%.80q is not in the checkout; write a path relative to it, such as ./data:/data, or copy it into the image", m.Source)
		}
		if bad := target("volumes", m.Target); bad != nil {
			return bad
		}
	}
	for _, t := range s.Tmpfs {
		if bad := target("tmpfs", t.Target); bad != nil {
			return bad
		}
		for _, o := range t.Options {
			if !tmpfsForm().MatchString(o) {
				return refuse("tmpfs", "%.40q is not an option that a job may set; leave it out, or write one such as size=1g, mode=1777, exec or ro", o)
			}
		}
	}
	return nil
}

func (s *Spec) validateUser() *Refusal {
	if s.User != "" {
		uid, gid, _ := strings.Cut(s.User, ":")
		switch {
		case s.SlotUser:
			return refuse("user", "it and propagate-uid-gid are set; leave out one of them")
		case !userForm().MatchString(s.User):
			return refuse("user", "%.80q is not a user; write one such as 1000:1000", s.User)
		case system(uid):
			return refuse("user", "%.80q is a system account of the node; use root, a number from %d to %d, or propagate-uid-gid", s.User, firstUser, lastUser)
		case strings.HasPrefix(uid, "kbnode-") || strings.HasPrefix(gid, "kbnode-"):
			return refuse("user", "%.80q is a slot's; use propagate-uid-gid for the slot's own", s.User)
		}
	}
	for _, g := range s.Groups {
		if !groupForm().MatchString(g) || strings.HasPrefix(g, "kbnode-") {
			return refuse("additional-groups", "%.80q is not a group that a job may have; use video, render, or a number", g)
		}
	}
	for _, c := range s.DropCaps {
		if !capForm().MatchString(c) {
			return refuse("drop-caps", "%.80q is not a capability; write one such as CHOWN, or ALL", c)
		}
	}
	if len(s.Groups) > maxList || len(s.DropCaps) > maxList {
		return refuse("additional-groups", "there are too many groups or capabilities; write at most %d", maxList)
	}
	return nil
}

func (s *Spec) validateLimits() *Refusal {
	seen := map[string]bool{}
	for _, u := range s.Ulimits {
		most := map[string]int64{"nofile": maxFiles, "core": 0}
		bound, bounded := most[u.Name]
		switch {
		case !slices.Contains(ulimits, u.Name) || seen[u.Name]:
			return refuse("ulimits", "%.40q is not a limit that a job may set, or it is there twice; leave it out", u.Name)
		case u.Soft < -1 || u.Hard < -1 || bounded && (u.Soft < 0 || u.Hard < 0 || u.Hard > bound) || u.Hard >= 0 && (u.Soft < 0 || u.Soft > u.Hard):
			return refuse("ulimits", "%s is out of range; write one such as nofile=1024:2048, with at most %d open files and no core files", u.Name, maxFiles)
		}
		seen[u.Name] = true
	}
	for _, size := range []struct {
		field string
		bytes int64
	}{{"memory", s.Memory}, {"shm-size", s.ShmSize}} {
		if size.bytes < 0 {
			return refuse(size.field, "%d is not a size; write one such as 8g, or leave it out", size.bytes)
		}
	}
	if s.TimeLimit < 0 || s.TimeLimit > maxMinutes*60 {
		return refuse("BUILDKITE_TIMEOUT", "%d seconds are out of range; set timeout_in_minutes to at most %d", s.TimeLimit, maxMinutes)
	}
	return oneOf("network", s.Network, NetworkBridge, NetworkNone)
}

func (s *Spec) validateCheckout() *Refusal {
	c := s.Checkout
	switch {
	case c.Mode == CheckoutNone:
		if c != (Checkout{Mode: CheckoutNone}) {
			return refuse("BUILDKITE_REPO", "a job without a checkout has no repository; leave it out")
		}
		return nil
	case c.Mode != CheckoutMirror:
		return refuse("checkout", "%.40q is not a way to get a checkout; write %s or %s", c.Mode, CheckoutNone, CheckoutMirror)
	case !repoForm().MatchString(c.Repository) || len(c.Repository) > 1024 || strings.Contains(c.Repository, ".."):
		return refuse("BUILDKITE_REPO", "%.200q is not an address that kbnode fetches; use a public repository as https://github.com/OWNER/NAME", c.Repository)
	case !commitForm().MatchString(c.Commit):
		return refuse("BUILDKITE_COMMIT", "%.80q is not a commit; start the build with the hash of one, or with HEAD", c.Commit)
	case c.Branch == "" && c.Commit == "HEAD":
		return refuse("BUILDKITE_BRANCH", "HEAD of no branch is no commit; start the build with a branch")
	case c.Branch != "" && (!branchForm().MatchString(c.Branch) || strings.Contains(c.Branch, "..") || strings.Contains(c.Branch, "//") ||
		strings.Contains(c.Branch, "/.") || strings.HasSuffix(c.Branch, ".lock") || strings.ContainsAny(c.Branch[len(c.Branch)-1:], "./")):
		return refuse("BUILDKITE_BRANCH", "%.120q is not a branch that kbnode fetches; rename it to letters, digits, and -_./ in between", c.Branch)
	}
	return nil
}

func (s *Spec) validateUploads() *Refusal {
	if len(s.Artifacts) > maxArtifacts || len(s.Redact) > maxPatterns {
		return refuse("artifact_paths", "there are too many paths; write at most %d, or a pattern such as profile_data/**", maxArtifacts)
	}
	for _, p := range s.Artifacts {
		if why := ArtifactPattern(p); why != "" || p == "" || len(p) > maxPath || !printable(p) {
			return refuse("artifact_paths", "%.100q %s", p, cmp.Or(why, "is not a path; write printable text"))
		}
	}
	for _, p := range s.Redact {
		if !patternForm().MatchString(p) {
			return refuse("BUILDKITE_REDACTED_VARS", "%.80q is not a pattern of names; write one such as *_TOKEN in the agent's configuration", p)
		}
	}
	if len(s.Payload) > maxPayload || !clean(s.Payload) {
		return refuse("KERNELBOT_PAYLOAD", "it has more than %d bytes or is not text; send a smaller submission", maxPayload)
	}
	return nil
}

func oneOf(field, value string, words ...string) *Refusal {
	if slices.Contains(words, value) {
		return nil
	}
	return refuse(field, "%.60q is not valid; write %s", value, strings.Join(words, " or "))
}

// clean reports whether the kernel and JSON keep a text as it is.
func clean(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

func printable(s string) bool { return clean(s) && text.Plain(s) }

// below reports whether p is a clean relative path that does not lead out.
func below(p string) bool {
	return p != "" && p == path.Clean(p) && p[0] != '/' && p != ".." && !strings.HasPrefix(p, "../") && len(p) <= maxPath && printable(p)
}

// absolute refuses what is not a clean absolute path.
func absolute(field, p string) *Refusal {
	if !path.IsAbs(p) || p != path.Clean(p) || len(p) > maxPath || strings.Contains(p, ":") || !printable(p) {
		return refuse(field, "%.80q is not an absolute path of printable text without .. and colons; write one such as /work", p)
	}
	return nil
}

// kernelDir returns the kernel's directory that p is in, or "". Below /dev/shm are files of the job.
func kernelDir(p string) string {
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		if p == dir || strings.HasPrefix(p, dir+"/") && !strings.HasPrefix(p, "/dev/shm/") {
			return dir
		}
	}
	return ""
}

// system reports whether a user is a number that a job may not have.
func system(uid string) bool {
	if strings.Trim(uid, "0123456789") != "" {
		return false // a name has a meaning only in the image
	}
	n, err := strconv.ParseInt(uid, 10, 64)
	return err != nil || n != 0 && (n < firstUser || n > lastUser)
}

// reserved reports whether no job may set this variable: the slot does, or it would let the job act
// as the agent.
func reserved(name string) bool {
	return slices.ContainsFunc(plan.ReservedEnv, func(pattern string) bool {
		prefix, isPrefix := strings.CutSuffix(pattern, "*")
		return name == pattern || isPrefix && strings.HasPrefix(name, prefix)
	})
}
