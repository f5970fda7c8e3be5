package doctor

import (
	"errors"
	"testing"

	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/slot"
)

func TestNodeChecks(t *testing.T) {
	t.Parallel()
	unit := func(u slot.Unit) *fake {
		u.Name = plan.NodeService
		return &fake{state: &reconcile.State{Units: map[string]slot.Unit{u.Name: u}}}
	}
	verdict := func(text string) map[string]string { return map[string]string{"/var/lib/kbnode/health.json": text} }
	play(t, []scene{
		{"a configuration that is none", "config", &fake{err: errors.New("line 2: unknown key\nline 3: no number")}, nil, "fail: line 2: unknown key; line 3: no number", ""},
		{"a machine that cannot be split", "plan", &fake{err: errors.New("no GPU")}, nil, "fail: no GPU", ""},
		{"a slot without its GPU", "plan", &fake{inv: &inventory.Inventory{}, plan: &plan.Plan{Slots: []plan.Slot{{Name: "gpu0", Parked: "lost"}}, Warnings: []string{"slot gpu0 is parked: lost", "each slot has 0 cores; 8 is the minimum for fair timings"}}}, nil, "ok: 1 slots", ""},
		{"a warning of the plan", "plan", &fake{inv: &inventory.Inventory{}, plan: &plan.Plan{Slots: []plan.Slot{{}}, Warnings: []string{"few CPUs", "each slot has 0 cores; 8 is the minimum for fair timings"}}}, nil, "warn: few CPUs", ""},
		{"a machine that cannot be read", "inventory", &fake{err: errors.New("no /proc")}, nil, "fail: no /proc", ""},
		{"a machine that was read", "inventory", &fake{inv: &inventory.Inventory{OS: inventory.OS{PrettyName: "Debian"}, Kernel: "6.12"}}, nil, "ok: Debian, 6.12, 0 CPUs, 0 GPUs", ""},
		{"a bare one", "installed", &fake{}, nil, "fail: kbnode install has not run here", ""},
		{"an installed one", "installed", &fake{}, map[string]string{plan.BindingsPath: "{}"}, "ok: " + plan.BindingsPath, ""},
		{"systemd is dead", "state", &fake{err: errors.New("no answer")}, nil, "fail: no answer", ""},
		{"drift", "as-planned", drifts(&fake{}, reconcile.Change{Kind: reconcile.Chmod, Subject: "/etc/x", Slot: 2, Why: "mode is 0777"}), nil,
			"fail: chmod /etc/x (mode is 0777)", "kbnode reconcile"},
		{"a stopped service", "as-planned", drifts(&fake{}, reconcile.Change{Kind: reconcile.Start, Subject: plan.NodeService, Slot: -1}), nil, "ok: 0 files, 0 units", ""},
		{"drift that waits", "as-planned", drifts(&fake{}, reconcile.Change{Kind: reconcile.Update, Subject: "/etc/x", Slot: 2, Deferred: "waits for job 1"}), nil, "warn: update /etc/x, waits for job 1", ""},
		{"what was planned without Docker", "as-planned", drifts(&fake{inv: &inventory.Inventory{Problems: []inventory.Problem{{Subject: "docker", Detail: "connection refused"}}}}, reconcile.Change{Kind: reconcile.Update, Subject: "/etc/kbnode/slots/gpu0.json", Slot: 0}), nil, "skip: the plan is incomplete while Docker does not answer", ""},
		{"the daemon fails", "daemon", unit(slot.Unit{Active: "failed", Result: "exit-code", ExitStatus: 1}), nil,
			"fail: it keeps failing (exit-code, exit status 1)", "systemctl restart kbnode.service"},
		{"the daemon is stopped", "daemon", unit(slot.Unit{Active: "inactive"}), nil, "fail: it is inactive", "systemctl start kbnode.service"},
		{"the daemon is not enabled", "daemon", unit(slot.Unit{Active: "active"}), nil, "warn: it runs, but will not start after a reboot", "systemctl enable kbnode.service"},
		{"a GPU is drained", "health", &fake{}, verdict(`{"verdicts":[{"check":"gpu.ecc","slots":[3],"level":"fatal","effect":"drain","reason":"2 errors","fix":"reset it"}]}`), "fail: gpu.ecc: 2 errors", ""},
		{"a GPU is hot", "health", &fake{}, verdict(`{"verdicts":[{"check":"gpu.thermal","slots":[3],"level":"degraded","effect":"none","reason":"hot","fix":"cool it"}]}`), "warn: gpu.thermal: hot", ""},
		{"what is normal", "health", &fake{}, verdict(`{"verdicts":[{"check":"gpu.throttle","level":"info","effect":"none","reason":"power limit"}]}`), "ok: no verdicts", ""},
		{"half a file", "health", &fake{}, verdict(`{"verd`), "warn: read health: unexpected end of JSON input", "systemctl restart kbnode.service"},
	})
}
