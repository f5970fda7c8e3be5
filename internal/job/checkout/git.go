package checkout

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

const (
	// gitTime bounds one command of git.
	gitTime = 10 * time.Minute
	// maxMemory bounds git's data, in bytes: half of what a job's process has.
	maxMemory = 512 << 20
	maxOutput = 64 << 10 // bytes of a command's output, except in unpack
)

// settings make git do only what it is asked for. Addresses are HTTPS; the node's own
// /etc/gitconfig may give them a proxy, a certificate or another place (url.….insteadOf).
var settings = []string{
	"-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "fetch.unpackLimit=1", "-c", "fetch.fsckObjects=true",
	"-c", "protocol.version=2", "-c", "pack.threads=1", "-c", "core.packedGitLimit=256m", "-c", "core.bigFileThreshold=32m", "-c", "core.deltaBaseCacheLimit=64m",
	"-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60", "-c", "http.followRedirects=false",
	"-c", "credential.helper=", "-c", "core.askPass=", "-c", "http.cookieFile=", "-c", "http.saveCookies=false", "-c", "fetch.uriProtocols=", "-c", "transfer.bundleURI=false",
}

// gitError is a command of git that failed.
type gitError struct {
	command string
	stderr  string // the end of it
	err     error
}

func (e *gitError) Error() string {
	return fmt.Sprintf("git %s: %s", e.command, strings.TrimSpace(text.Line(e.stderr, 600)+" ("+e.err.Error()+")"))
}

func (e *gitError) Unwrap() error { return e.err }

// git runs a command in a mirror and returns its output.
func (m Mirrors) git(ctx context.Context, dir string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, gitTime)
	defer cancel()
	var out tail
	cmd := m.command(ctx, dir, args...)
	cmd.Stdout = &out
	if err := start(cmd, cmp.Or(m.most, maxPack)); err != nil {
		return nil, err
	}
	if err := wait(ctx, cmd); err != nil {
		return nil, err
	}
	return out, nil
}

// command makes a command in a mirror: as git's user, in a process group of its own, with no
// environment from us and no input.
func (m Mirrors) command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", append(append([]string{}, settings...), args...)...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/nonexistent", "LC_ALL=C", "GIT_DIR=.", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_TERMINAL_PROMPT=0", "GIT_ALLOW_PROTOCOL=https:http:file", "GIT_NO_REPLACE_OBJECTS=1", "GIT_NO_LAZY_FETCH=1",
	}
	cmd.Stderr = &tail{}
	if m.system != "" {
		cmd.Env = append(cmd.Env, "GIT_CONFIG_SYSTEM="+m.system)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if m.UID != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(m.UID), Gid: uint32(m.GID)}
	}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// start starts a command, which may write at most that many bytes to one file, and makes it the first to end when memory runs out.
func start(cmd *exec.Cmd, most int64) error {
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start git: %w", err)
	}
	pid := cmd.Process.Pid
	for resource, most := range map[int]uint64{unix.RLIMIT_DATA: maxMemory, unix.RLIMIT_FSIZE: uint64(most), unix.RLIMIT_CORE: 0} {
		// One that has already ended needs no limit.
		_ = unix.Prlimit(pid, resource, &unix.Rlimit{Cur: most, Max: most}, nil)
	}
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("1000"), 0)
	return nil
}

// wait waits for a command's end.
func wait(ctx context.Context, cmd *exec.Cmd) error {
	err := cmd.Wait()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	stderr := ""
	if t, ok := cmd.Stderr.(*tail); ok {
		stderr = string(*t)
	}
	return &gitError{cmd.Args[len(settings)+1], stderr, err}
}

// tail keeps the last bytes that are written to it.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	all := append(*t, p...)
	*t = all[max(0, len(all)-maxOutput):]
	return len(p), nil
}
