package doctor

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/host"
	"github.com/gpu-mode/kbnode/internal/lazy"
)

// apiOpen matches the address in the engine's warning about its open API.
var apiOpen = lazy.Regexp(`API is accessible on (\S+) without (encryption|TLS client verification)`)

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
