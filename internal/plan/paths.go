package plan

import "strconv"

// Paths and names that other programs rely on. All are absolute on the target
// machine; Host.Root is put in front where a tree is read or written.
const (
	ConfigPath    = "/etc/kbnode/config.yaml"
	TokenPath     = "/etc/buildkite-agent/token" //nolint:gosec // where a secret is, not one
	HooksDir      = "/etc/buildkite-agent/hooks"
	BindingsPath  = "/var/lib/kbnode/slots.json"
	GitConfigPath = "/etc/buildkite-agent/gitconfig"
	UnitDir       = "/etc/systemd/system"
	ParentSlice   = "buildkite.slice"
	NodeService   = "kbnode.service"
	NodeTimer     = "kbnode.timer"
	// InstallService is the packages' own unit, which runs install at the first boot of a
	// machine whose image has it enabled.
	InstallService = "kbnode-install.service"
	LockPath       = "/run/kbnode.lock"

	// OldCacheDir is what the pipelines of the old scripts mount for all jobs.
	OldCacheDir = agentsDir + "/cache"

	agentsDir = "/var/lib/buildkite-agent"
	disksDir  = agentsDir + "/disks"
)

// Marker opens every file that kbnode writes (after a #! line) and is what
// allows it to overwrite or delete the file later.
const Marker = "Written by kbnode"

// Names and paths of slot k.

// SlotName is what people call it: gpu0.
func SlotName(k int) string { return "gpu" + strconv.Itoa(k) }

// SliceName is its slice, nested below ParentSlice by systemd's rule for dashes.
func SliceName(k int) string { return "buildkite-" + SlotName(k) + ".slice" }

// AgentUnit runs its buildkite-agent.
func AgentUnit(k int) string { return "buildkite-agent-" + SlotName(k) + ".service" }

// GuardUnit serves its Docker socket.
func GuardUnit(k int) string { return "kbnode-guard-" + SlotName(k) + ".service" }

// UserName is who its agent and host commands run as.
func UserName(k int) string { return "kbnode-" + SlotName(k) }

// AgentDir holds its agent's configuration, root's own.
func AgentDir(k int) string { return "/etc/buildkite-agent/agent-" + strconv.Itoa(k) }

// WorkDir is its user's home, with checkouts and plugins.
func WorkDir(k int) string { return "/var/lib/buildkite-agent/gpu-" + strconv.Itoa(k) }

// WorkMode is the mode of WorkDir and BuildsDir, which are root's and of the
// user's group: it makes and removes what it likes in them, and cannot put a link
// in the place of the checkouts, in which root works between two jobs.
const WorkMode = 0o1770

// BuildsDir holds its checkouts, the only part of WorkDir that containers see.
func BuildsDir(k int) string { return WorkDir(k) + "/builds" }

// DiskDir holds its disk: the image, and below DiskMount what is on it.
func DiskDir(k int) string { return disksDir + "/" + SlotName(k) }

// DiskMount is where its disk is mounted. WorkDir is the directory home of it.
func DiskMount(k int) string { return DiskDir(k) + "/mnt" }

// RunDir holds its socket, and agent/ which is its user's.
func RunDir(k int) string { return "/run/kbnode/" + SlotName(k) }

// SocketPath is the Docker socket that its jobs see.
func SocketPath(k int) string { return RunDir(k) + "/docker.sock" }

// SlotPolicyPath is its JobPolicy.
func SlotPolicyPath(k int) string { return "/etc/kbnode/slots/" + SlotName(k) + ".json" }
