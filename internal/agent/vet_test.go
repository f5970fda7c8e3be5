package agent

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
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

func TestVet(t *testing.T) {
	t.Parallel()
	if bad := vet(ordinary()); len(bad) > 0 {
		t.Errorf("an ordinary job is refused: %q", bad)
	}
	for name, value := range map[string]string{
		"BASH_ENV": "/x", "BASH_FUNC_echo%%": "() { id; }", "ENV": "x", "PS4": "$(id)", "LD_PRELOAD": "x.so", "LD_AUDIT": "x",
		"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_SSH_COMMAND": "id", "PATH": "/x", "HOME": "/x",
		"DOCKER_HOST": "unix:///var/run/docker.sock", "KBNODE_SLOT": "3", "KBNODE_BINARY": "/x",
		"BUILDKITE_BUILD_CHECKOUT_PATH": "/var/lib/buildkite-agent/gpu-1", "BUILDKITE_BUILD_PATH": "/", "BUILDKITE_HOOKS_PATH": "/x",
		"BUILDKITE_PLUGINS_PATH": "/x", "BUILDKITE_BOOTSTRAP_PHASES": "command", "BUILDKITE_GIT_CLONE_FLAGS": "-c core.fsmonitor=id",
		"BUILDKITE_SHELL": "/x", "BUILDKITE_DOCKER": "x", "BUILDKITE_DOCKER_COMPOSE_FILE": "x", "BUILDKITE_ENV_FILE": "/x",
		"BUILDKITE_ARTIFACT_UPLOAD_DESTINATION": "s3://x", "BUILDKITE_AGENT_JOB_API_SOCKET": "x",
		"BUILDKITE_PIPELINE_SLUG": "../../gpu-1", "BUILDKITE_ORGANIZATION_SLUG": "..", "BUILDKITE_JOB_ID": "../x",
		"BUILDKITE_BRANCH": "--upload-pack=id", "BUILDKITE_COMMIT": "-x", "BUILDKITE_REFSPEC": "a --x", "BUILDKITE_REPO": "-x",
		"KERNELBOT_RUN_ID": "a\x00b",
	} {
		env := ordinary()
		env[name] = value
		if bad := vet(env); len(bad) != 1 || !strings.Contains(bad[0], fmt.Sprintf("%q", name)) {
			t.Errorf("%s=%s: %q", name, value, bad)
		}
	}
	for _, path := range []string{"/etc/passwd", "../x", "a/../../x", "~/x", "{/etc/passwd,x}", "x;/etc/shadow", "{.,x}./y", "{x,/etc}/passwd"} {
		env := ordinary()
		env["BUILDKITE_ARTIFACT_PATHS"] = path
		if bad := vet(env); len(bad) != 1 {
			t.Errorf("artifact path %s: %q", path, bad)
		}
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
	if err := admit(write(lines(ordinary()))); err != nil {
		t.Error(err)
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
		"no name":                {"\"x\"\n", "is not NAME"},
		"much too much":          {"A=\"" + strings.Repeat("x", maxJobEnv) + "\"\n", "read the job's variables"},
	} {
		if err := admit(write(row.text)); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := admit("/nowhere"); err == nil {
		t.Error("a job without a file is admitted")
	}
}
