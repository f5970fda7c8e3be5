// Command gen writes what packages install besides kbnode: its manual pages, completions for
// three shells, the pages of docs, and the changelog of a .deb. It is a separate program because the code that
// writes manual pages does not belong in a binary on servers.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/gpu-mode/kbnode/internal/cli"
)

func main() {
	version := flag.String("version", cli.Version(), "version of kbnode, for the page footers")
	date := flag.String("date", "", "date of that version, in RFC 3339 format")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "gen: no directory is given; write gen --version VERSION --date DATE DIR")
		os.Exit(2)
	}
	if err := write(".", flag.Arg(0), *version, *date); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// changes is the changelog in Debian's format, which a .deb must have.
const changes = `kbnode (%s) unstable; urgency=medium

  * See CHANGELOG.md, beside this file.

 -- kbnode authors <gpu-mode@users.noreply.github.com>  %s
`

// write writes man/, completions/, docs/ and changelog below dir, from the repository in source. The same commands, version and date
// give the same bytes.
func write(source, dir, version, date string) error {
	when, err := time.Parse(time.RFC3339, date)
	if err != nil {
		return fmt.Errorf("read --date: %w", err)
	}
	man, shells := filepath.Join(dir, "man"), filepath.Join(dir, "completions")
	for _, d := range []string{man, shells} {
		if err := errors.Join(os.RemoveAll(d), os.MkdirAll(d, 0o755)); err != nil { //nolint:gosec // to be packed
			return fmt.Errorf("make directory: %w", err)
		}
	}
	root := cli.Commands()
	for shell, generate := range map[string]func(string) error{
		"kbnode.bash": func(f string) error { return root.GenBashCompletionFileV2(f, true) },
		"_kbnode":     root.GenZshCompletionFile,
		"kbnode.fish": func(f string) error { return root.GenFishCompletionFile(f, true) },
	} {
		if err := generate(filepath.Join(shells, shell)); err != nil {
			return fmt.Errorf("write completions: %w", err)
		}
	}
	changelog := fmt.Sprintf(changes, strings.Replace(version, "-", "~", 1), when.UTC().Format(time.RFC1123Z))
	if err := os.WriteFile(filepath.Join(dir, "changelog"), []byte(changelog), 0o644); err != nil { //nolint:gosec // to be packed
		return fmt.Errorf("write changelog: %w", err)
	}
	if err := readable(filepath.Join(source, "docs"), filepath.Join(dir, "docs"), version); err != nil {
		return fmt.Errorf("write pages: %w", err)
	}
	explain(root)
	when = when.UTC()
	header := doc.GenManHeader{Section: "1", Source: "kbnode " + version, Manual: "kbnode", Date: &when}
	if err := pages(root, header, man); err != nil {
		return fmt.Errorf("write manual pages: %w", err)
	}
	return nil
}

// option matches a generated flag, with a tab where a hanging paragraph should be. off and unset
// match defaults that say nothing.
var (
	option = regexp.MustCompile(`(?m)^(?:\.PP\n)?(\\fB-.*)\n\t`)
	off    = regexp.MustCompile(`(?m)^(\\fB-.*)\[=false\]$`)
	unset  = regexp.MustCompile(`(?m)^(\\fB-.*)=(?:""|\[\]|0s?)$`)
)

// pages writes the page of a command and of its subcommands.
func pages(cmd *cobra.Command, header doc.GenManHeader, dir string) error {
	var page bytes.Buffer
	one := header // GenMan fills in the title
	if err := doc.GenMan(cmd, &one, &page); err != nil {
		return err
	}
	text := option.ReplaceAllString(page.String(), ".TP\n$1\n")
	text = unset.ReplaceAllString(off.ReplaceAllString(text, "$1"), "$1=VALUE")
	errs := []error{os.WriteFile(filepath.Join(dir, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1"), []byte(text), 0o644)} //nolint:gosec // to be packed
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			errs = append(errs, pages(sub, header, dir))
		}
	}
	return errors.Join(errs...)
}

// explain turns the plain text of commands into Markdown, which the pages are made from, and omits
// the line that says when a page was written.
func explain(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true
	var b strings.Builder
	block := false
	for line := range strings.Lines(cmd.Long) {
		if in := strings.HasPrefix(line, "  "); in != block {
			block = in
			b.WriteByte('\n')
		}
		if block {
			b.WriteString("    " + line)
		} else {
			b.WriteString(special.Replace(line))
		}
	}
	cmd.Long = b.String()
	for _, sub := range cmd.Commands() {
		sub.Hidden = sub.Hidden || sub.Name() == "completion" // packages install its output beside the pages
		explain(sub)
	}
}

var special = strings.NewReplacer(`\`, `\\`, "*", `\*`, "_", `\_`, "<", `\<`, "`", "\\`", "[", `\[`)
