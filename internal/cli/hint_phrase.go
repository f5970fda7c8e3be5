package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/node"
)

var (
	// shows are the commands that only show something.
	shows = []string{"status", "doctor", "queue", "logs", "events", "inventory", "version"}
	// showWords are words of other tools before or after what they show.
	showWords = []string{"show", "list", "ls", "get", "describe", "view", "print", "cat", "display", "info", "inspect", "run"}
)

// meant returns the lines that the unknown word i may mean, or what to say in place of them.
func (h hints) meant(cmd *cobra.Command, i int) (lines [][]string, answer string) {
	word, next := h.Typed[i], ""
	if i+1 < len(h.Typed) {
		next = h.Typed[i+1]
	}
	if cmd == cmd.Root() {
		if lines, answer := h.spoken(cmd, i, next); lines != nil || answer != "" {
			return lines, answer
		}
	}
	near := nearCommands(cmd, word)
	if next == "--all" || node.LikelySlots(next) != nil { // runs are canceled, and not slots
		others := slices.DeleteFunc(slices.Clone(near), func(name string) bool { return name == "cancel" })
		if len(near) > 0 && len(others) == 0 {
			return nil, term.EndJob
		}
		near = others
	}
	var same [][]string
	for _, name := range near {
		line := h.instead(cmd, i, name)
		same = append(same, h.With(i, name))
		if mode := modeWords[word]; mode != "" && name == "evaluate" && h.Find("--mode") < 0 {
			line = h.With(i, name, "--mode", mode)
		}
		lines = append(lines, line)
	}
	if cmd != cmd.Root() {
		return lines, ""
	}
	if task.LangOf(next) != "" && accepted(same...) == nil { // as in kbnode check mine.py
		return [][]string{h.With(i, "evaluate")}, ""
	}
	if second := h.second(cmd, i, next); second != nil && (lines == nil || second[0][i] == next || accepted(second...) != nil) {
		return second, ""
	}
	if lines == nil { // as in kbnode validate FILE
		for _, c := range cmd.Commands() {
			for _, sub := range named(c, word) {
				lines = append(lines, h.With(i, c.Name(), sub.Name()))
			}
		}
	}
	return lines, ""
}

// spoken returns the line for a verb and a noun, such as kbnode config show for show config, or what to say in place of one.
func (h hints) spoken(root *cobra.Command, i int, next string) (lines [][]string, answer string) {
	word := h.Typed[i]
	if lines := h.hyphenated(root, i); lines != nil {
		return lines, ""
	}
	if next == "" || strings.HasPrefix(next, "-") {
		return nil, ""
	}
	path, answer := phrase(root, word, next)
	switch {
	case answer != "":
		return nil, answer
	case path != nil:
		if strings.HasPrefix(next, "node") && i+2 < len(h.Typed) && path[0] == "queue" && accepted(append(path, h.Typed[i+2:]...)) != nil {
			path = append(path, "--node") // and no queue of this name
		}
		line := slices.Replace(slices.Clone(h.Typed), i, i+2, path...)
		return [][]string{line}, ""
	case h.removes(root, i):
		return nil, answers["rm"]
	}
	return nil, answerTo(next)
}

// phrase returns the command that a verb and a noun name in either order, or what to say in place of one.
func phrase(root *cobra.Command, word, next string) (path []string, answer string) {
	if next == "--all" { // of slots, and not of runs
		return nil, ""
	}
	for _, pair := range [][2]string{{next, word}, {word, next}} {
		verb := pair[1]
		for _, noun := range named(root, pair[0]) {
			if answer := answerTo(noun.Name() + " " + verb); answer != "" {
				return nil, answer
			}
			subs := named(noun, verb)
			isShow := slices.Contains(showWords, verb)
			if isShow && subs == nil {
				subs = append(named(noun, "show"), named(noun, "list")...)
			}
			switch {
			case subs != nil:
				return []string{noun.Name(), subs[0].Name()}, ""
			case isShow && slices.Contains(shows, noun.Name()):
				return []string{noun.Name()}, ""
			}
		}
	}
	return nil, ""
}

// named returns the commands whose name a word is, in other tools or with another ending.
func named(at *cobra.Command, word string) (all []*cobra.Command) {
	for _, c := range at.Commands() {
		if word != "" && (c.Name() == word || c.Name() == word+"s" || c.Name()+"s" == word || c.HasAlias(word) || slices.Contains(c.SuggestFor, word)) {
			all = append(all, c)
		}
	}
	return all
}

// second returns the lines in which the word after i is the command, as in kbnode job cancel RUN.
func (h hints) second(root *cobra.Command, i int, next string) (lines [][]string) {
	for _, c := range named(root, next) {
		if c.IsAvailableCommand() {
			lines = append(lines, slices.Replace(slices.Clone(h.Typed), i, i+2, c.Name()))
		}
	}
	return lines
}

// hyphenated returns the line for a word of several, such as kbnode drain --all for drain-all, or nil.
func (h hints) hyphenated(root *cobra.Command, i int) [][]string {
	word := strings.TrimPrefix(h.Typed[i], "kbnode-")
	parts := strings.FieldsFunc(word, func(r rune) bool { return r == '-' || r == '_' || r == ':' })
	if word != h.Typed[i] && len(named(root, word)) > 0 {
		return [][]string{h.With(i, word)}
	}
	if len(parts) != 2 || named(root, word) != nil || answerTo(word) != "" {
		return nil
	}
	if len(named(root, parts[0])) > 0 {
		if line := accepted(h.With(i, parts[0], "--"+parts[1])); line != nil {
			return [][]string{line}
		}
	}
	h.Typed = h.With(i, parts...)
	if c, _, err := root.Find(h.Typed); err == nil && c.Parent() != root && accepted(h.Typed) != nil {
		return [][]string{h.Typed}
	}
	lines, _ := h.spoken(root, i, parts[1])
	return lines
}

// instead returns the typed words with word i replaced, and without the words that follow if they are refused then. Only what
// changes nothing is advised without them: they may say that it is to be done to one slot, or not at all.
func (h hints) instead(cmd *cobra.Command, i int, name string) []string {
	full := h.With(i, name)
	c, _, err := cmd.Find([]string{name})
	if err != nil {
		return full
	}
	if subs := named(c, h.Typed[i]); subs != nil { // as in kbnode pull, for image update
		full = h.With(i, name, subs[0].Name())
	}
	if slices.Contains(shows, name) && accepted(full) == nil {
		return full[:i+1]
	}
	return full
}

// placed completes a line of a command alone that kbnode refuses, with the words that its help has.
func placed(cmd *cobra.Command, line []string) []string {
	_, wants, _ := strings.Cut(cmd.Use, " ")
	if len(line) == len(strings.Fields(pathOf(cmd))) && wants != "" && (wants[0] != '[' || accepted(line) == nil) {
		return append(slices.Clone(line), strings.Fields(strings.Trim(wants, "[]."))...)
	}
	return line
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
