package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/installer"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const dockerUnit = "docker.service"

// overlayRefused returns a finding if Docker does not start because its file asks for overlay2 on a file system that
// overlay2 refuses; without a detail if that is not why.
func overlayRefused(ctx context.Context, m *Machine) Finding {
	c, root, driver := readDaemon(ctx, m), "", ""
	_ = json.Unmarshal(c.Keys["storage-driver"], &driver) // what is no text is not overlay2
	_ = json.Unmarshal(c.Keys["data-root"], &root)
	root = cmp.Or(root, "/var/lib/docker")
	mounts, _ := m.Mounts("self")
	if at := host.MountOf(mounts, root); driver == "overlay2" && noOverlay(at.Kind) {
		return fail("%s does not start: %s asks for overlay2, and %s is on %s (%s), where that does not work", dockerUnit, host.DaemonJSON, root, at.Point, at.Kind).
			Advise("%s; or remove storage-driver from the file and start Docker", moveRoot)
	}
	return Finding{}
}

// engineDown returns why no engine answers.
func engineDown(ctx context.Context, m *Machine) Finding {
	why := m.problem("docker")
	u, err := m.unit(ctx, dockerUnit)
	_, noSocket := os.Stat(m.Path(m.Config.Docker.Socket))
	switch {
	case why == "" && !u.Exists(): // the inventory finds neither a socket nor dockerd
		return fail("Docker's engine is not installed").By("%s", installer.Docker.Command(m.Inventory.OS)).
			Advise("if there is no such package, add Docker's repository first: https://docs.docker.com/engine/install/")
	case err != nil || !u.Exists():
		return fail("%s", cmp.Or(why, "no engine answers on "+m.Config.Docker.Socket)).Advise("check that an engine listens on %s, or set docker.socket in %s", m.Config.Docker.Socket, plan.ConfigPath)
	case u.Load == "masked":
		return fail("%s is masked", dockerUnit).By("systemctl unmask docker.service docker.socket && systemctl enable --now docker")
	case (u.Active == "failed" || u.Sub == "auto-restart") && overlayRefused(ctx, m).Detail != "":
		return overlayRefused(ctx, m)
	case (u.Active == "failed" || u.Sub == "auto-restart") && installer.HasDNF(m.Inventory.OS) && len(lackingModules(m, dockerModules)) > 0:
		f := lackingModules(m, dockerModules)[0]
		return fail("%s keeps failing (%s, exit status %d): %s", dockerUnit, u.Result, u.ExitStatus, f.Detail).
			By("%s && systemctl reset-failed docker && systemctl restart docker", f.Fix)
	case u.Active == "failed" || u.Sub == "auto-restart":
		return fail("%s keeps failing (%s, exit status %d)", dockerUnit, u.Result, u.ExitStatus).
			Safely("systemctl reset-failed docker && systemctl start docker").Advise("if that fails too, sudo journalctl -u docker -n 30 says why")
	case !u.Running():
		return fail("%s is %s", dockerUnit, u.Active).Safely("systemctl start docker")
	case errors.Is(noSocket, fs.ErrNotExist):
		return fail("%s runs, but %s is missing", dockerUnit, m.Config.Docker.Socket).By("systemctl restart docker.socket docker.service")
	}
	return fail("%s", cmp.Or(why, "it does not answer")).By("systemctl restart docker").
		Advise("that ends all jobs; sudo journalctl -u docker -n 50 says what it hangs on")
}

func dockerConfig(ctx context.Context, m *Machine) Answer {
	c := readDaemon(ctx, m)
	if c.Problem != "" {
		return found(fail("%s", c.Problem).Advise("correct %s (check it with dockerd --validate --config-file %s), then run sudo systemctl restart docker, which ends jobs", host.DaemonJSON, host.DaemonJSON))
	}
	if c.Text == "" {
		return found(ok("no file"))
	}
	return found(ok("%s", text.Count(len(c.Keys), "key")))
}

func dockerEngine(ctx context.Context, m *Machine) Answer {
	if m.Inventory.Software.Docker.Version == "" {
		if m.Recorded != "" {
			return found(fail("%s", cmp.Or(m.problem("docker"), "no engine answered")).Advise("sudo kbnode doctor --only docker says why, on the machine"))
		}
		if readDaemon(ctx, m).Problem != "" {
			return found(skip("it does not answer and cannot start; see docker-config"))
		}
		return found(engineDown(ctx, m))
	}
	info, err := m.Source.Docker(ctx)
	if err != nil {
		return found(fail("it answered before, but does not now: %s", lines(err)).By("systemctl restart docker"))
	}
	return Answer{Findings: []Finding{ok("%s", cmp.Or(info.Version, "version unknown"))}, Keep: func(m *Machine) { m.Docker = &info }}
}

func dockerBoot(ctx context.Context, m *Machine) Answer {
	u, err := m.unit(ctx, dockerUnit)
	switch {
	case err != nil:
		return none("systemd does not answer: %s", lines(err))
	case !u.Exists():
		return none("%s does not exist; something else starts the engine", dockerUnit)
	case !m.StartsAtBoot(dockerUnit):
		return found(warn("%s is not enabled, so after a reboot it starts only on demand, or never", dockerUnit).Safely("systemctl enable docker"))
	}
	return found(ok("%s is enabled", dockerUnit))
}

func dockerLiveRestore(ctx context.Context, m *Machine) Answer {
	if m.Docker.LiveRestoreEnabled {
		return found(ok("on"))
	}
	return found(liveRestore.change(ctx, m, warn("live-restore is off, so a restart of dockerd ends the running jobs")))
}

func dockerVersion(_ context.Context, m *Machine) Answer {
	switch {
	case m.Docker.Version == "":
		return found(warn("the engine does not report its version").Advise("see sudo docker version"))
	case slices.ContainsFunc(m.Docker.Security, func(s string) bool { return strings.HasPrefix(s, "name=rootless") }):
		return found(fail("it runs without root, so no container can be placed in a slot's slice").Advise("set docker.socket to the socket of an engine that runs as root; " + Pages + "configuration.md has the key"))
	case strings.HasPrefix(m.Docker.RootDir, "/var/snap/"):
		return found(fail("it is the snap, which can read neither the slots' files nor CDI specifications").
			By("snap remove docker && %s", installer.Docker.Command(m.Inventory.OS)))
	case older(m.Docker.Version, "20.10"):
		return found(fail("%s is too old for cgroup v2, or is not Docker; the oldest supported version is 20.10", m.Docker.Version).Advise("install a newer one; Debian 12 and Ubuntu 22.04 have it as docker.io"))
	}
	return found(ok("%s, API %s", m.Docker.Version, m.Docker.APIVersion))
}

func dockerCgroupDriver(ctx context.Context, m *Machine) Answer {
	if m.Docker.CgroupDriver == "systemd" {
		return found(ok("systemd"))
	}
	return found(cgroupDriver.change(ctx, m, fail("it uses the driver %s, with which slices do not limit containers", cmp.Or(m.Docker.CgroupDriver, "unknown"))))
}

// readDaemon reads Docker's configuration.
func readDaemon(ctx context.Context, m *Machine) host.Dockerd {
	u, _ := m.unit(ctx, dockerUnit)
	return m.Dockerd(u.MainPID)
}

// daemonSetting is a setting of daemon.json that should change.
type daemonSetting struct {
	key string // of the file, or of a flag
	has string // text in the key's value that sed replaces; "" for any value
	sed string // "" if a person must decide
	add string // members that the file needs if it has none of the keys; "" if the key must go
	// restart is true if dockerd reads the setting only when it starts, which ends jobs.
	restart bool
}

var (
	liveRestore   = daemonSetting{"live-restore", "", `s/\("live-restore"[[:space:]]*:[[:space:]]*\)false/\1true/`, `"live-restore": true`, false}
	cgroupDriver  = daemonSetting{"exec-opts", "native.cgroupdriver=cgroupfs", `s/native.cgroupdriver=cgroupfs/native.cgroupdriver=systemd/`, `"exec-opts": ["native.cgroupdriver=systemd"]`, true}
	storageDriver = daemonSetting{"storage-driver", "", "", `"features": {"containerd-snapshotter": false}, "storage-driver": "overlay2"`, true}
	usernsRemap   = daemonSetting{"userns-remap", "", `s/\("userns-remap"[[:space:]]*:[[:space:]]*\)"[^"]*"/\1""/`, "", true}
	cdi           = daemonSetting{"features", `"cdi"`, `s/\("cdi"[[:space:]]*:[[:space:]]*\)false/\1true/`, `"features": {"cdi": true}`, true}
)

// change says how to change the setting. The rest of the file may be secret and is not repeated.
func (s daemonSetting) change(ctx context.Context, m *Machine, f Finding) Finding {
	d, action, edit := readDaemon(ctx, m), "reload", ""
	if s.restart {
		action = "restart"
	}
	switch flag := d.Flag(s.key); {
	case m.Recorded != "": // the file on the machine may have other keys
		return f.Advise("on the machine, type sudo kbnode doctor --only docker: it prints the command")
	case flag != "":
		return f.Advise("dockerd is started with %s: run sudo systemctl edit --full docker, remove it, then run sudo systemctl restart docker", flag)
	case d.Problem == "" && d.Has(s.key) && s.sed != "" && strings.Contains(string(d.Keys[s.key]), s.has):
		edit = fmt.Sprintf("sed -i '%s' %s", s.sed, host.DaemonJSON)
	case d.Problem == "" && len(d.Keys) == 0 && s.add != "":
		edit = fmt.Sprintf("mkdir -p /etc/docker && echo '{%s}' >%s", s.add, host.DaemonJSON)
	case d.Problem == "" && !d.Has(s.key) && !d.Has("features") && s.add != "":
		edit = fmt.Sprintf("sed -i '0,/{/s//{%s, /' %s", s.add, host.DaemonJSON)
	case s.add == "":
		return f.Advise("remove %s from %s, or from dockerd's command line (systemctl cat docker), then run sudo systemctl %s docker", s.key, host.DaemonJSON, action)
	default:
		return f.Advise("put %s into %s, then run sudo systemctl %s docker", s.add, host.DaemonJSON, action)
	}
	f.Safe = !s.restart
	return f.By("%s && systemctl %s docker", edit, action)
}

func dockerStorageDriver(ctx context.Context, m *Machine) Answer {
	driver := m.Docker.StorageDriver
	switch {
	case driver == "overlay2":
		return found(ok("overlay2"))
	case m.Config.Job.Profile == config.ProfileStrict:
		return found(ok("%s; containers of the strict profile do not write to layers", driver))
	}
	if m.Docker.Snapshotter {
		driver += " of the containerd image store"
	}
	f := warn("the storage driver is %s, whose layers no slot's disk limits: a job can fill Docker's disk; with job.profile: strict, it cannot", cmp.Or(driver, "unknown"))
	mounts, _ := m.Mounts("self")
	if at := host.MountOf(mounts, m.Docker.RootDir); noOverlay(at.Kind) { // with overlay2, Docker would not start
		return found(f.Advise("first %s; then set \"storage-driver\": \"overlay2\" there", moveRoot))
	}
	return found(storageDriver.change(ctx, m, f))
}

// moveRoot is how to move Docker's images to another disk.
const moveRoot = "set data-root in " + host.DaemonJSON + " to a directory on an ext4 or XFS disk, then run sudo systemctl restart docker; the images are pulled again"

// remote are file systems of other machines.
var remote = []string{"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "glusterfs", "afs", "virtiofs", "gpfs", "beegfs"}

func isRemote(kind string) bool {
	return slices.Contains(remote, kind) || strings.HasPrefix(kind, "fuse")
}

// noOverlay reports whether Docker's overlay2 driver does not start on a file system: it refuses the local ones
// by their number.
func noOverlay(kind string) bool {
	return isRemote(kind) || slices.Contains([]string{"zfs", "overlay", "aufs", "ecryptfs"}, kind)
}

// moveContainerd is how to move the images of the containerd image store to another disk.
const moveContainerd = "set root in /etc/containerd/config.toml to a directory on an ext4 or XFS disk, then run sudo systemctl restart containerd docker; the images are pulled again"

func dockerRoot(_ context.Context, m *Machine) Answer {
	mounts, _ := m.Mounts("self")
	var wrong []Finding
	root := m.Docker.RootDir
	at := host.MountOf(mounts, root)
	switch {
	case at.Kind == "":
		return none("the kernel does not say what %s is on", cmp.Or(root, "it"))
	case isRemote(at.Kind):
		wrong = append(wrong, fail("%s is on %s (%s), a network file system: overlay2 does not work there, and every job waits for it", root, at.Point, at.Kind).Advise("%s", moveRoot))
	case at.Kind == "overlay":
		wrong = append(wrong, fail("%s is on an overlay, so this is a container or a live system and does not keep images", root).Advise("%s", moveRoot))
	case noOverlay(at.Kind):
		wrong = append(wrong, warn("%s is on %s (%s), where overlay2 does not start, and the layers of Docker's other drivers no slot's disk limits", root, at.Point, at.Kind).Advise("%s", moveRoot))
	case at.Kind == "tmpfs" || at.Kind == "ramfs":
		wrong = append(wrong, warn("%s is in memory (%s), so images take memory from jobs and are lost at a reboot", root, at.Kind).Advise("%s", moveRoot))
	}
	if dir := m.Docker.ContainerdDir(); dir != "" { // which has the images, in place of Docker's own
		switch images := host.MountOf(mounts, dir); {
		case images.Point == at.Point:
		case isRemote(images.Kind):
			wrong = append(wrong, fail("%s, which has the images, is on %s (%s), a network file system: containers do not start there, and every job waits for it", dir, images.Point, images.Kind).Advise("%s", moveContainerd))
		case images.Kind == "overlay":
			wrong = append(wrong, fail("%s, which has the images, is on an overlay, on which containers do not start", dir).Advise("%s", moveContainerd))
		case images.Kind == "tmpfs" || images.Kind == "ramfs":
			wrong = append(wrong, warn("%s, which has the images, is in memory (%s), so they take memory from jobs and are lost at a reboot", dir, images.Kind).Advise("%s", moveContainerd))
		}
	}
	return foundOr(wrong, ok("%s, %s", root, at.Kind))
}
