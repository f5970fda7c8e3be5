package cli

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/selftest"
)

func TestSelftestOutput(t *testing.T) {
	t.Parallel()
	held := selftest.Check{Group: "plan", Tried: "everything", Saw: "as planned", Held: true}
	itself := selftest.SlotReport{Slot: "node", Index: -1, Checks: []selftest.Check{held}}
	var many []selftest.Check
	for i := range 20 {
		many = append(many, selftest.Check{Group: "container", Tried: fmt.Sprintf("open file %d", i), Saw: "ok", Do: "sudo kbnode reconcile"})
	}
	for name, row := range map[string]struct {
		slots []selftest.SlotReport
		flags bool
		want  []string
		not   []string
	}{
		"all held": {
			slots: []selftest.SlotReport{itself, {Slot: "gpu0", Checks: []selftest.Check{held, held}}},
			want:  []string{"gpu0  plan", "2 held", "\nEverything held in 1 slot.\n"},
			not:   []string{"NOT HELD", "as planned"},
		},
		"in full": {
			slots: []selftest.SlotReport{itself, {Slot: "gpu0", Checks: []selftest.Check{held}}}, flags: true,
			want: []string{"everything", "held: as planned"},
		},
		"a busy slot": {
			slots: []selftest.SlotReport{itself, {Slot: "gpu0", Checks: []selftest.Check{held}}, {Slot: "gpu1", Index: 1, Skipped: "it is busy with job x"}},
			want:  []string{"skipped: it is busy with job x", "Everything held in 1 slot; 1 slot was skipped."},
		},
		"nothing to try": {
			slots: []selftest.SlotReport{itself, {Slot: "gpu0", Skipped: "it is parked: away"}},
			want:  []string{"No slot could be tried, all are busy or parked"},
		},
		"what did not hold, last and with what to type": {
			slots: []selftest.SlotReport{itself, {Slot: "gpu0", Checks: append([]selftest.Check{held}, many...)}},
			want: []string{
				"20 of 20 did not hold", "NOT HELD  gpu0, container: open file 0\n  found ok\n  type  sudo kbnode reconcile\n",
				"open file 7", `12 more of "container"`, "\nNOT HELD: gpu0.\n",
			},
			not: []string{"open file 8"},
		},
		"the node itself": {
			slots: []selftest.SlotReport{{Slot: "node", Index: -1, Checks: many[:1]}, {Slot: "gpu0", Checks: []selftest.Check{held}}},
			want:  []string{"NOT HELD: node."},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b bytes.Buffer
			printSelftest(&b, &node.SelftestReport{Slots: row.slots}, row.flags)
			contain(t, b.String(), row.want...)
			for _, not := range row.not {
				if strings.Contains(b.String(), not) {
					t.Errorf("says %q:\n%s", not, b.String())
				}
			}
		})
	}
}

// TestSelftestGroups checks that every group of checks is in the table, or it would run but never be
// shown, and in docs/security.md.
func TestSelftestGroups(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, g := range groups {
		shown[g.name] = true
		if !strings.Contains(string(page), "| "+g.name+" |") {
			t.Errorf("docs/security.md does not describe the group %q", g.name)
		}
	}
	for _, file := range []string{"agent.go", "containers.go", "devices.go", "judge.go", "node.go", "selftest.go", "slot.go"} {
		text, err := os.ReadFile("../selftest/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:Group: |group(?:, tried)? *= )"([a-z ]+)"`).FindAllStringSubmatch(string(text), -1) {
			if !shown[m[1]] {
				t.Errorf("%s makes checks of the group %q, which is never shown", file, m[1])
			}
		}
	}
}
