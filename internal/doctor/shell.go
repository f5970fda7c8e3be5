package doctor

import (
	"path"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/lazy"
)

// maxNested is how deep scripts are read that are words of scripts.
const maxNested = 8

var (
	shells = []string{"sh", "bash", "dash", "zsh", "ksh"}
	// runsNext matches words whose next word is a script.
	runsNext = lazy.Regexp(`^(-[a-zA-Z]*c|--command|eval|trap|watch|-S|--split-string)$`)
)

// shellCommands splits a script into commands and their words as a shell does, and adds the
// commands of scripts that are quoted in it, such as those of sh -c. It expands nothing and
// knows no keywords. It reads systemd's command lines and crontabs, too.
func shellCommands(script string) [][]string { return splitShell(script, 0) }

func splitShell(script string, depth int) (all [][]string) {
	if depth > maxNested {
		return nil
	}
	var command []string
	var word strings.Builder
	inWord := false
	nested := func(script string) { all = append(all, splitShell(script, depth+1)...) }
	endWord := func() {
		if !inWord {
			return
		}
		if n := len(command); n > 0 && runsNext().MatchString(command[n-1]) {
			nested(word.String())
		}
		command = append(command, word.String())
		word.Reset()
		inWord = false
	}
	endCommand := func() {
		if endWord(); len(command) > 0 {
			all = append(all, command)
		}
		command = nil
	}
	var here []string // delimiters of the documents that begin after this line
	for i := 0; i < len(script); i++ {
		switch c, rest := script[i], script[i+1:]; c {
		case '\\':
			if i++; rest != "" && rest[0] != '\n' {
				word.WriteByte(rest[0])
				inWord = true
			}
		case '\'':
			text, _, _ := strings.Cut(rest, "'")
			word.WriteString(text)
			inWord = true
			i += len(text) + 1
		case '"':
			text, inner, length := doubleQuoted(rest)
			for _, script := range inner {
				nested(script)
			}
			word.WriteString(text)
			inWord = true
			i += length
		case '#':
			if inWord {
				word.WriteByte(c)
				continue
			}
			comment, _, _ := strings.Cut(rest, "\n")
			i += len(comment)
		case ' ', '\t', '\r', '>':
			endWord()
		case '<':
			endWord()
			if after, is := strings.CutPrefix(rest, "<"); is && !strings.HasPrefix(after, "<") {
				line, _, _ := strings.Cut(after, "\n")
				line = strings.TrimLeft(line, "- \t\\'\"")
				if end := strings.IndexAny(line, " \t\\'\";|&<>)"); end >= 0 {
					line = line[:end]
				}
				here = append(here, line)
				i++
			} else if is {
				i += 2
			}
		case '\n':
			runs := slices.ContainsFunc(command, func(w string) bool { return slices.Contains(shells, path.Base(w)) })
			endCommand()
			for _, end := range here {
				text, length := hereDocument(rest, end)
				if runs {
					nested(text)
				}
				i, rest = i+length, rest[length:]
			}
			here = nil
		case '&':
			if i > 0 && strings.IndexByte("<>", script[i-1]) >= 0 || strings.HasPrefix(rest, ">") {
				endWord()
				continue
			}
			endCommand()
		case ';', '|', '(', ')', '`':
			endCommand()
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	endCommand()
	return all
}

// doubleQuoted returns the text up to the closing quote, the scripts whose output is part of
// it, and the length with the quote.
func doubleQuoted(script string) (text string, inner []string, length int) {
	var b strings.Builder
	for i := 0; i < len(script); i++ {
		switch c := script[i]; {
		case c == '"':
			return b.String(), inner, i + 1
		case c == '\\' && i+1 < len(script):
			if i++; script[i] != '\n' {
				b.WriteByte(script[i])
			}
		case c == '`':
			part, _, _ := strings.Cut(script[i+1:], "`")
			inner = append(inner, part)
			i += len(part) + 1
		case c == '$' && strings.HasPrefix(script[i+1:], "("):
			part := parenthesized(script[i+2:])
			inner = append(inner, part)
			i += len(part) + 2
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), inner, len(script)
}

// parenthesized returns the text up to the closing parenthesis.
func parenthesized(script string) string {
	open := 1
	for i, c := range script {
		switch c {
		case '(':
			open++
		case ')':
			if open--; open == 0 {
				return script[:i]
			}
		}
	}
	return script
}

// hereDocument returns the lines up to a delimiter, and their length with the delimiter's. If
// there is none, the text is no document.
func hereDocument(script, end string) (text string, length int) {
	for line := range strings.Lines(script) {
		length += len(line)
		if strings.Trim(line, "\t\r\n") == end {
			return script[:length-len(line)], length
		}
	}
	return "", 0
}
