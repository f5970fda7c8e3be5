package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/node/daemon"
	"github.com/gpu-mode/kbnode/internal/node/events"
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
	must.Do(t, n.ReturnGPUs(t.Context(), host, one, false))
	must.Do(t, n.ReturnGPUs(t.Context(), host, Selection{All: true}, false))
	if daemon.ReportPending(n.Root) {
		t.Error("the GPU returns by the way")
	}
	_, err = n.Resume(t.Context(), host, one, warn)
	must.Do(t, err)
	must.Do(t, n.report(t.Context(), host, one, []string{health.CheckRepeats}))
	must.Contain(t, must.Read(t, filepath.Join(n.Root, "run/kbnode/returned.json")), "GPU-x")
}

// TestResumeWithoutProof returns a GPU without the evaluation that it owes, but not one that was repaired, and of a slot with both
// verdicts only the one that failed too often.
func TestResumeWithoutProof(t *testing.T) {
	t.Parallel()
	must.Root(t, "makes users")
	n, host := installed(t)
	one := Selection{Names: []string{"gpu0"}}
	verdict := func(check, gpu string) string {
		return `{"check": "` + check + `", "gpu": "` + gpu + `", "slots": [0], "level": "info", "effect": "drain"}`
	}
	both := []string{health.CheckRepeats, health.CheckProof}
	must.Write(t, n.Root, "run/kbnode/x", "")
	must.Write(t, n.Root, daemon.HealthPath, `{"verdicts": [`+verdict(health.CheckProof, "GPU-x")+`]}`)
	must.Do(t, n.ReturnGPUs(t.Context(), host, one, true))
	must.Do(t, n.ReturnGPUs(t.Context(), host, Selection{All: true}, false))
	if daemon.ReportPending(n.Root) {
		t.Error("the GPU returns by the way")
	}
	must.Do(t, n.report(t.Context(), host, one, both))
	must.Contain(t, must.Read(t, filepath.Join(n.Root, "run/kbnode/returned.json")), "GPU-x")
	must.Contain(t, must.Read(t, filepath.Join(n.Root, events.Path)), "an operator returns the GPU of gpu0 to service without an evaluation")

	must.Write(t, n.Root, daemon.HealthPath, `{"verdicts": [`+verdict(health.CheckProof, "GPU-y")+`,`+verdict(health.CheckRepeats, "GPU-z")+`]}`)
	must.Do(t, n.report(t.Context(), host, one, both))
	text := must.Read(t, filepath.Join(n.Root, "run/kbnode/returned.json"))
	must.Contain(t, text, "GPU-z")
	if strings.Contains(text, "GPU-y") {
		t.Errorf("returned %s", text)
	}
}

// TestWithoutImage lets a GPU take jobs where there has been no image, and waits for one that is missing.
func TestWithoutImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	passed, says, err := withoutImage("eval:1", dir)
	if !passed || err != nil || !strings.Contains(says, "no image eval:1") {
		t.Errorf("%t, %q, %v", passed, says, err)
	}
	must.Write(t, dir, "images.json", `{"schema": 1, "name": "eval:1", "current": {"id": "sha256:1", "since": "2026-11-21T12:00:00Z"}}`)
	passed, _, err = withoutImage("eval:1", dir)
	must.Err(t, err, "the image eval:1 is missing; type sudo kbnode image update")
	other, says, err := withoutImage("another:1", dir) // that was never fetched
	if !other || err != nil || !strings.Contains(says, "no image another:1") {
		t.Errorf("%t, %q, %v", other, says, err)
	}
	must.Write(t, dir, "images.json", `{torn`)
	torn, _, err := withoutImage("eval:1", dir)
	if passed || torn || err == nil {
		t.Errorf("%t, %t, %v", passed, torn, err)
	}
}

// TestImageToProve takes the image that jobs had before where the one that pipelines name is not there.
func TestImageToProve(t *testing.T) {
	t.Parallel()
	const passed, failed = `, "canary": {"passed": true}`, `, "canary": {"passed": false}`
	broken := errors.New("the engine does not answer")
	for name, row := range map[string]struct {
		has    string // by the engine
		kept   string // images.json
		broken string // what the engine does not answer for
		want   string
		err    error
	}{
		"the one that pipelines name": {has: "eval:2 sha256:1", want: "ID of eval:2"},
		"the one before":              {has: "sha256:1", kept: passed, want: "ID of sha256:1"},
		"one whose canary failed":     {has: "sha256:1", kept: failed},
		"one that no canary ran":      {has: "sha256:1", kept: " "},
		"one that is gone":            {kept: passed},
		"one that an update drops":    {has: "sha256:1", kept: "dropped" + passed, want: "ID of sha256:1"},
		"one that was rolled back":    {has: "sha256:1", kept: "dropped" + passed + `, "digest": "sha256:bad"`},
		"none":                        {},
		"an engine that hangs":        {has: "sha256:1", kept: passed, broken: "eval:2", err: broken},
		"an engine that hangs then":   {has: "sha256:1", kept: passed, broken: "sha256:1", err: broken},
	} {
		dir := t.TempDir()
		if kept, dropped := strings.CutPrefix(row.kept, "dropped"); dropped { // image.State as an update for another name leaves it
			must.Write(t, dir, "images.json", `{"schema": 1, "name": "eval:2", "drop": [{"id": "sha256:1", "since": "2026-11-21T12:00:00Z"`+kept+`}], "refused": [{"digest": "sha256:bad"}]}`)
		} else if row.kept != "" {
			must.Write(t, dir, "images.json", `{"schema": 1, "name": "eval:1", "current": {"id": "sha256:1", "since": "2026-11-21T12:00:00Z"`+row.kept+`}}`)
		}
		id, err := imageToProve(t.Context(), func(_ context.Context, ref string) (docker.Image, error) {
			switch {
			case ref == row.broken:
				return docker.Image{}, broken
			case slices.Contains(strings.Fields(row.has), ref):
				return docker.Image{ID: "ID of " + ref}, nil
			}
			return docker.Image{}, docker.ErrNotFound
		}, "eval:2", dir)
		if id != row.want || !errors.Is(err, row.err) {
			t.Errorf("%s: %q, %v", name, id, err)
		}
	}
	dir := t.TempDir()
	must.Write(t, dir, "images.json", `{torn`)
	if _, err := imageToProve(t.Context(), func(context.Context, string) (docker.Image, error) { return docker.Image{}, docker.ErrNotFound }, "eval:2", dir); err == nil {
		t.Error("a torn file is none")
	}
}
