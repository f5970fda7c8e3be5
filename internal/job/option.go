package job

// Verdict says what becomes of an option of the docker plugin.
type Verdict string

// The verdicts.
const (
	Taken   Verdict = "taken"
	Slot    Verdict = "decided by the slot" // whatever is asked
	Refused Verdict = "refused"             // unless it is empty or false
)

// Option is an option of the docker plugin, v5.11.0 to v5.13.0.
type Option struct {
	Name    string
	Verdict Verdict
	// Note says what is taken, what the slot does instead, or what the author can write instead.
	Note string
}

// Options are all of them. docs/pipelines.md has the same table.
var Options = []Option{
	{"image", Taken, "required; a step without the plugin runs in the node's own image"},
	{"always-pull", Taken, ""},
	{"expand-image-vars", Taken, expansion},
	{"command", Taken, "instead of the step's command, not besides it"},
	{"entrypoint", Taken, `without a shell around the step's command, unless shell has one; "" is no entrypoint`},
	{"shell", Taken, "a list, or false; the default is /bin/sh -e -c around the step's command"},
	{"workdir", Taken, "an absolute path; the default is /workdir"},
	{"mount-checkout", Taken, "on by default, at workdir"},
	{"skip-checkout", Taken, "the directory is empty then"},
	{"volumes", Taken, "paths in the checkout, such as ./data:/data or .:/src:ro; of /var/lib/buildkite-agent/cache and below, which the old scripts shared, an empty directory that ends with the job. Nothing over /, /proc, /sys or /dev"},
	{"mounts", Taken, "as volumes"},
	{"expand-volume-vars", Taken, expansion},
	{"tmpfs", Taken, "such as /tmp or /run:size=1g,mode=1777"},
	{"environment", Taken, "NAME or NAME=value, except what the slot sets, NVIDIA_*, LD_*, KBNODE_*, DOCKER_HOST, and the agent's tokens and job API. A name without a value in the build is left out"},
	{"propagate-environment", Taken, "what Buildkite sent, with the same exceptions"},
	{"env-propagation-list", Taken, "the name of a variable that has names"},
	{"user", Taken, "root, a number from 1000 to 60000, or a name of the image"},
	{"propagate-uid-gid", Taken, "the slot's own user"},
	{"additional-groups", Taken, "video, render, or numbers"},
	{"drop-caps", Taken, ""},
	{"mount-buildkite-agent", Taken, "the program only, at /usr/bin/buildkite-agent: without a token, use artifact_paths for artifacts"},
	{"memory", Taken, "at most the slot's"},
	{"shm-size", Taken, "at most the slot's"},
	{"ulimits", Taken, "nofile to 1048576, memlock, stack and the like; no core files"},
	{"tty", Taken, "on by default"},
	{"interactive", Taken, "on by default; the input is empty"},
	{"init", Taken, "on by default"},
	{"network", Taken, "bridge, which is the slot's own, or none"},
	{"ipc", Taken, "private, which it always is"},

	{"gpus", Slot, "its GPUs"},
	{"runtime", Slot, ""},
	{"devices", Slot, "its GPUs"},
	{"cpus", Slot, "its CPUs; nproc tells how many"},
	{"memory-swap", Slot, "no swap"},
	{"memory-swappiness", Slot, "no swap"},
	{"leave-container", Slot, "no container stays"},
	{"run-labels", Slot, ""},
	{"log-driver", Slot, ""},
	{"log-opt", Slot, ""},
	{"platform", Slot, "the node's own"},
	{"debug", Slot, ""},
	{"pull-retries", Slot, ""},

	{"privileged", Refused, "a job's container cannot be privileged; leave it out"},
	{"add-caps", Refused, "a job cannot add capabilities; leave it out"},
	{"security-opts", Refused, "a job keeps the engine's seccomp and AppArmor profiles; leave it out"},
	{"sysctls", Refused, "a job cannot set kernel parameters; leave it out"},
	{"publish", Refused, "a job cannot publish ports; leave it out, and talk to 127.0.0.1 in the container"},
	{"add-host", Refused, "a job has the node's names; write addresses into the command"},
	{"pid", Refused, "a job cannot share a namespace; leave it out"},
	{"userns", Refused, "a job cannot share a namespace; leave it out"},
	{"load", Refused, "a job cannot bring an image; push it to a registry, and name it in image"},
	{"env-file", Refused, "kbnode reads no file of the node for a job; write the variables into environment"},
	{"chown", Refused, "no file of a job stays on the node; leave it out"},
	{"chown-image", Refused, "no file of a job stays on the node; leave it out"},
	{"storage-opt", Refused, "the slot's disk bounds a container; leave it out"},
	{"device-read-bps", Refused, deviceRates},
	{"device-read-iops", Refused, deviceRates},
	{"device-write-bps", Refused, deviceRates},
	{"device-write-iops", Refused, deviceRates},
	{"propagate-aws-auth-tokens", Refused, noCredentials},
	{"propagate-gcp-auth-tokens", Refused, noCredentials},
	{"mount-ssh-agent", Refused, "the node has no keys for jobs; use a public repository over HTTPS"},
}

const (
	expansion     = "$NAME and ${NAME}, nothing else"
	deviceRates   = "a job cannot name disks of the node; leave it out"
	noCredentials = "the node has no credentials for jobs; pass what the job may have in environment"
)
