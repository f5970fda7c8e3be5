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

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/plan"
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
	c, h := &b.conf, &b.host
	c.Labels = map[string]string{jobLabel: s.JobID}
	if c.Image = s.Image; c.Image == "" {
		if c.Image = p.NodeImage; c.Image == "" {
			return nil, errors.New("this node has no image of its own for steps without the docker plugin; name one with the plugin")
		}
	} else if err := allowImage(p, c.Image); err != nil {
		return nil, err
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
		h.NetworkMode = networkNone
	}
	if err := errors.Join(b.specUser(s), b.specMounts(s, dir)); err != nil {
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
	if b.conf.User = s.User; s.SlotUser {
		b.conf.User = b.facts.user
	}
	b.host.GroupAdd = slices.Clone(s.Groups)
	return b.checkUser(b.conf.User, s.Groups)
}

func (b *builder) specMounts(s *job.Spec, dir string) error {
	for i, m := range s.Mounts {
		source := emptyDir(dir, i)
		if m.Source != "" {
			var err error
			if source, err = inCheckout(dir, m.Source); err != nil {
				return err
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
	return nil
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
