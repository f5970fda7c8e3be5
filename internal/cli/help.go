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
		cmd.Long, cmd.Example = reflow(cmd.Long, width), term.WrapCommands(cmd.Example, width)
		help(cmd, args)
		term.Printf(w, "%s", term.Wrap(b.String(), width))
	})
}

// reflow refills paragraphs, and lists of words and their meanings, in which each word begins an
// indented line.
func reflow(s string, width int) string {
	var out []string
	for line := range strings.SplitSeq(s, "\n") {
		last := len(out) - 1
		more := last >= 0 && line != "" && out[last] != "" && (line[0] != ' ') == (out[last][0] != ' ')
		if more && (line[0] != ' ' || strings.HasPrefix(line, "      ")) {
			out[last] += " " + strings.TrimSpace(line)
		} else {
			out = append(out, line)
		}
	}
	for i, line := range out {
		indent := 0
		if strings.HasPrefix(line, " ") {
			indent = term.Hang(line, width)
		}
		out[i] = term.Fold(line, "", width, indent)
	}
	return strings.Join(out, "\n")
}
