package reconcile_test

import (
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// TestAutoUpdateComesAndGoes writes what updates the image, leaves a running update
// alone, and removes it all with its key.
func TestAutoUpdateComesAndGoes(t *testing.T) {
	t.Parallel()
	m := installed(t, 1)
	m.sd.Words()
	file := func(p *plan.Plan, name, text string) {
		p.Files = append(p.Files, plan.File{Path: name, Mode: 0o644, Owner: "root", Content: header + text, Slot: -1})
	}
	cron := slots(1).plan(t)
	file(cron, plan.CronPath, "0 3 * * * root /usr/local/bin/kbnode image update --auto\n")
	r, words := m.apply(cron)
	equal(t, "changes for cron", []string{"create /etc/cron.d/kbnode"}, brief(r.Applied))
	equal(t, "words for cron", nil, words)

	timer := slots(1).plan(t)
	file(timer, plan.UnitDir+"/"+plan.ImageService, "[Service]\nType=oneshot\n")
	file(timer, plan.UnitDir+"/"+plan.ImageTimer, "[Timer]\nOnCalendar=*-*-* 03:00:00\n[Install]\nWantedBy=timers.target\n")
	timer.Units = append(timer.Units, plan.Unit{Name: plan.ImageService, Slot: -1}, plan.Unit{Name: plan.ImageTimer, Slot: -1, Enabled: true, Active: true})
	m.asks(timer, "enable kbnode-image.timer", "reload", "start kbnode-image.timer")
	m.wantAbsent(plan.CronPath)
	if err := m.sd.Start(t.Context(), plan.ImageService); err != nil { // as the timer does
		t.Fatal(err)
	}
	m.sd.Words()
	m.asks(timer)

	m.asks(slots(1).plan(t), "stop kbnode-image", "disable kbnode-image.timer", "stop kbnode-image.timer", "reload")
	if m.exists(plan.UnitDir+"/"+plan.ImageTimer) || m.exists(plan.UnitDir+"/"+plan.ImageService) {
		t.Error("the timer's files stay")
	}
}
