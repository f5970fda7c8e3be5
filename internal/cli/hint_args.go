package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/doctor"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
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
		if err == nil || namesSome().MatchString(cmd.Use) && !strings.Contains(err.Error(), "arg(s)") {
			return err
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

// namesSome matches the use of commands that say themselves what is wrong with their arguments.
var namesSome = lazy.Regexp(`SLOT|RUN`)

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
	if answer := cmp.Or(answerTo(pathOf(cmd)+" "+arg), answers[pathOf(cmd)+" --"+arg]); answer != "" {
		return term.Usagef("%s; %s", says, answer)
	}
	switch ext := filepath.Ext(arg); {
	case slices.Contains(ownFile, cmd.Name()) && (ext == ".yaml" || ext == ".yml"):
		return term.Usagef("%s; %s", says, ownConfig)
	case ext == ".deb" || ext == ".rpm":
		return term.Usagef("%s; it is a package of another program's: write sudo apt install ./%s, or sudo dnf install", says, text.Line(arg, 100))
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
	lines := [][]string{h.rejoined(cmd, arg), undashed, h.unvalued(cmd, i)}
	if f := cmd.Flags().Lookup(arg); f != nil && !f.Changed && !one {
		lines = append(lines, h.With(i, "--"+arg))
	}
	if name, _, isPair := strings.Cut(arg, "="); isPair && cmd.Flags().Lookup(name) != nil {
		lines = append(lines, h.With(i, "--"+arg))
	}
	if name, value := strayFlag(cmd, arg); name != "" && !one {
		lines = append(lines, h.With(i, "--"+name, value))
		if isList(cmd.Flags().Lookup(name)) {
			lines = append(lines, append(slices.Clone(bare), "--"+name, strings.Join(extra, ",")))
		}
	}
	lines = append(lines, h.otherCommand(cmd, i)...)
	fewer := h.With(i)
	if i > 0 {
		fewer[i-1] = strings.TrimRight(fewer[i-1], ",")
	}
	lines = append(lines, fewer, bare)
	line := accepted(lines...)
	if line == nil {
		line = bare
	}
	if _, err := (doctor.Options{Checks: doctor.All(), Only: []string{arg}}).Choose(); err != nil && cmd.Name() == "doctor" && slices.Equal(line, bare) && node.LikelySlots(arg) == nil {
		return term.Usagef("%s; %w", says, err)
	}
	if cmd.Name() == "status" && slices.Equal(line, bare) && node.LikelySlots(arg) == nil && arg != "-" { // the name of a node, perhaps
		return h.Advise(says, line, []string{"queue", "--node", arg})
	}
	return h.Advise(says, line)
}

// unvalued returns the line without the value i of a flag that takes none, as in --json true, or nil.
func (h hints) unvalued(cmd *cobra.Command, i int) []string {
	f := cmd.Flags().Lookup(strings.TrimLeft(h.Typed[max(i-1, 0)], "-"))
	yes, err := strconv.ParseBool(h.Typed[i])
	switch {
	case f == nil || f.Value.Type() != "bool" || err != nil:
		return nil
	case yes:
		return h.With(i)
	}
	return slices.Delete(slices.Clone(h.Typed), i-1, i+1)
}

// otherCommand returns the lines in which argument i and its command are another command: image update for upgrade image,
// reconcile for plan apply.
func (h hints) otherCommand(cmd *cobra.Command, i int) (lines [][]string) {
	root, at := cmd.Root(), slices.Index(h.Typed, cmd.Name())
	if cmd.Parent() != root || at < 0 || at+1 != i || h.Typed[i] == "test" {
		return nil
	}
	if path, _ := phrase(root, cmd.Name(), h.Typed[i]); path != nil {
		lines = append(lines, slices.Replace(slices.Clone(h.Typed), at, i+1, path...))
	}
	return append(lines, h.second(root, at, h.Typed[i])...)
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
var spaced = []string{"reason", "description", "label"}

// rejoined returns the line in which a word belongs to the value of the flag before it, or nil: that of --only gpu docker
// is gpu,docker, and that of --reason new fan has two words.
func (h hints) rejoined(cmd *cobra.Command, word string) []string {
	i := slices.Index(h.Typed, word)
	begin, end := i, i+1
	for begin > 0 && !strings.HasPrefix(h.Typed[begin-1], "-") {
		begin--
	}
	for end < len(h.Typed) && !strings.HasPrefix(h.Typed[end], "-") && !isSlotAfter(cmd, h.Typed[end]) {
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
	case name == "until" || name == "loan-until":
		joined = words[0] + "T" + words[1]
		end -= len(words) - 2
		if !text.IsDate(joined) {
			return nil
		}
	case name == "auto-update":
		joined = unexpanded(words)
	case slices.Contains(spaced, name):
		joined = strings.Join(words, " ")
	default:
		return nil
	}
	return slices.Replace(slices.Clone(h.Typed), begin-1, end, "--"+f.Name, joined)
}

// isSlotAfter reports whether a word ends the value before it, for a command of slots.
func isSlotAfter(cmd *cobra.Command, word string) bool {
	_, ok := node.SlotNumber(word)
	return ok && strings.HasPrefix(word, "gpu") && strings.Contains(cmd.Use, "SLOT")
}

// unexpanded returns a cron schedule of which the shell has replaced each * by the names of files.
func unexpanded(words []string) string {
	isName := func(word string) bool { return strings.Trim(word, "0123456789*/,-") != "" }
	first := slices.IndexFunc(words, isName)
	if first < 0 {
		return strings.Join(words, " ")
	}
	end := len(words)
	for !isName(words[end-1]) {
		end--
	}
	stars := slices.Repeat([]string{"*"}, max(1, 5-first-(len(words)-end)))
	return strings.Join(slices.Concat(words[:first], stars, words[end:]), " ")
}

// slotArgs checks the words that a command takes for slots. One that is none may be part of a flag's value, or a flag.
func (h hints) slotArgs(cmd *cobra.Command, args []string) error {
	for _, word := range args {
		i := slices.Index(h.Typed, word)
		if _, isSlot := node.SlotNumber(word); isSlot || i < 0 {
			continue
		}
		if answer := answerTo(pathOf(cmd) + " " + word); answer != "" {
			return term.Usagef("%s", answer)
		}
		if h.Typed[max(i-1, 0)] == "--wait" && likelyTimes(word) != nil && node.LikelySlots(word) == nil {
			return h.Advise("--wait takes no time", h.With(i, "--timeout", word))
		}
		if line := accepted(h.rejoined(cmd, word)); line != nil {
			return h.Advise("the value of a flag is one word to the shell", line)
		}
		if node.LikelySlots(word) != nil {
			continue
		}
		if f := cmd.Flags().Lookup(word); f != nil && !f.Changed {
			if line := accepted(h.With(i, "--"+word)); line != nil {
				return h.Advise(fmt.Sprintf("there is no slot %.60q", word), line)
			}
		}
		if line := accepted(h.With(i, "--reason", word)); line != nil && strings.Contains(word, " ") {
			return h.Advise(fmt.Sprintf("there is no slot %.60q", word), line)
		}
	}
	if len(args) == 0 && (cmd.Name() == "logs" || cmd.Flags().NFlag() > 0) { // the command itself says what is wrong with the flags
		return nil
	}
	err := node.Selection{All: cmd.Flags().Changed("all"), Names: args}.Check()
	if err != nil && cmd.Flags().Lookup("all") != nil && strings.HasSuffix(err.Error(), "such as gpu3") { // the name of a node, perhaps
		err = term.Usagef("%w, or --all on the node itself", err)
	}
	return err
}
