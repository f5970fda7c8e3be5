package guard

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
)

// agentTasks is how many processes and threads of the slot a job leaves to its agent, which has to end
// it: the agent itself, kbnode bootstrap, an upload and an operator's hook.
const agentTasks = 256

// jobLabel names the Buildkite job of a container, for people.
const jobLabel = "kbnode.job"

// fromSpec makes the container-create request of a job from the policy and its spec, which is
// valid. dir is the job's checkout on the node, in which nothing runs yet. The error is a sentence
// for the job's log.
func fromSpec(p plan.JobPolicy, f facts, s *job.Spec, dir string) (*container.CreateRequest, error) {
	b := &builder{policy: p, facts: f}
	if s.Profile == config.ProfileStrict {
		b.policy.Profile = config.ProfileStrict
	}
	var forbidden error
	c, h := &b.conf, &b.host
	c.Labels = map[string]string{jobLabel: s.JobID}
	c.Image = s.Image
	if c.Image == "" {
		c.Image = p.NodeImage
		if c.Image == "" {
			return nil, errors.New("this node has no image of its own for steps without the docker plugin; name one with the plugin")
		}
	} else {
		forbidden = allowImage(p, c.Image)
	}
	if s.Entrypoint != nil {
		c.Entrypoint = []string{*s.Entrypoint}
	}
	c.Cmd, c.WorkingDir, c.Tty, c.OpenStdin = s.Command, s.Workdir, s.TTY, s.Interactive
	for _, v := range s.Env {
		c.Env = append(c.Env, v.Name+"="+v.Value)
	}
	h.Memory, h.ShmSize = atMostOf(p.MemoryBytes, s.Memory), atMostOf(p.ShmBytes, s.ShmSize)
	if pids := p.PidsLimit - min(p.PidsLimit/2, agentTasks); pids > 0 {
		h.PidsLimit = &pids
	}
	if s.Init {
		h.Init = &s.Init
	}
	for _, u := range s.Ulimits {
		h.Ulimits = append(h.Ulimits, &container.Ulimit{Name: u.Name, Soft: u.Soft, Hard: u.Hard})
	}
	h.CapDrop = slices.Clone(s.DropCaps)
	if s.Network == job.NetworkNone {
		h.NetworkMode = job.NetworkNone
	}
	if err := errors.Join(forbidden, b.specUser(s), b.specMounts(s, dir)); err != nil { // all that its author must change
		return nil, err
	}
	return b.request()
}

// atMostOf returns the lower of a limit and what a job asks for, if it asks.
func atMostOf(limit, asked int64) int64 {
	if asked > 0 {
		return min(limit, asked)
	}
	return limit
}

func (b *builder) specUser(s *job.Spec) error {
	if b.policy.Profile == config.ProfileStrict {
		return nil // it has its own user
	}
	b.conf.User = s.User
	if s.SlotUser {
		b.conf.User = b.facts.user
	}
	b.host.GroupAdd = slices.Clone(s.Groups)
	return b.checkUser(b.conf.User, s.Groups)
}

func (b *builder) specMounts(s *job.Spec, dir string) error {
	var errs []error
	for i, m := range s.Mounts {
		source := emptyDir(dir, i)
		if m.Source != "" {
			var err error
			if source, err = inCheckout(dir, m.Source); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		b.host.Mounts = append(b.host.Mounts, bind(source, m.Target, m.ReadOnly))
	}
	for _, t := range s.Tmpfs {
		if b.host.Tmpfs == nil {
			b.host.Tmpfs = map[string]string{}
		}
		b.host.Tmpfs[t.Target] = strings.Join(t.Options, ",") // part of the slot's memory
	}
	if s.AgentProgram {
		b.host.Mounts = append(b.host.Mounts, bind(plan.AgentCopy, job.AgentPath, true))
	}
	return errors.Join(errs...)
}

// emptyDir is where a mount of an empty directory leads, such as one that the old scripts kept for all jobs
// of a node: what a job writes there could change what the next one runs. It is beside the checkout.
func emptyDir(checkout string, number int) string {
	return filepath.Join(filepath.Dir(checkout), "empty"+strconv.Itoa(number))
}

// inCheckout returns the real path of a directory or file of a checkout.
func inCheckout(dir, path string) (string, error) {
	no := fmt.Errorf("volumes: %.80q is not a directory or file of the checkout; add it to the repository, or copy it into the image", path)
	real, err1 := filepath.EvalSymlinks(filepath.Join(dir, path))
	top, err2 := filepath.EvalSymlinks(dir)
	if cmp.Or(err1, err2) != nil || real != top && !strings.HasPrefix(real, top+"/") {
		return "", no
	}
	if info, err := os.Lstat(real); err != nil || !info.IsDir() && !info.Mode().IsRegular() {
		return "", no
	}
	return real, nil
}

// usersGID is "users", the group of the only user of many images.
const usersGID = "100"

// checkUser checks "user", "user:group" or "", from a spec or an image, and more groups. The kernel counts
// many limits (pipes, inotify, keys, …) by user ID, and containers share the node's IDs: one that runs as
// the user of another slot or of a system service uses up theirs. What an image calls its users does not
// matter.
func (b *builder) checkUser(user string, groups []string) error {
	uid, gid, _ := strings.Cut(user, ":")
	ownUID, ownGID, _ := strings.Cut(b.facts.user, ":")
	if uid != ownUID && !job.FreeID(uid) {
		return fmt.Errorf("%.64q is a system account or another slot's user; use root, a number from %d to %d, or the slot's own user (propagate-uid-gid)", uid, job.FirstID, job.LastID)
	}
	nodes := slices.Clone(b.policy.DeviceNodes)
	for _, g := range b.policy.GPUs {
		nodes = append(nodes, g.Nodes...)
	}
	also := slices.Concat(b.facts.gids(nodes), b.facts.named, []string{usersGID, ownGID})
	for _, group := range append(slices.Clone(groups), gid) {
		if !slices.Contains(also, group) && !job.FreeID(group) {
			return fmt.Errorf("%.64q is a system group or another slot's; use video, render, or a number from %d to %d", group, job.FirstID, job.LastID)
		}
	}
	return nil
}

// scratch lists the work areas of a strict container. Each is a tmpfs that programs may run
// from, because kernel compilers put them there.
var scratch = []string{"/tmp", "/var/tmp", "/run"}

// scratchInodes bounds the number of files in each.
const scratchInodes = 1 << 20

// strict restricts what the compatible profile leaves to the pipeline. The user is one of the slot's
// own, who owns the checkout, so that result.json can be written.
func (b *builder) strict() {
	h := &b.host
	b.conf.User = b.facts.user
	h.GroupAdd = nil // gpu adds those of the GPU's nodes
	h.ReadonlyRootfs = true
	h.CapDrop = []string{"ALL"}
	size := strconv.FormatInt(b.policy.MemoryBytes/4, 10)
	if h.Tmpfs == nil {
		h.Tmpfs = map[string]string{}
	}
	for _, dir := range scratch {
		if slices.ContainsFunc(h.Mounts, func(m mount.Mount) bool { return m.Target == dir }) {
			continue // the checkout is there
		}
		h.Tmpfs[dir] = "rw,exec,nosuid,nodev,mode=1777,size=" + size + ",nr_inodes=" + strconv.Itoa(scratchInodes)
	}
	// The image has no name for the user, and Python's getpass.getuser, which torch uses to name
	// its caches, fails without one.
	b.conf.Env = append(b.conf.Env, "HOME=/tmp", "USER="+b.policy.User, "LOGNAME="+b.policy.User)
}

// allowImage refuses an image that the node's configuration does not list. The name in the
// pipeline is what counts: a job cannot give an image another name. A tag beside a digest does not count, because the
// engine looks only at the digest, unless the list has just this digest.
func allowImage(p plan.JobPolicy, image string) error {
	allows := func(image string) bool { return slices.ContainsFunc(names(image), config.Patterns(p.Images).Allow) }
	allowed := p.Images == nil || allows(image)
	name, digest, _ := strings.Cut(image, "@")
	if colon := strings.LastIndexByte(name, ':'); digest != "" && colon > strings.LastIndexByte(name, '/') {
		allowed = p.Images == nil || allows(name[:colon]+"@"+digest) || allowed && !allows(name+"@sha256:"+strings.Repeat("0", 64))
	}
	if allowed {
		return nil
	}
	return fmt.Errorf("image %.120q is not among the images that this node runs; use one that job.allowed_images lists", image)
}

// names returns an image's name as written, as Docker shortens it, and with the tag that it has
// if none is written.
func names(image string) []string {
	list := []string{image}
	for _, hub := range []string{"docker.io/library/", "docker.io/", "index.docker.io/library/", "index.docker.io/"} {
		if short, ok := strings.CutPrefix(image, hub); ok && (strings.HasSuffix(hub, "library/") || strings.Contains(short, "/")) {
			list = append(list, short)
			break
		}
	}
	for _, name := range list {
		if last := name[strings.LastIndexByte(name, '/')+1:]; !strings.ContainsAny(last, ":@") {
			list = append(list, name+":latest")
		}
	}
	return list
}
