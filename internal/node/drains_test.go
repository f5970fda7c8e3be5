package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/daemon"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

// TestRebootWaits asks for a reboot of a node with a drained slot, tries what would cancel the reboot by the way, and cancels it.
func TestRebootWaits(t *testing.T) {
	t.Parallel()
	must.Root(t, "makes users")
	n, host := installed(t)
	all, one := Selection{All: true}, Selection{Names: []string{"gpu0"}}
	warn := func(err error) { t.Errorf("warned: %v", err) }
	drain := func(s Selection, why plan.Drain) error {
		_, _, err := n.Drain(t.Context(), host, s, why, warn)
		return err
	}
	fan, reboot := plan.Drain{Reason: "fan"}, plan.Drain{Reason: "driver", Reboot: bootNow()}
	must.Do(t, drain(one, fan))
	must.Do(t, drain(all, reboot))
	if !RebootWaits(host) {
		t.Error("no reboot waits")
	}
	_, resumed := n.Resume(t.Context(), host, one, warn)
	for what, err := range map[string]error{
		"a slot is drained": drain(one, fan), "all are": drain(all, fan), "another reboot": drain(all, reboot), "a slot is resumed": resumed,
		"a GPU was reset": n.ReportResets(t.Context(), host, one),
	} {
		if !errors.Is(err, errRebootWaits) {
			t.Errorf("%s: %v", what, err)
		}
	}
	slots, err := n.Resume(t.Context(), host, all, warn)
	must.Do(t, err)
	if RebootWaits(host) || len(slots) != 2 || len(slots[0].Drains) != 1 || slots[0].Drains[0].String() != "drained by operator: fan" || len(slots[1].Drains) > 0 {
		t.Errorf("it left %+v", slots)
	}

	must.Write(t, n.Root, containerPath, "lxc\n")
	must.Do(t, drain(all, plan.Drain{Until: time.Now().Add(time.Hour)}))
	if err := drain(all, reboot); err == nil || !strings.Contains(err.Error(), "this is a container (lxc)") || RebootWaits(host) {
		t.Errorf("in a container: %v", err)
	}
	must.Do(t, os.Remove(filepath.Join(n.Root, containerPath)))

	sd, _ := host.Systemd.(*systemdtest.Systemd)
	must.Do(t, sd.Stop(t.Context(), plan.NodeService))
	for _, why := range []plan.Drain{reboot, {Until: time.Now().Add(time.Hour)}} {
		if err := drain(all, why); err == nil || !strings.Contains(err.Error(), "sudo systemctl start kbnode.service") || RebootWaits(host) {
			t.Errorf("without the daemon: %v", err)
		}
	}
}

// TestReturnGPUs returns a GPU that stays out for its faults: not while an operator has its slot drained, nor with all slots.
func TestReturnGPUs(t *testing.T) {
	t.Parallel()
	must.Root(t, "makes users")
	n, host := installed(t)
	warn := func(err error) { t.Errorf("warned: %v", err) }
	one := Selection{Names: []string{"gpu0"}}
	must.Write(t, n.Root, daemon.HealthPath, `{"schema": 1, "verdicts": [{"check": "`+health.CheckRepeats+`", "gpu": "GPU-x", "slots": [0], "level": "fatal", "effect": "drain"}]}`)
	must.Write(t, n.Root, "run/kbnode/x", "")
	_, _, err := n.Drain(t.Context(), host, one, plan.Drain{Reason: "fan"}, warn)
	must.Do(t, err)
	must.Do(t, n.ReturnGPUs(t.Context(), host, one))
	must.Do(t, n.ReturnGPUs(t.Context(), host, Selection{All: true}))
	if daemon.ReportPending(n.Root) {
		t.Error("the GPU returns by the way")
	}
	_, err = n.Resume(t.Context(), host, one, warn)
	must.Do(t, err)
	must.Do(t, n.report(t.Context(), host, one, true))
	must.Contain(t, must.Read(t, filepath.Join(n.Root, "run/kbnode/returned.json")), "GPU-x")
}
