package guard

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	b := &builder{policy: p, facts: f, memory: p.MemoryBytes, pids: p.PidsLimit - min(p.PidsLimit/2, agentTasks), shm: p.ShmBytes, init: s.Init}
	if s.Profile == config.ProfileStrict {
		b.policy.Profile = config.ProfileStrict
	}
	c := &b.conf
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
	drop := b.dropped()
	for _, v := range s.Env {
		if !matches(drop, v.Name) {
			b.env = append(b.env, v.Name+"="+v.Value)
		}
	}
	b.memory, b.shm = atMostOf(b.memory, s.Memory), atMostOf(b.shm, s.ShmSize)
	for _, u := range s.Ulimits {
		b.host.Ulimits = append(b.host.Ulimits, &container.Ulimit{Name: u.Name, Soft: u.Soft, Hard: u.Hard})
	}
	b.host.CapDrop = slices.Clone(s.DropCaps)
	if s.Network == job.NetworkNone {
		b.host.NetworkMode = networkNone
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
	if err := b.mayBe(b.conf.User); err != nil {
		return err
	}
	_, ownGID, _ := strings.Cut(b.facts.user, ":")
	for _, group := range s.Groups {
		if !free(group, ownGID, b.gpuGroups()...) {
			return noGroup(group)
		}
	}
	b.host.GroupAdd = slices.Clone(s.Groups)
	return nil
}

func (b *builder) specMounts(s *job.Spec, dir string) error {
	for i, m := range s.Mounts {
		if m.Source == "" {
			b.mounts = append(b.mounts, emptyMount(i, m.Target, m.ReadOnly))
			continue
		}
		source, err := inCheckout(dir, m.Source)
		if err != nil {
			return err
		}
		b.mounts = append(b.mounts, bind(source, m.Target, m.ReadOnly))
	}
	for _, t := range s.Tmpfs {
		if err := b.addTmpfs(t.Target, strings.Join(t.Options, ",")); err != nil {
			return err
		}
	}
	if s.AgentProgram {
		b.mounts = append(b.mounts, bind(plan.AgentCopy, job.AgentPath, true))
	}
	return nil
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

// agentSecrets are variables that let a job act as the agent.
var agentSecrets = []string{"BUILDKITE_AGENT_JOB_API_*", "BUILDKITE_AGENT_ACCESS_TOKEN", "BUILDKITE_AGENT_TOKEN"}

// dropped returns the names, and prefixes that end in a star, of variables that no job sets.
func (b *builder) dropped() []string {
	drop := slices.Concat(agentSecrets, b.policy.DropEnv)
	for _, e := range b.policy.Env {
		name, _, _ := strings.Cut(e, "=")
		drop = append(drop, name)
	}
	return drop
}

// matches reports whether name is in list, which has names and prefixes that end in a star.
func matches(list []string, name string) bool {
	for _, pattern := range list {
		prefix, isPrefix := strings.CutSuffix(pattern, "*")
		if name == pattern || (isPrefix && strings.HasPrefix(name, prefix)) {
			return true
		}
	}
	return false
}
