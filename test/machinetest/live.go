package machinetest

import (
	"embed"
	"encoding/json"
	"fmt"
	"strings"
)

// Live returns kbnode/live.json of a machine with everything that kbnode needs: a recent
// systemd and Docker, CDI with the machine's NVIDIA GPUs, git, cron and a
// buildkite-agent.
func Live(m Machine) json.RawMessage {
	type obj = map[string]any
	devices := []string{"nvidia.com/gpu=all"}
	for k, g := range m.NVIDIA {
		for i := range g.MIG { // a GPU with instances is not a device itself
			devices = append(devices, fmt.Sprintf("nvidia.com/gpu=%d:%d", k, i), "nvidia.com/gpu="+m.migUUID(k, i))
		}
		if g.MIG == nil {
			devices = append(devices, "nvidia.com/gpu="+g.UUID)
		}
	}
	runtimes, toolkit := []string{"io.containerd.runc.v2", "nvidia", "runc"}, "/usr/bin/nvidia-ctk"
	if len(m.NVIDIA) == 0 {
		devices, runtimes, toolkit = nil, []string{"io.containerd.runc.v2", "runc"}, ""
	}
	arch := m.Arch
	if arch == "" {
		arch = "amd64"
	}
	live := obj{
		"schema": 1,
		"arch":   arch,
		"software": obj{
			"systemd": "255", "cgroup_v2": true, "git": "/usr/bin/git", "mkfs_ext4": "/usr/sbin/mkfs.ext4", "cron": true, "container_toolkit": toolkit,
			"docker": obj{
				"version": "28.5.2", "api_version": "1.51", "cgroup_driver": "systemd", "cgroup_version": "2",
				"storage_driver": "overlay2", "root_dir": "/var/lib/docker", "cdi": true,
				"cdi_dirs": []string{"/etc/cdi", "/var/run/cdi"}, "cdi_devices": devices,
				"runtimes": runtimes, "default_runtime": "runc",
			},
			"agent": obj{"path": "/usr/bin/buildkite-agent", "version": AgentVersion, "keys": AgentKeys(AgentVersion)},
		},
		"disks": []obj{
			{"path": "/var/lib/buildkite-agent", "total_bytes": 1920 << 30, "free_bytes": 1700 << 30},
			{"path": "/var/lib/docker", "total_bytes": 1920 << 30, "free_bytes": 1700 << 30},
		},
	}
	text, err := json.MarshalIndent(live, "", "\t")
	if err != nil {
		panic("machinetest: " + err.Error()) // impossible: only strings and numbers
	}
	return text
}

// AgentVersion is the agent of a machine. AgentKeys has the keys of others too.
const AgentVersion = "3.138.3"

//go:embed agentkeys
var agentKeys embed.FS

// AgentKeys returns the configuration keys of a version of buildkite-agent: what its `start --help` listed
// when it was recorded.
func AgentKeys(version string) []string {
	text, err := agentKeys.ReadFile("agentkeys/" + version + ".txt")
	if err != nil {
		panic("machinetest: " + err.Error())
	}
	return strings.Fields(string(text))
}
