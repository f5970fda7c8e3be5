package plan

import "strconv"

// Paths and names that other programs rely on. All are absolute on the target
// machine; Host.Root is put in front where a tree is read or written.
const (
	ConfigPath    = "/etc/kbnode/config.yaml"
	TokenPath     = "/etc/buildkite-agent/token"
	HooksDir      = "/etc/buildkite-agent/hooks"
	BindingsPath  = "/var/lib/kbnode/slots.json"
	GitConfigPath = "/etc/buildkite-agent/gitconfig"
	UnitDir       = "/etc/systemd/system"
	ParentSlice   = "buildkite.slice"
	NodeService   = "kbnode.service"
	NodeTimer     = "kbnode.timer"
	LockPath      = "/run/kbnode.lock"
)

// Marker opens every file that kbnode writes (after a #! line) and is what
// allows it to overwrite or delete the file later.
const Marker = "Written by kbnode"

func SlotName(k int) string       { return "gpu" + strconv.Itoa(k) }
func SliceName(k int) string      { return "buildkite-" + SlotName(k) + ".slice" }
func AgentUnit(k int) string      { return "buildkite-agent-" + SlotName(k) + ".service" }
func GuardUnit(k int) string      { return "kbnode-guard-" + SlotName(k) + ".service" }
func UserName(k int) string       { return "kbnode-" + SlotName(k) }
func AgentDir(k int) string       { return "/etc/buildkite-agent/agent-" + strconv.Itoa(k) }
func WorkDir(k int) string        { return "/var/lib/buildkite-agent/gpu-" + strconv.Itoa(k) }
func RunDir(k int) string         { return "/run/kbnode/" + SlotName(k) }
func SocketPath(k int) string     { return RunDir(k) + "/docker.sock" }
func SlotPolicyPath(k int) string { return "/etc/kbnode/slots/" + SlotName(k) + ".json" }
