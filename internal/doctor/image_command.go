package doctor

import (
	"path"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/lazy"
)

// imageWork are commands that pull or remove images, or remove containers that a job is about
// to start. Pulling what is missing, as docker run does, does not count, and neither does
// docker image prune without --all, which spares kbnode's images.
type imageWork struct {
	tools string
	words string            // alternatives are separated by a slash
	with  func(string) bool // an option without which it is none of these
}

const (
	engines   = "docker podman nerdctl"
	composers = engines + " docker-compose podman-compose"
)

var imageWorks = []imageWork{
	{engines, "image/system prune", isAll},
	{engines, "system/container prune", nil},
	{engines, "image pull/rm/remove/load", nil},
	{engines, "load", nil},
	{"ctr", "image/images/i pull/fetch/rm/remove/delete/del/prune", nil},
	{"podman", "auto-update", nil},
	{composers, "compose pull", nil},
	{composers, "compose up/create/run/build", isPull},
	{composers, "compose down", isRMI},
	{engines, "run/create", isPullOrUpdater},
	{engines, "container run/create", isPullOrUpdater},
	{engines, "start/restart", isUpdater},
	{engines, "build", isPull},
	{engines, "image/buildx build/bake", isPull},
	{engines + " crictl buildah", "pull/rmi", nil}, // the last, because "image" may look like an option's value
}

// imagePrograms do nothing but such work. update-image.sh is the script of old nodes.
var imagePrograms = []string{"update-image.sh", "watchtower", "docker-gc", "docker-prune", "docker-cleanup", "dockcheck.sh"}

// updaterImages match images that replace or remove images, by any publisher.
var updaterImages = lazy.Regexp(`(^|/)([a-z0-9.]+-)?(watchtower(-(arm|arm64|amd64|armhf|dev|fork))?|ouroboros|shepherd|wud|whats-up-docker|dockupdater|tugtainer|docker-gc|docker-gc-cron|docker-cleanup|docker-prune)(:[^/]*)?(@[^/]*)?$`)

// talkers only mention what follows them, or run it on another machine.
var talkers = []string{"echo", "printf", "logger", "wall", "ssh", "cat", "ls", "chmod", "chown", "cp", "mv", "rm", "test", "[", "grep", "which", "type"}

var (
	allFlag = lazy.Regexp(`^(-[a-z]*a[a-z]*|--all|--all=true)$`)
	// A value of --pull that pulls nothing that is there.
	noPull = lazy.Regexp(`^--pull[= ](never|missing|false|policy|build|if.?not.?present)$`)
)

func isAll(word string) bool { return allFlag().MatchString(word) }
func isRMI(word string) bool { return word == "--rmi" || strings.HasPrefix(word, "--rmi=") }
func isPull(word string) bool {
	return (word == "--pull" || strings.HasPrefix(word, "--pull=") || strings.HasPrefix(word, "--pull ")) && !noPull().MatchString(word)
}
func isUpdater(word string) bool       { return updaterImages().MatchString(word) }
func isPullOrUpdater(word string) bool { return isPull(word) || isUpdater(word) }

// lookedUp matches a program that a script looks for to run it, such as $(which docker).
var lookedUp = lazy.Regexp("(\\$\\(|`)\\s*(?:which|command -v|type -p)\\s+([\\w./-]+)\\s*(?:\\)|`)")

// imageCommand returns the first command in a script that pulls or removes images, without the
// words that may hold a password, or "".
func imageCommand(script string) string {
	for _, command := range shellCommands(lookedUp().ReplaceAllString(script, "$2")) {
		engine := false
		for i, word := range command {
			tool := toolOf(word)
			if slices.Contains(talkers, tool) {
				break
			}
			if !engine && slices.Contains(imagePrograms, tool) { // docker stop watchtower is none
				return tool
			}
			if what := imageCommandAt(tool, command[i+1:]); what != "" {
				return what
			}
			engine = engine || isEngine(tool)
		}
	}
	return ""
}

func isEngine(tool string) bool { return slices.Contains(strings.Fields(composers), tool) }

func imageCommandAt(tool string, args []string) string {
	composer := strings.HasSuffix(tool, "-compose")
	if composer {
		args = append([]string{"compose"}, args...)
	}
	for _, work := range imageWorks {
		if !slices.Contains(strings.Fields(work.tools), tool) {
			continue
		}
		shown, rest := []string{tool}, args
		for alternatives := range strings.FieldsSeq(work.words) {
			at := nextWord(rest, strings.Split(alternatives, "/"))
			if at < 0 {
				shown = nil
				break
			}
			shown, rest = append(shown, rest[at]), rest[at+1:]
		}
		if shown == nil {
			continue
		}
		if composer {
			shown = slices.Delete(shown, 1, 2)
		}
		if work.with != nil {
			option := slices.IndexFunc(withValues(rest), work.with)
			if option < 0 {
				continue
			}
			shown = append(shown, withValues(rest)[option])
		}
		return strings.Join(shown, " ")
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

// nextWord returns where one of the words is if only options, with or without a value, are
// before it, or else -1.
func nextWord(args, words []string) int {
	for i := 0; i < len(args); i++ {
		if slices.Contains(words, args[i]) {
			return i
		}
		if !strings.HasPrefix(args[i], "-") {
			return -1
		}
		if i+1 < len(args) && !strings.Contains(args[i], "=") && !strings.HasPrefix(args[i+1], "-") && !slices.Contains(words, args[i+1]) {
			i++ // the option's value
		}
	}
	return -1
}

// withValues joins --pull to the word after it if that can be its value.
func withValues(args []string) (joined []string) {
	for _, word := range args {
		if n := len(joined); n > 0 && joined[n-1] == "--pull" && slices.Contains([]string{"always", "newer", "never", "missing", "policy", "build", "if_not_present"}, word) {
			joined[n-1] += " " + word
			continue
		}
		joined = append(joined, word)
	}
	return joined
}
