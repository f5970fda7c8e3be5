package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestChildEnv(t *testing.T) {
	t.Parallel()
	unit := []string{
		"PATH=/usr/bin", "LANG=C.UTF-8", "KBNODE_SLOT=3", "KBNODE_GENERATION=abc", "DOCKER_HOST=unix:///run/kbnode/gpu3/docker.sock",
		"CREDENTIALS_DIRECTORY=/run/credentials/x", "INVOCATION_ID=1", "JOURNAL_STREAM=8:1", "NOTIFY_SOCKET=/run/n", "SYSTEMD_EXEC_PID=7",
		"MEMORY_PRESSURE_WATCH=/sys", "MEMORY_PRESSURE_WRITE=x", "LISTEN_FDS=1", "LISTEN_PID=1",
		"HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/sh", "BUILDKITE_AGENT_TOKEN=another",
	}
	before := strings.Join(unit, "\n")
	want := []string{
		"PATH=/usr/bin", "LANG=C.UTF-8", "KBNODE_SLOT=3", "KBNODE_GENERATION=abc", "DOCKER_HOST=unix:///run/kbnode/gpu3/docker.sock",
		"HOME=/var/lib/buildkite-agent/gpu-3", "USER=kbnode-gpu3", "LOGNAME=kbnode-gpu3", "BUILDKITE_AGENT_TOKEN=s3cret",
	}
	must.Equal(t, want, childEnv(unit, 3, "kbnode-gpu3", "s3cret"))
	if strings.Join(unit, "\n") != before {
		t.Error("the caller's environment was changed")
	}
}

func TestUndumpable(t *testing.T) {
	t.Parallel()
	must.Root(t, "makes files of root")
	file := filepath.Join(t.TempDir(), "buildkite-agent")
	must.Err(t, undumpable(file), "find agent")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	for _, tt := range []struct {
		name string
		mode os.FileMode
		uid  int
		ok   bool
	}{
		{"execute only", 0o711, 0, true},
		{"for root alone", 0o700, 0, true},
		{"readable by all", 0o755, 0, false},
		{"readable by the group", 0o751, 0, false},
		{"writable by others", 0o713, 0, false},
		{"of another user", 0o711, 12345, false},
	} {
		must.Do(t, os.Chmod(file, tt.mode))
		must.Do(t, os.Chown(file, tt.uid, -1))
		err := undumpable(file)
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err != nil && !strings.Contains(err.Error(), "mode 0711") {
			t.Errorf("%s: %q does not say what to do", tt.name, err)
		}
	}
}

// TestBecome runs this test again in a process with a supplementary group, such as one that
// may use the Docker socket, and reads what is left.
func TestBecome(t *testing.T) {
	const variable = "KBNODE_TEST_BECOME"
	if os.Getenv(variable) != "" {
		must.Do(t, setUser(65533, 65532))
		groups, err := os.Getgroups()
		fmt.Println(os.Getuid(), os.Geteuid(), os.Getgid(), os.Getegid(), groups, err)
		return
	}
	t.Parallel()
	must.Root(t, "becomes another user")
	self, err := os.Executable()
	must.Do(t, err)
	child := exec.CommandContext(t.Context(), self, "-test.run=^TestBecome$")
	child.Env = append(os.Environ(), variable+"=1")
	child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Groups: []uint32{12345}}}
	out, err := child.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "65533 65533 65532 65532 [65532] <nil>\n") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestExecWithoutToken: the first failure is reported before anything of the process
// changes.
func TestExecWithoutToken(t *testing.T) {
	t.Setenv("CREDENTIALS_DIRECTORY", t.TempDir())
	must.Err(t, Exec(0, "/nowhere"), "read agent token")
}
