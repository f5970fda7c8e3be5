package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// scenario is a test in the virtual machine and the files and directories that it covers.
type scenario struct {
	name   string
	covers []string
}

// readScenarios reads test/vm/scenarios.
func readScenarios(file string) ([]scenario, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var scenarios []scenario
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || strings.HasPrefix(line, "#"):
		case len(fields) == 1:
			return nil, fmt.Errorf("read %s: %s covers nothing; name its directories", file, fields[0])
		default:
			scenarios = append(scenarios, scenario{fields[0], fields[1:]})
		}
	}
	return scenarios, nil
}

// stale prints the scenarios of SCENARIOS that have no row in PAGE, or whose files changed
// since the commit in that row, and how to run them.
func stale(args []string, out io.Writer) (int, error) {
	if len(args) != 2 {
		return 2, errors.New("write kbvm stale PAGE SCENARIOS")
	}
	rows, err := readRows(args[0])
	if err != nil {
		return 1, err
	}
	scenarios, err := readScenarios(args[1])
	if err != nil {
		return 1, err
	}
	var names []string
	for _, s := range scenarios {
		why, err := s.stale(rows, changedSince)
		if err != nil {
			return 1, err
		}
		if why != "" {
			_, _ = fmt.Fprintf(out, "%-32s %s\n", s.name, why)
			names = append(names, s.name)
		}
	}
	if len(names) > 0 {
		_, _ = fmt.Fprintf(out, "\nTo run them: make test-scenarios RUN='%s'\n", strings.Join(names, "|"))
	}
	return 0, nil
}

// stale returns why the scenario has to run again; "" if it does not.
func (s scenario) stale(rows map[string]row, changedSince func(commit string) ([]string, error)) (string, error) {
	green, ok := rows[s.name]
	if !ok {
		return "has not been green", nil
	}
	files, err := changedSince(strings.TrimSuffix(green.commit, "+"))
	if errors.Is(err, errNoCommit) {
		return "was green at " + green.commit + ", which this repository does not have", nil
	}
	if err != nil {
		return "", err
	}
	files = slices.DeleteFunc(files, func(f string) bool { return !s.covered(f) })
	if len(files) == 0 {
		return "", nil
	}
	return fmt.Sprintf("%d files changed since %s, such as %s", len(files), green.commit, files[0]), nil
}

// covered reports whether a file is one of those that the scenario depends on. The tests of a
// package are not, nor are documents.
func (s scenario) covered(file string) bool {
	return slices.ContainsFunc(s.covers, func(c string) bool {
		if file == c {
			return true
		}
		return strings.HasPrefix(file, c+"/") && !strings.HasSuffix(file, "_test.go") && !strings.Contains(file, "/testdata/") && !strings.HasSuffix(file, ".md")
	})
}

var errNoCommit = errors.New("no such commit")

// changedSince returns the files that differ from a commit in the working tree.
func changedSince(commit string) ([]string, error) {
	if err := exec.Command("git", "cat-file", "-e", commit+"^{commit}").Run(); err != nil {
		return nil, errNoCommit
	}
	diff, err := exec.Command("git", "diff", "--name-only", commit).Output()
	if err != nil {
		return nil, fmt.Errorf("list what changed since %s: %w", commit, err)
	}
	added, err := exec.Command("git", "ls-files", "--others", "--exclude-standard").Output()
	if err != nil {
		return nil, fmt.Errorf("list new files: %w", err)
	}
	return strings.Fields(string(bytes.Join([][]byte{diff, added}, nil))), nil
}
