package doctor

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/gpu-mode/kbnode/internal/lazy"
)

// Programs that manage images or containers.
const (
	engines   = "docker|podman|nerdctl"
	composers = "docker-compose|podman-compose"
)

// Options with which a command pulls or removes images, or starts a container that does. A zero byte is
// between words.
const (
	allOption     = `-[a-z]*a[a-z]*|--all|--all=true`
	pullOption    = `--pull(?:=[^\x00]*|\x00always|\x00newer)?`
	removeOption  = `--rmi(?:=[^\x00]*)?`
	updaterOption = `(?:[^\x00]*/)?(?:[a-z0-9.]+-)?(?:watchtower(?:-(?:arm|arm64|amd64|armhf|dev|fork))?|ouroboros|shepherd|wud|whats-up-docker|` +
		`dockupdater|tugtainer|docker-gc|docker-gc-cron|docker-cleanup|docker-prune)(?::[^/\x00]*)?(?:@[^/\x00]*)?`
)

// imageWorks match commands that pull or remove images, or remove containers that a job is about to start.
// Pulling what is missing, as docker run does, does not count, and neither does docker image prune without
// --all, which spares kbnode's images.
var imageWorks = sync.OnceValue(func() (all []*regexp.Regexp) {
	for _, work := range []struct{ tools, words, option string }{
		{engines, "image|system prune", allOption},
		{engines, "system|container prune", ""},
		{engines, "image pull|rm|remove|load", ""},
		{engines, "load", ""},
		{"ctr", "image|images|i pull|fetch|rm|remove|delete|del|prune", ""},
		{"podman", "auto-update", ""},
		{engines, "compose pull", ""},
		{composers, "pull", ""},
		{engines, "compose up|create|run|build", pullOption},
		{composers, "up|create|run|build", pullOption},
		{engines, "compose down", removeOption},
		{composers, "down", removeOption},
		{engines, "run|create", pullOption + "|" + updaterOption},
		{engines, "container run|create", pullOption + "|" + updaterOption},
		{engines, "start|restart", updaterOption},
		{engines, "build", pullOption},
		{engines, "image|buildx build|bake", pullOption},
		{engines + "|crictl|buildah", "pull|rmi", ""}, // the last, because "image" may look like an option's value
	} {
		form := []string{`(?:^|\x00)(` + work.tools + `)`}
		for words := range strings.FieldsSeq(work.words) { // after options, which may have a value
			form = append(form, `(?:\x00-[^\x00]*(?:\x00[^\x00-][^\x00]*)?)*\x00(`+words+`)`)
		}
		if work.option != "" {
			form = append(form, `(?:\x00[^\x00]*)*?\x00(`+work.option+`)`)
		}
		all = append(all, regexp.MustCompile(strings.Join(form, "")+`(?:\x00|$)`))
	}
	return all
})

// imagePrograms do nothing but such work. update-image.sh is the script of old nodes.
var imagePrograms = []string{"update-image.sh", "watchtower", "docker-gc", "docker-prune", "docker-cleanup", "dockcheck.sh"}

// talkers only mention what follows them, or run it on another machine.
var talkers = []string{"echo", "printf", "logger", "wall", "ssh", "cat", "ls", "chmod", "chown", "cp", "mv", "rm", "test", "[", "grep", "which", "type"}

var (
	// updaterImages match images that replace or remove images, by any publisher.
	updaterImages = lazy.Regexp(`^` + updaterOption + `$`)
	// imageTools match the programs that a work begins with.
	imageTools = lazy.Regexp(`^(?:` + engines + `|` + composers + `|ctr|crictl|buildah)$`)
	isEngine   = lazy.Regexp(`^(?:` + engines + `|` + composers + `)$`)
	// noPull matches a --pull that pulls nothing that is there.
	noPull = lazy.Regexp(`--pull[=\x00](?:never|missing|false|policy|build|if.?not.?present)(\x00|$)`)
	// lookedUp matches a program that a script looks for to run it, such as $(which docker).
	lookedUp = lazy.Regexp("(\\$\\(|`)\\s*(?:which|command -v|type -p)\\s+([\\w./-]+)\\s*(?:\\)|`)")
)

// imageCommand returns the first command in a script that pulls or removes images, without the
// words that may hold a password, or "".
func imageCommand(script string) string {
	for _, command := range shellCommands(lookedUp().ReplaceAllString(script, "$2")) {
		engine := false
		var words []string
		for _, word := range command {
			tool := toolOf(word)
			if !engine && slices.Contains(talkers, tool) { // docker rm is none
				break
			}
			if !engine && slices.Contains(imagePrograms, tool) { // docker stop watchtower is none
				return tool
			}
			if imageTools().MatchString(tool) {
				engine, word = true, tool
			}
			words = append(words, word)
		}
		line := noPull().ReplaceAllString(strings.Join(words, "\x00"), "$1")
		for _, work := range imageWorks() {
			if m := work.FindStringSubmatch(line); m != nil {
				return strings.ReplaceAll(strings.Join(m[1:], " "), "\x00", " ")
			}
		}
	}
	return ""
}

// toolOf returns the name of a program, without its directory and systemd's prefixes. A
// script's variable, such as ${DOCKER:-docker}, is the program that it is named after.
func toolOf(program string) string {
	tool := path.Base(strings.TrimLeft(program, "-@:+!|"))
	if strings.HasPrefix(program, "$") {
		for _, word := range []string{"compose", "docker", "podman", "nerdctl"} {
			if strings.Contains(strings.ToLower(program), word) {
				return strings.Replace(word, "compose", "docker-compose", 1)
			}
		}
	}
	if strings.HasPrefix(tool, "docker-compose") { // such as docker-compose-v1
		return "docker-compose"
	}
	return tool
}
