package reconcile_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// A guard that jobs cannot reach starts again, together with its agent, when its slot is
// idle.
func TestGuardThatIsCutOff(t *testing.T) {
	t.Parallel()
	p := slots(2).plan(t)
	for k := range 2 {
		p.Dirs = append(p.Dirs, plan.Dir{Path: plan.RunDir(k), Mode: 0o711, Owner: "root"}, plan.Dir{Path: plan.RunDir(k) + "/agent", Mode: 0o700, Owner: "root"})
	}
	for name, cut := range map[string]func(run string) error{
		"directory gone":      os.RemoveAll,
		"agent's part gone":   func(run string) error { return os.RemoveAll(filepath.Join(run, "agent")) },
		"socket gone":         func(run string) error { return os.Remove(filepath.Join(run, "docker.sock")) },
		"a file in its place": func(run string) error { return os.WriteFile(filepath.Join(run, "docker.sock.new"), nil, 0o600) },
		"another one's socket": func(run string) error {
			return unix.Mknod(filepath.Join(run, "docker.sock.new"), unix.S_IFSOCK|0o660, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.sd.Listen = true
			m.h.LookAtSockets()
			m.apply(p)
			m.settled(p)
			run := filepath.Join(m.h.Root, plan.RunDir(1))
			must.Do(t, cut(run))
			if placed := filepath.Join(run, "docker.sock.new"); m.exists(plan.RunDir(1) + "/docker.sock.new") {
				later := time.Now().Add(time.Minute)
				must.Do(t, os.Chtimes(placed, later, later))
				must.Do(t, os.Rename(placed, filepath.Join(run, "docker.sock")))
			}
			m.run(1)
			m.asks(p, "drain agent-gpu1")
			m.finish(1)
			if name == "agent's part gone" { // everyone sees the new one
				m.asks(p, "start agent-gpu1")
			} else {
				m.asks(p, "restart guard-gpu1", "start agent-gpu1")
			}
			m.settled(p)
			if err := cut(run); err != nil || !m.exists(plan.RunDir(1)) && name != "directory gone" {
				t.Fatal(err)
			}
			if m.exists(plan.RunDir(1) + "/docker.sock.new") {
				return
			}
			m.asks(p, "stop agent-gpu1", "restart guard-gpu1", "start agent-gpu1")
			equal(t, "jobs killed", nil, m.sd.Killed())
		})
	}
}
