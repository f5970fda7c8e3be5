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
	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/text"
)

// synonyms are other tools' words for a command.
var synonyms = map[string][]string{
	"install": {"setup", "init"}, "uninstall": {"remove", "delete", "purge"}, "reconcile": {"apply", "sync"},
	"drain": {"cordon", "pause", "disable", "stop"}, "resume": {"uncordon", "unpause", "enable", "start"},
	"status": {"ps", "ls", "list"}, "doctor": {"check", "diagnose"}, "logs": {"journal"}, "events": {"history"},
	"runner": {"evaluate", "eval", "test"},
}

// flagSynonyms are other commands' words for a flag.
var flagSynonyms = map[string]string{"eval": "problem", "problem": "eval"}

// strayFlags names, by command, the flag that a word without one means.
var strayFlags = map[string]string{
	"install": "queue", "plan": "queue", "upgrade": "agent-version", "doctor": "only", "selftest": "slot", "events": "slot",
}

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
	says := fmt.Sprintf("unknown command %q for %q", text.Line(word, 100), cmd.CommandPath())
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
		i, says := h.Find(dashes+name, ""), "unknown flag: "+dashes+text.Line(name, 60)
		switch {
		case term.SecretName().MatchString(name) && cmd.Flags().Lookup("token-file") != nil:
			// Do not repeat what followed: it may be the token.
			return term.Usagef("%s; every user of a machine can read command lines, so no flag takes a token; write --token-file FILE; %s", says, help)
		case i < 0:
		case slices.Contains(argFlags[cmd.Name()], name):
			_, value, given := strings.Cut(h.Typed[i], "=")
			says = fmt.Sprintf("%s; %s takes it without the flag", says, cmd.CommandPath())
			if given {
				return h.Advise(says, h.With(i, value))
			}
			return h.Advise(says, h.With(i))
		default:
			if near := nearFlag(cmd, name, dashes == "-"); near != "" {
				return h.Advise(says, h.With(i, strings.Replace(h.Typed[i], dashes+name, "--"+near, 1)))
			}
		}
	}
	if bare, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		_, about := pflag.UnquoteUsage(bare.GetFlag())
		return term.Usagef("--%s needs a value: %s; %s", bare.GetFlag().Name, about, help)
	}
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		f, value := bad.GetFlag(), bad.GetValue()
		says, better := explainValue(f.Value.Type(), value)
		says = fmt.Sprintf("--%s: %s", f.Name, says)
		switch i := h.Find("--"+f.Name, value); {
		case i < 0 || better == value:
			return term.Usagef("%s; %s", says, help)
		case f.Value.Type() == "bool":
			return h.Advise(says, h.With(i, "--"+f.Name))
		case strings.Contains(h.Typed[i], "="):
			return h.Advise(says, h.With(i, "--"+f.Name+"="+better))
		default:
			return h.Advise(says, h.With(i+1, better))
		}
	}
	return term.Usagef("%w; %s", err, help)
}

var (
	wholeNumber = lazy.Regexp(`^[0-9]+$`)
	slotName    = lazy.Regexp(`^gpu[0-9]+$`)
	longTime    = lazy.Regexp(`^([0-9]{1,4})([dw])$`)
)

// explainValue returns what is wrong with a flag's value, and what was probably meant.
func explainValue(kind, value string) (says, better string) {
	shown := text.Line(value, 60)
	switch kind {
	case "duration":
		if wholeNumber().MatchString(value) {
			return fmt.Sprintf("%q has no unit, such as s, m or h", shown), value + "m"
		}
		if m := longTime().FindStringSubmatch(value); m != nil {
			n, _ := strconv.Atoi(m[1])
			return fmt.Sprintf("%q has a unit other than s, m and h", shown), strconv.Itoa(n*24*map[string]int{"d": 1, "w": 7}[m[2]]) + "h"
		}
		return fmt.Sprintf("%q is not a time such as 90s, 30m or 2h", shown), value
	case "bool":
		return fmt.Sprintf("it takes no value such as %q", shown), ""
	default: // int and intSlice: all others take any text
		if slotName().MatchString(value) {
			better = strings.TrimPrefix(value, "gpu")
		}
		return fmt.Sprintf("%q is not a number", shown), cmp.Or(better, value)
	}
}

// nearFlag returns the flag of a command that a mistyped one probably is, or "": the only one that
// begins so or, after two dashes, the nearest.
func nearFlag(cmd *cobra.Command, name string, short bool) string {
	var names []string // sorted
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	begin := slices.DeleteFunc(slices.Clone(names), func(flag string) bool { return !strings.HasPrefix(flag, name) })
	switch same := flagSynonyms[name]; {
	case slices.Contains(names, same):
		return same
	case len(begin) == 1 || slices.Contains(begin, name):
		return begin[0] // the shortest comes first
	case short:
		return ""
	}
	near, best := "", 2*farthest(name)+1
	for _, flag := range names {
		d := 2 * text.Edits(flag, name)
		if len(name) > 2 && (strings.HasPrefix(flag, name) || strings.HasPrefix(name, flag)) {
			d = min(d, 3) // --gpu is --gpus rather than --gpu-count
		}
		if d < best {
			near, best = flag, d
		}
	}
	return near
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

// argFlags are flags that a command does not have, by command: people write them before its argument.
var argFlags = map[string][]string{
	"queue": {"queue"}, "drain": {"slot", "slots", "gpu", "gpus"}, "resume": {"slot", "slots", "gpu", "gpus"}, "logs": {"slot", "gpu"},
	"check": {"file", "config"}, "submit": {"submission", "file"}, "runner": {"submission", "file"},
}

var (
	longDash  = lazy.Regexp(`^[–—][a-z][a-z-]*$`)
	slotWord  = lazy.Regexp(`(?i)^(?:gpu|slot)[-_]?([0-9]{1,5})$`)
	slotRange = lazy.Regexp(`(?i)^(?:gpu)?([0-9]{1,5})-(?:gpu)?([0-9]{1,5})$`)
)

// dash finds a flag whose dashes an editor or a web page made one long one.
func (h hints) dash(root *cobra.Command) error {
	cmd, _, _ := root.Find(h.Typed) // an unknown command is reported when it runs
	i := slices.IndexFunc(h.Typed, func(word string) bool {
		return longDash().MatchString(word) && cmd.Flag(strings.TrimLeft(word, "–—")) != nil
	})
	if i < 0 {
		return nil
	}
	return h.Advise(fmt.Sprintf("%q begins with a long dash", h.Typed[i]), h.With(i, "--"+strings.TrimLeft(h.Typed[i], "–—")))
}

// extraArguments explains arguments after those that a command takes.
func (h hints) extraArguments(cmd *cobra.Command, args []string) error {
	words := slices.Clone(h.Typed)
	for _, arg := range slices.Backward(args) {
		i := len(words) - 1
		for i >= 0 && words[i] != arg {
			i--
		}
		if i < 0 {
			return nil
		}
		words = slices.Delete(words, i, i+1)
	}
	return h.Advise(fmt.Sprintf("%s takes one argument at most, and not also %q", cmd.CommandPath(), text.Line(args[0], 60)), words)
}

// slots explains arguments that name no slot on any node, if it is plain what they mean.
func (h hints) slots(cmd *cobra.Command, args []string) error {
	k := slices.IndexFunc(args, func(arg string) bool { return !isSlot(arg) })
	if k < 0 {
		return nil
	}
	i := slices.Index(h.Typed, args[k])
	if i < 0 {
		return nil
	}
	says := fmt.Sprintf("there is no slot %q", text.Line(args[k], 60))
	// The next word that is no part of what is written here.
	end := i + 1
	for end < len(h.Typed) && !isSlot(h.Typed[end]) && !strings.HasPrefix(h.Typed[end], "-") {
		end++
	}
	list := slotList(args[k])
	switch {
	case len(list) > 0 && !slices.ContainsFunc(list, func(name string) bool { return !isSlot(name) }):
		return h.Advise(says, h.With(i, list...))
	case cmd.Flag("reason") != nil && (i > 1 && h.Typed[i-2] == "--reason" || strings.HasPrefix(h.Typed[i-1], "--reason=")):
		return h.Advise(says, slices.Replace(slices.Clone(h.Typed), i-1, end, strings.Join(h.Typed[i-1:end], " ")))
	case len(args) == 1 && args[0] == "all" && cmd.Flag("all") != nil:
		return h.Advise(says, h.With(i, "--all"))
	case (args[k] == "gpu" || args[k] == "slot") && i+1 < len(h.Typed) && isSlot(h.Typed[i+1]):
		return h.Advise(says, slices.Delete(slices.Clone(h.Typed), i, i+1))
	}
	return nil
}

// slotList splits names of slots as people write them, such as gpu3,gpu4, slot-3 and gpu0-3.
func slotList(s string) (list []string) {
	const most = 64
	for _, name := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' }) {
		if m := slotWord().FindStringSubmatch(name); m != nil {
			list = append(list, "gpu"+m[1])
			continue
		}
		if m := slotRange().FindStringSubmatch(name); m != nil {
			first, _ := strconv.Atoi(m[1])
			last, _ := strconv.Atoi(m[2])
			if first < last && last-first < most {
				for k := first; k <= last; k++ {
					list = append(list, plan.SlotName(k))
				}
				continue
			}
		}
		list = append(list, name)
	}
	return list
}

func isSlot(word string) bool {
	_, ok := node.SlotNumber(word)
	return ok
}
