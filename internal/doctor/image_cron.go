package doctor

import (
	"context"
	"slices"

	"github.com/gpu-mode/kbnode/internal/installer"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// checkSchedule checks what runs the update. The check as-planned covers the file and the
// timer.
func checkSchedule(ctx context.Context, m *Machine) Answer {
	if !m.Config.Image.Updates() {
		return none("kbnode does not update the image (image.auto_update)")
	}
	at := slices.IndexFunc(m.Plan.Files, func(f plan.File) bool { return f.Path == plan.CronPath })
	if at < 0 {
		if !m.State.Units[plan.ImageTimer].Running() {
			return found(skip("%s does not run; see as-planned", plan.ImageTimer))
		}
		return found(ok("%s", plan.ImageTimer))
	}
	if text, err := m.Read(plan.CronPath); err != nil || text != m.Plan.Files[at].Content {
		return found(skip("%s is not as planned; see as-planned", plan.CronPath))
	}
	there := ""
	for _, name := range []string{"cron.service", "crond.service", "cronie.service", "cron.target"} {
		u, err := m.unit(ctx, name)
		if err != nil {
			return none("systemd does not answer: %s", lines(err))
		}
		if u.Running() {
			if !m.StartsAtBoot(name) {
				return found(warn("%s runs, but will not start after a reboot", name).Safely("systemctl enable %s", name))
			}
			return found(ok("%s, by %s", m.Config.Image.AutoUpdate, name))
		}
		if u.Exists() && u.Load != "masked" && there == "" {
			there = name
		}
	}
	f := warn("cron does not run, so %s does nothing and the image is never updated", plan.CronPath)
	if there != "" {
		return found(f.Safely("systemctl enable --now %s", there))
	}
	return found(f.By("%s", installer.Cron.Command(m.Inventory.OS)))
}
