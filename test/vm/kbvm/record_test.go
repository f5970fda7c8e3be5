package main

import (
	"strings"
	"testing"
)

func TestRecorded(t *testing.T) {
	page := "text\n" + tableStart + tableHead +
		"| TestDaemon | aaa | 2026-01-01 | 20.0 | 1 |\n| TestDisk | bbb | 2026-01-02 | 3.0 | 0 |\n" + tableEnd + "more\n"
	log := `=== RUN   TestDaemon
--- PASS: TestDaemon (1500.00s)
    --- PASS: TestDaemon/rest (60.00s)
--- FAIL: TestImage (900.00s)
    --- PASS: TestImage/the_first (60.00s)
--- PASS: TestCpioArchive (0.00s)
`
	got, err := recorded(page, log, "ccc", "2026-02-03", false, []string{"TestDaemon"})
	if err != nil {
		t.Fatal(err)
	}
	want := "text\n" + tableStart + tableHead +
		"| TestDaemon | ccc | 2026-02-03 | 25.0 | 2 |\n| TestDisk | bbb | 2026-01-02 | 3.0 | 0 |\n" + tableEnd + "more\n"
	if got != want {
		t.Errorf("whole tests:\n%s\nwant:\n%s", got, want)
	}
	again, err := recorded(got, "", "ddd", "2026-02-04", false, nil)
	if err != nil || again != got {
		t.Errorf("a run without a green test changes the page: %v\n%s", err, again)
	}

	// A run of parts says nothing of the whole test, even though go test calls it passed.
	got, err = recorded(page, log, "ccc", "2026-02-03", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"| TestDaemon | aaa |", "| TestDaemon/rest | ccc | 2026-02-03 | 1.0 | 0 |", "| TestImage/the_first | ccc |"} {
		if !strings.Contains(got, row) {
			t.Errorf("parts: no %q in\n%s", row, got)
		}
	}
	if _, err := recorded("no table\n", log, "c", "d", false, nil); err == nil {
		t.Error("a page without a table is accepted")
	}
}
