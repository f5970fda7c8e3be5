package term

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// asRoot is the annotation of AsRoot.
const asRoot = "root"

// AsRoot annotates a command that only root can complete, with its subcommands, and returns it. Advice writes sudo
// before it, and what keeps the variables that it reads: sudo drops them unless told.
func AsRoot(cmd *cobra.Command, variables ...string) *cobra.Command {
	cmd.Annotations = map[string]string{asRoot: strings.Join(variables, " ")}
	return cmd
}

// NeedsRoot reports whether only root can complete a command, and returns the variables that it reads.
func NeedsRoot(cmd *cobra.Command) (variables []string, ok bool) {
	for ; cmd != nil; cmd = cmd.Parent() {
		if names, ok := cmd.Annotations[asRoot]; ok {
			return strings.Fields(names), true
		}
	}
	return nil, false
}

// maxWord bounds an argument that is repeated, in bytes.
const maxWord = 4096

// Unbroken is a blank at which Printf breaks no line: a command that is cut in two cannot be pasted.
const Unbroken = "\u00a0"

// EndJob says how a job ends on its node: its build is only the operators' to cancel.
const EndJob = "to end a slot's job at once, write sudo kbnode drain gpu3, and then sudo systemctl kill --kill-who=main --signal=QUIT buildkite-agent-gpu3; the operators can cancel its build, which kbnode status names"

// Line returns a command line for Printf, quoted for a shell. It hides secrets.
func (s Streams) Line(args []string) string {
	words := []string{Program()}
	cmd, _, _ := s.Commands.Find(args) // the error is of a word that is no command
	anyone := slices.ContainsFunc(args, func(a string) bool { return a == "--root" || strings.HasPrefix(a, "--root=") || a == "--help" })
	if variables, ok := NeedsRoot(cmd); ok && !anyone {
		words = slices.Insert(words, 0, "sudo")
		keep := slices.DeleteFunc(variables, func(name string) bool { return os.Getenv(name) == "" })
		if len(keep) > 0 {
			words = slices.Insert(words, 1, "--preserve-env="+strings.Join(keep, ","))
		}
	}
	known := Secrets(args)
	for _, a := range args {
		words = append(words, Word(Hide(a, known)))
	}
	return strings.ReplaceAll(strings.Join(words, " "), " ", Unbroken)
}

// Word returns an argument for a line that Printf prints to be pasted, quoted for a shell.
func Word(a string) string {
	if !text.Plain(a) || len(a) > maxWord {
		a = text.Line(a, maxWord)
	}
	return strings.ReplaceAll(text.ShellWord(a), " ", Unbroken)
}

// Program returns how to start this kbnode again: sudo finds none that is outside of its PATH.
func Program() string {
	if name := os.Args[0]; filepath.Base(name) == "kbnode" && strings.ContainsRune(name, filepath.Separator) {
		return name
	}
	return "kbnode"
}

// Again returns what was typed, to type it again as root.
func (s Streams) Again() string { return s.Line(s.Typed) }

const (
	// dashes are hyphens, and what chats and documents make of them.
	dashes = `\-\x{2010}-\x{2015}\x{2212}\x{fe63}\x{ff0d}`
	// blanks are also those that are none to the shell.
	blanks = `\s\p{Zs}`
	// secretWords are how names of flags and variables end whose value is a secret. A mistyped --token counts, too.
	secretWords = `(?:tok(?:en?)?|secret|passw(?:or)?d|(?:api|private)[-_]?key)` //nolint:gosec // words, and no secret
	hiddenNames = `(?:^|[_=` + dashes + `])` + secretWords
)

var (
	// SecretName matches the name of a flag or variable whose value is a secret.
	SecretName = lazy.Regexp(`(?i)` + hiddenNames + `$`)
	// secretValue matches a word with a secret: NAME=VALUE, a flag and its value with a blank that is none to the shell, a
	// token of Buildkite, or the login and password in the address of a server or a database.
	secretValue = lazy.Regexp(`(?i)` + hiddenNames + `[` + blanks + `]*=[` + blanks + `]*([^` + blanks + `]+)` +
		`|(?:^|[` + blanks + `])[` + dashes + `](?:[\w` + dashes + `]*[_` + dashes + `])?` + secretWords + `[` + blanks + `]+([^` + blanks + `]+)` +
		`|(\bbk[a-z]{2,3}_[^\s'",;]+)|://([^/\s]+)@`)
	isFlag = lazy.Regexp(`^[` + dashes + `]`)
)

// shortest is the length of the shortest secret, in bytes: a shorter one would garble a message.
const shortest = 4

// Secrets returns what must not be repeated of a command line, because people log and paste it.
func Secrets(args []string) []string {
	var found []string
	before := ""
	for _, a := range args {
		if isFlag().MatchString(before) && SecretName().MatchString(before) {
			found = append(found, a)
		}
		before = a
		for _, groups := range secretValue().FindAllStringSubmatch(a, -1) {
			found = append(found, groups[1:]...)
		}
	}
	return slices.DeleteFunc(found, func(s string) bool { return len(s) < shortest })
}

// longestCut is the length of the longest beginning of a word that a message repeats, in bytes.
const longestCut = 1200

// Hide replaces secrets in a text, and their beginnings where a message has cut them.
func Hide(s string, secrets []string) string {
	for _, secret := range secrets {
		s = strings.ReplaceAll(s, secret, "…")
		for n := min(len(secret)-1, longestCut); n >= shortest; n-- {
			for _, end := range []string{"…", `"`} { // of text.Line, and of %.60q
				s = strings.ReplaceAll(s, secret[:n]+end, "…"+end)
			}
		}
	}
	return strings.ReplaceAll(s, "……", "…")
}

// Advise advises to type one of these lines instead.
func (s Streams) Advise(says string, lines ...[]string) error {
	var shown []string
	for _, args := range lines {
		shown = append(shown, s.Line(args))
	}
	return Usagef("%s; write %s", says, strings.Join(shown, ", or "))
}

// With returns the typed words with word i replaced, or removed if words is empty.
func (s Streams) With(i int, words ...string) []string {
	return slices.Replace(slices.Clone(s.Typed), i, i+1, words...)
}

// Find returns the index of the first use of a flag in the typed words, or -1.
func (s Streams) Find(flag string) int {
	return slices.IndexFunc(s.Typed, func(a string) bool { name, _, _ := strings.Cut(a, "="); return name == flag })
}
