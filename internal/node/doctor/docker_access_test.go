package doctor

import (
	"os"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestDockerDiskChecks(t *testing.T) {
	t.Parallel()
	mounts := func(lines string) map[string]string { return map[string]string{"/proc/self/mountinfo": lines} }
	root := engine(docker.Info{RootDir: "/var/lib/docker"})
	store := engine(docker.Info{StorageDriver: "overlayfs", RootDir: "/var/lib/docker", Snapshotter: true})
	strict := engine(docker.Info{StorageDriver: "overlayfs"})
	full := config.Config{Job: config.Job{Profile: config.ProfileStrict}}.WithDefaults()
	strict.cfg = &full
	onZFS := engine(docker.Info{StorageDriver: "zfs", RootDir: "/var/lib/docker"})
	play(t, []scene{
		{"overlay2", "docker-storage-driver", engine(docker.Info{StorageDriver: "overlay2"}), nil, "ok: overlay2", ""},
		{"containerd's store", "docker-storage-driver", store, nil, "warn: the storage driver is overlayfs of the containerd image store, whose layers no slot's disk limits: a job can fill Docker's disk; with job.profile: strict, it cannot",
			`mkdir -p /etc/docker && echo '{"features": {"containerd-snapshotter": false}, "storage-driver": "overlay2"}' >/etc/docker/daemon.json && systemctl restart docker`},
		{"that, asked for", "docker-storage-driver", store, file(`{"features": {"containerd-snapshotter": true}}`), "warn: the storage driver is overlayfs of the containerd image store, whose layers no slot's disk limits: a job can fill Docker's disk; with job.profile: strict, it cannot", ""},
		{"the strict profile", "docker-storage-driver", strict, nil, "ok: overlayfs; containers of the strict profile do not write to layers", ""},

		{"a disk", "docker-root", root, mounts("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 8:2 / /var/lib rw shared:1 - xfs /dev/sda2 rw\n31 22 0:5 / /var/lib/dock rw - tmpfs x rw\n"), "ok: /var/lib/docker, xfs", ""},
		{"a network", "docker-root", root, mounts("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:40 / /var/lib/docker rw - nfs4 s:/x rw\n"), "fail: /var/lib/docker is on /var/lib/docker (nfs4), a network file system: overlay2 does not work there, and every job waits for it", ""},
		{"ZFS", "docker-root", root, mounts("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:40 / /var/lib/docker rw - zfs tank/docker rw\n"), "warn: /var/lib/docker is on /var/lib/docker (zfs), where overlay2 does not start, and the layers of Docker's other drivers no slot's disk limits", ""},
		{"the root on ZFS", "docker-root", root, mounts("22 1 0:30 / / rw - zfs rpool/ROOT rw\n"), "warn: /var/lib/docker is on / (zfs), where overlay2 does not start, and the layers of Docker's other drivers no slot's disk limits", ""},
		{"ZFS", "docker-storage-driver", onZFS, mounts("22 1 0:30 / / rw - zfs rpool/ROOT rw\n"), "warn: the storage driver is zfs, whose layers no slot's disk limits: a job can fill Docker's disk; with job.profile: strict, it cannot", ""},
		{"eCryptfs", "docker-storage-driver", onZFS, mounts("22 1 0:30 / / rw - ecryptfs x rw\n"), "warn: the storage driver is zfs, whose layers no slot's disk limits: a job can fill Docker's disk; with job.profile: strict, it cannot", ""},
		{"containerd's images on a network", "docker-root", store, mounts("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:40 / /var/lib/containerd rw - nfs4 s:/x rw\n"),
			"fail: /var/lib/containerd, which has the images, is on /var/lib/containerd (nfs4), a network file system: containers do not start there, and every job waits for it", ""},
		{"containerd's images in memory", "docker-root", store, mounts("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:40 / /var/lib/containerd rw - tmpfs tmpfs rw\n"),
			"warn: /var/lib/containerd, which has the images, is in memory (tmpfs), so they take memory from jobs and are lost at a reboot", ""},
		{"containerd's images on a disk", "docker-root", store, mounts("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:40 / /var/lib/containerd rw - xfs /dev/sdb rw\n"), "ok: /var/lib/docker, ext4", ""},
		{"containerd's directory of another store", "docker-root", root, mounts("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:40 / /var/lib/containerd rw - nfs4 s:/x rw\n"), "ok: /var/lib/docker, ext4", ""},
		{"a container", "docker-root", root, mounts("22 1 0:30 / / rw - overlay overlay rw\n"), "fail: /var/lib/docker is on an overlay, so this is a container or a live system and does not keep images", ""},
		{"memory", "docker-root", root, mounts("22 1 0:30 / / rw - tmpfs tmpfs rw\n"), "warn: /var/lib/docker is in memory (tmpfs), so images take memory from jobs and are lost at a reboot", ""},
		{"garbage", "docker-root", root, mounts("\x00 - -\n - \nx"), "skip: the kernel does not say what /var/lib/docker is on", ""},
	})
}

func TestDockerAccessChecks(t *testing.T) {
	t.Parallel()
	warned := engine(docker.Info{Warnings: []string{"WARNING: No swap limit support", "[DEPRECATION NOTICE]: API is accessible on http://0.0.0.0:2375 without encryption.\n More"}})
	secure := func(options ...string) *fake { return engine(docker.Info{Security: options}) }
	none := &fake{docker: docker.Info{}, units: engine(docker.Info{}).units}
	full := config.Config{Job: config.Job{Network: config.NetworkNone}}.WithDefaults()
	none.cfg = &full
	forward := func(text, daemon string) map[string]string {
		files := file(daemon)
		files["/proc/sys/net/ipv4/ip_forward"] = text
		return files
	}
	const v4Default = "eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
	const v4Docker = "docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\nkbnode-gpu0\t000012C6\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
	sixOnly := func(v4 string) map[string]string {
		files := forward("1\n", "")
		files["/proc/net/route"] = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n" + v4
		files["/sys/class/net/docker0/bridge/x"] = ""
		zero := strings.Repeat("0", 32)
		files["/proc/net/ipv6_route"] = zero + " 00 " + zero + " 00 fe800000000000000000000000000001 00000400 00000002 00000000 00450003     eth0\n" +
			zero + " 00 " + zero + " 00 " + zero + " ffffffff 00000001 00000000 00200200       lo\n"
		return files
	}
	withoutSix := func(files map[string]string) map[string]string {
		delete(files, "/proc/net/ipv6_route")
		return files
	}
	play(t, []scene{
		{"a socket only", "docker-api", engine(docker.Info{Warnings: []string{"WARNING: No swap limit support"}}), nil, "ok: only its socket, or with certificates", ""},
		{"TCP", "docker-api", warned, nil, "fail: the engine is open on http://0.0.0.0:2375: anyone who can reach it is root here", ""},

		{"no mapping", "docker-userns", secure("name=seccomp,profile=builtin"), nil, "ok: not remapped", ""},
		{"a mapping by a flag", "docker-userns", secure("name=userns"), file("", "--userns-remap=default"), "fail: userns-remap is on, so jobs cannot write to their checkouts", ""},
		{"a profile", "docker-seccomp", secure("name=seccomp,profile=builtin"), nil, "ok: profile builtin", ""},
		{"no seccomp", "docker-seccomp", secure("name=cgroupns"), nil, "fail: the kernel or the engine has no seccomp, so a job can make any system call", ""},
		{"no profile", "docker-seccomp", secure("name=seccomp,profile=unconfined"), nil, "fail: the seccomp profile is unconfined, so a job can make any system call", ""},
		{"AppArmor unused", "docker-seccomp", secure("name=seccomp,profile=builtin"), map[string]string{"/sys/module/apparmor/parameters/enabled": "Y\n"}, "warn: the kernel has AppArmor, but Docker does not use it",
			"apt-get update && apt-get install -y apparmor && systemctl restart docker"},
		{"AppArmor", "docker-seccomp", secure("name=apparmor", "name=seccomp,profile=builtin"), map[string]string{"/sys/module/apparmor/parameters/enabled": "Y\n"}, "ok: profile builtin", ""},

		{"a way out", "docker-network", engine(docker.Info{}), forward("1\n", ""), "ok: forwarded and masqueraded", ""},
		{"a way out by both", "docker-network", engine(docker.Info{}), sixOnly(v4Default + v4Docker), "ok: forwarded and masqueraded", ""},
		{"IPv4 in two halves", "docker-network", engine(docker.Info{}), sixOnly("wg0\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0\n"), "ok: forwarded and masqueraded", ""},
		{"IPv6 only", "docker-network", engine(docker.Info{}), sixOnly(v4Docker), "fail: the node has only IPv6, and slots' networks have only IPv4, so jobs reach nothing", ""},
		{"IPv6, and an address of the link", "docker-network", engine(docker.Info{}), sixOnly("eth0\t0000FEA9\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"), "fail: the node has only IPv6, and slots' networks have only IPv4, so jobs reach nothing", ""},
		{"IPv6, and a private network", "docker-network", engine(docker.Info{}), sixOnly("eth0\t0000000A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"),
			"warn: the node has a default route for IPv6 only, and slots' networks have only IPv4, so jobs do not reach the Internet", ""},
		{"no default route at all", "docker-network", engine(docker.Info{}), withoutSix(sixOnly(v4Docker)), "ok: forwarded and masqueraded", ""},
		{"no forwarding", "docker-network", engine(docker.Info{}), forward("0\n", ""), "fail: net.ipv4.ip_forward is 0, so jobs reach nothing", "sysctl -w net.ipv4.ip_forward=1"},
		{"no iptables", "docker-network", engine(docker.Info{}), forward("1\n", `{"iptables": false}`), "fail: iptables is off in Docker, so jobs get no replies from the network", ""},
		{"no masquerade", "docker-network", engine(docker.Info{}), file("", "--ip-masq=false"), "fail: ip-masq is off in Docker, so jobs get no replies from the network", ""},
		{"no network wanted", "docker-network", none, forward("0\n", ""), "skip: jobs have no network (job.network: none)", ""},
	})
}

func TestDockerSocket(t *testing.T) {
	t.Parallel()
	mode := func(mode os.FileMode) func(*Machine) {
		return func(m *Machine) {
			must.Do(t, os.Chmod(m.Path(config.DefaultDockerSocket), mode))
		}
	}
	files := map[string]string{config.DefaultDockerSocket: ""}
	scene{"", "docker-socket", &fake{}, files, "ok: /var/run/docker.sock, mode 0660", ""}.run(t, mode(0o660))
	scene{"", "docker-socket", &fake{}, files, "fail: /var/run/docker.sock has mode 0666, so any user of this machine can become root", "chmod 0660 /var/run/docker.sock"}.run(t, mode(0o666))
}

// with returns a fake with this configuration of jobs.
func with(job config.Job) *fake {
	full := config.Config{Job: job}.WithDefaults()
	return &fake{cfg: &full}
}

func TestLAN(t *testing.T) {
	t.Parallel()
	routes := func(lines string) map[string]string {
		return map[string]string{"/proc/net/route": "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n" + lines}
	}
	const (
		line      = "\t0001\t0\t0\t0\t"
		gateway   = "eth0\t00000000\t0100000A" + line + "00000000\t0\t0\t0\n"              // default via 10.0.0.1
		provider  = "eth0\t00000000\t010200C0" + line + "00000000\t0\t0\t0\n"              // default via 192.0.2.1
		link      = "eth0\t0000000A\t00000000" + line + "0000FFFF\t0\t0\t0\n"              // 10.0.0.0/16
		vpn       = "tun0\t0000A8C0\t00000000" + line + "00FFFFFF\t0\t0\t0\n"              // 192.168.0.0/24
		docker0   = "docker0\t000011AC\t00000000" + line + "0000FFFF\t0\t0\t0\n"           // 172.17.0.0/16
		slot      = "kbnode-gpu0\t000012C6\t00000000" + line + "00FFFFFF\t0\t0\t0\n"       // 198.18.0.0/24
		linkLocal = "eth0\t0000FEA9\t00000000" + line + "0000FFFF\t0\t0\t0\n"              // 169.254.0.0/16
		many      = link + vpn + "eth1\t0000010B\t00000000" + line + "0000FFFF\t0\t0\t0\n" // 11.1.0.0/16, public
	)
	bridged := func(lines, member string) map[string]string {
		files := routes(lines)
		files["/sys/class/net/docker0/bridge/stp_state"] = "0"
		files["/sys/class/net/docker0/"+member] = ""
		return files
	}
	play(t, []scene{
		{"a private link", "docker-lan", &fake{}, routes(gateway + link + linkLocal + slot), "warn: jobs can reach private networks of the node: 10.0.0.0/16", ""},
		{"a private gateway only", "docker-lan", &fake{}, routes(gateway), "warn: jobs can reach private networks of the node: 10.0.0.1/32", ""},
		{"two", "docker-lan", &fake{}, routes(provider + many), "warn: jobs can reach private networks of the node: 10.0.0.0/16, 192.168.0.0/24", ""},
		{"public only", "docker-lan", &fake{}, routes(provider + linkLocal + slot), "ok: the node is not in a private network", ""},
		{"containers", "docker-lan", &fake{}, bridged(provider+docker0, "lower_veth1/ifindex"), "ok: the node is not in a private network", ""},
		{"a bridge with a card", "docker-lan", &fake{}, bridged(provider+docker0, "lower_eth0/device/vendor"), "warn: jobs can reach private networks of the node: 172.17.0.0/16", ""},
		{"garbage", "docker-lan", &fake{}, routes("x\ny z\neth0\tq\tq\t0\t0\t0\t0\tq\n"), "ok: the node is not in a private network", ""},
		{"no network", "docker-lan", with(config.Job{Network: config.NetworkNone}), routes(link), "skip: jobs have no network (job.network: none)", ""},

		{"the Internet only", "docker-lan", with(config.Job{Network: config.NetworkInternet}), routes(link), "ok: the rules let jobs reach public addresses; as-planned checks whether they are in place", ""},
		{"with a list", "docker-lan", with(config.Job{Network: config.NetworkInternet, AllowedNetworks: []string{"10.1.0.0/16:8080"}}), routes(link), "ok: the rules let jobs reach public addresses, 10.1.0.0/16:8080; as-planned checks whether they are in place", ""},
	})
	// The detail has the test's own path.
	if got := answer(t, machineOf(t, &fake{}, nil), "docker-lan"); got.Status != Skip || !strings.HasPrefix(got.Summary(), "the node's routes cannot be read: open ") {
		t.Errorf("%s: %s", got.Status, got.Summary())
	}
}

func TestRunc(t *testing.T) {
	t.Parallel()
	machine := func(version string) *fake { return engine(docker.Info{Runc: version}) }
	dpkg := func(status string) map[string]string { return map[string]string{"/var/lib/dpkg/status": status} }
	const upgrade = "apt-get update && apt-get install -y --only-upgrade "
	play(t, []scene{
		{"good", "docker-runc", machine("1.3.3"), nil, "ok: 1.3.3", ""},
		{"good for its series", "docker-runc", machine("v1.2.8-1"), nil, "ok: v1.2.8-1", ""},
		{"of a newer series", "docker-runc", machine("1.3.2"), nil, "warn: 1.3.2: judging by its version, a job can become root on the node (CVE-2025-31133)", ""},
		{"not runc", "docker-runc", machine("crun 1.8"), nil, "skip: the engine does not report the version of runc", ""},
		{"unknown", "docker-runc", machine(""), nil, "skip: the engine does not report the version of runc", ""},
		{"old", "docker-runc", machine("1.1.5"), dpkg("Package: runc\nStatus: install ok installed\nVersion: 1.1.5+ds1-1+deb12u1\n"),
			"warn: 1.1.5: judging by its version, a job can become root on the node (CVE-2025-31133)", upgrade + "runc"},
		{"Docker's own", "docker-runc", machine("1.2.5"), dpkg("Package: containerd.io\nStatus: install ok installed\nVersion: 1.7\n\nPackage: runc\nStatus: deinstall ok config-files\nVersion: 1\n"),
			"warn: 1.2.5: judging by its version, a job can become root on the node (CVE-2025-31133)", upgrade + "containerd.io"},
		{"no dpkg", "docker-runc", machine("1.2.5"), nil, "warn: 1.2.5: judging by its version, a job can become root on the node (CVE-2025-31133)", ""},
	})
}
