package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	pretty "github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// terminal reports whether w is a terminal, and returns its width in columns.
func terminal(w io.Writer) (width int, ok bool) {
	if a, is := w.(*answer); is {
		w = a.to
	}
	f, isFile := w.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		width = 80
	}
	return width, true
}

// cursor returns the width of a terminal whose lines can be rewritten, or 0.
func cursor(w io.Writer) int {
	width, _ := terminal(w)
	if os.Getenv("TERM") == "dumb" {
		return 0
	}
	return width
}

// colored reports whether to color what is written to w.
func colored(w io.Writer) bool { return cursor(w) > 0 && os.Getenv("NO_COLOR") == "" }

// isTerminal reports whether r is a terminal, at which a person types.
func isTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// wrap breaks lines that are wider than width between words. The rest of a line is indented to
// the words that it belongs to: after the last column that two blanks end, or two blanks more
// than its line.
func wrap(s string, width int) string { return foldLines(s, "", width) }

// wrapCommands breaks lines of commands so that they can still be typed as shown.
func wrapCommands(s string, width int) string { return foldLines(s, " \\", width) }

func foldLines(s, end string, width int) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		words := strings.TrimRight(line, "\n")
		b.WriteString(fold(words, end, width, hang(words, width)) + line[len(words):])
	}
	return b.String()
}

// fold breaks a line between words into lines of at most width columns. All but the last end
// with end, and all but the first are indented. If end is not empty, quoted text is not broken.
func fold(line, end string, width, indent int) string {
	if pretty.StringWidthWithoutEscSequences(line) <= width {
		return line
	}
	var b strings.Builder
	at, begun, quotes := 0, false, 0
	for i, word := range strings.Split(line, " ") {
		n := pretty.StringWidthWithoutEscSequences(word)
		switch {
		case i == 0:
		case begun && at > indent && at+1+n+len(end) > width && (end == "" || quotes%2 == 0):
			b.WriteString(end + "\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
		begun = begun || n > 0
		quotes += strings.Count(word, "'") + strings.Count(word, `"`)
	}
	return b.String()
}

// hang returns the indentation of what follows on the next line.
func hang(line string, width int) int {
	plain := []rune(pretty.StripEscape(line))
	lead := len(plain) - len([]rune(strings.TrimLeft(string(plain), " ")))
	head := string(plain[:min(width/2, len(plain))])
	if i := strings.LastIndex(head, "  "); i >= lead {
		return utf8.RuneCountInString(head[:i]) + 2
	}
	return min(lead+2, width/2)
}

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
		cmd.Long, cmd.Example = reflow(cmd.Long, width), wrapCommands(cmd.Example, width)
		help(cmd, args)
		printf(w, "%s", wrap(b.String(), width))
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
			indent = hang(line, width)
		}
		out[i] = fold(line, "", width, indent)
	}
	return strings.Join(out, "\n")
}
