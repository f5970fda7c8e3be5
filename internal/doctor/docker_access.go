package doctor

import (
	"cmp"
	"context"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/host"
	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// apiOpen matches the address in the engine's warning about its open API.
var apiOpen = lazy.Regexp(`API is accessible on (\S+) without (encryption|TLS client verification)`)

// socketUser is a user who may use Docker's socket through a group.
type socketUser struct {
	name, group string
	own         bool // it is the user's primary group
}

func socketUsers(groups []host.Group, users map[string]reconcile.UserState, gid int) (list []socketUser) {
	for _, g := range groups {
		if g.Name != "docker" && (g.GID != strconv.Itoa(gid) || gid == 0) {
			continue
		}
		for _, name := range g.Members {
			list = append(list, socketUser{name, g.Name, false})
		}
		for _, name := range slices.Sorted(maps.Keys(users)) {
			if strconv.Itoa(users[name].GID) == g.GID {
				list = append(list, socketUser{name, g.Name, true})
			}
		}
	}
	return list
}

func dockerApi(ctx context.Context, m *Machine) Answer {
	for _, w := range m.Docker.Warnings {
		at := apiOpen().FindStringSubmatch(w)
		if at == nil {
			continue
		}
		f := fail("the engine is open on %s: anyone who can reach it is root here", at[1])
		if flag := readDaemon(ctx, m).Flag("hosts"); strings.Contains(flag, "tcp:") {
			return found(withoutFlag(f, flag))
		}
		return found(f.Advise("remove the tcp:// address from hosts in %s, or from dockerd's command line (systemctl cat docker), then run sudo systemctl restart docker", host.DaemonJSON))
	}
	return found(ok("only its socket, or with certificates"))
}

func dockerSocket(_ context.Context, m *Machine) Answer {
	name := m.Config.Docker.Socket
	info, err := os.Stat(m.Path(name))
	switch {
	case err != nil:
		return found(warn("%s", err).Advise("check why %s cannot be read", name))
	case info.Mode().Perm()&0o007 != 0:
		return found(fail("%s has mode %04o, so any user of this machine can become root", name, info.Mode().Perm()).Safely("chmod 0660 %s", name))
	}
	return found(ok("%s, mode %04o", name, info.Mode().Perm()))
}

func dockerGroup(_ context.Context, m *Machine) Answer {
	groups, err := m.Groups()
	users, errUsers := reconcile.ReadUsers(m.Root)
	if err = cmp.Or(err, errUsers); err != nil {
		return found(warn("%s", err).Advise("check why it cannot be read"))
	}
	var all []Finding
	var others []string
	_, gid, _ := m.TargetOwner(m.Config.Docker.Socket)
	for _, u := range socketUsers(groups, users, gid) {
		switch {
		case u.name == "buildkite-agent" || u.name == plan.GitUser || strings.HasPrefix(u.name, "kbnode-gpu"):
			f := fail("%s is in group %s, so anything that runs as this user can become root with docker run -v /:/host", u.name, u.group)
			if slot, err := strconv.Atoi(strings.TrimPrefix(u.name, "kbnode-gpu")); err == nil {
				f = f.Of(slot)
			}
			if u.own {
				all = append(all, f.Advise("give the user its own group: sudo usermod -g %s %[1]s", u.name))
			} else {
				all = append(all, f.Safely("gpasswd -d %s %s", u.name, u.group))
			}
		case u.name != "root":
			others = append(others, u.name)
		}
	}
	switch {
	case len(all) > 0:
		return found(all...)
	case len(others) > 0:
		return found(ok("operators, as good as root: %s", strings.Join(others, ", ")))
	}
	return found(ok("only root"))
}

func dockerUserns(ctx context.Context, m *Machine) Answer {
	if !slices.Contains(m.Docker.Security, "name=userns") {
		return found(ok("not remapped"))
	}
	f := fail("userns-remap is on, so jobs cannot write to their checkouts")
	if flag := readDaemon(ctx, m).Flag("userns-remap"); flag != "" {
		return found(withoutFlag(f, flag))
	}
	return found(f.By(`sed -i 's/\("userns-remap"[[:space:]]*:[[:space:]]*\)"[^"]*"/\1""/' %s && systemctl restart docker`, host.DaemonJSON))
}

func dockerSeccomp(_ context.Context, m *Machine) Answer {
	profile, seccomp, armor := "", false, false
	for _, s := range m.Docker.Security {
		if rest, is := strings.CutPrefix(s, "name=seccomp"); is {
			seccomp, profile = true, strings.TrimPrefix(rest, ",profile=")
		}
		armor = armor || strings.HasPrefix(s, "name=apparmor")
	}
	switch {
	case !seccomp:
		return found(fail("the kernel or the engine has no seccomp, so a job can make any system call").Advise("install the distribution's own kernel and Docker; both have it"))
	case profile == "unconfined":
		return found(fail("the seccomp profile is unconfined, so a job can make any system call").Advise("remove seccomp-profile from %s, or from dockerd's command line, then run sudo systemctl restart docker", host.DaemonJSON))
	case m.Value("/sys/module/apparmor/parameters/enabled") == "Y" && !armor:
		return found(warn("the kernel has AppArmor, but Docker does not use it").By("%s && systemctl restart docker", "apt-get update && apt-get install -y apparmor"))
	}
	return found(ok("profile %s", cmp.Or(profile, "default")))
}

func dockerNetwork(ctx context.Context, m *Machine) Answer {
	if m.Config.Job.Network == config.NetworkNone {
		return none("jobs have no network (job.network: none)")
	}
	c := readDaemon(ctx, m)
	for _, key := range []string{"iptables", "ip-masq"} {
		if c.Off(key) {
			return found(fail("%s is off in Docker, so jobs get no replies from the network", key).
				Advise("remove it from %s, or from dockerd's command line, and run sudo systemctl restart docker; or set job.network: none", host.DaemonJSON))
		}
	}
	if m.Value("/proc/sys/net/ipv4/ip_forward") == "0" {
		return found(fail("net.ipv4.ip_forward is 0, so jobs reach nothing").Safely("sysctl -w net.ipv4.ip_forward=1").
			Advise("if it comes back, see grep -r ip_forward /etc/sysctl.conf /etc/sysctl.d"))
	}
	return found(ok("forwarded and masqueraded"))
}
