package agent

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/job"
)

// ordinary is what Buildkite sends for a job of the existing pipelines.
func ordinary() map[string]string {
	return map[string]string{
		"CI": "true", "BUILDKITE": "true", "BUILDKITE_JOB_ID": "0190c2a4-7b4e-4b1f-9d3a-000000000001",
		"BUILDKITE_ORGANIZATION_SLUG": "gpu-mode", "BUILDKITE_PIPELINE_SLUG": "kernelbot", "BUILDKITE_BRANCH": "feature/x-y",
		"BUILDKITE_COMMIT": "HEAD", "BUILDKITE_TAG": "", "BUILDKITE_PULL_REQUEST": "false", "BUILDKITE_MESSAGE": "-x ../.. \n",
		"BUILDKITE_REPO": "https://github.com/gpu-mode/kernelbot.git", "BUILDKITE_ARTIFACT_PATHS": "result.json;profile_data/*;a/**/*.log",
		"BUILDKITE_PLUGINS": "[]", "BUILDKITE_COMMAND": "", "BUILDKITE_AGENT_META_DATA_QUEUE": "b200", "BUILDKITE_CLEAN_CHECKOUT": "true",
		"BUILDKITE_AGENT_NAME": "node-gpu0", "KERNELBOT_PAYLOAD": "eJw=", "CUDA_VISIBLE_DEVICES": "0", "GPU_QUEUE": "b200",
	}
}

// defaults returns the names that a node allows unless its operator says otherwise.
func defaults(t *testing.T) []*regexp.Regexp {
	t.Helper()
	var list []*regexp.Regexp
	for _, pattern := range []string{`^KERNELBOT_[A-Z0-9_]+$`, `^SUBMISSION_PAYLOAD$`, `^GPU_QUEUE$`, `^(NVIDIA|CUDA|HIP|ROCR)_VISIBLE_DEVICES$`} {
		list = append(list, regexp.MustCompile(pattern))
	}
	return list
}

// refused checks that an ordinary job with one more variable is refused because of it.
func refused(t *testing.T, name, value, want string, allowed []*regexp.Regexp) {
	t.Helper()
	env := ordinary()
	env[name] = value
	if bad := vet(env, allowed); len(bad) != 1 || !strings.Contains(bad[0], fmt.Sprintf("%q", name)) || !strings.Contains(bad[0], want) {
		t.Errorf("%s=%s: %q, want %q", name, value, bad, want)
	}
}

func TestVet(t *testing.T) {
	t.Parallel()
	if bad := vet(ordinary(), defaults(t)); len(bad) > 0 {
		t.Errorf("an ordinary job is refused: %q", bad)
	}
	for name, value := range map[string]string{
		"BUILDKITE_PIPELINE_SLUG": "../../gpu-1", "BUILDKITE_ORGANIZATION_SLUG": "..", "BUILDKITE_JOB_ID": "../x",
		"BUILDKITE_BRANCH": "--upload-pack=id", "BUILDKITE_COMMIT": "-x", "BUILDKITE_REFSPEC": "a --x", "BUILDKITE_REPO": "-x",
		"BUILDKITE_TAG": "-x", "BUILDKITE_PULL_REQUEST": "-x", "KERNELBOT_RUN_ID": "a\x00b",
		// A line of a value is a line of env(1), which the docker plugin reads.
		"BUILDKITE_MESSAGE": "x\nBUILDKITE_PLUGIN_DOCKER_ENVIRONMENT_0[$(id)]=x", "KERNELBOT_RUN": "\nBUILDKITE_PLUGIN_X=1",
		"KERNELBOT_IMAGE": " --env-file=/etc/passwd",
	} {
		refused(t, name, value, "", defaults(t))
	}
	for _, value := range []string{`"--upload-pack=id"`, `'-x'`, `\-x`, "a\t-x"} { // as shellwords splits it
		refused(t, "BUILDKITE_REFSPEC", value, "dash", defaults(t))
	}
}

// A build can only set what its lists allow: neither a name that some program on the host
// is known to read, nor one that no one has thought of.
func TestVetNames(t *testing.T) {
	t.Parallel()
	all := []*regexp.Regexp{regexp.MustCompile(`.*`)}
	for name := range strings.FieldsSeq(`
		BASH_ENV BASH_FUNC_echo%% BASH_XTRACEFD ENV SHELLOPTS BASHOPTS PS4 PROMPT_COMMAND IFS CDPATH GLOBIGNORE SHELL
		PATH HOME TMPDIR LD_PRELOAD LD_AUDIT LD_LIBRARY_PATH GLIBC_TUNABLES GCONV_PATH LOCPATH MALLOC_ARENA_MAX OPENSSL_CONF
		SSL_CERT_FILE SSLKEYLOGFILE HOSTALIASES RES_OPTIONS XDG_CONFIG_HOME DBUS_SESSION_BUS_ADDRESS NOTIFY_SOCKET
		http_proxy HTTPS_PROXY all_proxy NO_PROXY PYTHONSTARTUP PYTHONPATH PERL5OPT PERLLIB RUBYOPT NODE_OPTIONS GODEBUG
		GIT_CONFIG_COUNT GIT_CONFIG_KEY_0 GIT_SSH_COMMAND GIT_DIR GIT_EXEC_PATH GIT_ASKPASS GIT_PROXY_COMMAND SSH_AUTH_SOCK SSH_ASKPASS
		GNUPGHOME CURL_HOME EDITOR PAGER LESSOPEN DOCKER_HOST DOCKER_CONFIG DOCKER_CONTEXT COMPOSE_FILE BUILDX_CONFIG
		KBNODE_SLOT KBNODE_BINARY OTEL_EXPORTER_OTLP_ENDPOINT DD_AGENT_HOST
		BUILDKITE_PLUGIN_DOCKER_ENV_PROPAGATION_LIST BUILDKITE_PLUGIN_DOCKER_PULL_RETRIES BUILDKITE_PLUGIN_DOCKER_EXPAND_VOLUME_VARS
		BUILDKITE_PLUGIN_DOCKER_VOLUMES_0 BUILDKITE_PLUGIN_DOCKER_IMAGE BUILDKITE_PLUGIN_DOCKER_ENV_FILE_0 BUILDKITE_PLUGIN_DOCKER_ULIMITS_0
		BUILDKITE_PLUGIN_DOCKER_COMPOSE_RUN buildkite_plugin_docker_image Buildkite_Plugin_X BUILDKITE_PLUGIN_VALIDATION BUILDKITE_PLUGIN_NAME
		BUILDKITE_PLUGIN_CONFIGURATION BUILDKITE_PLUGINS_PATH BUILDKITE_PLUGINS_ENABLED BUILDKITE_PLUGINS_ALWAYS_CLONE_FRESH
		BUILDKITE_BUILD_CHECKOUT_PATH BUILDKITE_BUILD_PATH BUILDKITE_HOOKS_PATH BUILDKITE_ADDITIONAL_HOOKS_PATHS BUILDKITE_BIN_PATH
		BUILDKITE_CONFIG_PATH BUILDKITE_SOCKETS_PATH BUILDKITE_BOOTSTRAP_PHASES BUILDKITE_BOOTSTRAP_SCRIPT_PATH BUILDKITE_GIT_CLONE_FLAGS
		BUILDKITE_GIT_CHECKOUT_FLAGS BUILDKITE_GIT_SUBMODULES BUILDKITE_SHELL BUILDKITE_DOCKER BUILDKITE_DOCKER_COMPOSE_FILE
		BUILDKITE_ENV_FILE BUILDKITE_REDACTED_VARS BUILDKITE_SECRETS_CONFIG BUILDKITE_SKIP_CHECKOUT BUILDKITE_COMMAND_EVAL
		BUILDKITE_LOCAL_HOOKS_ENABLED BUILDKITE_SSH_KEYSCAN BUILDKITE_STRICT_SINGLE_HOOKS BUILDKITE_REPO_MIRROR BUILDKITE_CANCEL_SIGNAL
		BUILDKITE_ARTIFACT_UPLOAD_DESTINATION BUILDKITE_S3_ACL BUILDKITE_AGENT_BINARY_PATH BUILDKITE_AGENT_ACCESS_TOKEN BUILDKITE_AGENT_ENDPOINT
		BUILDKITE_AGENT_JOB_API_SOCKET BUILDKITE_AGENT_PROFILE BUILDKITE_AGENT_EXPERIMENT BUILDKITE_TRACING_BACKEND BUILDKITE_KUBERNETES_EXEC
		A-B A.B 1A A[0] A$(id)`) {
		refused(t, name, "x", "", defaults(t))
		refused(t, name, "x", "", all) // an operator's pattern that accepts everything
	}
	for _, name := range []string{"", "A\nB", "A B"} {
		refused(t, name, "x", "", all)
	}
	for name := range strings.FieldsSeq(`FOO AWS_PROFILE KERNELBOT KERNELBOT_x BUILDKITE_WHATEVER BUILDKITE_NO_HTTP2 BUILDKITE_PTY
		BUILDKITE_AGENT_DISABLE_WARNINGS_FOR BUILDKITE_USE_GITHUB_APP_GIT_CREDENTIALS BUILDKITE_COMMAND_EXIT_STATUS BUILDKITE_CANCEL_GRACE_PERIOD`) {
		refused(t, name, "x", "is not a variable that a build may set", defaults(t))
	}
	refused(t, "BUILDKITE_WHATEVER", "x", "is not a variable that a build may set", all)
	env := ordinary()
	maps.Copy(env, map[string]string{"FOO": "x", "BUILDKITE_WHATEVER": "x"})
	if bad := vet(env, append(defaults(t), regexp.MustCompile(`^FOO$`), regexp.MustCompile(`^BUILDKITE_WHATEVER$`))); len(bad) > 0 {
		t.Errorf("what the operator allows is refused: %q", bad)
	}
}

func TestVetArtifacts(t *testing.T) {
	t.Parallel()
	for _, p := range []string{
		"/etc/passwd", "../x", "a/../../x", "a/..", "..", "~/x", "~", "{/etc/passwd,x}", "x;/etc/shadow", "{.,x}./y", "{x,/etc}/passwd",
		`\.\./\.\./secret`, `\../x`, `.\./x`, `a\/../x`, `\/etc/passwd`, `\~/x`, "$HOME/.ssh/x", "$(HOME)/x", "a/$KERNELBOT_RUN_ID/x", "!(a)/x",
		"{,x}/etc/passwd", ".{,x}./secret", ".{x,}./secret", "{{,x},y}/etc", "{a{,/}..,b}/x", "{~,x}/y", "{a", "a}", "{a}}", "[.]./x", "[!a]./[--9]x",
		strings.Repeat("{a,b}", 9), strings.Repeat("{", 500) + strings.Repeat("}", 500) + "}",
	} {
		refused(t, "BUILDKITE_ARTIFACT_PATHS", p, "names", defaults(t))
	}
	for _, p := range []string{"result.json", "./result.json", "profile_data/**/*", "**/*.{json,txt}", "a/.hidden/*", "logs/[0-9]*.log", "a..b/c", "{a,b}/{c,d}/?.x", "a b/c;x", ""} {
		env := ordinary()
		env["BUILDKITE_ARTIFACT_PATHS"] = p
		if bad := vet(env, defaults(t)); len(bad) > 0 {
			t.Errorf("artifact path %s: %q", p, bad)
		}
	}
}

func TestVetPlugins(t *testing.T) {
	t.Parallel()
	const docker = "github.com/buildkite-plugins/docker-buildkite-plugin#v5.11.0"
	vetOf := func(source, settings string) []string {
		env := ordinary()
		maps.Copy(env, map[string]string{
			"KERNELBOT_IMAGE": "ghcr.io/x/y:z", "KERNELBOT_X": " --env-file=/etc/passwd",
			"BUILDKITE_PLUGINS": fmt.Sprintf("[{%q: %s}]", source, settings),
		})
		return vet(env, defaults(t))
	}
	for _, settings := range []string{
		`{"image": "ghcr.io/gpu-mode/kernelbot:latest@sha256:00", "gpus": "\"device=0\"", "propagate-environment": true, "always-pull": true, "pull-retries": 3}`,
		`{"image": "x", "environment": ["A=$(date)", "B"], "shell": ["/bin/sh", "-ec"], "command": ["python", "-c", "print(a[0], ` + "`x`" + `, '${X:-y}')"]}`,
		`{"image": "$KERNELBOT_IMAGE", "expand-image-vars": true, "volumes": ["./:/here", "$BUILDKITE_BUILD_CHECKOUT_PATH/x:/x:ro", "${KERNELBOT_RUN_ID}/y:/y"], "expand-volume-vars": true}`,
		`{"image": "x", "expand-image-vars": false, "env-propagation-list": "KERNELBOT_LIST", "env-file": ["a/.env"], "add-host": ["a:[::1]"], "memory": "64g", "memory-swap": "-1", "shm-size": "2g"}`,
		`{"image": "x", "gpus": "all", "init": false, "environment": ["KBNODE_PROFILE=strict"], "propagate-environment": true}`, // kbnode pipeline eval
		`null`, `{}`,
	} {
		if bad := vetOf(docker, settings); len(bad) > 0 {
			t.Errorf("%s: %q", settings, bad)
		}
	}
	hostile := []string{
		`"env-propagation-list": "a[$(id)]"`, `"env-propagation-list": "a[KERNELBOT_X]"`, `"ENV PROPAGATION--list": "a b"`,
		`"pull-retries": "a[$(id)]"`, `"pull-retries": "KERNELBOT_X"`, `"pull-retries": "1+1"`, `"PULL_RETRIES": -1`,
		`"volumes": ["$(id):/x"], "expand-volume-vars": true`, "\"volumes\": [\"`id`:/x\"], \"expand-volume-vars\": \"on\"",
		`"volumes": ["a;id:/x"], "expand-volume-vars": 1`, `"volumes": ["a\nid:/x"], "expand-volume-vars": "1"`, `"mounts": ["${X:-a}:/x"], "expand_volume_vars": true`,
		`"tmpfs": ["${!X}"], "Expand-Volume-Vars": true`, `"volumes": ["a>b:/x"], "expand--volume-vars": true, "expand-volume-vars": false`,
		`"volumes": ["$BUILDKITE_AGENT_ACCESS_TOKEN:/x"], "expand-volume-vars": true`,
		`"image": "$(id)"`, "\"image\": \"`id`\"", `"image": "x;id", "expand-image-vars": true`, `"image": "x&id", "expand-image-vars": true`,
		`"image": "a[$x]"`, `"image": "${X@P}"`, `"image": "${X:-y}"`, `"image": "$((1))"`, `"image": "$[1]"`,
		`"image": "--env-file=/etc/passwd"`, `"image": "$KERNELBOT_X", "expand-image-vars": true`, `"chown-image": "-v/:/x"`,
		`"env-file": ["/etc/passwd"]`, `"env-file": ["a/../../x"]`, `"ulimits": ["nofile=$(id)"]`, `"cpus": "a[$(id)]"`, `"some-new-setting": {"x": ["$(id)"]}`,
		`"environment": ["A=x\nBUILDKITE_PLUGIN_DOCKER_ENVIRONMENT_1[$(id)]=y"]`, `"environment_0[$(id)]": "x"`, `"environment": {"0[$(id)]": "x"}`, `"a.b": 1`, `"a\tb": 1`,
	}
	for _, settings := range hostile {
		for _, source := range []string{docker, "docker#v5.11.0", "https://github.com/buildkite-plugins/docker-buildkite-plugin.git#v5", "https://x/d%6fcker-buildkite-plugin", "./Docker/"} {
			if bad := vetOf(source, "{"+settings+"}"); len(bad) == 0 || !strings.HasPrefix(bad[0], `"BUILDKITE_PLUGINS" has `) {
				t.Errorf("%s %s: %q", source, settings, bad)
			}
		}
	}
	refused(t, "BUILDKITE_PLUGINS", strings.Repeat(`[{"a":`, maxPlugins/6+1), "is larger than a variable may be", defaults(t))
	for _, text := range []string{"{", "{}", `"x"`, "1"} {
		refused(t, "BUILDKITE_PLUGINS", text, "is not a list of plugins", defaults(t))
	}
	env := ordinary()
	env["BUILDKITE_PLUGINS"] = `["docker#v5.11.0", {"other#v1": {"run": "$(x)"}}]`
	if bad := vet(env, defaults(t)); len(bad) > 0 {
		t.Errorf("plugins that evaluate nothing: %q", bad)
	}
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	write := func(text string) string {
		file := filepath.Join(t.TempDir(), "env")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	lines := func(env map[string]string) string {
		var b strings.Builder
		for name, value := range env {
			fmt.Fprintf(&b, "%s=%q\n", name, value)
		}
		return b.String()
	}
	cfg := write("token=x\nallowed-environment-variables=\"^KERNELBOT_[A-Z0-9_]+$,^GPU_QUEUE$,,^CUDA_VISIBLE_DEVICES$\"\n")
	if err := admit(write(lines(ordinary())), cfg); err != nil {
		t.Error(err)
	}
	if err := admit(write("BUILDKITE_AGENT_PID\n"+lines(ordinary())), cfg); err != nil {
		t.Errorf("a name alone, as of an agent 4: %v", err)
	}
	other := ordinary()
	other["OTHER"] = "x"
	for name, cfg := range map[string]string{"": cfg, "no list": write("token=x\n"), "no file": "/nowhere", "no pattern": write("allowed-environment-variables=\"(\"\n")} {
		if err := admit(write(lines(other)), cfg); err == nil {
			t.Errorf("%s: a variable that no one allows is admitted", name)
		}
	}
	many := ordinary()
	maps.Copy(many, map[string]string{"BASH_ENV": "x", "HOME": "y"})
	for i := range 50 {
		many[fmt.Sprintf("LD_%d", i)] = "x"
	}
	for name, row := range map[string]struct{ text, want string }{
		"reaching for the host":  {lines(many), `the job is refused: "BASH_ENV" changes what runs on the host`},
		"reaching too often":     {lines(many), "and 32 more"},
		"a line of another form": {"BASH_ENV=/x\n", `"BASH_ENV=/x" is not NAME="value"`},
		"no name":                {"=\"x\"\n", "is not the name of a variable"},
		"much too much":          {"A=\"" + strings.Repeat("x", job.MaxEnvFile) + "\"\n", "read the job's variables"},
	} {
		if err := admit(write(row.text), cfg); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := admit("/nowhere", cfg); err == nil {
		t.Error("a job without a file is admitted")
	}
}
