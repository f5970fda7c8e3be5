package doctor

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// updated returns a machine with this image, which is updated at night.
func updated(i docker.Image) *fake {
	full := config.Config{Image: config.Image{AutoUpdate: "0 3 * * *"}}.WithDefaults()
	return &fake{
		cfg: &full, image: i,
		inv:    &inventory.Inventory{Arch: "amd64", OS: inventory.OS{ID: "debian"}},
		docker: docker.Info{RootDir: "/var/lib/docker"},
	}
}

func TestImageChecks(t *testing.T) {
	t.Parallel()
	const name = config.DefaultImage
	here := docker.Image{
		ID: "sha256:1111111111111111", Digests: []string{"ghcr.io/gpu-mode/kernelbot@sha256:aaaaaaaaaaaaaaaa"}, Size: 10 << 30, Arch: "amd64",
	}
	arm := here
	arm.Arch = "arm64"
	old := here
	old.Arch, old.Digests = "", nil
	byHand := updated(here)
	byHand.cfg = nil
	insecure := updated(here)
	insecure.docker.Insecure = []string{"ghcr.io"}
	local := updated(here)
	local.cfg.Image.Name, local.docker.Insecure = "127.0.0.1:5000/x:1", []string{"127.0.0.1:5000"}
	broken := updated(here)
	broken.err = errors.New("no answer")
	failed := updated(here)
	failed.units = []slot.Unit{{Name: plan.ImageService, Load: "loaded", Active: "failed", Result: "exit-code", ExitStatus: 1}}
	running := func(names ...string) *fake {
		f := &fake{}
		for _, name := range names {
			f.units = append(f.units, slot.Unit{Name: name, Load: "loaded", Active: "active"})
		}
		return f
	}
	containers := func(all ...docker.Container) *fake { return &fake{running: all} }
	state := func(more string) map[string]string {
		return map[string]string{plan.ImageDir + "/images.json": `{"written_by": "kbnode", "schema": 1, "name": "` + name + `"` + more + `}`}
	}
	current := func(id, more string) string {
		return `, "current": {"id": "` + id + `", "digest": "sha256:aaaaaaaaaaaaaaaa", "since": "2026-11-20T12:00:00Z"` + more + `}`
	}
	canary := `, "canary": {"passed": true, "slot": "gpu0", "time": "2026-11-20T12:00:00Z"}`
	chosen := current(here.ID, canary)
	digits := strings.Repeat("1", 64)
	const blobs = docker.ContainerdRoot + "/io.containerd.content.v1.content/blobs/sha256/"
	large := func(root string, size int) map[string]string {
		return map[string]string{
			root + "/image/overlay2/repositories.json":                `{"Repositories": {"evil.example/a": {"evil.example/a:1": "sha256:` + digits + `"}}}`,
			root + "/image/overlay2/imagedb/content/sha256/" + digits: strings.Repeat(" ", size),
		}
	}
	withFile := func(files map[string]string, name, text string) map[string]string {
		files[name] = text
		return files
	}
	play(t, []scene{
		{"none yet", "image-state", updated(here), nil, "ok: 0 previous, 0 refused", ""},
		{"here", "image-present", updated(here), nil, "ok: sha256:aaaaaaaaaaaa, 10.0 GiB", ""},
		{"not here", "image-present", updated(docker.Image{}), nil, "warn: " + name + " is not on the node, so the first job pulls it, without a login, and no canary has run it", "kbnode image update"},
		{"for other machines", "image-present", updated(arm), nil, "fail: " + name + " is for arm64, but this machine is amd64, so nothing in it starts", ""},
		{"that says little", "image-present", updated(old), nil, "ok: sha256:111111111111, 10.0 GiB", ""},
		{"an engine that hangs", "image-present", broken, nil, "warn: no answer", ""},

		{"a registry with a certificate", "image-registry", byHand, nil, "ok: ghcr.io", ""},
		{"one without", "image-registry", insecure, nil, "warn: ghcr.io is one of Docker's insecure registries, so anyone in between can replace the jobs' image", ""},
		{"one on this machine", "image-registry", local, nil, "ok: 127.0.0.1:5000", ""},

		{"none that is large", "image-large", &fake{}, large("/var/lib/docker", 1<<20), "ok: none has a configuration of more than 1 MiB", ""},
		{"one that is large, and no Docker", "image-large", &fake{}, large("/var/lib/docker", 3<<20), "warn: evil.example/a:1 has a configuration of 3072 KiB, which Docker reads and keeps whenever it lists images, inspects or starts it",
			"docker rmi -f sha256:" + digits},
		{"one elsewhere", "image-large", &fake{}, withFile(large("/srv/docker", 3<<20), host.DaemonJSON, `{"data-root": "/srv/docker"}`), "warn: evil.example/a:1 has a configuration of 3072 KiB, which Docker reads and keeps whenever it lists images, inspects or starts it",
			"docker rmi -f sha256:" + digits},
		{"one of containerd's", "image-large", &fake{}, map[string]string{blobs + digits: "{" + strings.Repeat(" ", 2<<20), blobs + "ab": `{"config": {"digest": "sha256:` + digits + `"}}`, blobs + "cd": "layer" + strings.Repeat(" ", 2<<20)},
			"warn: sha256:ab has a configuration of 2048 KiB, which Docker reads and keeps whenever it lists images, inspects or starts it", "docker rmi -f sha256:ab"},

		{"chosen", "image-proven", updated(here), state(chosen), "ok: canary in gpu0 24 hours ago", ""},
		{"chosen by hand", "image-proven", byHand, nil, "skip: kbnode does not update it (image.auto_update)", ""},
		{"never updated", "image-proven", updated(here), nil, "warn: no update has run yet, so no canary has run it", "kbnode image update"},
		{"cut off", "image-proven", updated(here), state(chosen + `, "moving": true`), "warn: an update was interrupted just before it moved the name to sha256:aaaaaaaaaaaa", "kbnode image update"},
		{"pulled past it", "image-proven", updated(here), state(current("sha256:2222", canary)),
			"warn: the name refers to sha256:111111111111, but kbnode chose sha256:2222: someone pulled or tagged it without a canary", "kbnode image update"},
		{"another name", "image-proven", updated(here), map[string]string{plan.ImageDir + "/images.json": `{"schema": 1, "name": "x:1"}`}, "warn: image.name is now " + name + ", but kbnode only knows x:1", "kbnode image update"},

		{"went through", "image-update", updated(here), state(chosen + `, "refused": [{"digest": "sha256:bbbb", "reason": "old", "time": "2026-11-01T12:00:00Z"}]`), "ok: none refused since, none pending", ""},
		{"refused", "image-update", updated(here), state(chosen + `, "refused": [{"digest": "sha256:bbbb", "reason": "torch sees no GPU", "time": "2026-11-21T03:00:00Z"}]`), "warn: sha256:bbbb was refused 9 hours ago: torch sees no GPU", ""},
		{
			"a bundle's was refused", "image-update", updated(here),
			state(chosen + `, "refused_local": {"reason": "torch sees no GPU", "time": "2026-11-21T03:00:00Z"}`),
			"warn: an image that was loaded or built here was refused 9 hours ago: torch sees no GPU", "",
		},
		{"on its way", "image-update", updated(here), state(chosen + `, "candidate": {"digest": "sha256:bbbb", "since": "2026-11-21T03:00:00Z"}`), "ok: none refused since, none pending", ""},
		{"stuck", "image-update", updated(here), state(chosen + `, "candidate": {"digest": "sha256:bbbb", "since": "2026-11-18T03:00:00Z"}`), "warn: the update to sha256:bbbb has not finished since 2026-11-18", "kbnode image update"},
		{"the timer's run failed", "image-update", failed, state(chosen), "warn: kbnode-image.service failed (exit-code, exit status 1)", "kbnode image update"},

		{"nothing of others", "image-others", &fake{}, map[string]string{"/etc/cron.d/x": "# docker pull x\n0 3 * * * root docker image prune -f\n", "/etc/cron.daily/y": "docker compose up -d\ndocker rm x; docker stop watchtower\n",
			plan.CronPath: "0 3 * * * root kbnode image update --auto && docker pull x\n"}, "ok: none", ""},
		{"the old script", "image-others", &fake{}, map[string]string{"/etc/cron.d/kernelbot-update": "0 3 * * * root /opt/update-image.sh --auto\n"}, "warn: /etc/cron.d/kernelbot-update runs update-image.sh", "mv /etc/cron.d/kernelbot-update /root/"},
		{"a pruning", "image-others", &fake{}, map[string]string{"/var/spool/cron/crontabs/root": "@daily docker -H tcp://u:p@h image prune -f --all >/dev/null\n"}, "warn: /var/spool/cron/crontabs/root runs docker image prune -f --all", ""},
		{"a line that calls a script", "image-others", &fake{}, map[string]string{"/etc/crontab": "0 3 * * * root /opt/clean >/dev/null\n", "/opt/clean": "#!/usr/bin/env bash\nset -e\ndocker --context x compose -f y pull\n"}, "warn: /etc/crontab runs docker pull, in /opt/clean", ""},
		{"a program that is no script", "image-others", &fake{}, map[string]string{"/etc/crontab": "0 3 * * * root /opt/clean\n", "/opt/clean": "\x7fELF\ndocker pull x\n"}, "ok: none", ""},
		{"a timer", "image-others", running("docker-prune.timer"), map[string]string{"/etc/systemd/system/docker-prune.service": "[Service]\nExecStart=/usr/bin/docker system prune \\\n  --all --force\n"},
			"warn: docker-prune.timer runs docker system prune", "systemctl disable --now docker-prune.timer"},
		{"a timer of another service", "image-others", running("nightly@a.timer"), map[string]string{"/usr/lib/systemd/system/nightly@.timer": "[Timer]\nUnit=up@a.service\n", "/usr/lib/systemd/system/up@.service": "[Service]\nExecStart=docker-compose up -d --pull always\n"},
			"warn: nightly@a.timer runs docker-compose --pull always", "systemctl disable --now nightly@a.timer"},
		{"a timer by its name", "image-others", running("podman-auto-update.timer"), nil, "warn: podman-auto-update.timer runs, which by its name pulls or removes images", "systemctl disable --now podman-auto-update.timer"},
		{"a timer that spares kbnode's images", "image-others", running("docker-prune.timer"), map[string]string{"/etc/systemd/system/docker-prune.service": "[Service]\nExecStart=docker image prune -f\n"}, "ok: none", ""},
		{"timers of others", "image-others", running("x.timer", plan.ImageTimer), nil, "ok: none", ""},
		{"watchtower", "image-others", containers(docker.Container{Name: "wt", Image: "containrrr/watchtower:1", Command: "/watchtower"}), nil, "warn: container wt runs containrrr/watchtower:1", "docker update --restart=no wt && docker stop wt"},
		{"a fork of it by its ID", "image-others", containers(docker.Container{Name: "wt", Image: "sha256:1", Labels: map[string]string{"com.centurylinklabs.watchtower": "true"}}), nil, "warn: container wt runs sha256:1", "docker update --restart=no wt && docker stop wt"},
		{"watchtower by the container's name", "image-others", containers(docker.Container{Name: "watchtower", Image: "sha256:1", Command: "/bin/updater"}), nil, "warn: container watchtower runs sha256:1", "docker update --restart=no watchtower && docker stop watchtower"},
		{"a container that prunes", "image-others", containers(docker.Container{Name: "gc", Image: "docker:cli", Command: "sh -c while :; do docker rmi x; sleep 1d; done"}), nil, "warn: container gc runs docker rmi", "docker update --restart=no gc && docker stop gc"},
		{"containers of jobs and others", "image-others", containers(docker.Container{Image: "x/watchtower", Labels: map[string]string{"kbnode.slot": "0"}}, docker.Container{Image: "watchtower-exporter"}), nil, "ok: none", ""},
		{"what does not answer", "image-others", broken, map[string]string{"/etc/crontab": "1 1 * * * root /usr/bin/sudo docker-compose pull\n"}, "warn: /etc/crontab runs docker-compose pull", ""},
		{"nothing that answers", "image-others", broken, nil, "skip: the timers: not read: no answer (and 1 more)", ""},
	})
	scene{"", "image-state", updated(here), map[string]string{plan.ImageDir + "/images.json": "{"}, "", ""}.brokenState(t)
}

// brokenState compares only the fix: the message contains the temporary directory.
func (s scene) brokenState(t *testing.T) {
	t.Helper()
	got := answer(t, machineOf(t, s.f, s.files), s.id)
	want := "mv /var/lib/kbnode/images.json /var/lib/kbnode/images.json.broken && kbnode image update"
	if got.Status != Warn || got.Findings[0].Fix != want {
		t.Errorf("%s, type %q", got.Status, got.Findings[0].Fix)
	}
}

func TestImageSchedule(t *testing.T) {
	t.Parallel()
	const id, line = "image-schedule", "0 3 * * * root kbnode image update --auto\n"
	written := map[string]string{plan.CronPath: line, "/etc/systemd/system/multi-user.target.wants/cron.service": ""}
	cron := func(u slot.Unit) *fake {
		f := updated(docker.Image{})
		f.plan = &plan.Plan{Files: []plan.File{{Path: plan.CronPath, Content: line}}}
		f.state = &reconcile.State{}
		f.units = []slot.Unit{u}
		return f
	}
	timer := func(active string) *fake {
		f := cron(slot.Unit{})
		f.plan = &plan.Plan{}
		f.state = &reconcile.State{Units: map[string]slot.Unit{plan.ImageTimer: {Active: active}}}
		return f
	}
	red := cron(slot.Unit{})
	red.inv = &inventory.Inventory{OS: inventory.OS{ID: "rocky"}}
	unit := func(name, active string) slot.Unit {
		return slot.Unit{Name: name, Load: "loaded", Active: active}
	}
	const off = "warn: crond.service does not run, or will not start after a reboot, so /etc/cron.d/kbnode does nothing then"
	const dead = "warn: cron does not run, so /etc/cron.d/kbnode does nothing and the image is never updated"
	play(t, []scene{
		{"cron", id, cron(unit("cron.service", "active")), written, "ok: 0 3 * * *, by cron.service", ""},
		{"crond, until a reboot", id, cron(unit("crond.service", "active")), written, off, "systemctl enable --now crond.service"},
		{"stopped", id, cron(unit("crond.service", "inactive")), written, off, "systemctl enable --now crond.service"},
		{"not installed", id, cron(slot.Unit{}), written, dead, "apt-get update && apt-get install -y cron && systemctl enable --now cron"},
		{"not installed on Rocky", id, red, written, dead, "dnf install -y cronie && systemctl enable --now crond"},
		{"the file is gone", id, cron(unit("cron.service", "active")), nil, "skip: /etc/cron.d/kbnode is not as planned; see as-planned", ""},
		{"a timer", id, timer("active"), nil, "ok: kbnode-image.timer", ""},
		{"no timer", id, timer("inactive"), nil, "skip: kbnode-image.timer does not run; see as-planned", ""},
		{"by hand", id, &fake{}, nil, "skip: kbnode does not update the image (image.auto_update)", ""},
	})
}
