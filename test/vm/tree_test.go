//go:build vm

package vm_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/machinetest"
)

// TestInstallPlansAnotherMachine reads an AMD machine on one with NVIDIA GPUs:
// nothing of the latter may show.
func TestInstallPlansAnotherMachine(t *testing.T) {
	t.Parallel()
	m := forked(t)
	var b bytes.Buffer
	if err := inventory.Capture(t.Context(), inventory.Options{Root: machinetest.MI300X().Dir(t)}, &b); err != nil {
		t.Fatal(err)
	}
	m.Put("/root/mi300x.txtar", 0o644, b.String())
	out := m.Sh("GPU_TYPE=b200 kbnode plan --root /root/mi300x.txtar --json")
	var p plan.Plan
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if len(p.Slots) != 8 || p.Slots[0].GPUs[0].Vendor != "amd" || p.Slots[0].Queue != "mi300" {
		t.Errorf("slots are %+v", p.Slots)
	}
	// A word of its own: a unit's generation is in hexadecimal and may have b200 in it.
	own := m.Sh("sim-gpu list | awk 'NR == 1 {print $3}'")
	if found := regexp.MustCompile(`.{0,60}\b(` + regexp.QuoteMeta(own) + `|b200)\b.{0,60}`).FindString(out); own == "" || found != "" {
		t.Errorf("the plan of another machine names this one's GPU %q or queue: %s", own, found)
	}
	if r := m.Try("kbnode plan --root /root/mi300x.txtar --gpus 9-9 --json"); r.Code != 1 || !strings.HasPrefix(strings.TrimSpace(r.Stdout), `{`) || !strings.Contains(r.Stdout, `"error": "GPU 9 does not exist`) {
		t.Errorf("a refusal: exit %d, %s", r.Code, r.Stdout)
	}
	// The machine's own capture gives the same slots as the machine.
	m.Sh("kbnode inventory --capture /root/own.txtar")
	if got, want := m.Sh("kbnode plan --queue b200 --root /root/own.txtar | sed '/changes:/,$d'"), m.Sh("kbnode plan --queue b200 | sed '/changes:/,$d'"); got != want {
		t.Errorf("the capture plans\n%s\nand the machine\n%s", got, want)
	}
}
