package doctor

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/gpu-mode/kbnode/internal/lazy"
)

// maxNested is how deep scripts are read that are words of scripts.
const maxNested = 8

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
