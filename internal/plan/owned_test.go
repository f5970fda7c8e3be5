package plan

import "testing"

// TestOwned asks which patterns match a path or a name.
func TestOwned(t *testing.T) {
	t.Parallel()
	var earlier []string
	for _, e := range EarlierFiles {
		earlier = append(earlier, e.Pattern)
	}
	const none = -2 // no pattern matches
	for _, tt := range []struct {
		patterns []string // nil for those of Owns
		slots    map[string]int
	}{
		{nil, map[string]int{
			"/etc/systemd/system/buildkite.slice": -1, HooksDir + "/environment": -1, BindingsPath: -1,
			UnitDir + "/" + SliceName(3): 3, UnitDir + "/" + AgentUnit(12): 12, UnitDir + "/" + GuardUnit(0): 0, SlotPolicyPath(7): 7, AgentDir(5) + "/buildkite-agent.cfg": 5,
			// A drop-in of an operator, and names that look like kbnode's.
			UnitDir + "/" + AgentUnit(0) + ".d/50-mine.conf": none, UnitDir + "/buildkite-gpu0x.slice": none, UnitDir + "/buildkite-gpu00.slice": none,
			UnitDir + "/buildkite-gpu99999999999999999999.slice": none, UnitDir + "/buildkite-gpu.slice": none,
			AgentDir(5) + "/a/b": none, AgentDir(5): none, "/etc/buildkite-agent/buildkite-agent-gpu0.cfg": none, UnitDir + "/docker.service": none,
		}},
		{OwnedUsers, map[string]int{
			UserName(0): 0, UserName(12): 12, GitUser: -1,
			"kbnode-gpu": none, "kbnode-gpu07": none, "kbnode-gpu0x": none, "kbnode-git0": none, "kbnode": none, "alice": none,
		}},
		{earlier, map[string]int{
			"/etc/buildkite-agent/buildkite-agent-gpu12.cfg": 12, "/etc/cron.d/kernelbot-update": -1, HooksDir + "/pre-command": -1,
			// An agent without a GPU, what an editor left, an example of a hook, and what a hook reads.
			"/etc/buildkite-agent/buildkite-agent.cfg": none, "/etc/buildkite-agent/buildkite-agent-gpu0.cfg~": none, "/etc/cron.d/kernelbot": none,
			HooksDir + "/pre-command.sample": none, HooksDir + "/lib.sh": none,
		}},
	} {
		for name, want := range tt.slots {
			got := none
			if slot, ok := Owns(name); ok && tt.patterns == nil {
				got = slot
			}
			for _, pattern := range tt.patterns {
				if slot, ok := MatchOwned(pattern, name); ok {
					got = slot
				}
			}
			if got != want {
				t.Errorf("%s is of slot %d, want %d", name, got, want)
			}
		}
	}
}
