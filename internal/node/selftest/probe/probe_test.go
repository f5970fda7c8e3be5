package probe

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestMain runs the probe if a test starts this program as one.
func TestMain(m *testing.M) {
	ask := os.Getenv("KBNODE_TEST_ASK")
	if ask == "" {
		os.Exit(m.Run())
	}
	if err := Run(context.Background(), ask, os.Stdout); err != nil {
		panic(err)
	}
}

func run(t *testing.T, a Ask, attr *syscall.SysProcAttr) *Facts {
	t.Helper()
	ask, err := json.Marshal(a)
	must.Do(t, err)
	program := os.Args[0]
	if attr != nil && attr.Credential != nil { // others cannot read Go's own directory
		dir := t.TempDir()
		own := filepath.Join(dir, "probe")
		must.Program(t, own, must.Read(t, program))
		program = own
		must.Do(t, errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)))
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), "KBNODE_TEST_ASK="+string(ask))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
	cmd.Dir = "/"
	out, err := cmd.Output()
	must.Do(t, err)
	var f Facts
	if err := json.Unmarshal(out, &f); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return &f
}

func TestRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sock := filepath.Join(dir, "s")
	l, err := net.Listen("unix", sock)
	must.Do(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() { // as systemd, if there are too many
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	t.Cleanup(func() { _ = tcp.Close() })
	f := run(t, Ask{
		Open: []string{"/etc/passwd", "/nonexistent", "/dev/null"}, Write: []string{dir, "/dev/null"},
		Unix: []string{sock, "/nonexistent"}, TCP: []string{tcp.Addr().String(), "127.0.0.1:1"},
	}, nil)
	for _, want := range []Try{
		{"open", "/etc/passwd", "ok"}, {"open", "/nonexistent", "ENOENT"}, {"open", "/dev/null", "ok"},
		{"write", dir, "ok"}, {"write", "/dev/null", "ok"},
		{"unix", sock, "ECONNRESET"}, {"unix", "/nonexistent", "ENOENT"},
		{"tcp", tcp.Addr().String(), "ok"}, {"tcp", "127.0.0.1:1", "ECONNREFUSED"},
	} {
		if got := f.Saw(want.Kind, want.What); got != want.Saw {
			t.Errorf("%s %s: %q, want %q", want.Kind, want.What, got, want.Saw)
		}
	}
	var set unix.CPUSet
	cpus, err := cpuset.Parse(f.CPUs)
	if err := errors.Join(err, unix.SchedGetaffinity(0, &set)); err != nil || cpus.Len() != set.Count() {
		t.Errorf("CPUs are %s, want %d (%v)", f.CPUs, set.Count(), err)
	}
	if f.UID != os.Getuid() || f.CPUs == "" || len(f.Status) != 4 || !slices.Contains(f.Env, "KBNODE_TEST_ASK") {
		t.Errorf("saw %+v", f)
	}
}

// TestCalls runs as an unprivileged user, as far as this machine allows.
func TestCalls(t *testing.T) {
	t.Parallel()
	must.Root(t, "only root can become another user")
	f := run(t, Ask{Calls: true, Numbers: []Number{{Name: "mem", Major: 1, Minor: 1}}, Write: []string{"/etc/passwd", "/etc"}},
		&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}})
	for _, name := range []string{"mount", "umount", "a mount namespace", "a kernel module", "reboot", "a file by its handle", "the host's name", "packet sockets", "root", "real-time priority", "another kernel"} {
		if got := f.Saw("call", name); got != "EPERM" && got != "ENOSYS" {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := f.Saw("number", "mem"); got != "EPERM" && got != "EACCES" {
		t.Errorf("a node of memory: %s", got)
	}
	if f.Saw("write", "/etc/passwd") != "EACCES" || f.Saw("write", "/etc") != "EACCES" || f.RootWrites != "EACCES" {
		t.Errorf("files of root: %+v", f.Tries)
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	_, port, _ := net.SplitHostPort(free.Addr().String())
	_ = free.Close()
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- Run(ctx, `{"listen":`+port+`}`, in) }()
	line, err := bufio.NewReader(out).ReadString('\n')
	if at, listens, _ := net.SplitHostPort(strings.TrimSpace(line)); err != nil || listens != port || at != address() || strings.HasPrefix(at, "127.") {
		t.Errorf("it listens on %q, %v", line, err)
	}
	if tries := connectAll(ctx, []string{free.Addr().String()}); tries[0].Saw != "ok" {
		t.Errorf("nobody listens: %+v", tries)
	}
	cancel()
	must.Err(t, <-done, "canceled")
	if err := Run(t.Context(), "{", in); err == nil {
		t.Error("half a request")
	}
}

// TestDaemon leaves a process behind, which the test then ends.
func TestDaemon(t *testing.T) {
	t.Parallel()
	// This process adopts orphans, so that the test finds them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Skip(err)
	}
	run(t, Ask{Daemon: true, Allocate: 1 << 20}, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL})
	left := orphans(t)
	if len(left) == 0 {
		t.Error("no process was left behind")
	}
	for _, pid := range left {
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}
}

// orphans returns children of this process that have their own sessions.
func orphans(t *testing.T) (list []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	must.Do(t, err)
	for _, e := range entries {
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		var state string
		var parent, group, session, pid int
		if n, _ := fmt.Sscan(rest, &state, &parent, &group, &session); n == 4 && parent == os.Getpid() {
			if _, err := fmt.Sscan(e.Name(), &pid); err == nil && session != sessionOf(t) {
				list = append(list, pid)
			}
		}
	}
	return list
}

func sessionOf(t *testing.T) int {
	t.Helper()
	id, err := unix.Getsid(0)
	must.Do(t, err)
	return id
}

// TestCompute tests that the kernel hides a GPU's ID and properties from those who may not
// open it.
func TestCompute(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"0/gpu_id": "0\n", "0/properties": "cpu_cores_count 96\ndrm_render_minor 0\n",
		"2/gpu_id": "51003\n", "2/properties": "simd_count 1216\ndrm_render_minor 129\nunique_id 1\n",
		"3/gpu_id": "51004\n", // and no properties
		"4/name":   "hidden\n",
	} {
		must.Write(t, dir, name, text)
	}
	if got := compute(dir); !slices.Equal(got, []string{"/dev/dri/renderD129"}) {
		t.Errorf("saw %q", got)
	}
	if got := compute(dir + "/none"); got != nil {
		t.Errorf("without the driver: %q", got)
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "resource0")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	for path, want := range map[string]string{file: "ok", os.DevNull: Covered, filepath.Dir(file): Covered, file + "1": "ENOENT"} {
		if got := result(window(path)); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// TestWritable tests that a process's files do not count, nor files whose mode forbids
// writing.
func TestWritable(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	for name, mode := range map[string]os.FileMode{"1/oom_score_adj": 0o644, "driver/nvidia/suspend": 0o644, "mdstat": 0o444, "sys/vm/swappiness": 0o644} {
		file := filepath.Join(proc, name)
		must.Do(t, os.MkdirAll(filepath.Dir(file), 0o700))
		must.Do(t, os.WriteFile(file, nil, mode))
	}
	must.Do(t, os.Symlink(proc+"/driver/nvidia/suspend", proc+"/link"))
	if got, want := writable(proc), []string{proc + "/driver/nvidia/suspend", proc + "/sys/vm/swappiness"}; !slices.Equal(got, want) {
		t.Errorf("saw %q, want %q", got, want)
	}
}
