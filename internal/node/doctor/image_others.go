package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const (
	maxShown = 80 // characters of a name or a command

	updaters = `\b(?:watchtower|ouroboros|whats-up-docker|docker-gc|docker-cleanup|docker-prune|dockcheck|tugtainer|update-image\.sh)\b`
)

var (
	// imageWork matches a command that pulls or removes images. Between the program and the verb may be
	// options, which are not repeated: they may hold a password. docker image prune without --all does not
	// count, because it spares kbnode's images.
	imageWork = lazy.Regexp(`\b((?:docker|podman|nerdctl)(?:-compose)?|crictl|ctr|buildah)\b[^;|&#]*?\s` +
		`((?:compose )?pull\b|rmi\b|load\b|auto-update\b|images? (?:pull|rm|remove|load)\b|(?:system|container) prune\b|image prune[^;|&#]*\s(?:-\w*a\w*|--all)\b|--pull(?:[= ](?:always|newer))?(?:\s|$))`)
	updater = lazy.Regexp(updaters + `(?:[^-\w]|$)`)
	// imageTimer matches the names of timers for such work, whatever program does it.
	imageTimer = lazy.Regexp(`(?i)(docker|podman|nerdctl|container|image).*(prune|pull|gc|clean|auto-?update)|(prune|pull|clean|update).*(docker|podman|nerdctl|container|image)|` + updaters)
	usesEngine = lazy.Regexp(`\b(docker|podman|nerdctl)\b`)
)

// imageCommand returns the first command of a text that pulls or removes images, or "". It reads lines as
// people read them: a warning that is not needed costs less than a parser of shells.
func imageCommand(commands string) string {
	for line := range strings.Lines(strings.ReplaceAll(commands, "\\\n", " ")) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		if m := imageWork().FindStringSubmatch(line); m != nil {
			return text.Line(m[1]+" "+strings.TrimSpace(m[2]), maxShown)
		}
		if name := updater().FindString(line); name != "" && !strings.Contains(line, " stop ") {
			return strings.TrimRight(name, " :@'\"")
		}
	}
	return ""
}

// imageCommandOf also looks into the scripts that a command names.
func (m *Machine) imageCommandOf(command string) string {
	if what := imageCommand(command); what != "" {
		return what
	}
	for name := range strings.FieldsSeq(command) {
		name = strings.Trim(name, `-@:+!|"';`)
		if !strings.HasPrefix(name, "/") {
			continue
		}
		if _, _, mode := m.TargetOwner(name); !mode.IsRegular() {
			continue
		}
		script, _ := m.Read(name)
		if what := imageCommand(script); what != "" && strings.HasPrefix(script, "#!") {
			return what + ", in " + name
		}
	}
	return ""
}

// imageOthers looks for whatever else pulls or removes images.
func imageOthers(ctx context.Context, m *Machine) Answer {
	all := slices.Concat(m.imageCrontabs(), m.imageTimers(ctx), m.imageContainers(ctx))
	return foundOr(all, ok("none"))
}

func (m *Machine) imageCrontabs() (all []Finding) {
	for _, pattern := range []string{"/etc/cron.d/*", "/etc/cron.*ly/*", "/var/spool/cron/*", "/var/spool/cron/crontabs/*", "/etc/crontab", "/etc/anacrontab"} {
		for _, name := range m.List(pattern) {
			if _, _, mode := m.TargetOwner(name); !mode.IsRegular() || name == plan.CronPath {
				continue
			}
			crontab, _ := m.Read(name)
			for line := range strings.Lines(crontab) {
				what := m.imageCommandOf(line)
				if what == "" {
					continue
				}
				f := warn("%s runs %s", name, what)
				if strings.HasPrefix(pattern, "/etc/cron.") {
					f = f.By("mv %s /root/", text.ShellWord(name))
				} else {
					f = f.Advise("remove the line from %s; image.auto_update does it when no job runs", name)
				}
				all = append(all, f)
				break
			}
		}
	}
	return all
}

func (m *Machine) imageTimers(ctx context.Context) (all []Finding) {
	units, err := m.Source.Units(ctx, "*.timer")
	if err != nil {
		return []Finding{skip("the timers: not read: %s", lines(err))}
	}
	for _, u := range units {
		if !u.Running() || u.Name == plan.ImageTimer {
			continue
		}
		service := strings.TrimSuffix(u.Name, ".timer") + ".service"
		if other, _, _ := m.UnitValues(u.Name, "Unit="); len(other) > 0 {
			service = other[len(other)-1]
		}
		values, _, _ := m.UnitValues(service, "Exec")
		commands, name := strings.Join(values, "\n"), text.Line(u.Name, maxShown)
		f := warn("%s runs, which by its name pulls or removes images", name)
		if what := m.imageCommandOf(commands); what != "" {
			f = warn("%s runs %s", name, what)
		} else if !imageTimer().MatchString(u.Name) || usesEngine().MatchString(commands) {
			continue
		}
		all = append(all, f.By("systemctl disable --now %s", text.ShellWord(u.Name)))
	}
	return all
}

func (m *Machine) imageContainers(ctx context.Context) (all []Finding) {
	running, err := m.Source.Running(ctx)
	if err != nil {
		return []Finding{skip("Docker's containers: not read: %s", lines(err))}
	}
	for _, c := range running {
		what := imageCommand(c.Command)
		if updater().MatchString(c.Image) || updater().MatchString(c.Name) || c.Labels["com.centurylinklabs.watchtower"] == "true" {
			what = c.Image
		}
		if what != "" && c.Labels[slot.Label] == "" { // what those of jobs run, guard decides
			all = append(all, warn("container %s runs %s", text.Line(c.Name, maxShown), text.Line(what, maxShown)).
				By("docker update --restart=no %[1]s && docker stop %[1]s", text.ShellWord(c.Name)))
		}
	}
	return all
}
