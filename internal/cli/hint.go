package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

type hints struct{ term.Streams }

// command finds an unknown word where a command is expected. Cobra checks the flags first, and
// says of `kbnode instal --queue b200` that there is no flag --queue.
func (h hints) command(root *cobra.Command) error {
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
	asked := cmp.Or(sameAnswers[word], word)
	if cmd != root {
		asked = cmd.Name() + " " + word
	}
	if answer := answers[asked]; answer != "" {
		return term.Usagef("%s; %s", says, answer)
	}
	var lines [][]string
	for _, name := range nearCommands(cmd, word) {
		lines = append(lines, h.With(slices.Index(h.Typed, word), name))
	}
	switch {
	case len(lines) > 0:
		return h.Advise(says, lines...)
	case cmd == root:
		return term.Usagef("%s; kbnode --help lists the commands", says)
	}
	if flag := strayFlags[cmd.Name()]; cmd.PersistentFlags().Lookup(flag) != nil {
		return h.Advise(says, h.With(slices.Index(h.Typed, word), "--"+flag, word))
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return term.Usagef("%s; it has %s", says, strings.Join(names, ", "))
}

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
	var same []string
	for _, c := range at.Commands() {
		if slices.Contains(c.SuggestFor, word) {
			same = append(same, c.Name())
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
	return slices.Compact(near)
}

// farthest returns the largest distance of a typo from what was meant.
func farthest(word string) int { return min(2, max(1, len(word)-3)) }

// flag explains an error in the flags, with the corrected line if there is one.
func (h hints) flag(cmd *cobra.Command, err error) error {
	help := cmd.CommandPath() + " --help lists the flags"
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name, dashes := unknown.GetSpecifiedName(), "--"
		if several := unknown.GetSpecifiedShortnames(); several != "" { // -all is read as -a -l -l
			name, dashes = several, "-"
		}
		i, says := h.Find(dashes+name), "unknown flag: "+dashes+text.Line(name, 60)
		other := answers[cmd.Name()+" "+dashes+name]
		switch {
		case other != "":
			return term.Usagef("%s; %s", says, other)
		case term.SecretName().MatchString(name) && cmd.Flags().Lookup("token-file") != nil:
			// Do not repeat what followed: it may be the token.
			return term.Usagef("%s; every user of a machine can read command lines, so no flag takes a token; write --token-file FILE; %s", says, help)
		case cmd.Name() == "evaluate" && flagOf(cmd.Root(), "submit", name) && slices.Contains(h.Typed, "evaluate"):
			if h.compares(cmd) {
				return term.Usagef("%s; files are compared on this machine only; leave out --%s, or submit them one by one", says, name)
			}
			return h.Advise(says+"; kbnode evaluate runs here, and kbnode submit on a queue's agents", h.With(slices.Index(h.Typed, "evaluate"), "submit"))
		case i >= 0:
			near := nearFlag(cmd, name)
			if near == "json" && sameFlags[name] == near {
				return h.json(says, i)
			}
			if near != "" {
				return h.Advise(says, h.With(i, strings.Replace(h.Typed[i], dashes+name, "--"+near, 1)))
			}
		}
	}
	if bare, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		_, about := pflag.UnquoteUsage(bare.GetFlag())
		return term.Usagef("--%s needs a value: %s; %s", bare.GetFlag().Name, about, help)
	}
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if no, ok := errors.AsType[numberError](err); ok {
			return term.Usagef("--%s: %q %w; %s", bad.GetFlag().Name, text.Line(bad.GetValue(), 60), no, help)
		}
		wants := map[string]string{"duration": "is not a time such as 90s, 30m, 2h or 1d", "bool": "is neither true nor false"}[bad.GetFlag().Value.Type()]
		isSlot := slices.Contains([]string{"slot", gpuIndex}, bad.GetFlag().Name)
		if k, ok := node.SlotNumber(bad.GetValue()); ok && isSlot && strings.HasPrefix(bad.GetValue(), "gpu") {
			help = fmt.Sprintf("write --%s %d", bad.GetFlag().Name, k)
		}
		return term.Usagef("--%s: %q %s; %s", bad.GetFlag().Name, text.Line(bad.GetValue(), 60), cmp.Or(wants, "is not a whole number"), help)
	}
	return term.Usagef("%w; %s", err, help)
}

// json explains a flag of other tools that says in which format to print, or where to: -o json, --output=gpus.json.
func (h hints) json(says string, i int) error {
	line := h.With(i, "--json")
	if h.Find("--json") >= 0 {
		line = h.With(i)
	}
	_, value, given := strings.Cut(h.Typed[i], "=")
	if next := i + 1; !given && next < len(h.Typed) && !strings.HasPrefix(h.Typed[next], "-") {
		value = h.Typed[next]
		at := next - len(h.Typed) + len(line)
		line = slices.Delete(line, at, at+1)
	}
	if strings.ContainsAny(value, "./") {
		return term.Usagef("%s; --json prints to standard output: write %s%s>%s", says, h.Line(line), term.Unbroken, term.Word(value))
	}
	return h.Advise(says, line)
}

// compares reports whether a command line is for comparing files, if evaluate is its command.
func (h hints) compares(evaluate *cobra.Command) bool {
	submit, _, err := evaluate.Root().Find([]string{"submit"})
	if err != nil || h.Find("--rounds") >= 0 || h.Find("--plot") >= 0 {
		return err == nil
	}
	files, value := 0, false
	for _, word := range h.Typed[slices.Index(h.Typed, "evaluate")+1:] {
		switch {
		case value:
			value = false
		case !strings.HasPrefix(word, "-"):
			files++
		default:
			name, _, given := strings.Cut(strings.TrimLeft(word, "-"), "=")
			f := cmp.Or(evaluate.Flag(name), submit.Flag(name))
			value = f != nil && f.NoOptDefVal == "" && !given
		}
	}
	return files > 1
}

// flagOf reports whether a command has a flag.
func flagOf(root *cobra.Command, command, name string) bool {
	cmd, _, err := root.Find([]string{command})
	return err == nil && cmd.Flags().Lookup(name) != nil
}

// number is the value of a flag that is a number or a time.
type number struct {
	pflag.Value
	positive bool // only what is above 0 is a value: without the flag, it is 0
}

type numberError string

func (e numberError) Error() string { return string(e) }

// Set refuses what the library takes for another number than people do, such as 010 for 8, and a 0 that would mean what
// the flag does if it is not there.
func (n number) Set(typed string) error {
	if n.Type() != "duration" && otherBase().MatchString(typed) {
		return numberError("is not a decimal number; write it without leading zeros, letters and _")
	}
	if days, ok := strings.CutSuffix(typed, "d"); ok && n.Type() == "duration" { // which the library does not know
		if count, err := strconv.ParseUint(days, 10, 16); err == nil {
			typed = fmt.Sprintf("%dh", 24*count)
		}
	}
	if err := n.Value.Set(typed); err != nil {
		return err
	}
	if zero := n.String(); n.positive && (zero == "0" || zero == "0s") {
		return numberError("is what leaving the flag out means; leave it out, or write a value above 0")
	}
	return nil
}

var otherBase = lazy.Regexp(`^[+-]?0[0-9A-Za-z_]|_`)

// checkNumbers checks the flags of a command that are numbers or times. Where 0 means nothing else, their texts say so.
func checkNumbers(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch f.Value.Type() {
		case "int", "int64", "uint", "uint64", "duration":
			ownZero := strings.Contains(f.Usage, "0 for none") || strings.Contains(f.Usage, "no limit") ||
				f.Name == "gpu-count" || f.Name == "priority" // the one has its own advice, and 0 is a priority
			if f.DefValue == "0s" {
				f.DefValue = "0" // which the help of a wrapped value leaves out
			}
			f.Value = number{f.Value, f.DefValue == "0" && !ownZero}
		}
	})
}

// nearFlag returns the flag of a command that a mistyped one probably is, or "".
func nearFlag(cmd *cobra.Command, name string) string {
	if same := sameFlags[name]; cmd.Flags().Lookup(same) != nil {
		return same
	}
	near, best := "", farthest(name)+1
	cmd.Flags().VisitAll(func(f *pflag.Flag) { // sorted
		d := text.Edits(f.Name, name)
		if len(name) > 1 && strings.HasPrefix(f.Name, name) { // one letter says too little: -n is not --now
			d = 0
		}
		if !f.Hidden && (d < best || d == best && len(f.Name) < len(near)) {
			near, best = f.Name, d
		}
	})
	return near
}

// problemFirst explains two arguments to a command that takes a submission: the first one is its problem.
func (h hints) problemFirst(cmd *cobra.Command, problem string) error {
	i := slices.Index(h.Typed, problem)
	if i < 0 {
		return nil
	}
	return h.Advise(cmd.CommandPath()+" takes one file", h.With(i, "--problem", problem))
}

// unknownArgument explains an argument to a command that takes none.
func (h hints) unknownArgument(cmd *cobra.Command, arg string) error {
	i := slices.Index(h.Typed, arg)
	if i < 0 {
		return nil
	}
	says := fmt.Sprintf("%s takes no argument %q", cmd.CommandPath(), text.Line(arg, 60))
	if cmd.Name() == "uninstall" { // without the word, it would do far more than was meant
		return h.Advise(says+" and removes all slots, not only one", []string{"drain", arg})
	}
	if f := cmd.Flags().Lookup(arg); f != nil && !f.Changed {
		return h.Advise(says, h.With(i, "--"+arg))
	}
	name := strayFlags[cmd.Name()]
	switch _, isSlot := node.SlotNumber(arg); {
	case cmd.Name() == "doctor" && isSlot: // it checks all
		name = ""
	case strings.HasSuffix(arg, ".txtar") && cmd.Flags().Lookup("root") != nil:
		name = "root"
	}
	f := cmd.Flags().Lookup(name)
	if f == nil || f.Changed && !strings.HasSuffix(f.Value.Type(), "Slice") || strings.Contains(arg, "=") {
		return h.Advise(says, h.With(i))
	}
	value := arg
	if f.Value.Type() == "intSlice" {
		value = cmp.Or(strings.TrimPrefix(arg, "gpu"), arg)
	}
	return h.Advise(says, h.With(i, "--"+name, value))
}
