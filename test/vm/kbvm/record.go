package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// The table that record keeps in a page is between these two lines.
const (
	tableStart = "<!-- last green: written by test/retest.sh -->\n"
	tableEnd   = "<!-- end of last green -->\n"
	tableHead  = "| test | last green at | date | minutes | unstable |\n|---|---|---|---|---|\n"
)

const module = "github.com/gpu-mode/kbnode/"

// row is a test's line in the table: a scenario, or a unit test that was unstable.
type row struct{ name, commit, date, minutes, unstable string }

// record writes to PAGE's table which scenarios were green at COMMIT on DATE, and which tests failed
// and passed when they ran once more. It reads RESULTS, which go test -json wrote, and the names in
// SCENARIOS.
func record(args []string) (int, error) {
	if len(args) != 5 {
		return 2, errors.New("write kbvm record PAGE SCENARIOS RESULTS COMMIT DATE")
	}
	page, err := os.ReadFile(args[0])
	if err != nil {
		return 1, err
	}
	scenarios, err := readScenarios(args[1])
	if err != nil {
		return 1, err
	}
	file, err := os.Open(args[2])
	if err != nil {
		return 1, err
	}
	defer func() { _ = file.Close() }()
	results, err := readResults(file)
	if err != nil {
		return 1, err
	}
	text, err := recorded(string(page), scenarios, results, args[3], args[4])
	if err != nil {
		return 1, fmt.Errorf("record last green runs in %s: %w", args[0], err)
	}
	if text == string(page) {
		return 0, nil
	}
	return 0, os.WriteFile(args[0], []byte(text), 0o644)
}

// result is how a test ended last.
type result struct {
	pkg, test string
	passed    bool
	failures  int // runs that failed
	seconds   float64
}

// readResults reads what go test -json wrote, with one result for each test, in the order in which
// they first ended.
func readResults(r io.Reader) ([]result, error) {
	var results []result
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e struct {
			Action, Package, Test string
			Elapsed               float64
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("read test results: %w", err)
		}
		if e.Test == "" || e.Action != "pass" && e.Action != "fail" {
			continue
		}
		pkg := strings.TrimPrefix(e.Package, module)
		i := slices.IndexFunc(results, func(r result) bool { return r.pkg == pkg && r.test == e.Test })
		if i < 0 {
			i = len(results)
			results = append(results, result{pkg: pkg, test: e.Test})
		}
		results[i].passed, results[i].seconds = e.Action == "pass", e.Elapsed
		if !results[i].passed {
			results[i].failures++
		}
	}
	return results, lines.Err()
}

// recorded is the page with the table brought up to date: a row for each scenario that passed replaces
// the one it had, and adds to how often the test was unstable.
func recorded(page string, scenarios []scenario, results []result, commit, date string) (string, error) {
	rows, err := readRows(page)
	if err != nil {
		return "", err
	}
	listed := func(test string) bool {
		return slices.ContainsFunc(scenarios, func(s scenario) bool { return s.name == test })
	}
	rows = slices.DeleteFunc(rows, func(r row) bool { return strings.HasPrefix(r.name, "Test") && !listed(r.name) })
	for _, r := range results {
		name, minutes := r.test, strconv.FormatFloat(r.seconds/60, 'f', 1, 64)
		isScenario := r.pkg == "test/vm" && listed(r.test)
		if !r.passed || strings.Contains(r.test, "/") || !isScenario && r.failures == 0 {
			continue
		}
		if !isScenario {
			name = r.pkg + "." + r.test
		}
		unstable := r.failures
		i := slices.IndexFunc(rows, func(r row) bool { return r.name == name })
		if i < 0 {
			i = len(rows)
			rows = append(rows, row{})
		} else if n, err := strconv.Atoi(rows[i].unstable); err == nil {
			unstable += n
		}
		rows[i] = row{name, commit, date, minutes, strconv.Itoa(unstable)}
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.name, b.name) })
	before, rest, _ := strings.Cut(page, tableStart)
	_, after, _ := strings.Cut(rest, tableEnd)
	var b strings.Builder
	b.WriteString(before + tableStart + tableHead)
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.name, r.commit, r.date, r.minutes, r.unstable)
	}
	b.WriteString(tableEnd + after)
	return b.String(), nil
}

// readRows reads the table of a page.
func readRows(page string) ([]row, error) {
	_, rest, ok := strings.Cut(page, tableStart)
	table, _, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		return nil, errors.New("the page has no table; add the two comment lines of kbvm/record.go")
	}
	var rows []row
	for line := range strings.Lines(strings.TrimPrefix(table, tableHead)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "| "), " | ")
		if len(cells) != 5 {
			return nil, fmt.Errorf("the table's line %q does not have five cells", strings.TrimSpace(line))
		}
		rows = append(rows, row{cells[0], cells[1], cells[2], cells[3], cells[4]})
	}
	return rows, nil
}
