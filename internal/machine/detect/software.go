package detect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

const (
	systemdDeadline = 25 * time.Second // like systemd's own tools; a loaded machine needs seconds
	agentDeadline   = 30 * time.Second // for a cold disk; otherwise it answers in 0.05 s
	maxAgentOutput  = 1 << 20
	agentWorkDir    = "/var/lib/buildkite-agent"
)

// installed returns what the files of a tree show about its software.
func installed(t tree) inventory.Software {
	return inventory.Software{
		CgroupV2: t.exists("sys/fs/cgroup/cgroup.controllers"), // only version 2's root has it
		Toolkit:  findProgram(t, "nvidia-ctk"),
		Git:      findProgram(t, "git"),
		MkfsExt4: findProgram(t, "mkfs.ext4"),
		Cron:     t.exists("etc/cron.d"),
	}
}

// askSoftware asks this machine's daemons and programs concurrently.
func askSoftware(ctx context.Context, t tree, opts Options, live *Live) {
	s := installed(t)
	var wait sync.WaitGroup
	var systemd, engine, agent error
	wait.Go(func() { s.Systemd, systemd = askSystemd(ctx) })
	wait.Go(func() { s.Docker, engine = askDocker(ctx, t, opts.DockerSocket) })
	if path := cmp.Or(opts.AgentPath, findProgram(t, "buildkite-agent")); path != "" {
		wait.Go(func() { s.Agent, agent = AskAgent(ctx, path) })
	}
	wait.Wait()
	about := inventory.SubjectDocker
	if s.Docker.Version != "" { // it answered
		about = inventory.SubjectCDIFile
	}
	for _, p := range []struct {
		subject string
		err     error
	}{{inventory.SubjectSystem, systemd}, {about, engine}, {inventory.SubjectAgent, agent}} {
		if p.err != nil {
			live.Problems = append(live.Problems, inventory.Problem{Subject: p.subject, Detail: p.err.Error()})
		}
	}
	live.Software = s
	paths := []string{agentWorkDir}
	if s.Docker.RootDir != "" {
		paths = append(paths, s.Docker.RootDir)
	}
	for _, path := range paths {
		disk, err := diskFree(path)
		if err != nil {
			live.Problems = append(live.Problems, inventory.Problem{Subject: inventory.DiskSubject(path), Detail: err.Error()})
			continue
		}
		live.Disks = append(live.Disks, disk)
	}
}

// findProgram returns where a program is installed, "" if it is not. On this machine it
// searches PATH after the directories that packages use.
func findProgram(t tree, name string) string {
	for _, dir := range []string{"/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin", "/usr/local/sbin", "/sbin"} {
		if path := dir + "/" + name; t.exists(path[1:]) {
			return path
		}
	}
	if t.live() {
		if path, err := exec.LookPath(name); err == nil && filepath.IsAbs(path) {
			return path
		}
	}
	return ""
}

// askSystemd asks systemd for its version. Root asks it directly, which works while the bus
// is down; other users ask over the bus.
func askSystemd(ctx context.Context) (string, error) {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return "", errors.New("this machine was not booted with systemd")
	}
	connect := dbus.NewSystemdConnectionContext
	if os.Geteuid() != 0 {
		connect = dbus.NewSystemConnectionContext
	}
	ctx, cancel := context.WithTimeout(ctx, systemdDeadline)
	defer cancel()
	conn, err := connect(ctx)
	if err != nil {
		return "", fmt.Errorf("ask systemd for its version: %w", err)
	}
	defer conn.Close()
	text, err := conn.GetManagerProperty("Version")
	version := majorVersion(strings.Trim(text, `"`))
	if err == nil && version == "" {
		err = fmt.Errorf("%s is not a version", text)
	}
	if err != nil {
		return "", fmt.Errorf("ask systemd for its version: %w", err)
	}
	return version, nil
}

// majorVersion returns the leading number of "257.9-1", "v255" or "252".
func majorVersion(version string) string {
	version = strings.TrimPrefix(version, "v")
	end := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		return version
	}
	return version[:end]
}

// AskAgent asks a buildkite-agent of this machine for its version and for the configuration
// keys that it knows, because it silently ignores unknown ones.
func AskAgent(ctx context.Context, path string) (inventory.Agent, error) {
	same := programIdentity(path)
	if known, ok := askedAgents.Load(same); ok && same != "" {
		agent := known.(inventory.Agent)
		agent.Keys = slices.Clone(agent.Keys)
		return agent, nil
	}
	ctx, cancel := context.WithTimeout(ctx, agentDeadline)
	defer cancel()
	agent := inventory.Agent{Path: path}
	version, err := runAgent(ctx, path, "--version")
	if err != nil {
		return agent, err
	}
	agent.Version = agentVersion(version)
	if agent.Version == "" {
		return agent, fmt.Errorf("%s --version does not print an agent's version", path)
	}
	help, err := runAgent(ctx, path, "start", "--help")
	if err != nil {
		return agent, err
	}
	agent.Keys = agentKeys(help)
	if same != "" && same == programIdentity(path) {
		askedAgents.Store(same, inventory.Agent{Path: path, Version: agent.Version, Keys: slices.Clone(agent.Keys)})
	}
	return agent, nil
}

// askedAgents caches the answers of programs by identity: the daemon reads the machine
// again every few minutes, and starting the agent takes longer than everything else.
var askedAgents sync.Map

// programIdentity changes whenever a program changes, because no one can set a file's ctime.
func programIdentity(path string) string {
	fi, err := os.Stat(path)
	if err != nil {
		return ""
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprint(path, st.Dev, st.Ino, st.Size, st.Ctim)
}

// runAgent runs the agent in an empty environment: the caller's may contain a token or
// settings that change its output.
func runAgent(ctx context.Context, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "LC_ALL=C"}
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out limited
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return "", fmt.Errorf("run %s %s: %w", path, strings.Join(args, " "), err)
	}
	return out.String(), nil
}

// limited keeps the first MiB and drops the rest.
type limited struct{ strings.Builder }

func (l *limited) Write(p []byte) (int, error) {
	l.Builder.Write(p[:min(len(p), maxAgentOutput-l.Len())])
	return len(p), nil
}

func diskFree(path string) (inventory.DiskFree, error) {
	at := path
	for {
		var st syscall.Statfs_t
		err := syscall.Statfs(at, &st)
		if err == nil {
			size := st.Frsize
			return inventory.DiskFree{Path: path, TotalBytes: int64(st.Blocks) * size, FreeBytes: int64(st.Bavail) * size}, nil
		}
		if !errors.Is(err, os.ErrNotExist) || at == "/" {
			return inventory.DiskFree{}, fmt.Errorf("statfs %s: %w", at, err)
		}
		at = filepath.Dir(at) // where it will be created
	}
}

// agentVersion returns "3.76.2" for "buildkite-agent version 3.76.2+build.4321", including
// a pre-release suffix.
func agentVersion(output string) string {
	words := strings.Fields(output)
	if len(words) < 3 || words[1] != "version" {
		return ""
	}
	version, _, _ := strings.Cut(strings.TrimSuffix(words[2], ","), "+")
	return version
}

// agentKeys returns the configuration keys that `buildkite-agent start --help` lists,
// sorted: every long flag is one.
func agentKeys(help string) []string {
	flag := regexp.MustCompile(`^\s+(?:-\w, )?--([a-z0-9][a-z0-9-]*)`)
	var keys []string
	for line := range strings.Lines(help) {
		if m := flag.FindStringSubmatch(line); m != nil && m[1] != "help" && m[1] != "version" {
			keys = append(keys, m[1])
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
