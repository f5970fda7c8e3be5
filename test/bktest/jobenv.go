package bktest

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
)

// buildEnv returns the variables that every job of a build has and that interpolation
// knows.
func buildEnv(b *build) map[string]string {
	return map[string]string{
		"BUILDKITE": "true", "CI": "true",
		"BUILDKITE_ORGANIZATION_SLUG":       org,
		"BUILDKITE_PIPELINE_SLUG":           slug,
		"BUILDKITE_PIPELINE_NAME":           slug,
		"BUILDKITE_PIPELINE_PROVIDER":       "git",
		"BUILDKITE_PIPELINE_DEFAULT_BRANCH": "main",
		"BUILDKITE_BUILD_ID":                b.ID,
		"BUILDKITE_BUILD_NUMBER":            strconv.Itoa(b.Number),
		"BUILDKITE_BRANCH":                  b.Branch,
		"BUILDKITE_COMMIT":                  b.Commit,
		"BUILDKITE_MESSAGE":                 b.Message,
		"BUILDKITE_SOURCE":                  "api",
		"BUILDKITE_TAG":                     "",
		"BUILDKITE_PULL_REQUEST":            "false", // "" makes the agent fetch refs/pull//head
	}
}

var notName = regexp.MustCompile(`[^A-Z0-9]+`)

// jobEnv returns the environment that an agent gets with a job. Later sources win:
// pipeline, build, step, and the server itself
// (https://buildkite.com/docs/pipelines/configure/environment-variables). The server also
// turns the agent's tags into variables. Over all of them wins what JobEnvKey says.
func (s *Server) jobEnv(j *job, base string) map[string]string {
	b, a := j.build, j.agent
	env := maps.Clone(b.own)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, b.Env)
	maps.Copy(env, j.step.Env)
	maps.Copy(env, buildEnv(b))
	maps.Copy(env, map[string]string{
		"BUILDKITE_REPO":           s.opts.Repo,
		"BUILDKITE_BUILD_URL":      webURL(base, b),
		"BUILDKITE_JOB_ID":         j.ID,
		"BUILDKITE_LABEL":          j.step.Label,
		"BUILDKITE_STEP_KEY":       j.step.Key,
		"BUILDKITE_STEP_ID":        j.ID,
		"BUILDKITE_COMMAND":        j.step.Command,
		"BUILDKITE_SCRIPT_PATH":    j.step.Command,
		"BUILDKITE_ARTIFACT_PATHS": strings.Join(j.step.ArtifactPaths, ";"),
		"BUILDKITE_RETRY_COUNT":    strconv.Itoa(j.RetriesCount),
		"BUILDKITE_TIMEOUT":        "false",
		"BUILDKITE_AGENT_ID":       a.ID,
		"BUILDKITE_AGENT_NAME":     a.Name,
	})
	if j.step.Timeout > 0 {
		env["BUILDKITE_TIMEOUT"] = strconv.Itoa(int(j.step.Timeout))
	}
	if len(j.step.Plugins) > 0 {
		plugins, _ := json.Marshal(j.step.Plugins) // they were parsed
		env["BUILDKITE_PLUGINS"] = string(plugins)
	}
	for _, tag := range a.MetaData {
		k, v, _ := strings.Cut(tag, "=")
		env["BUILDKITE_AGENT_META_DATA_"+notName.ReplaceAllString(strings.ToUpper(k), "_")] = v
	}
	maps.Copy(env, b.jobEnv)
	return env
}

func webURL(base string, b *build) string {
	return fmt.Sprintf("%s/%s/%s/builds/%d", base, org, slug, b.Number)
}
