package doctor

import (
	"context"
	"os"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/installer"
	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/text"
)

const (
	maxCronFiles = 256 // per directory
	maxShown     = 80  // characters of a command
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

// imageCommands match what others do to images. kbnode's own update pulls when no job runs,
// and pruning with -a removes the image that jobs run.
var imageCommands = lazy.Regexp(`update-image\.sh|\bdocker\s+(image\s+)?pull\s|\bdocker\s+(rmi|image\s+rm)\s|\bdocker\s+(system|image)\s+prune\b[^;&|]*\s(-[a-z]*a[a-z]*|--all)`)

func checkOtherCron(_ context.Context, m *Machine) Answer {
	var all []Finding
	look := func(name string, whole bool) {
		crontab, err := m.Read(name)
		if err != nil {
			return
		}
		for line := range strings.Lines(crontab) {
			// The rest of the line may hold a password.
			command := strings.TrimSpace(imageCommands().FindString(line))
			if strings.HasPrefix(strings.TrimSpace(line), "#") || command == "" {
				continue
			}
			f := warn("%s runs %s", name, text.Line(command, maxShown))
			if whole {
				f = f.By("mv %s /root/", word(name))
			} else {
				f = f.Advise("remove the line from %s; image.auto_update does it when no job runs", name)
			}
			all = append(all, f)
			return
		}
	}
	for _, dir := range []string{"/etc/cron.d", "/etc/cron.hourly", "/etc/cron.daily", "/etc/cron.weekly", "/etc/cron.monthly", "/var/spool/cron", "/var/spool/cron/crontabs"} {
		entries, err := os.ReadDir(m.Path(dir))
		if err != nil {
			continue
		}
		for _, e := range entries[:min(len(entries), maxCronFiles)] {
			if name := dir + "/" + e.Name(); e.Type().IsRegular() && name != plan.CronPath {
				look(name, strings.HasPrefix(dir, "/etc/"))
			}
		}
	}
	look("/etc/crontab", false)
	return otherwise(all, ok("none"))
}
