package cli

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

type hints struct{ term.Streams }

// accepted returns the first of these lines that kbnode's flags and arguments accept, or nil: a line that is refused
// in turn is no advice.
func accepted(lines ...[]string) []string {
	for _, line := range lines {
		root := Commands()
		root.InitDefaultVersionFlag()
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
	if cmd != root && cmd.Args(cmd, []string{word}) == nil { // it is an argument
		return nil
	}
	says := fmt.Sprintf("unknown command %q for %q", text.Line(word, 100), cmd.CommandPath())
	asked := strings.TrimPrefix(pathOf(cmd)+" "+word, "kbnode ")
	i := slices.Index(h.Typed, word)
	if same, ok := sameAnswers[asked]; ok {
		asked = same
	} else if h.removes(cmd, i) {
		asked = "rm"
	}
	if answer := answers[asked]; answer != "" {
		return term.Usagef("%s; %s", says, answer)
	}
	if ext := filepath.Ext(word); ext == ".yml" || ext == ".yaml" {
		switch cmd.Name() {
		case "config":
			return h.Advise(says, h.With(i, "check", word))
		case "pipeline":
			return term.Usagef("%s; it prints to standard output: %s", says, h.into(h.With(i), word))
		}
	}
	var lines [][]string
	near := nearCommands(cmd, word)
	if i+1 < len(h.Typed) && (h.Typed[i+1] == "--all" || node.LikelySlots(h.Typed[i+1]) != nil) {
		// Runs are cancelled, and not slots.
		near = slices.DeleteFunc(near, func(name string) bool { return name == "cancel" })
		if len(near) == 0 {
			return term.Usagef("%s; %s", says, h.ofSlot(term.EndJob))
		}
	}
	var same [][]string
	for _, name := range near {
		line := h.instead(i, name)
		same = append(same, h.With(i, name))
		if mode := modeWords[word]; mode != "" && name == "evaluate" && h.Find("--mode") < 0 {
			line = h.With(i, name, "--mode", mode)
		}
		lines = append(lines, line)
	}
	if cmd == root && i+1 < len(h.Typed) && task.LangOf(h.Typed[i+1]) != "" && accepted(same...) == nil { // as in kbnode check mine.py
		lines = [][]string{h.With(i, "evaluate")}
	}
	if len(lines) == 0 && cmd == root && i+1 < len(h.Typed) { // as in kbnode job cancel RUN
		next := h.Typed[i+1]
		for _, c := range root.Commands() {
			if c.IsAvailableCommand() && (c.Name() == next || c.HasAlias(next) || slices.Contains(c.SuggestFor, next)) {
				if line := accepted(slices.Replace(slices.Clone(h.Typed), i, i+2, c.Name())); line != nil {
					lines = append(lines, line)
				}
			}
		}
	}
	switch {
	case len(lines) > 0:
		return h.Advise(says, lines...)
	case cmd == root:
		return term.Usagef("%s; kbnode --help lists the commands", says)
	}
	if flag := strayFlags[pathOf(cmd)]; flag != "" {
		if line := accepted(h.With(i, "--"+flag, word)); line != nil {
			return h.Advise(says, line)
		}
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return term.Usagef("%s; it has %s", says, strings.Join(names, ", "))
}

// shows are the commands that only show something.
var shows = []string{"status", "doctor", "queue", "logs", "events", "inventory"}

// instead returns the typed words with word i replaced, and without the words that follow if they are refused then. Only what
// changes nothing is advised without them: they may say that it is to be done to one slot, or not at all.
func (h hints) instead(i int, name string) []string {
	full := h.With(i, name)
	if slices.Contains(shows, name) && accepted(full) == nil {
		return full[:i+1]
	}
	return full
}

// removes reports whether word i and its neighbor ask to remove something that may be less than all of kbnode. A command like
// word i that has commands of its own, such as image for images, says itself what becomes of the neighbor.
func (h hints) removes(cmd *cobra.Command, i int) bool {
	if cmd != cmd.Root() || i < 0 || i+1 >= len(h.Typed) {
		return false
	}
	word, next := h.Typed[i], h.Typed[i+1]
	group := func(name string) bool {
		c, _, err := cmd.Find([]string{name})
		return err == nil && c.HasSubCommands()
	}
	return slices.Contains(synonyms["uninstall"], next) && !slices.ContainsFunc(nearCommands(cmd, word), group) ||
		slices.Contains(synonyms["uninstall"], word) && !strings.HasPrefix(next, "-") && accepted(h.With(i, "uninstall")) == nil
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
