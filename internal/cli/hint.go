package cli

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

type hints struct{ term.Streams }

// accepted returns the first of these lines that kbnode's flags and arguments accept, or nil: a line that is refused
// in turn is no advice.
func accepted(lines ...[]string) []string {
	for _, line := range lines {
		root := Commands()
		root.InitDefaultVersionFlag()
		root.InitDefaultHelpFlag()
		cmd, rest, err := root.Find(line)
		if line == nil || err != nil {
			continue
		}
		cmd.InitDefaultHelpFlag()
		if cmd.ParseFlags(rest) == nil && cmd.ValidateArgs(cmd.Flags().Args()) == nil {
			return line
		}
	}
	return nil
}

// command finds an unknown word where a command is expected. Cobra checks the flags first, and
// says of `kbnode instal --queue b200` that there is no flag --queue.
func (h hints) command(root *cobra.Command) error {
	root.InitDefaultHelpFlag()         // it takes no value: kbnode --help install is about install
	cmd, rest, _ := root.Find(h.Typed) // the error is only of the first word
	if cmd.Name() == "help" {
		cmd, rest, _ = root.Find(rest)
	}
	word := firstWord(cmd, rest)
	if word == "" || !cmd.HasSubCommands() || strings.HasPrefix(word, cobra.ShellCompRequestCmd) {
		return nil
	}
	if cmd != root && cmd.Args(cmd, []string{word}) == nil && (len(rest) < 2 || named(cmd, word) == nil) { // it is an argument
		return nil
	}
	says := fmt.Sprintf("unknown command %q for %q", text.Line(word, 100), cmd.CommandPath())
	asked := strings.TrimPrefix(pathOf(cmd)+" "+word, "kbnode ")
	i := slices.Index(h.Typed, word)
	if ext := filepath.Ext(word); ext == ".yml" || ext == ".yaml" {
		switch cmd.Name() {
		case "config":
			return h.Advise(says, h.With(i, "check", word))
		case "pipeline":
			return term.Usagef("%s; it prints to standard output: %s", says, h.into(h.With(i), word))
		}
	}
	lines, answer := h.meant(cmd, i)
	if known := answerTo(asked); known != "" {
		lines, answer = nil, known
	}
	switch {
	case answer != "":
		return term.Usagef("%s; %s", says, h.ofSlot(answer))
	case len(lines) > 0:
		return h.corrected(says, lines)
	case cmd == root:
		return term.Usagef("%s; kbnode --help lists the commands", says)
	}
	if flag := strayFlags[pathOf(cmd)]; flag != "" && !isVerb(root, word) {
		if line := accepted(h.With(i, "--"+flag, word)); line != nil {
			return h.Advise(says, line)
		}
	}
	return term.Usagef("%s; it has %s", says, strings.Join(subcommands(cmd), ", "))
}

// subcommands returns the names of a command's commands.
func subcommands(cmd *cobra.Command) (names []string) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// isVerb reports whether a word asks for a command: it is no name of a queue. Some queues are for tests.
func isVerb(root *cobra.Command, word string) bool { return word != "test" && named(root, word) != nil }

// answerTo returns the line of answers for words, or "".
func answerTo(asked string) string {
	if same, ok := sameAnswers[asked]; ok {
		asked = same
	}
	return answers[asked]
}

// corrected advises those of some lines that kbnode accepts. If it accepts none, it says which command was meant, and what is
// wrong with the rest: who types a refused line learns it only then.
func (h hints) corrected(says string, lines [][]string) error {
	var good [][]string
	var names []string
	for _, line := range lines {
		cmd, _, _ := h.Commands.Find(line) // the error is of a word that refusal explains
		if whole := placed(cmd, line); len(whole) > len(line) || accepted(line) != nil {
			good = append(good, whole)
		}
		names = append(names, pathOf(cmd))
	}
	if good != nil {
		return h.Advise(says, good...)
	}
	says = fmt.Sprintf("%s; the command is %s", says, strings.Join(names, " or "))
	if len(lines) > 1 {
		return term.Usagef("%s", says)
	}
	return term.Usage(errors.Join(errors.New(says), h.refusal(lines[0])))
}

// refusal returns what kbnode says about the flags and arguments of a line.
func (h hints) refusal(line []string) error {
	s := term.Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard, Typed: line}
	root := newRoot(s)
	s.Commands = root
	root.InitDefaultHelpFlag()
	if err := (hints{s}).command(root); err != nil {
		return err
	}
	cmd, rest, err := root.Find(line)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(rest); err != nil {
		return cmd.FlagErrorFunc()(cmd, err)
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// into says to write what a line prints into a file. If that exists, it advises no line that names it: the shell would empty
// it before kbnode starts.
func (h hints) into(line []string, file string) string {
	if isFile(file) {
		return fmt.Sprintf("%s exists, and the shell would empty it; write %s%s>FILE with another name", text.Line(file, 100), h.Line(line), term.Unbroken)
	}
	return fmt.Sprintf("write %s%s>%s", h.Line(line), term.Unbroken, term.Word(file))
}

// pathOf returns a command as people type it after kbnode.
func pathOf(cmd *cobra.Command) string { return strings.TrimPrefix(cmd.CommandPath(), "kbnode ") }

// firstWord returns the first argument that is no flag of a command and no value of one. It is "" if
// there is none, or an unknown flag before it.
func firstWord(cmd *cobra.Command, args []string) string {
	value := false
	for _, word := range args {
		switch {
		case value:
			value = false
		case word == "--":
			return ""
		case !strings.HasPrefix(word, "-"):
			return word
		default:
			name, _, given := strings.Cut(strings.TrimLeft(word, "-"), "=")
			f := cmd.Flag(name)
			if f == nil && name != "h" && name != "help" {
				return ""
			}
			value = f != nil && f.NoOptDefVal == "" && !given
		}
	}
	return ""
}

// nearCommands returns all commands that a mistyped word may mean: kbnode must not choose between
// install and uninstall.
func nearCommands(at *cobra.Command, word string) []string {
	word = strings.ToLower(filepath.Base(word)) // completion /bin/bash
	var same, longer []string
	for _, c := range at.Commands() {
		if slices.Contains(c.SuggestFor, word) {
			same = append(same, c.Name())
		}
		if len(c.Name()) > 3 && c.IsAvailableCommand() && strings.HasPrefix(word, c.Name()) {
			longer = append(longer, c.Name()) // evaluation
		}
	}
	if same != nil {
		return same
	}
	at.SuggestionsMinimumDistance = farthest(word)
	near := at.SuggestionsFor(word)
	for _, c := range at.Commands() { // cobra compares no aliases
		if slices.ContainsFunc(c.Aliases, func(alias string) bool { return text.Edits(alias, word) <= farthest(word) }) {
			near = append(near, c.Name())
		}
	}
	if len(near) == 0 {
		near = longer
	}
	return slices.Compact(near)
}

// farthest returns the largest distance of a typo from what was meant.
func farthest(word string) int { return min(2, max(1, len(word)-3)) }
