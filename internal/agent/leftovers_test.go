package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// As printed by Linux 6.12.
const (
	shmTable = `       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap
      1234          5   600                  4096   100   100      0   950   950   950   950          0          0 1700000000                     0                     0
         0          6   666                  4096   100   100      1   951   951   951   951          0          0 1700000000                     0                     0
         0          7   666                  4096   100   100      1   951   951   950   950          0          0 1700000000                     0                     0
`
	semTable = `       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime
         0          8   600          3   950   950   950   950          0 1700000000
`
	msgTable = `       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid      stime      rtime      ctime
         1          9   600           0          0     0     0     0     0     0     0          0          0 1700000000
         2         10   600          10          1   100     0   950   950   950   950          0          0 1700000000
rubbish
`
)

func TestObjectsOfOneUser(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for kind, text := range map[string]string{"shm": shmTable, "sem": semTable, "msg": msgTable} {
		if err := os.WriteFile(filepath.Join(dir, kind), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var removed []string
	l := left{uid: 950, ipc: dir, end: func(kind string, id int) error {
		removed = append(removed, fmt.Sprint(kind, " ", id))
		if id == 8 {
			return syscall.EIDRM // someone was faster
		}
		return nil
	}}
	if err := l.remove(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"shm 5", "shm 7", "sem 8", "msg 10"}, removed); diff != "" {
		t.Error(diff)
	}
	l.end = func(string, int) error { return syscall.EPERM }
	if err := l.remove(); err == nil || !strings.Contains(err.Error(), "remove shm 5: operation not permitted") {
		t.Errorf("what cannot be removed: %v", err)
	}
	if err := (left{uid: 0}).remove(); err == nil || !strings.Contains(err.Error(), "refused for root") {
		t.Errorf("as root: %v", err)
	}
}

// A segment that exists in the kernel is really removed.
func TestObjectIsRemoved(t *testing.T) {
	t.Parallel()
	before, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Skip(err)
	}
	id, _, errno := syscall.Syscall(syscall.SYS_SHMGET, 0, 4096, 0o600)
	if errno != 0 {
		t.Skip(errno)
	}
	if err := endObject("shm", int(id)); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil || strings.Contains(string(after), fmt.Sprintf(" %d   600 ", id)) {
		t.Errorf("%v, before\n%s\nafter\n%s", err, before, after)
	}
	for _, kind := range []string{"shm", "sem", "msg"} {
		if err := endObject(kind, 1<<30); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s that is none: %v", kind, err)
		}
	}
}

func TestDirectoriesAreEmptied(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("makes files of others, which only root may")
	}
	dir := t.TempDir()
	put := func(name string, uid int) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for at := name; at != dir; at = filepath.Dir(at) {
			if err := os.Lchown(at, uid, uid); err != nil {
				t.Fatal(err)
			}
		}
	}
	put("left", 950)
	put("deep/er/left", 950)
	put("kept", 950)
	put("others", 951)
	put("theirs/left", 951)
	if err := os.Symlink("others", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(filepath.Join(dir, "link"), 950, 950); err != nil {
		t.Fatal(err)
	}
	l := left{uid: 950, ipc: t.TempDir(), dirs: []leftDir{
		{dir, func(name string) bool { return name == "kept" }},
		{filepath.Join(dir, "absent"), nil},
	}}
	if err := l.remove(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{"kept", "others", "theirs"}, names); diff != "" {
		t.Error(diff)
	}
}

// During a job the agent's own files for it stay; before a job only those that it has
// just made stay.
func TestWhatTheAgentUsesStays(t *testing.T) {
	t.Setenv("BUILDKITE_ENV_FILE", "/tmp/job-env-0190-aa123")
	t.Setenv("BUILDKITE_ENV_JSON_FILE", "")
	for _, row := range []struct {
		within      bool
		path, names string // that stay
	}{
		{true, "/tmp", "job-env-0190-aa123 buildkite-agent-hook-wrapper"},
		{false, "/tmp", "job-env-0190-aa123"},
		{true, "/var/tmp", ""},
		{true, "/dev/shm", ""},
		{true, "/dev/mqueue", ""},
		{true, "/var/lib/buildkite-agent/gpu-3", "builds plugins"},
		{true, "/run/kbnode/gpu3/agent", "agent-100 agent-leader job-api"},
		{false, "/run/kbnode/gpu3/agent", "agent-100 agent-leader"},
	} {
		dirs := leftovers(3, 950, row.within).dirs
		at := slices.IndexFunc(dirs, func(d leftDir) bool { return d.path == row.path })
		if at < 0 {
			t.Errorf("%s is not looked at", row.path)
			continue
		}
		var stay []string
		for name := range strings.FieldsSeq("job-env-0190-aa123 job-env-0190-aa124 buildkite-agent-hook-wrapper builds plugins registered agent-100 agent-leader job-api .bashrc x") {
			if dirs[at].keep(name) {
				stay = append(stay, name)
			}
		}
		if diff := cmp.Diff(row.names, strings.Join(stay, " ")); diff != "" {
			t.Errorf("%s, within %t: %s", row.path, row.within, diff)
		}
	}
}
