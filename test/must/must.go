// Package must has what most tests do: they end at an error of what they need, and compare.
package must

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Patience is how long a test waits for what must come: only one that fails waits that long.
const Patience = 3 * time.Minute

// Do ends the test if err is not nil.
func Do(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Root skips a test that needs root, for this reason.
func Root(tb testing.TB, why string) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip(why)
	}
}

// Write writes a file below root, and the directories above it, and returns its path.
func Write(tb testing.TB, root, name, text string) string {
	tb.Helper()
	name = filepath.Join(root, name)
	Do(tb, os.MkdirAll(filepath.Dir(name), 0o755))
	Do(tb, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// Program writes a program, for everyone. No child that another test starts meanwhile has it open for
// writing when it is executed, which fails then (ETXTBSY).
func Program(tb testing.TB, name, text string) {
	tb.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	Do(tb, os.WriteFile(name, []byte(text), 0o755))
}

// Read returns the text of a file.
func Read(tb testing.TB, name string) string {
	tb.Helper()
	text, err := os.ReadFile(name)
	Do(tb, err)
	return string(text)
}

// MemoryDir returns a directory in memory if possible, for tests that sync many files.
func MemoryDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "kbnode-test-") //nolint:usetesting // tb.TempDir is on a disk
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() { Do(tb, os.RemoveAll(dir)) })
	return dir
}

// Serve answers HTTP on a unix socket until the test ends.
func Serve(tb testing.TB, socket string, handler http.HandlerFunc) {
	tb.Helper()
	l, err := net.Listen("unix", socket)
	Do(tb, err)
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(l) }()
	tb.Cleanup(func() { _ = server.Close() })
}

// Equal reports what differs between what a test wants and what it got. The test goes on.
func Equal(tb testing.TB, want, got any, opts ...cmp.Option) {
	tb.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		tb.Errorf("-want +got:\n%s", diff)
	}
}

// Contain reports which of these are not in a text. The test goes on.
func Contain(tb testing.TB, text string, wants ...string) {
	tb.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			tb.Errorf("%q is not in %.3000s", want, text)
		}
	}
}

// Until waits for a condition.
func Until(tb testing.TB, what string, is func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(Patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("waited for %s", what)
		}
	}
}

// Err reports an error without this text; "" wants no error. The test goes on.
func Err(tb testing.TB, err error, want string) {
	tb.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		tb.Errorf("%v, want %q in it", err, want)
	}
}

// Golden compares a text with a file. With update, it writes the file first.
func Golden(tb testing.TB, file string, update bool, got string) {
	tb.Helper()
	if update {
		Do(tb, os.WriteFile(file, []byte(got), 0o644))
	}
	if diff := cmp.Diff(Read(tb, file), got); diff != "" {
		tb.Errorf("%s differs (-want +got); run the test with -update, and review:\n%s", file, diff)
	}
}

// Random returns text that does not compress to less than half.
func Random(n int) string {
	var b strings.Builder
	for x := uint32(1); b.Len() < n; x = x*1664525 + 1013904223 {
		fmt.Fprintf(&b, "%08x", x)
	}
	return b.String()
}
