package machinetest

import (
	"encoding/json"
	"fmt"
)

// Live returns kbnode/live.json of a machine with everything that kbnode needs: a recent
// systemd and Docker, CDI with the machine's NVIDIA GPUs, git, cron and buildkite-agent
// 3.76.2.
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
			"agent": obj{"path": "/usr/bin/buildkite-agent", "version": "3.76.2", "keys": AgentKeys()},
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

// AgentKeys returns the configuration keys of buildkite-agent 3.76.2.
func AgentKeys() []string {
	return []string{
		"acquire-job", "allowed-environment-variables", "allowed-plugins", "allowed-repositories",
		"bootstrap-script", "build-path", "cancel-grace-period", "cancel-signal", "config", "debug", "debug-http",
		"debug-signing", "disable-warnings-for", "disconnect-after-idle-timeout", "disconnect-after-job",
		"enable-environment-variable-allowlist", "enable-job-log-tmpfile", "endpoint", "experiment",
		"git-checkout-flags", "git-clean-flags", "git-clone-flags", "git-clone-mirror-flags", "git-fetch-flags",
		"git-mirrors-lock-timeout", "git-mirrors-path", "git-mirrors-skip-update", "health-check-addr",
		"hooks-path", "job-log-path", "kubernetes-exec", "log-format", "log-level", "metrics-datadog",
		"metrics-datadog-distributions", "metrics-datadog-host", "name", "no-ansi-timestamps", "no-color",
		"no-command-eval", "no-feature-reporting", "no-git-submodules", "no-http2", "no-local-hooks",
		"no-plugin-validation", "no-plugins", "no-pty", "no-ssh-keyscan", "plugins-path", "priority", "profile",
		"queue", "redacted-vars", "shell", "signal-grace-period-seconds", "signing-jwks-file",
		"signing-jwks-key-id", "sockets-path", "spawn", "spawn-per-cpu", "spawn-with-priority",
		"strict-single-hooks", "tags", "tags-from-ec2", "tags-from-ec2-meta-data", "tags-from-ec2-meta-data-paths",
		"tags-from-ec2-tags", "tags-from-ecs-meta-data", "tags-from-gcp", "tags-from-gcp-labels",
		"tags-from-gcp-meta-data", "tags-from-gcp-meta-data-paths", "tags-from-host", "timestamp-lines", "token",
		"tracing-backend", "tracing-service-name", "verification-failure-behavior", "verification-jwks-file",
		"wait-for-ec2-meta-data-timeout", "wait-for-ec2-tags-timeout", "wait-for-ecs-meta-data-timeout",
		"wait-for-gcp-labels-timeout", "write-job-logs-to-stdout",
	}
}
