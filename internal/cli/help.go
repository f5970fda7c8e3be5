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
		term.Printf(w, "%s", fill(b.String(), width))
	})
}

// fill fits a help text to width columns. The source has a width of its own, so the lines of a paragraph are joined first,
// and those of an entry in a list. All others stay as they are.
func fill(help string, width int) string {
	lines := strings.Split(strings.ReplaceAll(help, "\t", "  "), "\n")
	var filled []string
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		at, hang := lastColumn(line), term.Hang(line, width)
		if at == 0 {
			hang = 0
		}
		for line != "" && i+1 < len(lines) && lines[i+1] != "" && indent(lines[i+1]) == at {
			i++
			line += " " + strings.TrimLeft(lines[i], " ")
			hang = at
		}
		filled = append(filled, term.Fold(line, width, hang))
	}
	return strings.Join(filled, "\n")
}

// lastColumn returns where the last column of an indented line begins, -1 if it has but one, and 0 for prose.
func lastColumn(line string) int {
	if indent(line) == 0 {
		return 0
	}
	if i := strings.LastIndex(line, "  ") + 2; i > indent(line) {
		return i
	}
	return -1
}

func indent(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }
