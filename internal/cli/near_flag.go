package cli

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/doctor"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// valueFlags returns the flags of a command that have a word as a value, as --mode has test.
func valueFlags(cmd *cobra.Command, word string) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		complete, ok := cmd.GetFlagCompletionFunc(f.Name)
		if !ok || slices.Contains([]string{"problem", "slot", "skip", "explain"}, f.Name) {
			return
		}
		list, _ := complete(cmd, nil, "")
		for _, v := range list {
			if v, _, _ := strings.Cut(v, "\t"); strings.EqualFold(v, word) {
				names = append(names, f.Name)
			}
		}
	})
	return names
}

// partFlags returns the flags of which a word is a part: --agent-version for version.
func partFlags(cmd *cobra.Command, word string) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && slices.Contains(strings.Split(f.Name, "-"), word) {
			names = append(names, f.Name)
		}
	})
	return names
}

// nearFlag returns the flag of a command that a mistyped one probably is, or "".
func (h hints) nearFlag(cmd *cobra.Command, name string) string {
	for _, same := range sameFlags[name] {
		if f := cmd.Flags().Lookup(same); f != nil && (isList(f) || f.NoOptDefVal != "" || h.Find("--"+same) < 0) {
			return same
		}
	}
	if name == "" { // as of -=x
		return ""
	}
	near, best := "", farthest(name)+1
	cmd.Flags().VisitAll(func(f *pflag.Flag) { // sorted
		d := text.Edits(f.Name, name)
		if (d > 1 || len(f.Name) == len(name)) && !strings.EqualFold(f.Name[:1], name[:1]) { // a typo begins right: --shell is not --help, and --node not --mode
			return
		}
		if len(name) > 1 && strings.HasPrefix(f.Name, name) { // one letter says too little: -n is not --now
			d = 0
		}
		if !f.Hidden && (d < best || d == best && len(f.Name) < len(near)) {
			near, best = f.Name, d
		}
	})
	return near
}

// strayFlag returns the flag that a word without one means, with its value, or "".
func strayFlag(cmd *cobra.Command, arg string) (name, value string) {
	name, value = strayFlags[pathOf(cmd)], arg
	_, isSlot := node.SlotNumber(arg)
	switch {
	case strings.HasSuffix(arg, ".tar") && cmd.Flags().Lookup("bundle") != nil && cmd.Name() != "doctor": // which writes one
		name = "bundle"
	case strings.HasSuffix(arg, ".txtar"):
		name = "root"
	case strings.Contains(arg, "="), cmd.Name() == "doctor" && isSlot, // it checks all
		name == "queue" && isVerb(cmd.Root(), arg), name == "only" && !isCheck(arg),
		name == "slot" && node.LikelySlots(arg) == nil && arg != "node",
		name == "agent-version" && !versionForm().MatchString(arg):
		return "", ""
	case name == "output" && !strings.HasSuffix(arg, ".tar"):
		name = "image"
	case name == "dockerfile":
		value = filepath.Join(arg, "Dockerfile")
	}
	f := cmd.Flags().Lookup(name)
	if f == nil || f.Changed && !isList(f) {
		return "", ""
	}
	if f.Value.Type() == "intSlice" {
		value = strings.TrimPrefix(arg, "gpu")
	}
	return name, value
}

// isCheck reports whether a word is a check of doctor, or a group of them.
func isCheck(word string) bool {
	_, err := doctor.Options{Checks: doctor.All(), Only: []string{word}}.Choose()
	return err == nil
}

// isList reports whether a flag takes several values.
func isList(f *pflag.Flag) bool {
	return f != nil && (strings.HasSuffix(f.Value.Type(), "Slice") || strings.HasSuffix(f.Value.Type(), "Array"))
}

var versionForm = lazy.Regexp(`^\d+\.\d+\.\d+`)

// wordOf returns the lines in which flag i is a word: a command, or what the command takes as a word.
func (h hints) wordOf(cmd *cobra.Command, i int, name string) (lines [][]string) {
	value, given := strings.CutPrefix(h.Typed[i], "--"+name+"=")
	bare := h.With(i)
	if given {
		bare = h.With(i, value)
	}
	if words := strings.Fields(h.Typed[i]); len(words) > 1 { // '--queue b200'
		lines = append(lines, h.With(i, words...))
	}
	for _, sub := range named(cmd, name) { // config --show
		lines = append(lines, h.With(i, sub.Name()))
	}
	if node.LikelySlots(name) != nil && strings.Contains(cmd.Use, "SLOT") { // -gpu3
		lines = append(lines, h.With(i, name))
	}
	for word, flags := range wordFlags {
		if strings.Contains(cmd.Use, word) && slices.Contains(flags, name) {
			lines = append(lines, bare)
		}
	}
	switch isAll := name == "all" || name == "a"; {
	case cmd == cmd.Root(): // kbnode --json status
		lines = append(lines, append(h.With(i), h.Typed[i]))
	case isAll && !slices.Contains(shows, cmd.Name()) && strings.Contains(cmd.Use, " "):
	case cmd.HasSubCommands() && !cmd.Runnable() && (given || i+1 < len(h.Typed)), isAll: // completion --shell zsh; others show all
		lines = append(lines, bare)
	}
	return lines
}

// elsewhere says where what a flag asks for is set or done: in the configuration, by another command, or by another flag.
func (h hints) elsewhere(cmd *cobra.Command, name string) string {
	path := pathOf(cmd)
	if slices.Contains(ownFile, path) && slices.Contains(configWords, name) {
		return ownConfig
	}
	if key := config.KeyOf(name); key != "" && (path == "plan" || slices.Contains(ownFile, path)) {
		return "set " + key + " in " + plan.ConfigPath + ", then kbnode config check"
	}
	root := cmd.Root()
	other, _ := phrase(root, cmd.Name(), name)
	if c, _, err := root.Find([]string{name}); err == nil && c.Name() == name && name != "queue" && c.IsAvailableCommand() && !c.HasSubCommands() {
		other = []string{name}
	}
	if other != nil && cmd.Parent() == root && accepted(other) != nil {
		return "write " + h.Line(other)
	}
	return flagList(cmd, name)
}
