package plan

import (
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/config"
)

// What updates the node's image: a cron line, or a timer if there is no cron.
const (
	CronPath     = "/etc/cron.d/kbnode"
	ImageService = "kbnode-image.service"
	ImageTimer   = "kbnode-image.timer"

	// ImageDir holds what kbnode knows about the node's images.
	ImageDir = "/var/lib/kbnode"
	// ImagesPath is the file of it.
	ImagesPath = ImageDir + "/images.json"
)

// ImageTag is the tag of agents whose value is ShortImage of the image that image.name stands for.
const ImageTag = "image"

// ShortImage returns the first twelve digits of an image's ID, as docker images shows it; "" if id is none.
func ShortImage(id string) string {
	digits, is := strings.CutPrefix(id, "sha256:")
	if !is || len(digits) != 64 || strings.Trim(digits, "0123456789abcdef") != "" {
		return ""
	}
	return digits[:12]
}

// imageTags returns the tag of the image that jobs get. Without updates, a job that pulls the name moves it, and no one
// writes that down.
func (b *builder) imageTags() []string {
	short := ShortImage(b.Image)
	if short == "" || !b.cfg.Image.Updates() {
		return nil
	}
	return []string{ImageTag + "=" + short}
}

// addAutoUpdate adds the cron line or timer that updates the image, if the
// configuration asks for it.
func (b *builder) addAutoUpdate() error {
	if !b.cfg.Image.Updates() {
		return nil
	}
	when, err := config.ParseSchedule(b.cfg.Image.AutoUpdate)
	if err != nil {
		return err
	}
	if b.inv.Software.Cron {
		// A percent sign is a line break to cron.
		binary := strings.ReplaceAll(b.Binary, "%", `\%`)
		b.addFile(CronPath, 0o644, -1, header+
			"SHELL=/bin/sh\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"+
			when.Text+" root "+binary+" image update --auto\n")
		return nil
	}
	calendar, err := when.Calendar()
	if err != nil {
		return err
	}
	data := struct{ Binary, DockerRoot, Calendar string }{b.Binary, dockerRoot(b.inv), calendar}
	for name, tmpl := range map[string]string{ImageService: "kbnode-image.service.tmpl", ImageTimer: "kbnode-image.timer.tmpl"} {
		if err := b.addUnit(name, tmpl, -1, data); err != nil {
			return err
		}
	}
	b.Units = append(b.Units,
		Unit{Name: ImageService, Slot: -1},
		Unit{Name: ImageTimer, Slot: -1, Enabled: true, Active: true})
	return nil
}
