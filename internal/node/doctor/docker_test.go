package doctor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/must"
)

// file returns daemon.json and a dockerd started with these arguments.
func file(text string, words ...string) map[string]string {
	args := "/usr/bin/dockerd\x00" + strings.Join(words, "\x00") + "\x00"
	files := map[string]string{"/proc/7/cmdline": args}
	if text != "" {
		files[host.DaemonJSON] = text
	}
	return files
}

// engine returns a machine on which docker.service runs.
func engine(info docker.Info) *fake {
	if info.Version == "" {
		info.Version = "28.5.2"
	}
	return &fake{
		docker: info,
		inv:    &inventory.Inventory{OS: inventory.OS{ID: "debian"}, Software: inventory.Software{Docker: inventory.Docker{Version: info.Version, RootDir: info.RootDir}}},
		units:  []slot.Unit{{Name: dockerUnit, Load: "loaded", Active: "active", Sub: "running", MainPID: 7}},
	}
}

// dead returns a machine without an engine that answers.
func dead(u slot.Unit, problem string) *fake {
	f := &fake{inv: &inventory.Inventory{OS: inventory.OS{ID: "debian"}}}
	if problem != "" {
		f.inv.Problems = []inventory.Problem{{Subject: "docker", Detail: problem}}
	}
	if u.Load != "" {
		u.Name = dockerUnit
		f.units = []slot.Unit{u}
	}
	return f
}

// deaf makes f a machine on which systemd does not answer.
func deaf(f *fake) *fake {
	f.err = errors.New("no answer")
	return f
}

func TestEngineChecks(t *testing.T) {
	t.Parallel()
	rhel := dead(slot.Unit{Load: "loaded", Active: "failed", Result: "exit-code", ExitStatus: 1}, "refused")
	rhel.inv.OS.ID, rhel.inv.Kernel = "rhel", "6.12"
	socket := map[string]string{config.DefaultDockerSocket: ""}
	play(t, []scene{
		{"no daemon.json", "docker-config", engine(docker.Info{}), nil, "ok: no file", ""},
		{"an empty one", "docker-config", engine(docker.Info{}), file(" \n"), "ok: no file", ""},
		{"a good one", "docker-config", engine(docker.Info{}), file(`{"debug": true}`, "-H", "fd://"), "ok: 1 key", ""},
		{"a comma too many", "docker-config", engine(docker.Info{}), file("{\n\"debug\": true,\n}\n"), "fail: /etc/docker/daemon.json is not JSON: line 3: invalid character '}' looking for beginning of object key string", ""},
		{"cut off", "docker-config", engine(docker.Info{}), file(`{"debug"`), "fail: /etc/docker/daemon.json is not JSON: line 1: unexpected end of JSON input", ""},
		{"a list", "docker-config", engine(docker.Info{}), file(`[]`), "fail: /etc/docker/daemon.json is not a JSON object: json: cannot unmarshal array into Go value of type map[string]json.RawMessage", ""},
		{"hosts twice", "docker-config", engine(docker.Info{}), file(`{"hosts": ["unix:///run/docker.sock"]}`, "-H", "fd://"),
			"fail: hosts is set in /etc/docker/daemon.json and as -H fd:// on dockerd's command line; with both, Docker does not start", ""},
		{"hosts twice, and it is down", "docker-config", dead(slot.Unit{Load: "loaded", Active: "failed"}, ""),
			map[string]string{host.DaemonJSON: `{"hosts": []}`, "/usr/lib/systemd/system/docker.service": "[Service]\nExecStart=/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock\n"},
			"fail: hosts is set in /etc/docker/daemon.json and as -H fd:// on dockerd's command line; with both, Docker does not start", ""},
		{"hosts once, by a drop-in", "docker-config", dead(slot.Unit{Load: "loaded", Active: "failed"}, ""),
			map[string]string{host.DaemonJSON: `{"hosts": []}`, "/usr/lib/systemd/system/docker.service": "ExecStart=/usr/bin/dockerd -H fd://\n",
				"/etc/systemd/system/docker.service.d/x.conf": "[Service]\nExecStart=\nExecStart=/usr/bin/dockerd\n"}, "ok: 1 key", ""},
		{"a list that has a flag for each", "docker-config", engine(docker.Info{}), file(`{"insecure-registries": []}`, "--insecure-registry=x"),
			"fail: insecure-registries is set in /etc/docker/daemon.json and as --insecure-registry=x on dockerd's command line; with both, Docker does not start", ""},

		{"it answers", "docker-engine", engine(docker.Info{}), nil, "ok: 28.5.2", ""},
		{"it stops answering", "docker-engine", deaf(engine(docker.Info{})), nil, "fail: it answered before, but does not now: no answer", "systemctl restart docker"},
		{"not installed", "docker-engine", dead(slot.Unit{}, ""), nil, "fail: Docker's engine is not installed", "apt-get update && apt-get install -y docker.io docker-cli && systemctl enable --now docker"},
		{"elsewhere", "docker-engine", dead(slot.Unit{}, "no such file"), nil, "fail: no such file", ""},
		{"not installed, and systemd is dead", "docker-engine", deaf(dead(slot.Unit{}, "")), nil, "fail: Docker's engine is not installed", "apt-get update && apt-get install -y docker.io docker-cli && systemctl enable --now docker"},
		{"no answer from systemd either", "docker-engine", deaf(dead(slot.Unit{}, "refused")), nil, "fail: refused", ""},
		{"masked", "docker-engine", dead(slot.Unit{Load: "masked", Active: "inactive"}, "refused"), nil, "fail: docker.service is masked", "systemctl unmask docker.service docker.socket && systemctl enable --now docker"},
		{"failed", "docker-engine", dead(slot.Unit{Load: "loaded", Active: "failed", Result: "exit-code", ExitStatus: 1}, "refused"), nil,
			"fail: docker.service keeps failing (exit-code, exit status 1)", "systemctl reset-failed docker && systemctl start docker"},
		{"failed on ZFS", "docker-engine", dead(slot.Unit{Load: "loaded", Active: "failed"}, "refused"), map[string]string{host.DaemonJSON: `{"storage-driver": "overlay2", "data-root": "/srv/docker"}`, "/proc/self/mountinfo": "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:40 / /srv rw - zfs tank rw\n"},
			"fail: docker.service does not start: /etc/docker/daemon.json asks for overlay2, and /srv/docker is on /srv (zfs), where that does not work", ""},
		{"failed without xt_addrtype", "docker-engine", rhel, map[string]string{"/lib/modules/6.12/modules.dep": "kernel/x.ko:\n"},
			"fail: docker.service keeps failing (exit-code, exit status 1): the kernel has no xt_addrtype, which Docker's networks need",
			"dnf install -y kernel-modules-extra-6.12 && modprobe xt_addrtype && systemctl reset-failed docker && systemctl restart docker"},
		{"failed for its file", "docker-engine", dead(slot.Unit{Load: "loaded", Active: "failed"}, "refused"), file("{"), "skip: it does not answer and cannot start; see docker-config", ""},
		{"stopped", "docker-engine", dead(slot.Unit{Load: "loaded", Active: "inactive"}, "refused"), nil, "fail: docker.service is inactive", "systemctl start docker"},
		{"hanging", "docker-engine", dead(slot.Unit{Load: "loaded", Active: "active"}, "ask Docker for its info: deadline exceeded"), socket, "fail: ask Docker for its info: deadline exceeded", "systemctl restart docker"},
		{"without its socket", "docker-engine", dead(slot.Unit{Load: "loaded", Active: "active"}, "refused"), nil,
			"fail: docker.service runs, but /var/run/docker.sock is missing", "systemctl restart docker.socket docker.service"},

		{"enabled", "docker-boot", engine(docker.Info{}), map[string]string{"/etc/systemd/system/multi-user.target.wants/docker.service": ""}, "ok: docker.service is enabled", ""},
		{"not enabled", "docker-boot", engine(docker.Info{}), nil, "warn: docker.service is not enabled, so after a reboot it starts only on demand, or never", "systemctl enable docker"},
		{"another unit", "docker-boot", &fake{}, nil, "skip: docker.service does not exist; something else starts the engine", ""},

		{"jobs go on", "docker-live-restore", engine(docker.Info{LiveRestoreEnabled: true}), nil, "ok: on", ""},
		{"jobs end", "docker-live-restore", engine(docker.Info{}), nil, "warn: live-restore is off, so a restart of dockerd ends the running jobs",
			`mkdir -p /etc/docker && echo '{"live-restore": true}' >/etc/docker/daemon.json && systemctl reload docker`},
		{"jobs end by a flag", "docker-live-restore", engine(docker.Info{}), file("", "--live-restore=false"), "warn: live-restore is off, so a restart of dockerd ends the running jobs", ""},
		{"a broken file", "docker-live-restore", engine(docker.Info{}), file("{"), "warn: live-restore is off, so a restart of dockerd ends the running jobs", ""},

		{"a version that works", "docker-version", engine(docker.Info{Version: "20.10.24+dfsg1", APIVersion: "1.41"}), nil, "ok: 20.10.24+dfsg1, API 1.41", ""},
		{"an old one", "docker-version", engine(docker.Info{Version: "19.03.15"}), nil, "fail: 19.03.15 is too old for cgroup v2, or is not Docker; the oldest supported version is 20.10", ""},
		{"no number", "docker-version", engine(docker.Info{Version: "dev"}), nil, "fail: dev is too old for cgroup v2, or is not Docker; the oldest supported version is 20.10", ""},
		{"rootless", "docker-version", engine(docker.Info{Security: []string{"name=rootless"}}), nil, "fail: it runs without root, so no container can be placed in a slot's slice", ""},
		{"the snap", "docker-version", engine(docker.Info{RootDir: "/var/snap/docker/common/var-lib-docker"}), nil, "fail: it is the snap, which can read neither the slots' files nor CDI specifications",
			"snap remove docker && apt-get update && apt-get install -y docker.io docker-cli && systemctl enable --now docker"},

		{"the driver systemd", "docker-cgroup-driver", engine(docker.Info{CgroupDriver: "systemd"}), nil, "ok: systemd", ""},
		{"cgroupfs by the file", "docker-cgroup-driver", engine(docker.Info{CgroupDriver: "cgroupfs"}), file(`{"exec-opts": ["native.cgroupdriver=cgroupfs"]}`),
			"fail: it uses the driver cgroupfs, with which slices do not limit containers", "sed -i 's/native.cgroupdriver=cgroupfs/native.cgroupdriver=systemd/' /etc/docker/daemon.json && systemctl restart docker"},
		{"cgroupfs by a flag", "docker-cgroup-driver", engine(docker.Info{CgroupDriver: "cgroupfs"}), file("", "--exec-opt", "native.cgroupdriver=cgroupfs"), "fail: it uses the driver cgroupfs, with which slices do not limit containers", ""},
		{"cgroupfs by itself", "docker-cgroup-driver", engine(docker.Info{CgroupDriver: "cgroupfs"}), nil,
			"fail: it uses the driver cgroupfs, with which slices do not limit containers",
			`mkdir -p /etc/docker && echo '{"exec-opts": ["native.cgroupdriver=systemd"]}' >/etc/docker/daemon.json && systemctl restart docker`},
		{"cgroupfs beside others", "docker-cgroup-driver", engine(docker.Info{CgroupDriver: "cgroupfs"}), file(`{"debug": true}`),
			"fail: it uses the driver cgroupfs, with which slices do not limit containers",
			`sed -i '0,/{/s//{"exec-opts": ["native.cgroupdriver=systemd"], /' /etc/docker/daemon.json && systemctl restart docker`},
	})
}

// TestDaemonEdits runs the commands that change daemon.json, and checks the result.
func TestDaemonEdits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ before, id, want string }{
		{``, "docker-cgroup-driver", `{"exec-opts": ["native.cgroupdriver=systemd"]}`},
		{`{}`, "docker-cgroup-driver", `{"exec-opts": ["native.cgroupdriver=systemd"]}`},
		{"{\n  \"log-opts\": {\"a\": \"b\"}\n}", "docker-cgroup-driver", "{\"exec-opts\": [\"native.cgroupdriver=systemd\"], \n  \"log-opts\": {\"a\": \"b\"}\n}"},
		{`{"exec-opts":["native.cgroupdriver=cgroupfs"]}`, "docker-cgroup-driver", `{"exec-opts":["native.cgroupdriver=systemd"]}`},
		{`{"userns-remap":"default"}`, "docker-userns", `{"userns-remap":""}`},
		{`{"features":{"cdi":false}}`, "docker-cdi", `{"features":{"cdi":true}}`},
		{`{"debug": true}`, "docker-live-restore", `{"live-restore": true, "debug": true}`},
		{`{"live-restore" :false}`, "docker-live-restore", `{"live-restore" :true}`},
		{`{"debug": true}`, "docker-storage-driver", `{"features": {"containerd-snapshotter": false}, "storage-driver": "overlay2", "debug": true}`},
	} {
		t.Run(fmt.Sprintf("%s %s", tt.id, tt.before), func(t *testing.T) {
			t.Parallel()
			f := engine(docker.Info{CgroupDriver: "cgroupfs", DefaultRuntime: "nvidia", Security: []string{"name=userns"}, StorageDriver: "overlayfs"})
			f.inv.NVIDIA = &inventory.NVIDIA{}
			m := machineOf(t, f, file(tt.before))
			finding := answer(t, m, tt.id).Findings[0]
			fix := finding.Fix
			if finding.Safe != strings.HasSuffix(fix, "reload docker") {
				t.Errorf("safe is %t: %s", finding.Safe, fix) // a restart ends jobs
			}
			edit, _, cut := strings.Cut(fix, " && systemctl re")
			if !cut {
				t.Fatalf("type %q", fix)
			}
			edit = strings.ReplaceAll(edit, "/etc/docker", m.Path("/etc/docker"))
			if out, err := exec.Command("sh", "-ec", edit).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			got, err := os.ReadFile(m.Path(host.DaemonJSON))
			must.Do(t, err)
			must.Equal(t, tt.want, strings.TrimRight(string(got), "\n"))
		})
	}
}
