package agent

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Bounds of the file in which the agent tells what Buildkite sent.
const (
	maxJobEnv  = 8 << 20 // bytes
	maxRefused = 20      // variables that are named in the log
)

// hostVariables make programs on the host run code, or read and write elsewhere:
// names, or prefixes that end in a star. The agent's list of allowed variables
// keeps most of them out as well, unless an operator widens it; names that begin
// with BUILDKITE_ always pass that list.
var hostVariables = []string{
	// The shell that runs the hooks and plugins.
	"BASH_ENV", "ENV", "BASH_FUNC_*", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND", "IFS", "CDPATH",
	// What every program takes in.
	"PATH", "HOME", "TMPDIR", "LD_*", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH", "NLSPATH", "HOSTALIASES", "OPENSSL_CONF",
	"SYSTEMD_*", "NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY", "XDG_*",
	// Git, and Docker's command line.
	"GIT_*", "SSH_*", "PERL5*", "PERLLIB", "EDITOR", "VISUAL", "PAGER", "LESSOPEN", "LESSCLOSE",
	"DOCKER_*", "COMPOSE_*", "BUILDX_*",
	"KBNODE_*",
	// The agent's own configuration. What it does not set itself it takes from a build.
	"BUILDKITE_BUILD_PATH", "BUILDKITE_BUILD_CHECKOUT_PATH", "BUILDKITE_HOOKS_PATH", "BUILDKITE_ADDITIONAL_HOOKS_PATHS",
	"BUILDKITE_PLUGINS_PATH", "BUILDKITE_SOCKETS_PATH", "BUILDKITE_BIN_PATH", "BUILDKITE_CONFIG_PATH", "BUILDKITE_REPO_MIRROR",
	"BUILDKITE_GIT_*", "BUILDKITE_SHELL", "BUILDKITE_HOOKS_SHELL", "BUILDKITE_BOOTSTRAP_PHASES", "BUILDKITE_COMMAND_EVAL",
	"BUILDKITE_PLUGINS_ENABLED", "BUILDKITE_LOCAL_HOOKS_ENABLED", "BUILDKITE_NO_LOCAL_HOOKS", "BUILDKITE_STRICT_SINGLE_HOOKS",
	"BUILDKITE_SSH_KEYSCAN", "BUILDKITE_DOCKER*", "BUILDKITE_KUBERNETES_EXEC", "BUILDKITE_CONTAINER_*", "BUILDKITE_CANCEL_SIGNAL",
	"BUILDKITE_ENV_FILE", "BUILDKITE_ENV_JSON_FILE", "BUILDKITE_AGENT_PROFILE", "BUILDKITE_AGENT_JWKS_*",
	"BUILDKITE_AGENT_JOB_API_*", "BUILDKITE_TRACING_*", "BUILDKITE_ARTIFACT_UPLOAD_DESTINATION",
	"BUILDKITE_S3_*", "BUILDKITE_GS_*", "BUILDKITE_ARTIFACTORY_*",
}

// vet says what is wrong with the variables that Buildkite sent for a job. They
// come from whoever may start a build, and take effect on the host before any
// container is there.
func vet(env map[string]string) []string {
	var bad []string
	refuse := func(name, why string) { bad = append(bad, fmt.Sprintf("%.100q %s", name, why)) }
	for _, name := range slices.Sorted(maps.Keys(env)) {
		value := env[name]
		switch {
		case onList(hostVariables, name):
			refuse(name, "changes what runs on the host; take it out of the build")
		case strings.ContainsRune(value, 0):
			refuse(name, "holds a NUL")
		}
		switch name {
		case "BUILDKITE_ORGANIZATION_SLUG", "BUILDKITE_PIPELINE_SLUG", "BUILDKITE_JOB_ID":
			// They are parts of paths.
			if strings.Contains(value, "/") || value == "." || value == ".." {
				refuse(name, "leads to another directory")
			}
		case "BUILDKITE_BRANCH", "BUILDKITE_COMMIT", "BUILDKITE_TAG", "BUILDKITE_REFSPEC", "BUILDKITE_REPO", "BUILDKITE_PULL_REQUEST":
			// Git would take them for options.
			if slices.ContainsFunc(strings.Fields(value), func(s string) bool { return strings.HasPrefix(s, "-") }) {
				refuse(name, "begins with a dash, as an option of git does")
			}
		case "BUILDKITE_ARTIFACT_PATHS":
			for p := range strings.SplitSeq(value, ";") {
				if p = strings.TrimSpace(p); outside(p) {
					refuse(name, fmt.Sprintf("names %.100q, which is not in the checkout; write paths relative to it", p))
				}
			}
		}
	}
	return bad
}

// outside says whether an artifact path, which is a pattern, may lead out of the
// checkout. A brace may hide dots.
func outside(p string) bool {
	return path.IsAbs(p) || strings.HasPrefix(p, "~") || strings.Contains(p, "..") || strings.Contains(p, "{/") ||
		strings.Contains(p, ",/") || strings.Contains(p, "{.") || strings.Contains(p, ",.")
}

func onList(list []string, name string) bool {
	return slices.ContainsFunc(list, func(pattern string) bool {
		prefix, isPrefix := strings.CutSuffix(pattern, "*")
		return name == pattern || isPrefix && strings.HasPrefix(name, prefix)
	})
}

// jobEnv reads what Buildkite sent for a job from the file that the agent writes
// for its hooks: a line NAME="value" each, the value quoted as in Go.
func jobEnv(file string) (map[string]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read the job's variables: %w", err)
	}
	defer f.Close() //nolint:errcheck // opened for reading
	env := map[string]string{}
	lines := bufio.NewScanner(io.LimitReader(f, maxJobEnv))
	lines.Buffer(nil, maxJobEnv)
	for lines.Scan() {
		if lines.Text() == "" {
			continue
		}
		name, quoted, ok := strings.Cut(lines.Text(), "=")
		value, err := strconv.Unquote(quoted)
		if !ok || err != nil {
			return nil, fmt.Errorf("read the job's variables: %.60q is not NAME=\"value\"", lines.Text())
		}
		env[name] = value
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the job's variables: %w", err)
	}
	if n, err := f.Seek(0, io.SeekCurrent); err != nil || n >= maxJobEnv {
		return nil, errors.Join(err, fmt.Errorf("read the job's variables: there are more than %d bytes", maxJobEnv))
	}
	return env, nil
}

// admit refuses a job whose variables reach for the host.
func admit(file string) error {
	env, err := jobEnv(file)
	if err != nil {
		return err
	}
	bad := vet(env)
	if len(bad) == 0 {
		return nil
	}
	if len(bad) > maxRefused {
		bad = append(bad[:maxRefused], fmt.Sprintf("and %d more", len(bad)-maxRefused))
	}
	return errors.New("the job is refused: " + strings.Join(bad, "; "))
}
