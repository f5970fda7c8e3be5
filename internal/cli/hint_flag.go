package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
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

// flag explains an error in the flags, with the corrected line if there is one.
func (h hints) flag(cmd *cobra.Command, err error) error {
	help := cmd.CommandPath() + " --help lists the flags"
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		return h.unknownFlag(cmd, unknown)
	}
	if bare, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		_, about := pflag.UnquoteUsage(bare.GetFlag())
		return term.Usagef("--%s needs a value; %s --help says of it: %s", bare.GetFlag().Name, cmd.CommandPath(), about)
	}
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return h.badValue(bad, help)
	}
	return term.Usagef("%w; %s", err, help)
}

// badValue explains a value that is none of its flag's.
func (h hints) badValue(bad *pflag.InvalidValueError, help string) error {
	name, typed := bad.GetFlag().Name, bad.GetValue()
	no, ok := errors.AsType[valueError](bad)
	switch {
	case ok && no.whole:
		return term.Usagef("--%s %w", name, no)
	case ok:
		return term.Usagef("--%s: %q %w; %s", name, text.Line(typed, 60), no, help)
	}
	wants, flag := "is not a whole number", "--"+name
	switch bad.GetFlag().Value.Type() {
	case "int":
		help = fmt.Sprintf("write one such as %s 8", flag)
	case "duration":
		wants = "is not a time such as 90s, 30m, 2h or 1d"
		if times := likelyTimes(typed); times != nil {
			help = fmt.Sprintf("write %s %s", flag, strings.Join(times, " or "))
		}
	case "bool":
		wants = "is neither true nor false"
		if i := slices.Index(h.Typed, flag+"="+typed); i >= 0 {
			return h.Advise(fmt.Sprintf("%s takes no value", flag), h.With(i, flag))
		}
	}
	if isSlots := slices.Contains([]string{"slot", gpuIndex}, name); isSlots {
		switch slots := node.LikelySlots(typed); {
		case len(slots) > 0:
			numbers := strings.ReplaceAll(strings.Join(slots, ","), "gpu", "")
			if bad.GetFlag().Value.Type() == "int" {
				numbers, _, _ = strings.Cut(numbers, ",")
			}
			help = fmt.Sprintf("write %s %s", flag, numbers)
		case strings.Contains(bad.GetFlag().Usage, "default: all") && strings.EqualFold(typed, "all"):
			help = fmt.Sprintf("leave %s out for all", flag)
		}
	}
	return term.Usagef("%s: %q %s; %s", flag, text.Line(typed, 60), wants, help)
}

// unknownFlag explains a flag that a command does not have.
func (h hints) unknownFlag(cmd *cobra.Command, unknown *pflag.NotExistError) error {
	name, i := unknown.GetSpecifiedName(), h.Find("--"+unknown.GetSpecifiedName())
	if several := unknown.GetSpecifiedShortnames(); several != "" { // -all is read as -a -l -l
		i = slices.IndexFunc(h.Typed, func(word string) bool { // -help as -h, which exists, -e, -l and -p
			return len(word) > 1 && word[0] == '-' && word[1] != '-' && strings.HasSuffix(word, several)
		})
		name = several
		if i >= 0 {
			name, _, _ = strings.Cut(h.Typed[i][1:], "=")
		}
	}
	dashes := "--"
	if i < 0 || !strings.HasPrefix(h.Typed[i], "--") {
		dashes = "-"
	}
	says := "unknown flag: " + dashes + text.Line(name, 60)
	if line := h.lastLines(cmd, name, i); line != "" {
		return term.Usagef("%s; write %s", says, line)
	}
	group := ""
	if parent := cmd.Parent(); parent != nil && parent != cmd.Root() {
		group = pathOf(parent)
	}
	if answer := cmp.Or(answers[pathOf(cmd)+" "+dashes+name], answers[group+" "+dashes+name], answers["* "+dashes+name]); answer != "" {
		return term.Usagef("%s; %s", says, h.ofSlot(answer))
	}
	if term.SecretName().MatchString(name) && cmd.Flags().Lookup("token-file") != nil {
		// Do not repeat what followed: it may be the token.
		return term.Usagef("%s; every user of a machine can read command lines, so no flag takes a token; write --token-file FILE; %s --help lists the flags", says, cmd.CommandPath())
	}
	if i < 0 {
		return term.Usagef("%s; %s", says, flagList(cmd, name))
	}
	if _, err := os.Lstat(h.Typed[i]); err == nil {
		return h.Advise(says, h.With(i, "./"+h.Typed[i]))
	}
	value := strings.TrimPrefix(h.Typed[i], dashes+name) // =x, or nothing
	near := h.nearFlag(cmd, name)
	if near == "json" && slices.Contains(sameFlags[name], near) {
		return h.json(cmd, says, i)
	}
	var lines [][]string
	if near != "" {
		lines = append(lines, h.With(i, "--"+near+value))
	}
	lines = append(lines, h.wordOf(cmd, i, name)...)
	for _, flag := range valueFlags(cmd, name) {
		lines = append(lines, h.With(i, "--"+flag, name))
	}
	if line := accepted(lines...); line != nil {
		return h.Advise(says, line)
	}
	if near != "" { // what follows is wrong, too
		for end := i + 1; end <= min(i+2, len(h.Typed)); end++ {
			if accepted(lines[0][:end]) != nil {
				return h.Advise(says, lines[0])
			}
		}
	}
	number := strings.TrimPrefix(value, "=")
	if i+1 < len(h.Typed) && value == "" {
		number = h.Typed[i+1]
	}
	switch {
	case cmd.Name() == "evaluate" && slices.Contains([]string{"gpu", "gpus", "device"}, name) && gpuNumbers().MatchString(number):
		return term.Usagef("%s; write CUDA_VISIBLE_DEVICES=%s before the command", says, number)
	case cmd.Name() == "evaluate" && flagOf(cmd.Root(), "submit", name) && slices.Contains(h.Typed, "evaluate"):
		return h.Advise(says+"; kbnode evaluate runs here, and kbnode submit on a queue's agents", h.With(slices.Index(h.Typed, "evaluate"), "submit"))
	default:
		lines = nil
		for _, flag := range partFlags(cmd, name) {
			if line := accepted(h.With(i, "--"+flag+value)); line != nil {
				lines = append(lines, line)
			}
		}
	}
	if len(lines) > 0 {
		return h.Advise(says, lines...)
	}
	return term.Usagef("%s; %s", says, h.elsewhere(cmd, name))
}

// ofSlot returns an answer for the slot that is named: what ends the job of the answer's gpu3 must not be pasted for another.
// A number alone may be the value of a flag.
func (h hints) ofSlot(answer string) string {
	var named []string
	for _, word := range h.Typed {
		slots := node.LikelySlots(word)
		if len(slots) > 0 && strings.HasPrefix(strings.ToLower(word), "gpu") {
			return strings.ReplaceAll(answer, "gpu3", slots[0])
		}
		named = append(named, slots...)
	}
	switch len(named) {
	case 0:
		return answer
	case 1:
		return strings.ReplaceAll(answer, "gpu3", named[0])
	}
	return strings.ReplaceAll(answer, "gpu3", "gpuN")
}

// numberedLines are other tools' flags for the last lines of a log.
var numberedLines = []string{"n", "lines", "tail", "last"}

// lastLines returns what shows the part of a log that flag i of another tool asks for, or "".
func (h hints) lastLines(cmd *cobra.Command, name string, i int) string {
	isSince := name == "since" && cmd.Name() == "logs"
	if i < 0 || !isSince && !slices.Contains(numberedLines, name) || cmd.Name() != "logs" && cmd.Name() != "events" {
		return ""
	}
	_, value, given := strings.Cut(h.Typed[i], "=")
	rest := slices.Clone(h.Typed[i+1:])
	if !given && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		value, rest = rest[0], rest[1:]
	}
	if _, err := strconv.ParseUint(value, 10, 32); err != nil && !isSince {
		value = "500"
	}
	if cmd.Name() == "events" {
		return "kbnode events | tail -n " + value
	}
	units := "-u 'buildkite-agent-gpu*' -u 'kbnode-job-gpu*'"
	for _, word := range append(slices.Clone(h.Typed[:i]), rest...) {
		if slots := node.LikelySlots(word); len(slots) == 1 {
			units = fmt.Sprintf("-u buildkite-agent-%s -u 'kbnode-job-%[1]s@*'", slots[0])
		}
	}
	if !isSince {
		return fmt.Sprintf("sudo journalctl -n %s %s", value, units)
	}
	if times := likelyTimes(value); times != nil || value == "" { // a time of journalctl that is past has a minus
		value = "-" + cmp.Or(value, "2h")
	}
	return fmt.Sprintf("sudo journalctl --since %s %s", term.Word(value), units)
}

var gpuNumbers = lazy.Regexp(`^\d+(,\d+)*$`)

// mostFlags is how many flags a message lists.
const mostFlags = 8

// ownFlags returns the flags of a command, with their hyphens.
func ownFlags(cmd *cobra.Command) (all []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "help" {
			all = append(all, "--"+f.Name)
		}
	})
	return all
}

// flagList says which flags a command has: all, or those with the first letter of the one that was typed.
func flagList(cmd *cobra.Command, name string) string {
	all := ownFlags(cmd)
	similar := slices.DeleteFunc(slices.Clone(all), func(flag string) bool { return name == "" || flag[2] != name[0] })
	path := cmd.CommandPath()
	switch {
	case len(all) == 0:
		if cmd.HasSubCommands() {
			return path + " has " + strings.Join(subcommands(cmd), ", ")
		}
		return path + " has no flags"
	case len(all) <= mostFlags && cmd != cmd.Root():
		return path + " has " + strings.Join(all, ", ")
	case len(similar) > 0 && len(similar) <= mostFlags:
		return fmt.Sprintf("%s has %s; %[1]s --help lists the others", path, strings.Join(similar, ", "))
	}
	return path + " --help lists the flags"
}

// json explains a flag of other tools that says in which format to print, or where to: -o json, --output=gpus.json.
func (h hints) json(cmd *cobra.Command, says string, i int) error {
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
	switch named := strings.ContainsAny(value, "./") && !strings.Contains(value, "{"); {
	case named && h.Find("--json") < 0 && !strings.HasSuffix(value, ".json"):
		line = slices.DeleteFunc(line, func(word string) bool { return word == "--json" })
		return term.Usagef("%s; %s prints to standard output: %s", says, cmd.CommandPath(), h.into(line, value))
	case named:
		return term.Usagef("%s; --json prints to standard output: %s", says, h.into(line, value))
	}
	return h.Advise(says, line)
}

// flagOf reports whether a command has a flag.
func flagOf(root *cobra.Command, command, name string) bool {
	cmd, _, err := root.Find([]string{command})
	return err == nil && cmd.Flags().Lookup(name) != nil
}
