package job

import (
	"slices"
	"strings"
)

// Verdict says what becomes of an option of the docker plugin.
type Verdict string

// The verdicts.
const (
	Taken   Verdict = "taken"
	Slot    Verdict = "decided by the slot" // whatever is asked
	Refused Verdict = "refused"             // unless it is empty or false
)

// Option is an option of the docker plugin, v5.11.0 to v5.13.0, or several with the same verdict.
type Option struct {
	Names   string // separated by spaces
	Verdict Verdict
	// Note says what is taken, what the slot does instead, or what the author can write instead.
	Note string
}

// Options are all of them. docs/pipelines.md has the same table.
var Options = []Option{
	{"image", Taken, "required; a step without the plugin runs in the node's own image"},
	{"always-pull drop-caps", Taken, ""},
	{"expand-image-vars expand-volume-vars", Taken, "$NAME and ${NAME} of the build, unless the log hides them, and nothing else"},
	{"command", Taken, "instead of the step's command, not besides it"},
	{"entrypoint", Taken, `without a shell around the step's command, unless shell has one; "" is no entrypoint`},
	{"shell", Taken, "a list, or false; the default is /bin/sh -e -c around the step's command"},
	{"workdir", Taken, "an absolute path; the default is /workdir"},
	{"mount-checkout", Taken, "on by default, at workdir"},
	{"skip-checkout", Taken, "the directory is empty then"},
	{"volumes mounts", Taken, "paths in the checkout, such as ./data:/data or .:/src:ro; of /var/lib/buildkite-agent/cache and below, which the old scripts shared, an empty directory that ends with the job. Nothing over /, /etc, /proc, /sys or /dev"},
	{"tmpfs", Taken, "such as /tmp or /run:size=1g,mode=1777"},
	{"environment", Taken, "NAME=value, or NAME with the build's value, except what the slot sets, NVIDIA_*, LD_*, KBNODE_*, and the agent's tokens and job API"},
	{"propagate-environment", Taken, "what Buildkite sent, with the same exceptions"},
	{"env-propagation-list", Taken, "the name of a variable that has names"},
	{"user", Taken, "root, a number from 1000 to 60000, or a name that means one of them in the image"},
	{"propagate-uid-gid", Taken, "the slot's own user, if it is true"},
	{"additional-groups", Taken, "video, render, numbers, or names of the image that mean such"},
	{"memory shm-size", Taken, "at most the slot's"},
	{"ulimits", Taken, "nofile to 1048576, memlock, stack and the like; no core files"},
	{"tty interactive init", Taken, "on by default; the input is empty"},
	{"network", Taken, "bridge, which is the slot's own, or none"},
	{"ipc", Taken, "private, which it always is"},
	{"mount-buildkite-agent", Taken, "the program only, at /usr/bin/buildkite-agent: without a token, use artifact_paths for artifacts"},

	{"gpus devices runtime", Slot, "its GPUs"},
	{"cpus", Slot, "its CPUs; nproc tells how many"},
	{"memory-swap memory-swappiness", Slot, "no swap"},
	{"leave-container", Slot, "no container stays"},
	{"platform", Slot, "the node's own"},
	{"run-labels log-driver log-opt debug pull-retries", Slot, ""},

	{"privileged", Refused, "a job's container cannot be privileged; leave it out"},
	{"add-caps", Refused, "a job cannot add capabilities; leave it out"},
	{"security-opts", Refused, "a job keeps the engine's seccomp and AppArmor profiles; leave it out"},
	{"sysctls", Refused, "a job cannot set kernel parameters; leave it out"},
	{"publish", Refused, "a job cannot publish ports; leave it out, and talk to 127.0.0.1 in the container"},
	{"add-host", Refused, "a job has the node's names; write addresses into the command"},
	{"pid userns", Refused, "a job cannot share a namespace; leave it out"},
	{"load", Refused, "a job cannot bring an image; push it to a registry, and name it in image"},
	{"env-file", Refused, "kbnode reads no file of the node for a job; write the variables into environment"},
	{"chown chown-image", Refused, "no file of a job stays on the node; leave it out"},
	{"storage-opt", Refused, "the slot's disk bounds a container; leave it out"},
	{"device-read-bps device-read-iops device-write-bps device-write-iops", Refused, "a job cannot name disks of the node; leave it out"},
	{"propagate-aws-auth-tokens propagate-gcp-auth-tokens", Refused, "the node has no credentials for jobs; pass what the job may have in environment"},
	{"mount-ssh-agent", Refused, "the node has no keys for jobs; use a public repository over HTTPS"},
}

// option returns the row of an option; nil if there is none.
func option(name string) *Option {
	i := slices.IndexFunc(Options, func(o Option) bool { return slices.Contains(strings.Fields(o.Names), name) })
	if i < 0 {
		return nil
	}
	return &Options[i]
}
