package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Commands are all commands, for what is written from them: they print nothing.
func Commands() *cobra.Command {
	root := newRoot(Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}, hints{})
	root.InitDefaultCompletionCmd()
	return root
}

// Reference is docs/cli.md: every command that people type, with its flags, and
// the names of those that units and hooks start. What several commands share is said
// once.
func Reference() string {
	root := Commands()
	var documented []*cobra.Command
	var hidden []string
	for _, cmd := range root.Commands() {
		switch {
		case cmd.Hidden:
			hidden = append(hidden, fmt.Sprintf("- `%s`: %s\n", cmd.UseLine(), cmd.Short))
		case cmd.Name() == "help": // the page says it at its top
		case cmd.Name() == "completion": // its four say the same of four shells
			documented = append(documented, cmd)
		default:
			documented = append(append(documented, cmd), cmd.Commands()...)
		}
	}
	r := reference{common: pflag.NewFlagSet("", pflag.ContinueOnError)}
	uses := map[string]int{}
	for _, cmd := range documented {
		flagsOf(cmd).VisitAll(func(f *pflag.Flag) {
			if uses[said(f)]++; uses[said(f)] == many {
				r.common.AddFlag(f)
			}
		})
	}

	printf(&r, "# Commands\n\n"+
		"Every command and flag of `kbnode`. `kbnode COMMAND --help` and `kbnode help COMMAND` print\n"+
		"the same. For the commands by task, see [install](install.md),\n"+
		"[operating a node](operations.md) and [for operators](operators.md).\n\n"+
		"A command prints its answer to standard output and everything else to standard error.\n"+
		"Unless a section says otherwise, exit code 0 means done, 1 means no, and 2 means wrong\n"+
		"usage.\n\n## Common flags\n\nThese flags do the same in each command that lists them.\n\n"+
		"```\n%s```\n", r.common.FlagUsages())
	for _, cmd := range documented {
		r.write(cmd)
	}
	printf(&r, "\n## Internal commands\n\nUnits and hooks start these.\n\n%s", strings.Join(hidden, ""))
	return r.String()
}

// many is how many flags two commands share, or commands one flag, before the page says
// them once.
const many = 4

// reference writes the page.
type reference struct {
	strings.Builder
	common *pflag.FlagSet   // flags of many commands
	before []*cobra.Command // those with sections so far
}

func (r *reference) write(cmd *cobra.Command) {
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	printf(r, "\n## %s\n\n%s\n", cmd.CommandPath(), strings.TrimSpace(text))
	if cmd.Name() == "completion" {
		var names []string
		for _, sub := range cmd.Commands() {
			names = append(names, "`"+sub.CommandPath()+"`")
		}
		printf(r, "\n%s.\n", strings.Join(names, ", "))
	}
	if cmd.Example != "" {
		printf(r, "\n```\n%s\n```\n", cmd.Example)
	}

	flags, common := split(flagsOf(cmd), r.common)
	var shared string
	for _, other := range r.before {
		if rest, same := split(flags, flagsOf(other)); len(same) >= many {
			flags = rest
			name := other.CommandPath()
			shared += fmt.Sprintf("\nFlags of [%s](#%s): %s.\n", name, strings.ReplaceAll(name, " ", "-"), strings.Join(same, ", "))
		}
	}
	if flags.HasFlags() {
		printf(r, "\n```\n%s```\n", flags.FlagUsages())
	}
	printf(r, "%s", shared)
	if len(common) > 0 {
		printf(r, "\nCommon flags: %s.\n", strings.Join(common, ", "))
	}
	r.before = append(r.before, cmd)
}

// flagsOf are a command's own flags, without --help, which every command has.
func flagsOf(cmd *cobra.Command) *pflag.FlagSet {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && !f.Hidden {
			set.AddFlag(f)
		}
	})
	return set
}

// split takes the flags that other has, too, out of a set, and names them.
func split(set, other *pflag.FlagSet) (rest *pflag.FlagSet, same []string) {
	rest = pflag.NewFlagSet("", pflag.ContinueOnError)
	set.VisitAll(func(f *pflag.Flag) {
		if o := other.Lookup(f.Name); o != nil && said(o) == said(f) {
			same = append(same, "`--"+f.Name+"`")
		} else {
			rest.AddFlag(f)
		}
	})
	return rest, same
}

// said is what the page says of a flag.
func said(f *pflag.Flag) string {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.AddFlag(f)
	return set.FlagUsages()
}
