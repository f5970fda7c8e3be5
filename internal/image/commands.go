package image

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"mvdan.cc/sh/v3/syntax"

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

// Work returns the first command in a script that pulls or removes images, without the words that may hold a
// password, or "". Where a word is a path, follow returns the text of a script that is there; nil follows none.
func Work(script string, follow func(name string) (text string, is bool)) string {
	return work(script, follow, 0)
}

func work(script string, follow func(string) (string, bool), depth int) string {
	if what := workOf(script); what != "" || depth == maxScripts || follow == nil {
		return what
	}
	for _, command := range shellCommands(script) {
		for _, name := range command {
			name = strings.TrimLeft(name, "-@:+!|")
			if slices.Contains(talkers, path.Base(name)) {
				break
			}
			if !strings.HasPrefix(name, "/") {
				continue
			}
			if text, is := follow(name); is {
				if what := work(text, follow, depth+1); what != "" {
					return what + ", in " + name
				}
			}
		}
	}
	return ""
}

// UsesEngine reports whether a script runs a program that manages images or containers.
func UsesEngine(script string) bool {
	return slices.ContainsFunc(shellCommands(script), func(words []string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return isEngine().MatchString(toolOf(w)) })
	})
}

// IsUpdater reports whether an image, or a container by its name, replaces or removes images.
func IsUpdater(name string) bool { return updaterImages().MatchString(name) }

func workOf(script string) string {
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

const (
	maxNested  = 8 // scripts that are words of scripts
	maxScripts = 3 // scripts that call each other
)

var (
	shells = []string{"sh", "bash", "dash", "zsh", "ksh"}
	// runsNext matches words whose next word is a script.
	runsNext = lazy.Regexp(`^(-[a-zA-Z]*c|--command|eval|trap|watch|-S|--split-string)$`)
	escape   = lazy.Regexp(`\\(.)`)
)

// shellCommands returns the commands of a script and their words, and adds the commands of scripts that are
// quoted in it, such as those of sh -c. It expands nothing. It reads systemd's command lines and crontabs, too.
func shellCommands(script string) [][]string { return shellScript(script, 0) }

func shellScript(script string, depth int) (all [][]string) {
	if depth > maxNested {
		return nil
	}
	var nested []string
	file, err := syntax.NewParser().Parse(strings.NewReader(script), "")
	if err != nil {
		if strings.Contains(strings.TrimSpace(script), "\n") { // what can be read of it
			for line := range strings.Lines(script) {
				all = append(all, shellScript(line, depth+1)...)
			}
		}
		return all
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		s, is := n.(*syntax.Stmt)
		if !is {
			return true
		}
		call, is := s.Cmd.(*syntax.CallExpr)
		if !is {
			return true
		}
		var command []string
		for _, w := range call.Args {
			text := literal(script, w.Parts)
			if n := len(command); n > 0 && runsNext().MatchString(command[n-1]) {
				nested = append(nested, text)
			}
			command = append(command, text)
		}
		all = append(all, command)
		if slices.ContainsFunc(command, func(w string) bool { return slices.Contains(shells, path.Base(w)) }) {
			for _, r := range s.Redirs {
				if r.Hdoc != nil {
					nested = append(nested, literal(script, r.Hdoc.Parts))
				}
			}
		}
		return true
	})
	for _, script := range nested {
		all = append(all, shellScript(script, depth+1)...)
	}
	return all
}

// literal returns a word without its quotes. What a shell would expand stays as it is.
func literal(script string, parts []syntax.WordPart) string {
	var b strings.Builder
	for _, p := range parts {
		switch p := p.(type) {
		case *syntax.Lit:
			b.WriteString(escape().ReplaceAllString(p.Value, "$1"))
		case *syntax.SglQuoted:
			b.WriteString(p.Value)
		case *syntax.DblQuoted:
			b.WriteString(literal(script, p.Parts))
		default:
			b.WriteString(script[p.Pos().Offset():p.End().Offset()])
		}
	}
	return b.String()
}
