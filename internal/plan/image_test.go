package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestAutoUpdate expects a cron line, a timer if there is no cron, and nothing
// without the key.
func TestAutoUpdate(t *testing.T) {
	t.Parallel()
	units := func(p *Plan) []Unit {
		return slices.DeleteFunc(slices.Clone(p.Units), func(u Unit) bool { return !strings.HasPrefix(u.Name, "kbnode-image") })
	}
	for _, tt := range []struct {
		name, when string
		cron       bool
		line       string // of CronPath
		calendar   string // of ImageTimer
		err        string
	}{
		{name: "not asked for", cron: true},
		{name: "switched off", when: "off", cron: true},
		{name: "cron", when: " 0 3  * * 1-5", cron: true, line: `0 3 * * 1-5 root /opt/100\%/kbnode image update --auto`},
		{name: "a word", when: "@daily", cron: true, line: `@daily root /opt/100\%/kbnode image update --auto`},
		{name: "no cron", when: "0 3 * * 1", calendar: "OnCalendar=Mon *-*-* 03:00:00"},
		{name: "what a timer cannot say", when: "0 3 1 * 1", err: "set one of them"},
		{name: "what cron can", when: "0 3 1 * 1", cron: true, line: `0 3 1 * 1 root /opt/100\%/kbnode image update --auto`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := input(readMachine(t, machinetest.Published()[0]), config.Config{Node: "node1", Image: config.Image{AutoUpdate: tt.when}})
			in.Inventory.Software.Cron, in.Binary = tt.cron, "/opt/100%/kbnode"
			p, err := Build(in)
			if tt.err != "" {
				must.Err(t, err, tt.err)
				return
			}
			must.Do(t, err)
			cron, timer := fileOf(p, CronPath), fileOf(p, UnitDir+"/"+ImageTimer)
			if (cron != "") != (tt.line != "") || !strings.HasSuffix(cron, tt.line+"\n") && tt.line != "" {
				t.Errorf("cron has %q, want %q", cron, tt.line)
			}
			if cron != "" && (!strings.HasPrefix(cron, "# "+Marker) || !strings.Contains(cron, "\nPATH=/")) {
				t.Errorf("cron has %q", cron)
			}
			if (timer != "") != (tt.calendar != "") || !strings.Contains(timer, tt.calendar) {
				t.Errorf("the timer is %q, want %q", timer, tt.calendar)
			}
			var want []Unit
			if tt.calendar != "" {
				// In the plan, so that a concurrent reconcile does not stop it.
				want = []Unit{{Name: ImageService, Slot: -1}, {Name: ImageTimer, Slot: -1, Enabled: true, Active: true}}
				if s := fileOf(p, UnitDir+"/"+ImageService); !strings.Contains(s, "ExecStart=/opt/100%/kbnode image update --auto\n") {
					t.Errorf("the service is %q", s)
				}
			}
			if d := cmp.Diff(want, units(p)); d != "" && len(want)+len(units(p)) > 0 {
				t.Error(d)
			}
		})
	}
}
