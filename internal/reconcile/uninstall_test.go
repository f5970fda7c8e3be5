package reconcile_test

import (
	"slices"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// TestUninstallDisablesInstall: what is uninstalled does not come back with the next
// boot, and install leaves alone the unit that runs it.
func TestUninstallDisablesInstall(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.write("/usr/lib/systemd/system/"+plan.InstallService, "[Install]\nWantedBy=multi-user.target\n")
	link := plan.UnitDir + "/multi-user.target.wants/" + plan.InstallService
	m.write(link, "") // in a target's directory only the name counts
	m.apply(slots(1).plan(t))
	m.apply(slots(2).plan(t))
	equal(t, "link on a node", true, m.exists(link))
	r, err := m.h.Uninstall(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(brief(r.Applied), "disable "+plan.InstallService) {
		t.Errorf("uninstall does %q", brief(r.Applied))
	}
	equal(t, "link after uninstall", false, m.exists(link))
}
