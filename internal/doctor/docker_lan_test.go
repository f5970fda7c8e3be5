package doctor

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/docker"
)

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

func TestRuncHoles(t *testing.T) {
	t.Parallel()
	both, races := runcLeak+" "+runcRaces, runcRaces
	for version, want := range map[string]string{
		"1.0.0-rc93": both, "1.1.5+ds1": both, "1.1.11": both, "1.1.12-rc.1": both, "v1.1.12": races, "1.1.15-0ubuntu1": races,
		"1.2.7": races, "1.2.8": "", "1.2.9": "", "1.3.0-rc.2": races, "1.3.2": races, "1.3.3": "", "1.3.10": "",
		"1.4.0-rc.2": races, "1.4.0-rc.3": "", "1.4.0": "", "2.0.0": "", "": "", "N/A": "", "crun 1.8": "",
	} {
		if got := strings.Join(runcHoles(version), " "); got != want {
			t.Errorf("%q: %q, want %q", version, got, want)
		}
	}
}

func TestRunc(t *testing.T) {
	t.Parallel()
	machine := func(version string) *fake { return engine(docker.Info{Runc: version}) }
	dpkg := func(status string) map[string]string { return map[string]string{"/var/lib/dpkg/status": status} }
	const upgrade = "apt-get update && apt-get install -y --only-upgrade "
	play(t, []scene{
		{"good", "docker-runc", machine("1.3.3"), nil, "ok: 1.3.3", ""},
		{"unknown", "docker-runc", machine(""), nil, "skip: the engine does not report the version of runc", ""},
		{"old", "docker-runc", machine("1.1.5"), dpkg("Package: runc\nStatus: install ok installed\nVersion: 1.1.5+ds1-1+deb12u1\n"),
			"warn: 1.1.5: judging by its version, a job can become root on the node (CVE-2024-21626, CVE-2025-31133)", upgrade + "runc"},
		{"Docker's own", "docker-runc", machine("1.2.5"), dpkg("Package: containerd.io\nStatus: install ok installed\nVersion: 1.7\n\nPackage: runc\nStatus: deinstall ok config-files\nVersion: 1\n"),
			"warn: 1.2.5: judging by its version, a job can become root on the node (CVE-2025-31133)", upgrade + "containerd.io"},
		{"no dpkg", "docker-runc", machine("1.2.5"), nil, "warn: 1.2.5: judging by its version, a job can become root on the node (CVE-2025-31133)", ""},
	})
}
