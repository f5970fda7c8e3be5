package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The table that record keeps in a page is between these two lines.
const (
	tableStart = "<!-- last green: written by test/vm/run.sh -->\n"
	tableEnd   = "<!-- end of last green -->\n"
	tableHead  = "| scenario | last green at | date | minutes | repeats |\n|---|---|---|---|---|\n"
)

// passed matches what `go test -v` prints of a test, or of a test's part, that passed.
var passed = regexp.MustCompile(`(?m)^ {0,4}--- PASS: (Test[^ /]*(?:/[^ /]+)?) \(([0-9.]+)s\)$`)

// record writes to PAGE's table which scenarios of LOG, what go test -v printed, were green at
// COMMIT on DATE. PARTS is "parts" where the run selected parts of tests: then only the parts count.
// REPEATED names the tests that ran a second time because the guest died.
func record(args []string) (int, error) {
	if len(args) < 5 {
		return 2, errors.New("write kbvm record PAGE LOG COMMIT DATE whole|parts [REPEATED …]")
	}
	page, err := os.ReadFile(args[0])
	if err != nil {
		return 1, err
	}
	log, err := os.ReadFile(args[1])
	if err != nil {
		return 1, err
	}
	text, err := recorded(string(page), string(log), args[2], args[3], args[4] == "parts", args[5:])
	if err != nil {
		return 1, fmt.Errorf("record last green runs in %s: %w", args[0], err)
	}
	return 0, os.WriteFile(args[0], []byte(text), 0o644)
}

// recorded is the page with the table brought up to date: a row for each scenario that passed replaces
// the one it had, and the repeats it counted are kept.
func recorded(page, log, commit, date string, parts bool, repeated []string) (string, error) {
	before, rest, ok := strings.Cut(page, tableStart)
	table, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		return "", errors.New("the page has no table; add the two comment lines of kbvm/record.go")
	}
	rows := map[string][]string{} // by scenario
	for line := range strings.Lines(strings.TrimPrefix(table, tableHead)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "| "), " | ")
		if len(cells) == 5 {
			rows[cells[0]] = cells
		}
	}
	for _, m := range passed.FindAllStringSubmatch(log, -1) {
		name, seconds := m[1], m[2]
		test, _, part := strings.Cut(name, "/")
		if part != parts || strings.HasPrefix(name, "TestRig") {
			continue
		}
		s, err := strconv.ParseFloat(seconds, 64)
		if err != nil {
			return "", fmt.Errorf("time of %s: %w", name, err)
		}
		if s < 10 && !part {
			continue // a unit test of the rig
		}
		n := 0
		if old := rows[name]; old != nil {
			n, _ = strconv.Atoi(old[4])
		}
		if slices.Contains(repeated, test) {
			n++
		}
		rows[name] = []string{name, commit, date, strconv.FormatFloat(s/60, 'f', 1, 64), strconv.Itoa(n)}
	}
	var b strings.Builder
	b.WriteString(before + tableStart + tableHead)
	names := make([][]string, 0, len(rows))
	for _, row := range rows {
		names = append(names, row)
	}
	slices.SortFunc(names, func(a, b []string) int { return cmp.Compare(a[0], b[0]) })
	for _, row := range names {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
	}
	b.WriteString(tableEnd + after)
	return b.String(), nil
}
