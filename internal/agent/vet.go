package agent

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/limit"
)

// maxRefused bounds the variables that the log names.
const maxRefused = 20

// hostVariables make programs on the host run code, or read and write elsewhere. They are
// refused whatever an operator allows. Each is a name, or a prefix followed by a star.
var hostVariables = []string{
	// The shell that runs the hooks and plugins.
	"BASH*", "ENV", "SHELL", "SHELLOPTS", "PS0", "PS1", "PS2", "PS4", "PROMPT_COMMAND", "IFS", "CDPATH", "EXECIGNORE", "GLOBIGNORE",
	"POSIXLY_CORRECT", "INPUTRC", "HISTFILE", "FUNCNEST", "TMOUT",
	// What every program reads.
	"PATH", "HOME", "PWD", "OLDPWD", "USER", "LOGNAME", "TMPDIR", "TMP", "TEMP", "LD_*", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH", "NLSPATH",
	"MALLOC_*", "TZDIR", "TERMINFO*", "HOSTALIASES", "RES_OPTIONS", "LOCALDOMAIN", "OPENSSL_*", "SSL_*", "SSLKEYLOGFILE", "KRB5*",
	"SYSTEMD_*", "NOTIFY_SOCKET", "LISTEN_*", "CREDENTIALS_DIRECTORY", "XDG_*", "DBUS_*",
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY", "NO_PROXY",
	"PYTHON*", "PERL*", "RUBYLIB", "RUBYOPT", "NODE_OPTIONS", "NODE_PATH", "JAVA_TOOL_OPTIONS", "GODEBUG", "GOTRACEBACK", "GOMAXPROCS", "GOMEMLIMIT", "GOGC", "GOCOVERDIR",
	// Git, and Docker's command line.
	"GIT_*", "SSH_*", "GNUPGHOME", "GPG_*", "CURL_*", "EDITOR", "VISUAL", "PAGER", "BROWSER", "LESS", "LESSOPEN", "LESSCLOSE", "LESSKEY*",
	"DOCKER_*", "COMPOSE_*", "BUILDX_*", "BUILDKIT_*", "OTEL_*", "DD_*",
	"KBNODE_*",
	// The agent's own configuration. It takes from a build what it does not set itself.
	"BUILDKITE_BUILD_PATH", "BUILDKITE_BUILD_CHECKOUT_PATH", "BUILDKITE_HOOKS_PATH", "BUILDKITE_ADDITIONAL_HOOKS_PATHS",
	"BUILDKITE_PLUGINS_*", "BUILDKITE_SOCKETS_PATH", "BUILDKITE_BIN_PATH", "BUILDKITE_CONFIG_PATH", "BUILDKITE_REPO_MIRROR",
	"BUILDKITE_GIT_*", "BUILDKITE_SHELL", "BUILDKITE_HOOKS_SHELL", "BUILDKITE_BOOTSTRAP_*", "BUILDKITE_COMMAND_EVAL",
	"BUILDKITE_LOCAL_HOOKS_ENABLED", "BUILDKITE_NO_LOCAL_HOOKS", "BUILDKITE_STRICT_SINGLE_HOOKS", "BUILDKITE_SKIP_CHECKOUT",
	"BUILDKITE_SSH_KEYSCAN", "BUILDKITE_DOCKER*", "BUILDKITE_KUBERNETES_EXEC", "BUILDKITE_CONTAINER_*", "BUILDKITE_CANCEL_SIGNAL",
	"BUILDKITE_ENV_FILE", "BUILDKITE_ENV_JSON_FILE", "BUILDKITE_REDACTED_VARS", "BUILDKITE_SECRETS_CONFIG", "BUILDKITE_TRACING_*",
	"BUILDKITE_AGENT_ACCESS_TOKEN", "BUILDKITE_AGENT_TOKEN", "BUILDKITE_AGENT_ENDPOINT", "BUILDKITE_AGENT_BINARY_PATH",
	"BUILDKITE_AGENT_PROFILE", "BUILDKITE_AGENT_JWKS_*", "BUILDKITE_AGENT_JOB_API_*", "BUILDKITE_AGENT_EXPERIMENT",
	"BUILDKITE_ARTIFACT_UPLOAD_*", "BUILDKITE_AGENT_ARTIFACT_*", "BUILDKITE_S3_*", "BUILDKITE_GS_*", "BUILDKITE_GCS_*",
	"BUILDKITE_AZURE_*", "BUILDKITE_ARTIFACTORY_*",
}

// serverVariables are what Buildkite sends for a job
// (https://buildkite.com/docs/pipelines/configure/environment-variables). The agent
// accepts every name that begins with BUILDKITE_; these are all that a job needs.
var serverVariables = []string{
	"CI", "BUILDKITE",
	"BUILDKITE_AGENT_ID", "BUILDKITE_AGENT_NAME", "BUILDKITE_AGENT_META_DATA_*", "BUILDKITE_ARTIFACT_PATHS",
	"BUILDKITE_BLOCKER", "BUILDKITE_BLOCKER_*", "BUILDKITE_BRANCH", "BUILDKITE_BUILD_AUTHOR", "BUILDKITE_BUILD_AUTHOR_*",
	"BUILDKITE_BUILD_CREATOR", "BUILDKITE_BUILD_CREATOR_*", "BUILDKITE_BUILD_ID", "BUILDKITE_BUILD_NUMBER", "BUILDKITE_BUILD_URL",
	"BUILDKITE_CLEAN_CHECKOUT", "BUILDKITE_CLUSTER_*", "BUILDKITE_COMMAND", "BUILDKITE_COMMIT", "BUILDKITE_COMMIT_RESOLVED",
	"BUILDKITE_COMPUTE_TYPE", "BUILDKITE_GITHUB_*", "BUILDKITE_GROUP_*", "BUILDKITE_JOB_ID", "BUILDKITE_LABEL", "BUILDKITE_MATRIX_*",
	"BUILDKITE_MERGE_QUEUE_*", "BUILDKITE_MESSAGE", "BUILDKITE_ORGANIZATION_*", "BUILDKITE_PARALLEL_*", "BUILDKITE_PIPELINE_*",
	"BUILDKITE_PLUGINS", "BUILDKITE_PROJECT_*", "BUILDKITE_PULL_REQUEST", "BUILDKITE_PULL_REQUEST_*", "BUILDKITE_REBUILT_FROM_*",
	"BUILDKITE_REFSPEC", "BUILDKITE_REPO", "BUILDKITE_RETRY_*", "BUILDKITE_SCRIPT_PATH", "BUILDKITE_SOURCE", "BUILDKITE_STEP_*",
	"BUILDKITE_TAG", "BUILDKITE_TIMEOUT", "BUILDKITE_TRIGGERED_FROM_*", "BUILDKITE_UNBLOCKER", "BUILDKITE_UNBLOCKER_*",
}

var variableName = lazy.Regexp(`^[A-Za-z_][A-Za-z0-9_]*$`)

// vet returns what is wrong with the variables that Buildkite sent for a job. They come
// from anyone who may start a build, and take effect on the host before any container
// exists. allowed are the operator's patterns for further names.
func vet(env map[string]string, allowed []*regexp.Regexp) []string {
	var bad []string
	refuse := func(name, why string) { bad = append(bad, fmt.Sprintf("%.100q %s", name, why)) }
	for _, name := range slices.Sorted(maps.Keys(env)) {
		value := env[name]
		if why := vetName(name, allowed); why != "" {
			refuse(name, why)
			continue
		}
		if why := vetValue(value); why != "" {
			refuse(name, why)
		}
		switch name {
		case "BUILDKITE_ORGANIZATION_SLUG", "BUILDKITE_PIPELINE_SLUG", "BUILDKITE_JOB_ID":
			// These are parts of paths.
			if strings.Contains(value, "/") || value == "." || value == ".." {
				refuse(name, "leads to another directory; rename it in Buildkite, without slashes")
			}
		case "BUILDKITE_BRANCH", "BUILDKITE_COMMIT", "BUILDKITE_TAG", "BUILDKITE_REFSPEC", "BUILDKITE_REPO", "BUILDKITE_PULL_REQUEST":
			// Git would take these for options. The agent splits refspecs as a shell
			// does.
			words := strings.FieldsFunc(value, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(`'"\`, r) })
			if slices.ContainsFunc(words, func(s string) bool { return strings.HasPrefix(s, "-") }) {
				refuse(name, "begins with a dash, as an option of git does; use another name")
			}
		case "KERNELBOT_IMAGE":
			// A step without the plugin passes it to docker run.
			if strings.HasPrefix(strings.TrimSpace(value), "-") {
				refuse(name, "is an option of docker run, not an image; write the name of an image")
			}
		case "BUILDKITE_ARTIFACT_PATHS":
			for p := range strings.SplitSeq(value, ";") {
				if why := job.ArtifactPattern(strings.TrimSpace(p)); why != "" {
					refuse(name, fmt.Sprintf("names %.100q, which %s", p, why))
				}
			}
		case "BUILDKITE_PLUGINS":
			for _, why := range vetPlugins(value, env) {
				refuse(name, why)
			}
		}
	}
	return bad
}

// vetName returns why a build may not send a variable of this name; "" if it may.
func vetName(name string, allowed []*regexp.Regexp) string {
	upper := strings.ToUpper(name)
	ofBuildkite := strings.HasPrefix(upper, "BUILDKITE")
	switch {
	case strings.HasPrefix(upper, "BUILDKITE_PLUGIN_"):
		return "is set by the agent from the pipeline's plugins; remove it from the build"
	case !variableName().MatchString(name), onList(hostVariables, upper):
		return "changes what runs on the host; remove it from the build"
	case onList(serverVariables, name):
		return ""
	}
	for _, re := range allowed {
		// A pattern that accepts everything was not meant for the agent's own variables.
		if re.MatchString(name) && (!ofBuildkite || strings.Contains(re.String(), "BUILDKITE_")) {
			return ""
		}
	}
	return "is not a variable that a build may set; remove it from the build, or add ^NAME$ to agent.allowed_environment"
}

// vetValue returns what is wrong with a value, whatever it is for. The docker plugin
// reads the lines of env(1) and evaluates the names in them, so a line of a value would
// become its own variable.
func vetValue(value string) string {
	switch {
	case strings.ContainsRune(value, 0):
		return "contains a NUL; remove it"
	case strings.Contains(value, "\nBUILDKITE_PLUGIN_"):
		return "has a line that begins with BUILDKITE_PLUGIN_, which the docker plugin would take for a setting; indent that line"
	}
	return ""
}

func onList(list []string, name string) bool {
	return slices.ContainsFunc(list, func(pattern string) bool {
		prefix, isPrefix := strings.CutSuffix(pattern, "*")
		return name == pattern || isPrefix && strings.HasPrefix(name, prefix)
	})
}

// jobEnv reads what Buildkite sent for a job from the file that the agent writes for its hooks.
func jobEnv(file string) (map[string]string, error) {
	text, err := limit.ReadFile(file, job.MaxEnvFile+1)
	if err != nil {
		return nil, fmt.Errorf("read the job's variables: %w", err)
	}
	vars, err := job.ReadEnvFile(string(text))
	if err != nil {
		return nil, fmt.Errorf("read the job's variables: %w", err)
	}
	env := map[string]string{}
	for _, v := range vars {
		env[v.Name] = v.Value
	}
	return env, nil
}

// allowedNames reads the names that an operator allows from the agent's configuration.
func allowedNames(file string) ([]*regexp.Regexp, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the allowed variables: %w", err)
	}
	var allowed []*regexp.Regexp
	for line := range strings.Lines(string(text)) {
		list, ok := strings.CutPrefix(strings.TrimSpace(line), "allowed-environment-variables=")
		if !ok {
			continue
		}
		for pattern := range strings.SplitSeq(strings.Trim(list, `"`), ",") {
			if pattern == "" {
				continue // it would allow every name
			}
			re, err := regexp.Compile(pattern)
			if err != nil {
				return nil, fmt.Errorf("read the allowed variables: %w", err)
			}
			allowed = append(allowed, re)
		}
	}
	return allowed, nil
}

// admit refuses a job whose variables affect the host.
func admit(file, agentConfig string) error {
	env, err := jobEnv(file)
	if err != nil {
		return err
	}
	allowed, err := allowedNames(agentConfig)
	if err != nil {
		return err
	}
	bad := vet(env, allowed)
	if len(bad) == 0 {
		return nil
	}
	if len(bad) > maxRefused {
		bad = append(bad[:maxRefused], fmt.Sprintf("and %d more", len(bad)-maxRefused))
	}
	return errors.New("the job is refused: " + strings.Join(bad, "; "))
}
