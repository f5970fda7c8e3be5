package cli

import (
	"errors"
	"fmt"
	"os"
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
