package doctor

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/host"
	"github.com/gpu-mode/kbnode/internal/installer"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/text"
)

const dockerUnit = "docker.service"

// client returns the path of Docker's command-line client, which distributions package without the
// engine, or "".
func (m *Machine) client() string {
	for _, name := range []string{"/usr/bin/docker", "/usr/local/bin/docker"} {
		if _, err := os.Stat(m.Path(name)); err == nil {
			return name
		}
	}
	return ""
}

// engineDown returns why no engine answers.
func engineDown(ctx context.Context, m *Machine) Finding {
	why := m.problem("docker")
	u, err := m.unit(ctx, dockerUnit)
	_, noSocket := os.Stat(m.Path(m.Config.Docker.Socket))
	switch {
	case why == "" && !u.Exists(): // the inventory finds neither a socket nor dockerd
		what := "Docker is not installed"
		if name := m.client(); name != "" {
			what = "the engine is not installed, only its client " + name
		}
		return fail("%s", what).By("%s", installer.Docker.Command(m.Inventory.OS)).
			Advise("if there is no such package, add Docker's repository first: https://docs.docker.com/engine/install/")
	case err != nil || !u.Exists():
		return fail("%s", cmp.Or(why, "no engine answers on "+m.Config.Docker.Socket)).Advise("check that an engine listens on %s, or set docker.socket in %s", m.Config.Docker.Socket, plan.ConfigPath)
	case u.Load == "masked":
		return fail("%s is masked", dockerUnit).By("systemctl unmask docker.service docker.socket && systemctl enable --now docker")
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
	if why := startProblem(ctx, m, "docker-config"); why != "" {
		return found(fail("%s", why).Advise("correct %s (check it with dockerd --validate --config-file %s), then run sudo systemctl restart docker, which ends jobs", host.DaemonJSON, host.DaemonJSON))
	}
	c := readDaemon(ctx, m)
	if c.Text == "" {
		return found(ok("no file"))
	}
	return found(ok("%d %s", len(c.Keys), text.Plural(len(c.Keys), "key", "keys")))
}

func dockerEngine(ctx context.Context, m *Machine) Answer {
	if m.Inventory.Software.Docker.Version == "" {
		if startProblem(ctx, m, "docker-engine") != "" {
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
	f := warn("live-restore is off, so a restart of dockerd ends the running jobs")
	c := readDaemon(ctx, m)
	switch {
	case c.Flag("live-restore") != "":
		return found(withoutFlag(f, c.Flag("live-restore")))
	case c.Problem != "":
		return found(f.Advise(`put "live-restore": true into %s, then run sudo systemctl reload docker`, host.DaemonJSON))
	case c.Has("live-restore"):
		return found(f.Safely(`sed -i 's/\("live-restore"[[:space:]]*:[[:space:]]*\)false/\1true/' %s && systemctl reload docker`, host.DaemonJSON))
	}
	return found(f.Safely("%s && systemctl reload docker", addKeys(c, `"live-restore": true`)))
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

func dockerCgroupVersion(_ context.Context, m *Machine) Answer {
	if v := m.Docker.CgroupVersion; v != "2" {
		return found(fail("it uses version %s, where a slice cannot have its own CPUs and memory nodes", cmp.Or(v, "1")).
			Advise("boot with systemd.unified_cgroup_hierarchy=1 on the kernel command line: GRUB_CMDLINE_LINUX in /etc/default/grub, then sudo update-grub (RHEL: sudo grubby --update-kernel=ALL --args=…) and reboot"))
	}
	return found(ok("version 2"))
}

func dockerCgroupDriver(ctx context.Context, m *Machine) Answer {
	if m.Docker.CgroupDriver == "systemd" {
		return found(ok("systemd"))
	}
	f := fail("it uses the driver %s, with which slices do not limit containers", cmp.Or(m.Docker.CgroupDriver, "unknown"))
	switch c := readDaemon(ctx, m); {
	case strings.Contains(c.Text, "native.cgroupdriver=cgroupfs"):
		return found(f.By("sed -i 's/native.cgroupdriver=cgroupfs/native.cgroupdriver=systemd/' %s && systemctl restart docker", host.DaemonJSON))
	case c.Flag("exec-opts") != "":
		return found(withoutFlag(f, c.Flag("exec-opts")))
	case c.Problem == "" && !c.Has("exec-opts"):
		return found(f.By("%s && systemctl restart docker", addKeys(c, `"exec-opts": ["native.cgroupdriver=systemd"]`)))
	}
	return found(f.Advise(`put "native.cgroupdriver=systemd" into exec-opts of %s, then run sudo systemctl restart docker`, host.DaemonJSON))
}
