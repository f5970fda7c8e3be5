package cli

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-mode/kbnode/internal/node"
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
func nearFlag(cmd *cobra.Command, name string) string {
	for _, same := range sameFlags[name] {
		if cmd.Flags().Lookup(same) != nil {
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

// isList reports whether a flag takes several values.
func isList(f *pflag.Flag) bool {
	return f != nil && (strings.HasSuffix(f.Value.Type(), "Slice") || strings.HasSuffix(f.Value.Type(), "Array"))
}

var versionForm = lazy.Regexp(`^\d+\.\d+\.\d+`)
