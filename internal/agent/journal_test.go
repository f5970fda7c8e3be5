package agent

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

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
