package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestUnfinished(t *testing.T) {
	t.Parallel()
	const forged, failed = `{"success": true, "error": "", "system": {}, "runs": {}}`, `{"success": false, "error": "x", "system": {}, "runs": {}}`
	const careful = `{"success": false, "error": "the job was cancelled", "system": {}, "runs": {"leaderboard": {"run": {"passed": true}}}}`
	for name, row := range map[string]struct {
		text, status string
		canceled     bool
		removed      bool
	}{
		"a verdict":                          {text: forged, status: "0"},
		"an error of the runner":             {text: failed, status: "1"},
		"a canceled job":                     {text: failed, status: "-1", canceled: true},
		"the runner was killed":              {text: forged, status: "137", removed: true},
		"killed, and careful":                {text: failed, status: "137", removed: true},
		"killed, in a script that maps it":   {text: forged, status: "1", removed: true},
		"killed while canceled":              {text: forged, status: "-1", canceled: true, removed: true},
		"canceled, with runs that passed":    {text: careful, status: "1", canceled: true},
		"killed while canceled, and careful": {text: careful, status: "137", canceled: true, removed: true},
		"killed by its limit, and careful":   {text: failed, status: "137", canceled: true, removed: true},
		"canceled, in a shell that ends":     {text: careful, status: "143", canceled: true, removed: true},
		"canceled, and who knows how":        {text: careful, status: "-1", canceled: true, removed: true},
		"Go's end":                           {text: forged, status: "2", removed: true},
		"the runner could not write":         {text: failed, status: "3", removed: true},
		"no command ran":                     {text: forged, removed: true},
		"success in capitals":                {text: `{"success": true, "SUCCESS": false, "runs": {}}`, status: "1", removed: true},
		"success twice":                      {text: `{"success": false, "success": true, "runs": {}}`, status: "1", removed: true},
		"no JSON, or another reader's":       {text: "\xff\xfe{\x00}\x00", status: "137", removed: true},
		"another job's result":               {text: `{"accuracy": 0.9}`, status: "3"},
		"nothing":                            {status: "137"},
		"a directory in its place, which is": {text: "/", status: "137", removed: true},
		"a link in its place":                {text: "@", status: "137", removed: true},
		"a link to what a failed job leaves": {text: "@", status: "1", removed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "result.json")
			var err error
			switch row.text {
			case "":
			case "/":
				err = os.Mkdir(path, 0o755)
			case "@":
				err = errors.Join(os.WriteFile(filepath.Join(dir, "x"), []byte(failed), 0o600), os.Symlink("x", path))
			default:
				err = os.WriteFile(path, []byte(row.text), 0o600)
			}
			must.Do(t, err)
			root, err := os.OpenRoot(dir)
			must.Do(t, err)
			defer root.Close() //nolint:errcheck // a directory
			must.Err(t, unfinished(root, row.status, row.canceled), "")
			if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) != (row.removed || row.text == "") {
				t.Errorf("result.json: %v", err)
			}
		})
	}
}

func TestLastWords(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		lines []string
		want  string
	}{
		{"silent", nil, ""},
		{"no word of an error", []string{"started", " gone "}, "gone"},
		{"the last error before the end", []string{"error: first", "fatal: second ", "Stopped."}, "fatal: second"},
		{"kbnode's own", []string{"kbnode: read agent token: no such file", "exit"}, "kbnode: read agent token: no such file"},
	} {
		must.Equal(t, tt.want, LastWords(tt.lines))
	}
}

// TestLog checks what journalctl is asked for, and that nothing that a job logs controls a terminal.
func TestLog(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	journal := func(script string) {
		must.Program(t, filepath.Join(dir, "journalctl"), "#!/bin/sh\n"+script)
	}
	read := func(follow bool) (lines []string, err error) {
		err = Log(t.Context(), []string{"a.service", "b.slice"}, follow, func(line string) { lines = append(lines, line) })
		return lines, err
	}
	journal(`echo "$@"; printf '\033[2Jx\n'; head -c 100000 /dev/zero | tr '\0' y; echo; printf last`)
	lines, err := read(true)
	want := []string{"--no-pager --quiet --lines 200 --output short-iso --follow --unit a.service --unit b.slice", `\x1b[2Jx`, strings.Repeat("y", maxLine-1) + "…", "last"}
	if err != nil || !strings.Contains(lines[1], "x") || strings.Contains(lines[1], "\x1b") {
		t.Errorf("%v, %q", err, lines)
	}
	want[1] = lines[1]
	must.Equal(t, want, lines)
	journal(`echo "$@" >&2; exit 1`)
	if lines, err := read(false); err == nil || !strings.Contains(err.Error(), "--unit b.slice") || len(lines) > 0 {
		t.Errorf("%q, %v", lines, err)
	}
	_, err = Journal(t.Context(), "a.service", 3)
	must.Err(t, err, "read journal of a.service: exit status 1: --no-pager --quiet --unit a.service --lines 3 --output cat")
	journal(`printf '\n\033[31mfatal: no\a\r\n\n  second'`)
	lines, err = Journal(t.Context(), "a.service", 3)
	must.Do(t, err)
	must.Equal(t, []string{"fatal: no", "second"}, lines)
}
