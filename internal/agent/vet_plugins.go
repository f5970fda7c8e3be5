package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/lazy"
)

// The docker plugin is a bash script that runs on the host. It evaluates some of its settings,
// and a pipeline may take any of them from a build's variables, which Buildkite inserts when the
// pipeline is uploaded. The forms here evaluate only to themselves or a variable's value.
// Source: commands/run.sh and lib/shared.bash of docker-buildkite-plugin, from version 5.11.0 on.
var (
	// settingKey matches settings that the agent turns into a clean variable name.
	settingKey = lazy.Regexp(`^[A-Za-z0-9_ -]+$`)
	retryCount = lazy.Regexp(`^[0-9]{1,3}$`) // (( retries == 0 ))
	// An image or a mount that is evaluated: eval echo "$image".
	evaluated = lazy.Regexp(`^([A-Za-z0-9_./:@,=+%~-]|\$[A-Za-z_][A-Za-z0-9_]*|\$\{[A-Za-z_][A-Za-z0-9_]*\})*$`)
	// $NAME and ${NAME} give a value that is not evaluated again.
	plainReference = lazy.Regexp(`\$[A-Za-z_][A-Za-z0-9_]*|\$\{[A-Za-z_][A-Za-z0-9_]*\}`)
	// What a shell would run or look up when it evaluates a value: $(…), ${…}, a[…].
	substitution = lazy.Regexp("[`]|\\$[({\\[]|[A-Za-z0-9_]\\[")
)

// maxPlugins is the longest variable that Linux accepts, in bytes. A longer one never reaches a
// hook, and if nested deeply enough it would take minutes to name.
const maxPlugins = 128 << 10

// textSettings go into the container unchanged, and may contain shell text.
var textSettings = []string{"COMMAND", "COMMAND_*", "SHELL", "SHELL_*", "ENTRYPOINT", "ENVIRONMENT_*"}

// vetPlugins returns what is wrong with the plugins of a job, as the agent gets them: a JSON list.
// env are the job's variables.
func vetPlugins(text string, env map[string]string) []string {
	if text == "" {
		return nil
	}
	if len(text) > maxPlugins {
		return []string{"is larger than a variable may be; move its text into a file of the checkout"}
	}
	var list []any
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&list); err != nil {
		return []string{"is not a list of plugins; write plugins: [docker#v5.13.0: {…}]"}
	}
	var bad []string
	for _, e := range list {
		plugins, _ := e.(map[string]any) // else a plugin without settings
		for _, source := range slices.Sorted(maps.Keys(plugins)) {
			name := pluginName(source)
			settings := map[string][]string{}
			bad = append(bad, collect(settings, "", plugins[source])...)
			if strings.HasPrefix(name, "docker") {
				bad = append(bad, vetDocker(settings, env)...)
			}
		}
	}
	return bad
}

// pluginName returns the name that the agent uses for the settings of a plugin: the last part of
// its source, without the suffix.
func pluginName(source string) string {
	source, _, _ = strings.Cut(source, "#")
	source, _, _ = strings.Cut(source, "?")
	if plain, err := url.PathUnescape(source); err == nil {
		source = plain
	}
	return strings.ToLower(path.Base(strings.ReplaceAll(source, `\`, "/")))
}

// collect adds the variables that the agent makes of a setting, without their common prefix.
// A name may occur more than once: expand-image-vars and EXPAND_IMAGE_VARS are the same.
func collect(into map[string][]string, name string, v any) (bad []string) {
	add := func(key string) string {
		return strings.Trim(strings.Join(strings.FieldsFunc(name+"_"+strings.ToUpper(key), func(r rune) bool { return strings.ContainsRune("_- ", r) }), "_"), "_")
	}
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if !settingKey().MatchString(key) {
				bad = append(bad, fmt.Sprintf("has a setting %.60q; use only letters, digits and dashes in its name", key))
				continue
			}
			bad = append(bad, collect(into, add(key), v[key])...)
		}
	case []any:
		for i, e := range v {
			bad = append(bad, collect(into, add(strconv.Itoa(i)), e)...)
		}
	case nil:
	default:
		value := fmt.Sprint(v)
		if why := vetValue(value); why != "" {
			bad = append(bad, fmt.Sprintf("has a setting %s that %s", settingName(name), why))
		}
		into[name] = append(into[name], value)
	}
	return bad
}

func settingName(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "-")) }

// vetDocker checks the settings of the docker plugin against what its scripts do with them.
func vetDocker(settings map[string][]string, env map[string]string) (bad []string) {
	on := func(name string) bool {
		return slices.ContainsFunc(settings[name], func(v string) bool { return !slices.Contains([]string{"", "false", "off", "0"}, v) })
	}
	images, volumes := on("EXPAND_IMAGE_VARS"), on("EXPAND_VOLUME_VARS")
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		for _, value := range settings[name] {
			if why := vetSetting(name, value, images, volumes, env); why != "" {
				bad = append(bad, fmt.Sprintf("has docker's setting %s %.100q, which %s", settingName(name), value, why))
			}
		}
	}
	return bad
}

func vetSetting(name, value string, images, volumes bool, env map[string]string) string {
	isImage := name == "IMAGE" || name == "CHOWN_IMAGE"
	isVolume := onList([]string{"VOLUMES_*", "MOUNTS_*", "TMPFS_*"}, name)
	expands := isImage && images || isVolume && volumes
	switch {
	case onList(textSettings, name):
		return ""
	case substitution().MatchString(plainReference().ReplaceAllString(value, "")):
		return "a shell on the host could run; write the value itself, or $NAME"
	case expands && !evaluated().MatchString(value):
		return "a shell on the host evaluates; use letters, digits, _./:@,=+%~- and $NAME"
	case expands && strings.Contains(strings.ToUpper(strings.Join(plainReference().FindAllString(value, -1), " ")), "TOKEN"):
		return "names a secret; use another variable"
	case name == "PULL_RETRIES" && !retryCount().MatchString(value):
		return "is not a number; write one such as 3"
	case name == "ENV_PROPAGATION_LIST" && !variableName().MatchString(value):
		return "is not the name of a variable; write one such as NAMES"
	case onList([]string{"ENV_FILE", "ENV_FILE_*"}, name) && (path.IsAbs(value) || slices.Contains(strings.Split(value, "/"), "..")):
		return "is not in the checkout; write the path relative to it"
	case isImage:
		if images {
			value = os.Expand(value, func(name string) string { return env[name] })
		}
		// Docker's command line would read --env-file=/etc/passwd, for example.
		if strings.HasPrefix(strings.TrimSpace(value), "-") {
			return "is an option of docker run, not an image; write the name of an image"
		}
	}
	return ""
}
