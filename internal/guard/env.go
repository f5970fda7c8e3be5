package guard

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
)

// agentSecrets are variables that let a job act as the agent, which runs hooks on the host.
// Existing pipelines send them unintentionally.
var agentSecrets = []string{"BUILDKITE_AGENT_JOB_API_*", "BUILDKITE_AGENT_ACCESS_TOKEN", "BUILDKITE_AGENT_TOKEN"}

// profileVariable lets a step ask for a stricter profile than the node's.
const profileVariable = "KBNODE_PROFILE="

const jobAPIVariable = "BUILDKITE_AGENT_JOB_API_SOCKET="

// takeEnv takes the variables that the policy neither sets nor drops.
func (b *builder) takeEnv(v any) error {
	list, err := stringList(v)
	if err != nil {
		return err
	}
	drop := b.dropped()
	for _, e := range list {
		// An entry without "=" removes the variable that the image sets.
		name, _, _ := strings.Cut(e, "=")
		if name == "" {
			return fmt.Errorf("%.40q has no name; write NAME=value", e)
		}
		if err := b.takeProfile(e); err != nil {
			return err
		}
		if !matches(drop, name) {
			b.env = append(b.env, e)
		}
	}
	return nil
}

// dropped returns the names, and prefixes that end in a star, of variables that no job sets.
func (b *builder) dropped() []string {
	drop := slices.Concat(agentSecrets, b.policy.DropEnv)
	for _, e := range b.policy.Env {
		name, _, _ := strings.Cut(e, "=")
		drop = append(drop, name)
	}
	return drop
}

// takeProfile lets a container ask for the strict profile, but never for one that allows more
// than the policy does. The environment is judged before every field that depends on the
// profile.
func (b *builder) takeProfile(e string) error {
	switch value, asked := strings.CutPrefix(e, profileVariable); {
	case !asked, value == "", value == config.ProfileCompatible: // the policy's profile stays
	case value == config.ProfileStrict:
		b.policy.Profile = config.ProfileStrict
	default:
		return fmt.Errorf("%s%.40q is not a profile; write %[1]s%[3]s, or leave it out", profileVariable, value, config.ProfileStrict)
	}
	return nil
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

// jobAPISocket returns the agent's job API socket that the environment names, or "".
func jobAPISocket(env any) string {
	list, err := stringList(env)
	if err != nil {
		return ""
	}
	for _, e := range list {
		if path, ok := strings.CutPrefix(e, jobAPIVariable); ok {
			return path
		}
	}
	return ""
}
