package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Commands are all commands, for what is written from them: they print nothing.
func Commands() *cobra.Command {
	root := newRoot(Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}, hints{})
	root.InitDefaultCompletionCmd()
	return root
}

// Reference is docs/cli.md: every command that people type, with its flags, and
// the names of those that units and hooks start.
func Reference() string {
	var b strings.Builder
	b.WriteString("# Commands\n\n" +
		"Standard output is the answer, standard error everything else. Exit codes: 0 done, 1 no,\n" +
		"2 wrong usage. `kbnode COMMAND --help` says the same as this page, which\n" +
		"`go test ./internal -update` writes. By task they are in [install](install.md),\n" +
		"[operating a node](operations.md) and [for operators](operators.md).\n")
	root := Commands()
	var hidden []string
	for _, cmd := range root.Commands() {
		if cmd.Hidden {
			hidden = append(hidden, fmt.Sprintf("- `%s`: %s\n", cmd.UseLine(), cmd.Short))
			continue
		}
		writeReference(&b, cmd)
		if cmd.Name() == "completion" {
			continue // its four say the same of four shells
		}
		for _, sub := range cmd.Commands() {
			writeReference(&b, sub)
		}
	}
	b.WriteString("\n## Not for people\n\nUnits and hooks start these.\n\n" + strings.Join(hidden, ""))
	return b.String()
}

func writeReference(b *strings.Builder, cmd *cobra.Command) {
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	printf(b, "\n## %s\n\n%s\n", cmd.CommandPath(), strings.TrimSpace(text))
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\n")
		for _, sub := range cmd.Commands() {
			printf(b, "- `%s`: %s\n", sub.CommandPath(), sub.Short)
		}
	}
	if cmd.Example != "" {
		printf(b, "\n```\n%s\n```\n", cmd.Example)
	}
	cmd.InitDefaultHelpFlag()
	if f := cmd.Flags().Lookup("help"); f != nil {
		f.Hidden = true // every command has it
	}
	if flags := cmd.LocalFlags(); flags.HasAvailableFlags() {
		printf(b, "\n```\n%s```\n", flags.FlagUsages())
	}
}
