package main

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestRecorded(t *testing.T) {
	t.Parallel()
	page := "text\n" + tableStart + tableHead +
		"| TestDaemon | aaa | 2026-01-01 | 20.0 | 1 |\n| TestDisk | bbb | 2026-01-02 | 3.0 | 0 |\n| TestOld | ccc | 2026-01-02 | 3.0 | 0 |\n" + tableEnd + "more\n"
	scenarios := []scenario{{name: "TestDaemon"}, {name: "TestDisk"}, {name: "TestImage"}}
	results, err := readResults(strings.NewReader(`{"Action":"run","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestDaemon"}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestDaemon/rest","Elapsed":60}
{"Action":"fail","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestDaemon","Elapsed":1000}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestImage/first","Elapsed":60}
{"Action":"fail","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestImage","Elapsed":900}
{"Action":"fail","Package":"github.com/gpu-mode/kbnode/test/vm","Elapsed":1900}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestCpioArchive","Elapsed":0}
{"Action":"fail","Package":"github.com/gpu-mode/kbnode/internal/guard","Test":"TestStop","Elapsed":9}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/internal/guard","Test":"TestStop","Elapsed":6}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestDaemon","Elapsed":1500}
`))
	must.Do(t, err)
	got, err := recorded(page, scenarios, results, "ccc", "2026-02-03")
	must.Do(t, err)
	want := "text\n" + tableStart + tableHead +
		"| TestDaemon | ccc | 2026-02-03 | 25.0 | 2 |\n| TestDisk | bbb | 2026-01-02 | 3.0 | 0 |\n| internal/guard.TestStop | ccc | 2026-02-03 | 0.1 | 1 |\n" + tableEnd + "more\n"
	if got != want {
		t.Errorf("whole tests:\n%s\nwant:\n%s", got, want)
	}
	again, err := recorded(got, scenarios, nil, "ddd", "2026-02-04")
	if err != nil || again != got {
		t.Errorf("a run without a green test changes the page: %v\n%s", err, again)
	}

	if _, err := recorded("no table\n", scenarios, results, "c", "d"); err == nil {
		t.Error("a page without a table is accepted")
	}
	if _, err := readResults(strings.NewReader("ok\n")); err == nil {
		t.Error("a log that is not JSON is accepted")
	}
}
