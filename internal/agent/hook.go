package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// RegisteredMarker is the file whose time says when a slot's agent last
// registered with Buildkite. The slot's user writes it: status shows it, and
// nothing is decided by it.
func RegisteredMarker(k int) string { return plan.RunDir(k) + "/agent/registered" }

// Hook runs one of the hooks as the slot's user, inside the agent's job.
func Hook(ctx context.Context, name string, k int, log *slog.Logger) error {
	switch name {
	case "agent-startup":
		if err := os.WriteFile(RegisteredMarker(k), nil, 0o644); err != nil { //nolint:gosec // an empty file that status reads
			return fmt.Errorf("note registration: %w", err)
		}
		return nil
	case "pre-bootstrap":
		return admit(os.Getenv("BUILDKITE_ENV_FILE"))
	case "pre-exit":
		return cleanUp(ctx, k, log)
	default:
		return fmt.Errorf("%q is no hook; kbnode has agent-startup, pre-bootstrap and pre-exit", name)
	}
}

// cleanUp ends what a job left behind: its containers, through the slot's own
// Docker socket, the owner of what they left in the checkout, then every other process of the slot's user but those that
// this hook descends from.
func cleanUp(ctx context.Context, k int, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, 25*time.Second)
	defer cancel()
	err := errors.Join(RemoveContainers(ctx, plan.SocketPath(k), k, log), reclaim(ctx, plan.SocketPath(k)))
	kill := func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }
	killed, kerr := killOthers("/proc", os.Getuid(), os.Getpid(), kill)
	if killed > 0 {
		log.Info("processes ended", "slot", plan.SlotName(k), "count", killed)
	}
	return errors.Join(err, kerr)
}

// RemoveContainers removes the containers of slot k, and no others, from the
// engine behind a Docker socket.
func RemoveContainers(ctx context.Context, socket string, k int, log *slog.Logger) error {
	engine, err := docker.New(socket)
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }()
	n, err := engine.CleanSlot(ctx, plan.SliceName(k))
	if n > 0 {
		log.Info("containers removed", "slot", plan.SlotName(k), "count", n)
	}
	if err != nil {
		return fmt.Errorf("remove containers of slot %s: %w", plan.SlotName(k), err)
	}
	return nil
}

// killOthers kills every process of uid but pid and its ancestors, again until
// none is left, since one that forks may outrun a single pass.
func killOthers(proc string, uid, pid int, kill func(pid int) error) (int, error) {
	if uid == 0 {
		return 0, errors.New("end leftover processes: refuse as root; this hook runs as a slot's user")
	}
	keep := map[int]bool{pid: true}
	for p := pid; p > 1; {
		p = parentOf(proc, p)
		keep[p] = true
	}
	killed := 0
	for range 20 {
		found := 0
		entries, err := os.ReadDir(proc)
		if err != nil {
			return killed, fmt.Errorf("list processes: %w", err)
		}
		for _, e := range entries {
			p, err := strconv.Atoi(e.Name())
			if err != nil || keep[p] || !ownedBy(filepath.Join(proc, e.Name()), uid) {
				continue
			}
			if kill(p) == nil {
				found++
			}
		}
		if found == 0 {
			return killed, nil
		}
		killed += found
		time.Sleep(20 * time.Millisecond)
	}
	return killed, fmt.Errorf("end leftover processes: %d were killed and more keep coming", killed)
}

func parentOf(proc string, pid int) int {
	ppid, _ := strconv.Atoi(statusField(filepath.Join(proc, strconv.Itoa(pid)), "PPid"))
	return ppid
}

// ownedBy says whether a live process belongs to uid. The agent itself is
// undumpable, so its /proc directory belongs to root: the status file tells.
func ownedBy(dir string, uid int) bool {
	ids := strings.Fields(statusField(dir, "Uid"))
	return len(ids) > 0 && ids[0] == strconv.Itoa(uid) && !strings.HasPrefix(statusField(dir, "State"), "Z")
}

func statusField(dir, name string) string {
	text, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
