package main

import (
	"path/filepath"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestRecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Write(t, dir, "page", tableHead+
		"| TestDaemon | aaa | 2026-01-01 | 20.0 | 1 |\n| TestDisk | bbb | 2026-01-02 | 3.0 | 0 |\n| TestOld | ccc | 2026-01-02 | 3.0 | 0 |\n")
	must.Write(t, dir, "scenarios", "# what they cover\nTestDaemon a\nTestDisk b c\nTestImage d\nTestShapes e\n")
	must.Write(t, dir, "results", `{"Action":"run","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestDaemon"}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestDaemon/rest","Elapsed":60}
{"Action":"fail","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestDaemon","Elapsed":1000}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestImage/first","Elapsed":60}
{"Action":"fail","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestImage","Elapsed":900}
{"Action":"fail","Package":"github.com/gpu-mode/kbnode/test/vm","Elapsed":1900}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestCpioArchive","Elapsed":0}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/internal/disk","Test":"TestDisk","Elapsed":6}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestDaemon","Elapsed":1500}
{"Action":"run","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestShapes"}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestShapes/mig/first","Elapsed":90}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestShapes/mig","Elapsed":600}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestShapes/groups","Elapsed":300}
{"Action":"pass","Package":"github.com/gpu-mode/kbnode/test/vm","Test":"TestShapes","Elapsed":0}
`)
	page := filepath.Join(dir, "page")
	args := []string{page, filepath.Join(dir, "scenarios"), filepath.Join(dir, "results"), "ccc+", "2026-02-03"}
	_, err := record(args)
	must.Do(t, err)
	want := tableHead + "| TestDaemon | ccc+ | 2026-02-03 | 25.0 | 2 |\n| TestDisk | bbb | 2026-01-02 | 3.0 | 0 |\n| TestShapes | ccc+ | 2026-02-03 | 15.0 | 0 |\n"
	must.Equal(t, want, must.Read(t, page))

	must.Write(t, dir, "results", "ok\n")
	_, err = record(args)
	must.Err(t, err, "read test results")
	must.Write(t, dir, "page", "a page of something else\n")
	_, err = record(args)
	must.Err(t, err, "read the row")
}
