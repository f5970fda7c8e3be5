package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/installer"
	"github.com/gpu-mode/kbnode/internal/plan"
)

const dockerUnit = "docker.service"

var dockerChecks = slices.Concat(engineChecks, []Check{runcCheck}, dockerDiskChecks, dockerAccessChecks, []Check{lanCheck}, dockerGPUChecks)

// engineChecks check the engine itself.
var engineChecks = []Check{
	{
		ID: "docker-config", Group: "docker", Bare: true, Worst: Fail,
		About: "Docker can start with its daemon.json",
		Run: func(ctx context.Context, m *Machine) Answer {
			if why := startProblem(ctx, m, "docker-config"); why != "" {
				return found(fail("%s", why).advise("correct %s (check it with dockerd --validate --config-file %s), then run systemctl restart docker, which ends jobs", daemonJSON, daemonJSON))
			}
			c := readDaemon(ctx, m)
			if c.text == "" {
				return found(ok("no file"))
			}
			if len(c.keys) == 1 {
				return found(ok("1 key"))
			}
			return found(ok("%d keys", len(c.keys)))
		},
	},
	{
		ID: "docker-engine", Group: "docker", Bare: true, Worst: Fail, Needs: []string{"inventory"},
		About: "the Docker engine answers",
		Run: func(ctx context.Context, m *Machine) Answer {
			if m.Inventory.Software.Docker.Version == "" {
				if startProblem(ctx, m, "docker-engine") != "" {
					return found(skip("it does not answer and cannot start; see docker-config"))
				}
				return found(engineDown(ctx, m))
			}
			info, err := m.Source.Docker(ctx)
			if err != nil {
				return found(fail("it answered before, but does not now: %s", lines(err)).by("systemctl restart docker"))
			}
			return Answer{Findings: []Finding{ok("%s", cmp.Or(info.Version, "version unknown"))}, Keep: func(m *Machine) { m.Docker = &info }}
		},
	},
	{
		ID: "docker-boot", Group: "docker", Bare: true, Worst: Warn, Needs: []string{"docker-engine"},
		About: "Docker starts at boot",
		Run: func(ctx context.Context, m *Machine) Answer {
			u, err := m.unit(ctx, dockerUnit)
			switch {
			case err != nil:
				return none("systemd does not answer: %s", lines(err))
			case !u.Exists():
				return none("%s does not exist; something else starts the engine", dockerUnit)
			case !m.linked(dockerUnit):
				return found(warn("%s is not enabled, so after a reboot it starts only on demand, or never", dockerUnit).safely("systemctl enable docker"))
			}
			return found(ok("%s is enabled", dockerUnit))
		},
	},
	{
		ID: "docker-version", Group: "docker", Bare: true, Worst: Fail, Needs: []string{"docker-engine"},
		About: "kbnode supports this engine",
		Run: func(_ context.Context, m *Machine) Answer {
			major, minor := release(m.Docker.Version)
			switch {
			case m.Docker.Version == "":
				return found(warn("the engine does not report its version").advise("see docker version"))
			case slices.ContainsFunc(m.Docker.Security, func(s string) bool { return strings.HasPrefix(s, "name=rootless") }):
				return found(fail("it runs without root, so no container can be placed in a slot's slice").advise("set docker.socket to the socket of an engine that runs as root; " + Pages + "configuration.md has the key"))
			case strings.HasPrefix(m.Docker.RootDir, "/var/snap/"):
				return found(fail("it is the snap, which can read neither the slots' files nor CDI specifications").
					by("snap remove docker && %s", installer.Docker.Command(m.Inventory.OS)))
			case major < 20 || major == 20 && minor < 10:
				return found(fail("%s is too old for cgroup v2, or is not Docker; the oldest supported version is 20.10", m.Docker.Version).advise("install a newer one; Debian 12 and Ubuntu 22.04 have it as docker.io"))
			}
			return found(ok("%s, API %s", m.Docker.Version, m.Docker.APIVersion))
		},
	},
	{
		ID: "docker-cgroup-version", Group: "docker", Bare: true, Worst: Fail, Needs: []string{"docker-engine"},
		About: "Docker uses cgroup v2",
		Run: func(_ context.Context, m *Machine) Answer {
			if v := m.Docker.CgroupVersion; v != "2" {
				return found(fail("it uses version %s, where a slice cannot have its own CPUs and memory nodes", cmp.Or(v, "1")).
					advise("boot with systemd.unified_cgroup_hierarchy=1 on the kernel command line: GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub (RHEL: grubby --update-kernel=ALL --args=…) and reboot"))
			}
			return found(ok("version 2"))
		},
	},
	{
		ID: "docker-cgroup-driver", Group: "docker", Bare: true, Worst: Fail, Needs: []string{"docker-cgroup-version"},
		About: "Docker puts containers into systemd slices",
		Run: func(ctx context.Context, m *Machine) Answer {
			if m.Docker.CgroupDriver == "systemd" {
				return found(ok("systemd"))
			}
			f := fail("it uses the driver %s, with which slices do not limit containers", cmp.Or(m.Docker.CgroupDriver, "unknown"))
			switch c := readDaemon(ctx, m); {
			case strings.Contains(c.text, "native.cgroupdriver=cgroupfs"):
				return found(f.by("sed -i 's/native.cgroupdriver=cgroupfs/native.cgroupdriver=systemd/' %s && systemctl restart docker", daemonJSON))
			case c.flag("exec-opts") != "":
				return found(f.advise("dockerd is started with %s: run systemctl edit --full docker, remove it, then run systemctl restart docker", c.flag("exec-opts")))
			case c.problem == "" && !c.has("exec-opts"):
				return found(f.by("%s && systemctl restart docker", c.add(`"exec-opts": ["native.cgroupdriver=systemd"]`)))
			}
			return found(f.advise(`put "native.cgroupdriver=systemd" into exec-opts of %s, then run systemctl restart docker`, daemonJSON))
		},
	},
}

// engineDown returns why no engine answers.
func engineDown(ctx context.Context, m *Machine) Finding {
	why := m.problem("docker")
	u, err := m.unit(ctx, dockerUnit)
	_, noSocket := os.Stat(m.path(m.Config.Docker.Socket))
	switch {
	case why == "" && !u.Exists(): // the inventory finds neither a socket nor dockerd
		return fail("Docker is not installed").by("%s", installer.Docker.Command(m.Inventory.OS)).
			advise("if there is no such package, add Docker's repository first: https://docs.docker.com/engine/install/")
	case err != nil || !u.Exists():
		return fail("%s", cmp.Or(why, "no engine answers on "+m.Config.Docker.Socket)).advise("check that an engine listens on %s, or set docker.socket in %s", m.Config.Docker.Socket, plan.ConfigPath)
	case u.Load == "masked":
		return fail("%s is masked", dockerUnit).by("systemctl unmask docker.service docker.socket && systemctl enable --now docker")
	case u.Active == "failed" || u.Sub == "auto-restart":
		return fail("%s keeps failing (%s, exit status %d)", dockerUnit, u.Result, u.ExitStatus).
			safely("systemctl reset-failed docker && systemctl start docker").advise("if that fails too, journalctl -u docker -n 30 says why")
	case !u.Running():
		return fail("%s is %s", dockerUnit, u.Active).safely("systemctl start docker")
	case errors.Is(noSocket, fs.ErrNotExist):
		return fail("%s runs, but %s is missing", dockerUnit, m.Config.Docker.Socket).by("systemctl restart docker.socket docker.service")
	}
	return fail("%s", cmp.Or(why, "it does not answer")).by("systemctl restart docker").
		advise("that ends all jobs; journalctl -u docker -n 50 says what it hangs on")
}

// linked reports whether systemd starts a unit at boot.
func (m *Machine) linked(unit string) bool {
	for _, kind := range []string{"wants", "requires"} {
		if names, _ := filepath.Glob(m.path(plan.UnitDir + "/*." + kind + "/" + unit)); len(names) > 0 {
			return true
		}
	}
	return false
}

// release returns the first two numbers of a version, such as 28 and 5 of "28.5.2". A
// missing number is 0.
func release(version string) (major, minor int) {
	parts := strings.FieldsFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	number := func(i int) int {
		if i >= len(parts) {
			return 0
		}
		n, _ := strconv.Atoi(parts[i])
		return n
	}
	return number(0), number(1)
}

// gib formats a size for people.
func gib(bytes int64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }
