package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// checkArgs turns what a command says about its arguments into a usage error that says what to
// type instead, and checks the values of flags.
func checkArgs(cmd *cobra.Command, hint hints) {
	wrapValues(cmd)
	for _, sub := range cmd.Commands() {
		checkArgs(sub, hint)
	}
	check := cmd.Args
	if check == nil {
		if cmd.Name() == "help" {
			return
		}
		check = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if slices.Contains(args, "") {
			return term.Usagef("a word is empty, perhaps because a variable of the shell is not set; write it, or leave it out")
		}
		if _, missing := os.Lstat("help"); missing != nil && slices.Equal(args, []string{"help"}) {
			return hint.Advise(`"help" is no file`, append(strings.Fields(pathOf(cmd)), "--help"))
		}
		if err := hint.flagWord(cmd, args); err != nil {
			return err
		}
		err := check(cmd, args)
		if err == nil {
			return nil
		}
		var better error
		if problem := cmd.Flags().Lookup("problem"); len(args) == 2 && problem != nil && !problem.Changed {
			first := args[0]
			if task.LangOf(first) != "" {
				first = args[1]
			}
			better = hint.problemFirst(cmd, first)
		}
		if better == nil && len(args) > 0 && check(cmd, nil) == nil && check(cmd, args[:min(2, len(args))]) != nil {
			better = hint.unknownArgument(cmd, args, check(cmd, args[:1]) == nil)
		}
		if better == nil && strings.Contains(err.Error(), "arg(s)") { // cobra's words
			err = errors.New("what to work on is not named")
			if len(args) > 0 {
				err = fmt.Errorf("%q is one word too many", text.Line(args[len(args)-1], 60))
			}
			return term.Usagef("%w; write %s %s", err, cmd.Parent().CommandPath(), cmd.Use)
		}
		if better != nil {
			return better
		}
		return term.Usagef("%w; see %s --help", err, cmd.CommandPath())
	}
}

// problemFirst explains two arguments to a command that takes a submission: the first one is its problem.
func (h hints) problemFirst(cmd *cobra.Command, problem string) error {
	i := slices.Index(h.Typed, problem)
	if i < 0 {
		return nil
	}
	return h.Advise(cmd.CommandPath()+" takes one file", h.With(i, "--problem", problem))
}

// unknownArgument explains arguments to a command that takes none or, if one, only the first.
func (h hints) unknownArgument(cmd *cobra.Command, args []string, one bool) error {
	extra, says := args, "%s takes no argument %q"
	if one {
		extra, says = args[1:], "%[2]q is one word too many"
	}
	arg := extra[0]
	i := slices.Index(h.Typed, arg)
	if i < 0 {
		return nil
	}
	says = fmt.Sprintf(says, cmd.CommandPath(), text.Line(arg, 60))
	if answer := answers[pathOf(cmd)+" "+arg]; answer != "" {
		return term.Usagef("%s; %s", says, answer)
	}
	if cmd.Name() == "uninstall" { // without the word, it would do far more than was meant
		if slots := node.LikelySlots(arg); slots != nil {
			return h.Advise(says+" and removes all slots, not only one", append([]string{"drain"}, slots...))
		}
		if arg == "dry-run" {
			return h.Advise(says, h.With(i, "--"+arg))
		}
		return term.Usagef("%s; %s", says, flagList(cmd, ""))
	}
	bare := h.without(extra)
	undashed := slices.DeleteFunc(slices.Clone(h.Typed), func(word string) bool { return word == "--" })
	lines := [][]string{h.rejoined(cmd, arg), undashed}
	if f := cmd.Flags().Lookup(arg); f != nil && !f.Changed && !one {
		lines = append(lines, h.With(i, "--"+arg))
	}
	if name, value := strayFlag(cmd, arg); name != "" && !one {
		lines = append(lines, h.With(i, "--"+name, value))
		if isList(cmd.Flags().Lookup(name)) {
			lines = append(lines, append(slices.Clone(bare), "--"+name, strings.Join(extra, ",")))
		}
	}
	fewer := h.With(i)
	if i > 0 {
		fewer[i-1] = strings.TrimRight(fewer[i-1], ",")
	}
	lines = append(lines, fewer, bare)
	line := accepted(lines...)
	if line == nil {
		line = bare
	}
	if cmd.Name() == "status" && slices.Equal(line, bare) && node.LikelySlots(arg) == nil && arg != "-" { // the name of a node, perhaps
		return h.Advise(says, line, []string{"queue", "--node", arg})
	}
	return h.Advise(says, line)
}

// without returns the typed words without these arguments.
func (h hints) without(args []string) []string {
	words := slices.Clone(h.Typed)
	for _, a := range slices.Backward(args) {
		for i, word := range slices.Backward(words) {
			if word == a {
				words = slices.Delete(words, i, i+1)
				break
			}
		}
	}
	return slices.DeleteFunc(words, func(word string) bool { return word == "--" })
}

// spaced are the flags whose values may have blanks.
var spaced = []string{"reason", "description", "label", "auto-update"}

// rejoined returns the line in which a word belongs to the value of the flag before it, or nil: that of --only gpu docker
// is gpu,docker, and that of --reason new fan has two words.
func (h hints) rejoined(cmd *cobra.Command, word string) []string {
	i := slices.Index(h.Typed, word)
	begin, end := i, i+1
	for begin > 0 && !strings.HasPrefix(h.Typed[begin-1], "-") {
		begin--
	}
	for end < len(h.Typed) && !strings.HasPrefix(h.Typed[end], "-") {
		end++
	}
	if i < 0 || begin == 0 {
		return nil
	}
	name, first, given := strings.Cut(strings.TrimLeft(h.Typed[begin-1], "-"), "=")
	words := slices.Clone(h.Typed[begin:end])
	if given {
		words = append([]string{first}, words...)
	}
	f := cmd.Flags().Lookup(name)
	joined := ""
	switch {
	case f == nil || len(words) < 2:
		return nil
	case isList(f) || name == "gpus":
		for i, word := range words {
			words[i] = strings.Trim(word, ",")
		}
		joined = strings.Join(words, ",")
	case slices.Contains(spaced, name):
		joined = strings.Join(words, " ")
	default:
		return nil
	}
	return slices.Replace(slices.Clone(h.Typed), begin-1, end, "--"+f.Name, joined)
}

// quotedReason returns the line in which the first word that is no slot belongs to the reason before it, or nil.
func (h hints) quotedReason(cmd *cobra.Command, slots []string) []string {
	i := slices.IndexFunc(slots, func(word string) bool { return node.LikelySlots(word) == nil })
	if i < 0 || h.Find("--reason") < 0 {
		return nil
	}
	return accepted(h.rejoined(cmd, slots[i]))
}
