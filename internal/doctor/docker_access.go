package doctor

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/lazy"
)

// apiOpen matches the address in the engine's warning about its open API.
var apiOpen = lazy.Regexp(`API is accessible on (\S+) without (encryption|TLS client verification)`)

// dockerAccessChecks check who reaches the engine, and what it denies jobs.
var dockerAccessChecks = []Check{
	{
		ID: "docker-api", Group: "docker", Bare: true, Worst: Fail, Needs: []string{"docker-engine"},
		About: "the engine does not listen on a network without certificates",
		Run: func(ctx context.Context, m *Machine) Answer {
			for _, w := range m.Docker.Warnings {
				at := apiOpen().FindStringSubmatch(w)
				if at == nil {
					continue
				}
				f := fail("the engine is open on %s: anyone who can reach it, including a job's host commands, is root here", at[1])
				if flag := readDaemon(ctx, m).flag("hosts"); strings.Contains(flag, "tcp:") {
					return found(f.advise("dockerd is started with %s: run systemctl edit --full docker, remove it, then run systemctl restart docker", flag))
				}
				return found(f.advise("remove the tcp:// address from hosts in %s, or from dockerd's command line (systemctl cat docker), then run systemctl restart docker", daemonJSON))
			}
			return found(ok("only its socket, or with certificates"))
		},
	},
	{
		ID: "docker-socket", Group: "docker", Bare: true, Worst: Fail, Needs: []string{"docker-engine"},
		About: "Docker's socket is closed to users outside its group",
		Run: func(_ context.Context, m *Machine) Answer {
			name := m.Config.Docker.Socket
			info, err := os.Stat(m.path(name))
			switch {
			case err != nil:
				return found(warn("%s", err).advise("check why %s cannot be read", name))
			case info.Mode().Perm()&0o007 != 0:
				return found(fail("%s has mode %04o, so any user of this machine, and any host command of a job, can become root", name, info.Mode().Perm()).safely("chmod 0660 %s", name))
			}
			return found(ok("%s, mode %04o", name, info.Mode().Perm()))
		},
	},
	{
		ID: "docker-group", Group: "docker", Bare: true, Worst: Fail, Needs: []string{"config"},
		About: "no user that runs jobs can use Docker's own socket",
		Run: func(_ context.Context, m *Machine) Answer {
			groups, err := m.read("/etc/group")
			users, errUsers := m.read("/etc/passwd")
			if err = cmp.Or(err, errUsers); err != nil {
				return found(warn("%s", err).advise("check why it cannot be read"))
			}
			var all []Finding
			var others []string
			for _, member := range socketUsers(groups, users, m.socketGroup()) {
				switch user, group := member[0], member[1]; {
				case user == "buildkite-agent" || strings.HasPrefix(user, "kbnode-gpu"):
					f := fail("%s is in group %s, so anything that runs as this user can become root with docker run -v /:/host", user, group)
					if slot, err := strconv.Atoi(strings.TrimPrefix(user, "kbnode-gpu")); err == nil {
						f = f.of(slot)
					}
					if member[2] == "" { // listed, not the user's own group
						all = append(all, f.safely("gpasswd -d %s %s", user, group))
					} else {
						all = append(all, f.advise("give the user its own group: usermod -g %s %s", user, user))
					}
				case user != "root":
					others = append(others, user)
				}
			}
			switch {
			case len(all) > 0:
				return Answer{Findings: all}
			case len(others) > 0:
				return found(ok("operators, as good as root: %s", strings.Join(others, ", ")))
			}
			return found(ok("only root"))
		},
	},
	{
		ID: "docker-userns", Group: "docker", Bare: true, Worst: Fail, Needs: []string{"docker-engine"},
		About: "Docker does not remap user IDs",
		Run: func(ctx context.Context, m *Machine) Answer {
			if !slices.Contains(m.Docker.Security, "name=userns") {
				return found(ok("not remapped"))
			}
			f := fail("userns-remap is on, so jobs cannot write to their checkouts")
			if flag := readDaemon(ctx, m).flag("userns-remap"); flag != "" {
				return found(f.advise("dockerd is started with %s: run systemctl edit --full docker, remove it, then run systemctl restart docker", flag))
			}
			return found(f.by(`sed -i 's/\("userns-remap"[[:space:]]*:[[:space:]]*\)"[^"]*"/\1""/' %s && systemctl restart docker`, daemonJSON))
		},
	},
	{
		ID: "docker-seccomp", Group: "docker", Bare: true, Worst: Fail, Needs: []string{"docker-engine"},
		About: "Docker blocks system calls that containers do not need",
		Run: func(_ context.Context, m *Machine) Answer {
			profile, seccomp, armor := "", false, false
			for _, s := range m.Docker.Security {
				if rest, is := strings.CutPrefix(s, "name=seccomp"); is {
					seccomp, profile = true, strings.TrimPrefix(rest, ",profile=")
				}
				armor = armor || strings.HasPrefix(s, "name=apparmor")
			}
			on, _ := m.read("/sys/module/apparmor/parameters/enabled")
			switch {
			case !seccomp:
				return found(fail("the kernel or the engine has no seccomp, so a job can make any system call").advise("install the distribution's own kernel and Docker; both have it"))
			case profile == "unconfined":
				return found(fail("the seccomp profile is unconfined, so a job can make any system call").advise("remove seccomp-profile from %s, or from dockerd's command line, then run systemctl restart docker", daemonJSON))
			case strings.TrimSpace(on) == "Y" && !armor:
				return found(warn("the kernel has AppArmor, but Docker does not use it").by("%s && systemctl restart docker", "apt-get update && apt-get install -y apparmor"))
			}
			return found(ok("profile %s", cmp.Or(profile, "default")))
		},
	},
	{
		ID: "docker-network", Group: "docker", Bare: true, Worst: Fail, Needs: []string{"docker-engine"},
		About: "containers can reach the network",
		Run: func(ctx context.Context, m *Machine) Answer {
			if m.Config.Job.Network == config.NetworkNone {
				return none("jobs have no network (job.network: none)")
			}
			c := readDaemon(ctx, m)
			for _, key := range []string{"iptables", "ip-masq"} {
				if c.off(key) {
					return found(fail("%s is off in Docker, so jobs get no replies from the network", key).
						advise("remove it from %s, or from dockerd's command line, and run systemctl restart docker; or set job.network: none", daemonJSON))
				}
			}
			if on, err := m.read("/proc/sys/net/ipv4/ip_forward"); err == nil && strings.TrimSpace(on) == "0" {
				return found(fail("net.ipv4.ip_forward is 0, so jobs reach nothing").safely("sysctl -w net.ipv4.ip_forward=1").
					advise("if it comes back, see grep -r ip_forward /etc/sysctl.conf /etc/sysctl.d"))
			}
			return found(ok("forwarded and masqueraded"))
		},
	},
}

// socketGroup returns the group that owns Docker's socket, or -1 if there is no socket.
func (m *Machine) socketGroup() int {
	info, err := os.Stat(m.path(m.Config.Docker.Socket))
	if err != nil {
		return -1
	}
	if st, is := info.Sys().(*syscall.Stat_t); is {
		return int(st.Gid)
	}
	return -1
}

// socketUsers returns the users who may use Docker's socket, each with the group, and with
// "own" if that is the user's primary group.
func socketUsers(groups, users string, gid int) [][3]string {
	var list [][3]string
	for line := range strings.Lines(groups) {
		g := strings.Split(strings.TrimSpace(line), ":")
		if len(g) < 4 || g[0] != "docker" && (g[2] != strconv.Itoa(gid) || g[2] == "0") {
			continue
		}
		for _, user := range strings.FieldsFunc(g[3], func(r rune) bool { return r == ',' }) {
			list = append(list, [3]string{user, g[0], ""})
		}
		for line := range strings.Lines(users) {
			if u := strings.Split(line, ":"); len(u) > 3 && u[3] == g[2] {
				list = append(list, [3]string{u[0], g[0], "own"})
			}
		}
	}
	return list
}
