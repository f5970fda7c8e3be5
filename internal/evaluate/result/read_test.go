package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestReadAgain checks that every result of the shared cases and of our own is
// read back as it was written.
func TestReadAgain(t *testing.T) {
	t.Parallel()
	r := &Result{Success: true, System: &System{GPU: "NVIDIA L40S", DeviceCount: 1}, Runs: Pairs[*Evaluation]{
		{"test", &Evaluation{Run: &Run{Success: true, Passed: true, Duration: "0.25", Result: Pairs[string]{{"test-count", "1"}, {"test.0.status", "pass"}, {"check", "pass"}}}}},
		{"benchmark", &Evaluation{Compilation: &Compilation{Stderr: "a.cu(3): error\n"}}},
	}}
	text, err := marshal(r)
	must.Do(t, err)
	again, err := Read(text)
	must.Do(t, err)
	got, err := marshal(again)
	must.Do(t, err)
	must.Equal(t, string(text), string(got))
	if sentence, ok := again.Verdict(); ok || sentence != "Not passed: benchmark: nvcc was not found" {
		t.Errorf("%q, %v", sentence, ok)
	}
	var report bytes.Buffer
	again.Report(&report, false)
	must.Contain(t, report.String(), "benchmark: nvcc was not found", "a.cu(3): error", "on NVIDIA L40S", "1 of 1 test")
}

func TestReadRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "null", "[]", "<html>", `{"runs": []}`, `{"runs": {"test": null}}`, `{"runs": {"test": 3}}`, `{"success": "yes"}`, `{"runs": {"test": {}}} more`, `{"runs": {"test": {"run": {"result": {"a": 1}}}}}`} {
		if r, err := Read([]byte(text)); err == nil {
			t.Errorf("%q is %+v", text, r)
		}
	}
	for _, text := range []string{`{"more": 1}`, `{"runs": {"test": {"more": 1}}}`} {
		if _, err := ReadStrict([]byte(text)); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// FuzzRead checks that a hostile job's result does no harm and reaches a terminal
// only cleaned.
func FuzzRead(f *testing.F) {
	files, err := filepath.Glob("../runner/testdata/*/*.json")
	must.Do(f, err)
	for _, name := range files {
		if text, err := os.ReadFile(name); err == nil && len(text) < 20_000 {
			f.Add(text)
		}
	}
	f.Add([]byte(`{"success":true,"system":{},"runs":{"a\u001b[31m":{"start":"2026-01-01T00:00:00.5","run":{"passed":true,"duration":1e999,"result":{"test-count":"99999999999","benchmark-count":"3","benchmark.0.mean":"\u009b"}}},"a":{"compilation":{"nvcc_found":true,"stderr":"\u001b]0;x\u0007"}}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Read(text)
		if err != nil {
			return
		}
		var report bytes.Buffer
		r.Report(&report, false)
		if strings.ContainsAny(report.String(), "\x1b\u009b\r\x00\a") {
			t.Errorf("%q", report.String())
		}
		if again, err := json.Marshal(r); err != nil && !strings.Contains(err.Error(), "invalid number literal") {
			t.Errorf("%v: %s", err, again)
		}
	})
}

// TestReadFile checks that ReadFile does not read what a program put in a file's place.
func TestReadFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		os.WriteFile(at("file"), []byte("text"), 0o600), os.Link(at("file"), at("same")), os.Symlink("file", at("link")),
		os.Symlink("/etc/passwd", at("outside")), os.Symlink("none", at("broken")), os.Mkdir(at("dir"), 0o700), unix.Mkfifo(at("pipe"), 0o600),
		os.WriteFile(at("large"), nil, 0o600), os.Truncate(at("large"), MaxBytes+1),
	); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	must.Do(t, err)
	defer root.Close() //nolint:errcheck // a directory
	for name, reads := range map[string]bool{"file": true, "same": true, "link": false, "outside": false, "broken": false, "dir": false, "pipe": false, "none": false, "large": false} {
		text, err := ReadFile(root, name)
		if (err == nil) != reads || reads && string(text) != "text" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}

// TestResultDocument tests that the example of docs/results.md is a result with every field, in the
// order of the types.
func TestResultDocument(t *testing.T) {
	t.Parallel()
	page := must.Read(t, "../../../docs/results.md")
	_, example, _ := strings.Cut(page, "```json\n")
	example, _, _ = strings.Cut(example, "```")
	r, err := ReadStrict([]byte(example))
	must.Do(t, err)
	if ev := r.Runs.Get("test"); r.System == nil || ev == nil || ev.Compilation == nil || ev.Run == nil || ev.Profile == nil {
		t.Errorf("the example lacks a part: %+v", ev)
	}
	text, err := json.Marshal(r)
	must.Do(t, err)
	var want bytes.Buffer
	must.Do(t, json.Compact(&want, []byte(example)))
	must.Equal(t, want.String(), string(text))
}
