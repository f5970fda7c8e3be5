package runner

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// showShed acts as a runner that hides its environment. It prints what it knows itself
// and what /proc shows of each of its threads.
func showShed() int {
	_, private, err := shed(os.Environ())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("private %d, payload %q\n", len(private), getenv(private, "KERNELBOT_PAYLOAD"))
	tasks, err := filepath.Glob("/proc/self/task/*/environ")
	if err != nil || len(tasks) == 0 {
		fmt.Fprintln(os.Stderr, "no threads: ", err)
		return 1
	}
	for _, path := range append(tasks, "/proc/self/environ") {
		text, err := os.ReadFile(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		os.Stdout.Write(text) //nolint:errcheck // the test notices missing output
	}
	return 0
}

func TestShed(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	secret := "5EC2E7" + strings.Repeat("x", 100_000) // over many pages
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = []string{
		"KBNODE_TEST_SHED=1", "KERNELBOT_PAYLOAD=" + secret, "FIRST=1",
		"BUILDKITE_AGENT_ACCESS_TOKEN=5EC2E7", "KERNELBOT_PAYLOAD_NOT=1", "SUBMISSION_PAYLOAD=", "LAST=1",
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	own, shown, _ := bytes.Cut(out, []byte("\n"))
	if want := fmt.Sprintf("private 3, payload %q", secret); string(own) != want {
		t.Errorf("the runner has %.80s…", own)
	}
	variables := strings.Split(string(shown), "\x00")
	for _, kv := range variables {
		if name, _, _ := strings.Cut(kv, "="); strings.Contains(kv, "5EC2E7") || strings.Contains(kv, "xxx") || isPrivate(name) {
			t.Errorf("/proc shows %.80q", kv)
		}
	}
	for _, kv := range []string{"FIRST=1", "KERNELBOT_PAYLOAD_NOT=1", "LAST=1"} {
		if !slices.Contains(variables, kv) {
			t.Errorf("/proc does not show %s", kv)
		}
	}
}
