package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// The hooks of the node's operator that are honored.
const (
	hookEnvironment = "environment"
	hookPreExit     = "pre-exit"
)

// Bounds on a hook.
const (
	hookTime    = 30 * time.Second
	maxHookLog  = 64 << 10 // bytes of its output
	maxHookVars = 2 << 20  // bytes of the environment that it leaves, and of the slot's variables
)

// hookPath is PATH for hooks. hookShell runs one as the agent's own bootstrap does, in a shell whose
// variables it prints in the end; all else that it prints is its output.
const (
	hookPath  = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	hookShell = `exec 3>&1 1>&2; trap '/usr/bin/env -0 >&3' EXIT; . "$0"`
)

// shellVars are variables that the shell sets itself or that have a meaning on the node only.
var shellVars = []string{"PATH", "HOME", "PWD", "OLDPWD", "SHLVL", "_"}

// environment runs the operator's hook, and gives the job what it exports. It returns their values
// that the log must not show.
func (c Config) environment(canceled context.Context, spec *job.Spec, log *Redactor) error {
	ctx, stop := context.WithTimeout(canceled, c.hookTime())
	defer stop()
	out, exports, err := c.hook(ctx, hookEnvironment)
	found := map[string]string{}
	for _, v := range exports {
		found[v.Name] = v.Value
	}
	log.Hide(secrets(found, spec.Redact))
	_, _ = c.Log.Write(out) // its reader may be gone
	if by := cancellation(canceled); by != nil {
		return by
	}
	if err == nil {
		err = spec.Override(exports)
	}
	if err != nil {
		return fmt.Errorf("run the node's hook %s: %w; fix it on the node", hookEnvironment, err)
	}
	return nil
}

// preExit runs the operator's hook after the job. What becomes of it changes nothing.
func (c Config) preExit(canceled context.Context) {
	ctx, stop := c.withinPatience(canceled, c.hookTime())
	defer stop()
	out, _, err := c.hook(ctx, hookPreExit)
	_, _ = c.Log.Write(out) // its reader may be gone
	if err != nil {
		c.say(fmt.Sprintf("kbnode: run the node's hook %s: %v; the job's status stays", hookPreExit, err))
	}
}

// hook runs a hook of the node's operator, if there is one, where and with what no job has a say. It
// returns its output, and the variables that it exports.
func (c Config) hook(ctx context.Context, name string) (out []byte, exports []job.Var, err error) {
	if c.Hooks == "" {
		return nil, nil, nil
	}
	path := filepath.Join(c.Hooks, name)
	there, err := CheckHook(path, c.hookOwner)
	if !there || err != nil {
		return nil, nil, err
	}
	before, err := c.slotVars()
	if err != nil {
		return nil, nil, err
	}
	before["PATH"], before["HOME"] = hookPath, c.Home
	log, after := &head{most: maxHookLog}, &head{most: maxHookVars}
	cmd := exec.CommandContext(ctx, "/bin/bash", "-c", hookShell, path)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", after, log
	for name, value := range before {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.Cancel, cmd.WaitDelay = kill, time.Second
	err = cmd.Run()
	if cmd.Process != nil {
		_ = kill() // what it left in the background
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	if ctx.Err() != nil {
		err = errors.New("it took too long")
	}
	if err != nil {
		return log.text, nil, err
	}
	exports, err = exported(after, before)
	return log.text, exports, err
}

func (c Config) hookTime() time.Duration {
	if c.hookLimit > 0 {
		return c.hookLimit
	}
	return hookTime
}

// CheckHook reports whether there is a hook of the operator's, and refuses one that others than its
// owner, root, can change.
func CheckHook(path string, owner int) (there bool, err error) {
	for _, p := range []string{filepath.Dir(path), path} {
		info, err := os.Lstat(p)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || int(st.Uid) != owner || info.Mode().Perm()&0o022 != 0 || p == path && !info.Mode().IsRegular() {
			return false, fmt.Errorf("%s must be root's own, and no one else may write to it", p)
		}
	}
	return true, nil
}

// slotVars returns the slot's variables, which each job has.
func (c Config) slotVars() (map[string]string, error) {
	text, err := limit.ReadFile(c.SlotVars, maxHookVars)
	if err != nil {
		return nil, fmt.Errorf("read the slot's variables: %w", err)
	}
	vars := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			vars[name] = value
		}
	}
	return vars, nil
}

// exported returns what a hook's environment has in the end that it had not before.
func exported(after *head, before map[string]string) (vars []job.Var, err error) {
	switch {
	case len(after.text) == 0:
		return nil, errors.New("its exports are lost, because it replaced its shell or the trap of EXIT, or exports more than Linux takes")
	case after.full:
		return nil, fmt.Errorf("it exports more than %d bytes", maxHookVars)
	}
	found := map[string]string{}
	for e := range bytes.SplitSeq(after.text, []byte{0}) {
		name, value, ok := strings.Cut(string(e), "=")
		if old, was := before[name]; ok && !slices.Contains(shellVars, name) && !strings.HasPrefix(name, "BASH_FUNC_") && (!was || old != value) {
			found[name] = value
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		vars = append(vars, job.Var{Name: name, Value: found[name]})
	}
	return vars, nil
}

// head keeps the beginning of what is written to it, and a mark where more was.
type head struct {
	text []byte
	most int
	full bool
}

func (h *head) Write(p []byte) (int, error) {
	if room := h.most - len(h.text); len(p) <= room && !h.full {
		h.text = append(h.text, p...)
	} else if !h.full {
		h.text, h.full = append(append(h.text, p[:room]...), "\n…\n"...), true
	}
	return len(p), nil
}
