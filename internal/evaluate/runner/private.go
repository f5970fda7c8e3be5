package runner

import (
	"strings"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
)

// isPrivate reports whether a variable must not reach the submission: the payload,
// which holds the secret seed and the tests, and credentials for Buildkite's APIs and
// artifact stores.
func isPrivate(name string) bool {
	switch name {
	case "BUILDKITE_AGENT_ACCESS_TOKEN", "BUILDKITE_AGENT_TOKEN", "BUILDKITE_API_TOKEN",
		"BUILDKITE_AGENT_JOB_API_SOCKET", "BUILDKITE_AGENT_JOB_API_TOKEN",
		"BUILDKITE_S3_ACCESS_KEY_ID", "BUILDKITE_S3_SECRET_ACCESS_KEY", "BUILDKITE_S3_SESSION_TOKEN",
		"BUILDKITE_ARTIFACTORY_USER", "BUILDKITE_ARTIFACTORY_PASSWORD":
		return true
	}
	return payload.IsVar(name)
}

// split splits an environment into the variables that programs may see and the others. The kernel shows
// programs nothing of this process's own environment, see adopt.
func split(env []string) (public, private []string) {
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if isPrivate(name) {
			private = append(private, kv)
		} else {
			public = append(public, kv)
		}
	}
	return public, private
}
