package plan

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

// slotNumber is how a pattern below spells the number of a slot.
const slotNumber = "[0-9]*"

// Owned are the files that kbnode may write, overwrite and delete, as patterns of
// path.Match in which [0-9]* is the number of a slot. A file is kbnode's own if its path
// matches and it contains Marker. Operators' files next to them, and drop-in directories,
// never do both. A marked file that matches and is no longer planned is deleted.
var Owned = []string{
	UnitDir + "/" + ParentSlice,
	UnitDir + "/buildkite-gpu[0-9]*.slice",
	UnitDir + "/buildkite-agent-gpu[0-9]*.service",
	UnitDir + "/kbnode-job-gpu[0-9]*.socket",
	UnitDir + "/kbnode-job-gpu[0-9]*@.service",
	UnitDir + `/system-kbnode\x2djob\x2dgpu[0-9]*.slice`, // JobSlice
	UnitDir + "/" + NodeService,
	UnitDir + "/" + NodeTimer,
	UnitDir + "/kbnode-image.service",
	UnitDir + "/kbnode-image.timer",
	"/etc/buildkite-agent/agent-[0-9]*/*",
	HooksDir + "/*",
	"/etc/kbnode/slots/gpu[0-9]*.json",
	"/etc/cron.d/kbnode",
}

// OwnedInputs are files that kbnode reads and may have written. If so, they
// contain Marker, and only uninstall deletes them.
var OwnedInputs = []string{
	ConfigPath,
	TokenPath,
	BindingsPath,
	LastPath,
	TunablesPath,
}

// OwnedCopies are copies of other files of the machine, and a program that is embedded in
// kbnode. They contain no marker and are kbnode's own by their path. Only uninstall deletes them.
var OwnedCopies = []string{
	AgentCopy,
	RunnerCopy,
}

// EarlierFile is a file of an earlier setup that is in the way although no plan
// writes it.
type EarlierFile struct {
	Pattern string // as in Owned
	Why     string // what it does to jobs if it stays
}

// EarlierFiles are the files that kbnode cannot work with, whatever their origin.
var EarlierFiles = append([]EarlierFile{
	{"/etc/buildkite-agent/buildkite-agent-gpu[0-9]*.cfg", "holds the registration token where jobs may read it"},
	{"/etc/cron.d/kernelbot-update", "restarts agents under running jobs"},
}, earlierHooks()...)

// earlierHooks returns the hooks that buildkite-agent runs, by their exact
// names: other files in its hooks directory, such as *.sample, never run.
func earlierHooks() []EarlierFile {
	var hooks []EarlierFile
	for _, name := range []string{
		"environment", "pre-checkout", "checkout", "post-checkout", "pre-command", "command", "post-command",
		"pre-artifact", "post-artifact", "pre-exit", "pre-bootstrap", "agent-startup", "agent-shutdown",
	} {
		hooks = append(hooks, EarlierFile{HooksDir + "/" + name, "is a hook of an earlier setup"})
	}
	return hooks
}

// OperatorHooks are the hooks of an operator's own that kbnode bootstrap runs around each job, once
// kbnode is installed.
var OperatorHooks = []string{"environment", "pre-exit"}

// IsOperatorHook reports whether a path is one of OperatorHooks.
func IsOperatorHook(file string) bool {
	return path.Dir(file) == HooksDir && slices.Contains(OperatorHooks, path.Base(file))
}

// OwnedUsers are the names of users that kbnode may have made, as in Owned.
var OwnedUsers = []string{"kbnode-gpu" + slotNumber, GitUser}

// OwnedDir is a directory that kbnode may have made.
type OwnedDir struct {
	Pattern string // as in Owned
	All     bool   // delete with all its content; else only if empty
}

// OwnedDirs are the directories that kbnode may have made, inner ones first.
var OwnedDirs = []OwnedDir{
	{"/etc/buildkite-agent/agent-[0-9]*", false},
	{HooksDir, false},
	{"/etc/buildkite-agent", false},
	{"/etc/kbnode/slots", false},
	{"/etc/kbnode", false},
	{"/run/kbnode/gpu[0-9]*", true},
	{"/run/kbnode", true},
	{"/var/lib/buildkite-agent/gpu-[0-9]*", true},
	{disksDir + "/gpu[0-9]*", true},
	{disksDir, false},
	{"/var/lib/buildkite-agent", false},
	{"/var/lib/kbnode", true},
	{"/usr/local/libexec/kbnode/dist", true}, // what install downloaded
	{AgentsDir + "/*", true},                 // what upgrade downloaded
	{AgentsDir, true},
	{"/usr/local/libexec/kbnode", false},
}

// IsMarked reports whether kbnode wrote a text: one of its first three lines contains Marker.
func IsMarked(text string) bool {
	lines := strings.SplitAfterN(text, "\n", 4)
	return strings.Contains(strings.Join(lines[:min(3, len(lines))], ""), Marker)
}

// Owns reports whether a path matches one of the patterns above exactly, and
// which slot it belongs to: -1 for the node's own.
func Owns(file string) (slot int, ok bool) {
	for _, list := range [][]string{Owned, OwnedInputs, OwnedCopies} {
		for _, pattern := range list {
			slot, ok = MatchOwned(pattern, file)
			if ok {
				return slot, true
			}
		}
	}
	return -1, false
}

// OwnsUnit is Owns for the name of a systemd unit.
func OwnsUnit(name string) (slot int, ok bool) { return Owns(UnitDir + "/" + name) }

// MatchOwned matches a path against one pattern of Owned or OwnedDirs, more
// strictly than path.Match does: the number of a slot is digits only.
func MatchOwned(pattern, file string) (slot int, ok bool) {
	before, after, numbered := strings.Cut(pattern, slotNumber)
	if !numbered {
		ok, err := path.Match(pattern, file)
		return -1, ok && err == nil
	}
	rest, prefixed := strings.CutPrefix(file, before)
	end := strings.TrimLeft(rest, "0123456789")
	slot, err := strconv.Atoi(strings.TrimSuffix(rest, end))
	matched, bad := path.Match(after, end)
	if !prefixed || err != nil || bad != nil || !matched || strconv.Itoa(slot)+end != rest {
		return -1, false
	}
	return slot, true
}
