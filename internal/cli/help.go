package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/spf13/cobra"
)

// proseWidth is the maximum width of a line of help: longer lines are hard to read.
const proseWidth = 100

// plumbing is the group of the commands that people seldom type.
const plumbing = "Plumbing"

// rootUsage lists the commands by what they are for, in 40 lines of 80 columns at most. The
// standard template, for all other commands, follows it.
const rootUsage = `{{if not .HasParent}}{{$root := .}}{{range $i, $group := .Groups}}{{if $i}}
{{end}}{{.Title}}:
{{range $root.Commands}}{{if and (eq .GroupID $group.ID) (or .IsAvailableCommand (eq .Name "help"))}}  {{rpad .Name .NamePadding }} {{.Short}}
{{end}}{{end}}{{end}}
kbnode COMMAND --help says more about a command.
{{else}}`

// addGroup adds commands to root, which lists them under a title.
func addGroup(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, cmd := range commands {
		cmd.GroupID = title
		root.AddCommand(cmd)
	}
}

// fitHelp fits what --help prints to a terminal of width columns.
func fitHelp(root *cobra.Command, w io.Writer, width int) {
	root.SetUsageTemplate(strings.NewReplacer(
		"FlagUsages", fmt.Sprintf("FlagUsagesWrapped %d", width),
		"Padding }} {{.Short}}", "Padding }}  {{.Short}}", // two blanks, as between other columns
	).Replace(root.UsageTemplate()))
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		var b strings.Builder
		cmd.SetOut(&b)
		help(cmd, args)
		term.Printf(w, "%s", term.Wrap(b.String(), width))
	})
}
