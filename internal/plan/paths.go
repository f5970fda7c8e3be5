package plan

import (
	"net/netip"
	"path"
	"strconv"
	"strings"
)

// Paths and names that other programs rely on. All are absolute on the target
// machine; Host.Root is prepended where a tree is read or written.
const (
	ConfigPath   = "/etc/kbnode/config.yaml"
	TokenPath    = "/etc/buildkite-agent/token" //nolint:gosec // where a secret is, not one
	TokenName    = "token"                      // in RunDir(k), what the agent's unit reads
	HooksDir     = "/etc/buildkite-agent/hooks"
	BindingsPath = "/var/lib/kbnode/slots.json"
	UnitDir      = "/etc/systemd/system"
	ParentSlice  = "buildkite.slice"
	NodeService  = "kbnode.service"
	NodeTimer    = "kbnode.timer"
	// InstallService is the packages' own unit, which runs install at the first boot of a
	// machine whose image enables it.
	InstallService = "kbnode-install.service"
	LockPath       = "/run/kbnode.lock"

	// MirrorsDir holds the mirrors of repositories, which all slots share.
	MirrorsDir = "/var/lib/kbnode/mirrors"
	// GitUser runs git for all slots and owns nothing but the mirrors' content.
	GitUser = "kbnode-git"

	// OldCacheDir is the directory that the pipelines of the old scripts mount for all jobs.
	OldCacheDir = agentsDir + "/cache"

	agentsDir = "/var/lib/buildkite-agent"
	disksDir  = agentsDir + "/disks"
)

// Marker is at the top of every file that kbnode writes (after a #! line) and
// allows it to overwrite or delete the file later.
const Marker = "Written by kbnode"

// Names and paths of slot k.

// SlotName is the slot's name: gpu0.
func SlotName(k int) string { return "gpu" + strconv.Itoa(k) }

// SliceName is the slot's slice, nested below ParentSlice by systemd's rule for dashes.
func SliceName(k int) string { return "buildkite-" + SlotName(k) + ".slice" }

// AgentUnit runs the slot's buildkite-agent.
func AgentUnit(k int) string { return "buildkite-agent-" + SlotName(k) + ".service" }

// JobSocket starts a process of JobService for each job of the slot.
func JobSocket(k int) string { return "kbnode-job-" + SlotName(k) + ".socket" }

// JobService is the template of the processes that run the slot's jobs.
func JobService(k int) string { return "kbnode-job-" + SlotName(k) + "@.service" }

// JobSlice is where systemd puts the processes of JobService: an instance's own slice, with its name escaped.
func JobSlice(k int) string { return `system-kbnode\x2djob\x2d` + SlotName(k) + ".slice" }

// IsJobSlice reports whether a name is of a JobSlice, which has no file and no limits.
func IsJobSlice(unit string) (slot int, ok bool) {
	slot, ok = OwnsUnit(unit)
	return slot, ok && slot >= 0 && unit == JobSlice(slot)
}

// HookUnit is the transient unit in which a hook of the slot runs: prolog or epilog.
func HookUnit(hook string, k int) string { return "kbnode-" + hook + "-" + SlotName(k) + ".service" }

// UserName is the user of the slot's agent.
func UserName(k int) string { return "kbnode-" + SlotName(k) }

// AgentDir holds the agent's configuration and belongs to root.
func AgentDir(k int) string { return "/etc/buildkite-agent/agent-" + strconv.Itoa(k) }

// WorkDir is the slot user's home, with checkouts.
func WorkDir(k int) string { return "/var/lib/buildkite-agent/gpu-" + strconv.Itoa(k) }

// WorkMode is the mode of WorkDir and BuildsDir, which belong to root and the
// user's group. The user can create and remove anything in them, but cannot
// replace the checkouts, in which root works between two jobs, with a link.
const WorkMode = 0o1770

// BuildsDir holds the checkouts, the only part of WorkDir that containers see.
func BuildsDir(k int) string { return WorkDir(k) + "/builds" }

// DiskDir holds the slot's disk: the image, and below DiskMount its content.
func DiskDir(k int) string { return disksDir + "/" + SlotName(k) }

// DiskMount is where the disk is mounted. Its directory home is bound to WorkDir.
func DiskMount(k int) string { return DiskDir(k) + "/mnt" }

// RunDir holds the slot's socket, and agent/, which belongs to its user.
func RunDir(k int) string { return "/run/kbnode/" + SlotName(k) }

// SocketPath is where the slot's agent asks for jobs to be run.
func SocketPath(k int) string { return RunDir(k) + "/job.sock" }

// SlotPolicyPath is the file of the slot's JobPolicy.
func SlotPolicyPath(k int) string { return "/etc/kbnode/slots/" + SlotName(k) + ".json" }

// SliceCgroup returns a slice's directory below the cgroup root. A dash in its name means a
// parent: buildkite-gpu0.slice is in buildkite.slice.
func SliceCgroup(slice string) string {
	name := strings.TrimSuffix(slice, ".slice")
	var dirs []string
	for i, r := range name {
		if r == '-' {
			dirs = append(dirs, name[:i]+".slice")
		}
	}
	return path.Join(append(dirs, name+".slice")...)
}

// NetworkName returns the name of the Docker network of slot k's containers,
// and of its bridge.
func NetworkName(k int) string { return "kbnode-" + SlotName(k) }

// Subnets returns the subnets for slot k's network, which gets the first that
// is free; nil if k is above 255. They are in 198.18.0.0/15, which belongs to
// no one (RFC 2544), so they hide nothing that the node or its jobs reach. Of
// the private addresses, the engine would take a /16 for each slot.
func Subnets(k int) []netip.Prefix {
	if k > 255 {
		return nil
	}
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(k), 0}), 24),
		netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, byte(k), 0}), 24),
	}
}

// firstJobUID is beyond the system's accounts, those of systemd and 65534, and below the first range that useradd gives to
// containers of users, 100000.
const firstJobUID = 65536

// JobUID returns the user and group ID of a slot's strict containers, which no process of the node has: so none of a job's
// processes can look into one of the node's.
func JobUID(k int) int { return firstJobUID + k }
