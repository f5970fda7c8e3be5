package plan

import "testing"

func TestOwns(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, path string
		slot       int
		ok         bool
	}{
		{"the parent slice", "/etc/systemd/system/buildkite.slice", -1, true},
		{"a slot's slice", UnitDir + "/" + SliceName(3), 3, true},
		{"a slot's agent", UnitDir + "/" + AgentUnit(12), 12, true},
		{"a slot's guard", UnitDir + "/" + GuardUnit(0), 0, true},
		{"a slot's policy", SlotPolicyPath(7), 7, true},
		{"an agent's configuration", AgentDir(5) + "/buildkite-agent.cfg", 5, true},
		{"a hook", HooksDir + "/environment", -1, true},
		{"the kept bindings", BindingsPath, -1, true},
		{"a drop-in of an operator", UnitDir + "/" + AgentUnit(0) + ".d/50-mine.conf", -1, false},
		{"a slice with a word after its number", UnitDir + "/buildkite-gpu0x.slice", -1, false},
		{"a number with a leading zero", UnitDir + "/buildkite-gpu00.slice", -1, false},
		{"a number too large", UnitDir + "/buildkite-gpu99999999999999999999.slice", -1, false},
		{"no number", UnitDir + "/buildkite-gpu.slice", -1, false},
		{"a file deeper in an agent's directory", AgentDir(5) + "/a/b", -1, false},
		{"an agent's directory itself", AgentDir(5), -1, false},
		{"an old script's configuration", "/etc/buildkite-agent/buildkite-agent-gpu0.cfg", -1, false},
		{"another program's unit", UnitDir + "/docker.service", -1, false},
	} {
		if slot, ok := Owns(tt.path); slot != tt.slot || ok != tt.ok {
			t.Errorf("%s: Owns(%s) = %d, %v; want %d, %v", tt.name, tt.path, slot, ok, tt.slot, tt.ok)
		}
	}
}

func TestOwnedUsers(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		UserName(0): true, UserName(12): true, GitUser: true, "kbnode-gpu": false, "kbnode-gpu07": false, "kbnode-gpu0x": false, "kbnode-git0": false, "kbnode": false, "alice": false,
	} {
		owned := false
		for _, pattern := range OwnedUsers {
			_, ok := MatchOwned(pattern, name)
			owned = owned || ok
		}
		if owned != want {
			t.Errorf("%s: %v", name, owned)
		}
	}
}

func TestEarlierFiles(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, path string
		slot       int
		ok         bool
	}{
		{"an agent's configuration with its token", "/etc/buildkite-agent/buildkite-agent-gpu12.cfg", 12, true},
		{"that of an agent without a GPU", "/etc/buildkite-agent/buildkite-agent.cfg", -1, false},
		{"a copy that an editor left", "/etc/buildkite-agent/buildkite-agent-gpu0.cfg~", -1, false},
		{"the job that updates images", "/etc/cron.d/kernelbot-update", -1, true},
		{"another cron job", "/etc/cron.d/kernelbot", -1, false},
		{"a hook", HooksDir + "/pre-command", -1, true},
		{"an example of a hook", HooksDir + "/pre-command.sample", -1, false},
		{"what a hook reads", HooksDir + "/lib.sh", -1, false},
	} {
		slot, ok := -1, false
		for _, e := range EarlierFiles {
			if k, matches := MatchOwned(e.Pattern, tt.path); matches {
				slot, ok = k, true
			}
		}
		if slot != tt.slot || ok != tt.ok {
			t.Errorf("%s: %s matches as %d, %v; want %d, %v", tt.name, tt.path, slot, ok, tt.slot, tt.ok)
		}
	}
}
