package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// tableHead begins the page that record writes; a row for each scenario that was green follows.
const tableHead = "<!-- last green: written by test/retest.sh -->\n| test | last green at | date | minutes | unstable |\n|---|---|---|---|---|\n"

// row is what is known of a scenario.
type row struct {
	commit, date, minutes string
	unstable              int // how often it failed and passed when it ran once more
}

// record writes to PAGE which scenarios were green at COMMIT on DATE, and which failed and passed when they ran
// once more. It reads RESULTS, which go test -json wrote, and the names in SCENARIOS.
func record(args []string) (int, error) {
	if len(args) != 5 {
		return 2, errors.New("write kbvm record PAGE SCENARIOS RESULTS COMMIT DATE")
	}
	rows, err := readRows(args[0])
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
	return 0, os.WriteFile(args[0], []byte(recorded(rows, scenarios, results, args[3], args[4])), 0o644)
}

// result is how a test ended last.
type result struct {
	passed   bool
	failures int // runs that failed
	seconds  float64
}

// readResults reads what go test -json wrote of this package's scenarios, by name.
func readResults(r io.Reader) (map[string]result, error) {
	results := map[string]result{}
	parts := map[string]float64{} // seconds that a scenario's subtests took: those that ran in parallel are not in its own
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
		if !strings.HasSuffix(e.Package, "/test/vm") {
			continue
		}
		scenario, part, isPart := strings.Cut(e.Test, "/")
		switch {
		case e.Action == "run" && !isPart:
			parts[scenario] = 0
		case e.Action != "pass" && e.Action != "fail":
		case isPart && !strings.Contains(part, "/"):
			parts[scenario] += e.Elapsed
		case !isPart:
			last := result{passed: e.Action == "pass", failures: results[e.Test].failures, seconds: max(e.Elapsed, parts[scenario])}
			if !last.passed {
				last.failures++
			}
			results[e.Test] = last
		}
	}
	return results, lines.Err()
}

// recorded is the page brought up to date: a scenario that passed has a new row.
func recorded(rows map[string]row, scenarios []scenario, results map[string]result, commit, date string) string {
	var b strings.Builder
	b.WriteString(tableHead)
	for _, s := range scenarios {
		r := rows[s.name]
		if last := results[s.name]; last.passed {
			r = row{commit, date, fmt.Sprintf("%.1f", last.seconds/60), r.unstable + last.failures}
		}
		if r.commit != "" {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %d |\n", s.name, r.commit, r.date, r.minutes, r.unstable)
		}
	}
	return b.String()
}

// readRows reads a page that record wrote; none has no rows.
func readRows(page string) (map[string]row, error) {
	text, err := os.ReadFile(page)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	rows := map[string]row{}
	for line := range strings.Lines(strings.TrimPrefix(string(text), tableHead)) {
		var name string
		var r row
		if _, err := fmt.Sscanf(line, "| %s | %s | %s | %s | %d |", &name, &r.commit, &r.date, &r.minutes, &r.unstable); err != nil {
			return nil, fmt.Errorf("read the row %q of %s: %w", strings.TrimSpace(line), page, err)
		}
		rows[name] = r
	}
	return rows, nil
}
