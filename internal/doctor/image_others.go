package doctor

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/text"
)

const (
	maxShown = 80 // characters of a name
	// slotLabel is on the containers of jobs: what those run, their guard decides.
	slotLabel = "kbnode.slot"
)

var (
	// imageCommand matches commands that pull or remove images, or remove containers that a job is about to
	// start. Pulling what is missing, as docker run does, does not count, and neither does docker image prune
	// without --all, which spares kbnode's images.
	imageCommand = lazy.Regexp(`(?:^|[\s/"'(=@|;&])(docker|podman|nerdctl|crictl|docker-compose|podman-compose)["')]?(?:\s+[^\s|;&]+)*?\s+` +
		`(pull|rmi|load|auto-update|(?:system|container)\s+prune|images?\s+(?:rm|remove)|image\s+prune(?:\s+\S+)*?\s+(?:-\w*a\w*|--all)|--pull[ =]always|--rmi)(?:[\s=;&|)"']|$)`)
	// imageProgram matches programs that do nothing else. update-image.sh is the script of old nodes.
	imageProgram = lazy.Regexp(`(?:^|[\s/"'(=@|;&])(update-image\.sh|docker-gc|dockcheck\.sh)(?:[\s;&|)"']|$)`)
	// imageUpdater matches images and containers of such programs.
	imageUpdater = lazy.Regexp(`(?:^|/)(?:[a-z0-9.]+-)?(?:watchtower|ouroboros|shepherd|wud|whats-up-docker|dockupdater|tugtainer|docker-gc)(?::[^/]*)?(?:@.*)?$`)
)

// imageWork returns the first command in a script that pulls or removes images, without the words that may
// hold a password, or "". It also reads the scripts that a script names, but not what those name.
func (m *Machine) imageWork(script string, deep bool) string {
	for line := range strings.Lines(strings.ReplaceAll(script, "\\\n", " ")) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") {
			continue
		}
		if work := imageProgram().FindStringSubmatch(line); work != nil {
			return work[1]
		}
		if work := imageCommand().FindStringSubmatch(line); work != nil {
			return work[1] + " " + strings.Join(strings.Fields(work[2]), " ")
		}
		for name := range strings.FieldsSeq(line) {
			if !deep || !strings.HasPrefix(name, "/") {
				continue
			}
			if text, err := m.Read(name); err == nil && strings.HasPrefix(text, "#!") {
				if what := m.imageWork(text, false); what != "" {
					return fmt.Sprintf("%s, in %s", what, name)
				}
			}
		}
	}
	return ""
}

// imageOthers looks for whatever else pulls or removes images.
func imageOthers(ctx context.Context, m *Machine) Answer {
	var all []Finding
	for _, pattern := range []string{"/etc/cron.*/*", "/var/spool/cron/*", "/var/spool/cron/crontabs/*", "/etc/crontab", "/etc/anacrontab"} {
		for _, name := range m.List(pattern) {
			crontab, err := m.Read(name)
			if what := m.imageWork(crontab, true); err == nil && what != "" && name != plan.CronPath {
				all = append(all, warn("%s runs %s", name, what).Advise("remove the line from %s; image.auto_update does it when no job runs", name))
			}
		}
	}
	timers, err := m.Source.Units(ctx, "*.timer")
	if err != nil {
		all = append(all, skip("the timers: not read: %s", lines(err)))
	}
	for _, u := range timers {
		service := strings.TrimSuffix(u.Name, path.Ext(u.Name)) + ".service"
		if other, _, _ := m.UnitValues(u.Name, "Unit="); len(other) > 0 {
			service = other[len(other)-1]
		}
		commands, _, _ := m.UnitValues(service, "Exec")
		if what := m.imageWork(strings.Join(commands, "\n"), true); u.Running() && what != "" && u.Name != plan.ImageTimer {
			all = append(all, warn("%s runs %s", text.Line(u.Name, maxShown), what).By("systemctl disable --now %s", word(u.Name)))
		}
	}
	running, err := m.Source.Running(ctx)
	if err != nil {
		all = append(all, skip("Docker's containers: not read: %s", lines(err)))
	}
	for _, c := range running {
		what := m.imageWork(c.Command, false)
		if imageUpdater().MatchString(c.Image) || imageUpdater().MatchString(c.Name) || c.Labels["com.centurylinklabs.watchtower"] == "true" {
			what = c.Image
		}
		if what != "" && c.Labels[slotLabel] == "" {
			all = append(all, warn("container %s runs %s", text.Line(c.Name, maxShown), text.Line(what, maxShown)).
				By("docker update --restart=no %[1]s && docker stop %[1]s", word(c.Name)))
		}
	}
	return otherwise(all, ok("none"))
}
