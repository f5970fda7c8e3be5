package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/installer"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/plan"
)

const (
	updateImage = "kbnode image update"
	// onItsWay is how long an update may take with a large image and busy slots.
	onItsWay = 26 * time.Hour
)

// short returns the part of a digest, or else an ID, that people compare.
func short(digest, id string) string {
	text := cmp.Or(digest, id, "an image")
	return text[:min(len(text), len("sha256:")+12)]
}

// ago formats how long ago something was.
func ago(now, then time.Time) string {
	switch d := now.Sub(then); {
	case then.IsZero():
		return ""
	case d >= 48*time.Hour:
		return fmt.Sprintf(" %d days ago", int(d.Hours()/24))
	default:
		return fmt.Sprintf(" %d hours ago", max(0, int(d.Hours())))
	}
}

func imageState(_ context.Context, m *Machine) Answer {
	s, err := image.Read(m.Path(plan.ImageDir))
	if err != nil {
		return found(warn("%s", lines(err)).By("mv %s %[1]s.broken && %s", plan.ImagesPath, updateImage))
	}
	return Answer{Findings: []Finding{ok("%d previous, %d refused", len(s.Previous), len(s.Refused))}, Keep: func(m *Machine) { m.Images = s }}
}

func imagePresent(ctx context.Context, m *Machine) Answer {
	name := m.Config.Image.Name
	i, err := m.Source.Image(ctx, name)
	switch {
	case errors.Is(err, docker.ErrNotFound):
		return found(warn("%s is not on the node, so the first job pulls it, without a login, and no canary has run it", name).By(updateImage))
	case err != nil:
		return found(warn("%s", lines(err)).Advise("see what sudo docker image inspect %s says", name))
	case i.Arch != "" && m.Inventory.Arch != "" && i.Arch != m.Inventory.Arch:
		return found(fail("%s is for %s, but this machine is %s, so nothing in it starts", name, i.Arch, m.Inventory.Arch).
			Advise("build it for %s too, or set image.name to one that is, then run sudo %s", m.Inventory.Arch, updateImage))
	}
	_, digest, _ := strings.Cut(append(i.Digests, "")[0], "@")
	return found(ok("%s, %s", short(digest, i.ID), gib(i.Size)))
}

func imageRegistry(_ context.Context, m *Machine) Answer {
	name, err := docker.ParseRef(m.Config.Image.Name)
	if err != nil {
		return none("%s", err)
	}
	registry, _, _ := strings.Cut(name, "/")
	if name, _, _ := strings.Cut(registry, ":"); slices.Contains(m.Docker.Insecure, registry) && name != "localhost" && !strings.HasPrefix(name, "127.") {
		return found(warn("%s is one of Docker's insecure registries, so anyone in between can replace the jobs' image", registry).
			Advise("give it a certificate (put its CA certificate into /etc/docker/certs.d/%s/ca.crt), remove it from insecure-registries in %s, and run sudo systemctl reload docker", registry, host.DaemonJSON))
	}
	return found(ok("%s", registry))
}

func imageProven(ctx context.Context, m *Machine) Answer {
	s := m.Images
	now, err := m.Source.Image(ctx, m.Config.Image.Name)
	switch auto := m.Config.Image.Updates(); {
	case err != nil:
		return none("there is no such image here")
	case s.Current == nil && !auto:
		return none("kbnode does not update it (image.auto_update)")
	case s.Name != m.Config.Image.Name && s.Name != "":
		return found(warn("image.name is now %s, but kbnode only knows %s", m.Config.Image.Name, s.Name).By(updateImage))
	case s.Current == nil:
		return found(warn("no update has run yet, so no canary has run it").By(updateImage))
	case s.Moving:
		return found(warn("an update was interrupted just before it moved the name to %s", short(s.Current.Digest, s.Current.ID)).By(updateImage))
	case now.ID != s.Current.ID:
		return found(warn("the name refers to %s, but kbnode chose %s: someone pulled or tagged it without a canary", short("", now.ID), short("", s.Current.ID)).By(updateImage))
	case s.Current.Canary == nil:
		return found(ok("chosen before any canary"))
	}
	return found(ok("canary in %s%s", s.Current.Canary.Slot, ago(m.Now, s.Current.Canary.Time)))
}

func imageUpdate(ctx context.Context, m *Machine) Answer {
	s := m.Images
	var all []Finding
	if r := s.Rejected(); r != nil && r.Digest == "" {
		all = append(all, warn("an image that was loaded or built here was refused%s: %s", ago(m.Now, r.Time), r.Reason).
			Advise("fix it, and load it in another bundle, or build it again"))
	} else if r != nil {
		all = append(all, warn("%s was refused%s: %s", short(r.Digest, ""), ago(m.Now, r.Time), r.Reason).
			Advise("fix the image and push it; cron tries the next one, and sudo %s tries this one again", updateImage))
	}
	if c := s.Candidate; c != nil && m.Now.Sub(c.Since) > onItsWay {
		all = append(all, warn("the update to %s has not finished since %s", short(c.Digest, c.ID), c.Since.Format(time.DateOnly)).By(updateImage))
	}
	if u, err := m.unit(ctx, plan.ImageService); err == nil && u.Active == "failed" {
		all = append(all, warn("%s failed (%s, exit status %d)", plan.ImageService, u.Result, u.ExitStatus).By(updateImage).
			Advise("sudo journalctl -u kbnode-image -n 20 says why"))
	}
	return foundOr(all, ok("none refused since, none pending"))
}

// imageSchedule checks what runs the update. The check as-planned covers the file and the
// timer.
func imageSchedule(ctx context.Context, m *Machine) Answer {
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
	for _, name := range []string{"cron.service", "crond.service", "cronie.service", "cron.target"} {
		switch u, err := m.unit(ctx, name); {
		case err != nil:
			return none("systemd does not answer: %s", lines(err))
		case u.Running() && m.StartsAtBoot(name):
			return found(ok("%s, by %s", m.Config.Image.AutoUpdate, name))
		case u.Exists() && u.Load != "masked":
			return found(warn("%s does not run, or will not start after a reboot, so %s does nothing then", name, plan.CronPath).Safely("systemctl enable --now %s", name))
		}
	}
	return found(warn("cron does not run, so %s does nothing and the image is never updated", plan.CronPath).By("%s", installer.Cron.Command(m.Inventory.OS)))
}
