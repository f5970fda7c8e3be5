package guard

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestPtsOptions(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		mountinfo string
		want      []string
	}{
		"Docker's":     {"611 610 0:58 / /dev/pts rw,nosuid,noexec,relatime - devpts devpts rw,gid=5,mode=620,ptmxmode=666\n", []string{"gid=5", "mode=620", "ptmxmode=666"}},
		"limited":      {"1 1 0:1 / / rw - overlay overlay rw\n611 610 0:58 / /dev/pts rw master:1 - devpts devpts rw,mode=620,ptmxmode=666,max=16\n", []string{"mode=620", "ptmxmode=666"}},
		"over another": {"1 0 0:5 / /dev/pts rw - devpts devpts rw,mode=600,ptmxmode=000\n2 1 0:6 / /dev/pts rw - devpts devpts rw,gid=5,mode=620\n", []string{"gid=5", "mode=620"}},
		"of nothing":   {"611 610 0:58 / /dev/pts rw - devpts devpts rw\n", []string{}},
		"another sort": {"611 610 0:58 / /dev/pts rw - tmpfs tmpfs rw,mode=755\n", nil},
		"none":         {"\nx y z\n", nil},
	} {
		if got := ptsOptions(row.mountinfo); !slices.Equal(got, row.want) || (got == nil) != (row.want == nil) {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
}

// TestRemountPts bounds terminals in another mount namespace, and never the host's.
func TestRemountPts(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	if err := remountPts("/proc/self", 16); err == nil {
		t.Fatal("the host's terminals are limited")
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-c", "mount -t devpts -o newinstance,gid=5,mode=620,ptmxmode=666 devpts /dev/pts && echo ready && read x && grep ' /dev/pts ' /proc/self/mountinfo")
	in, _ := cmd.StdinPipe()
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	proc := "/proc/" + strconv.Itoa(cmd.Process.Pid)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := remountPts(proc, 16)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	_, _ = in.Write([]byte("go\n"))
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "gid=5,mode=620,ptmxmode=666,max=16") {
		t.Errorf("%v: %s", err, out.String())
	}
}
