package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestAgentPerSlot gives one slot another release, which must change nothing
// for the others.
func TestAgentPerSlot(t *testing.T) {
	t.Parallel()
	in := input(readMachine(t, machinetest.B200x8()), config.Config{Queue: "b200"})
	want := planned(t, in)
	var keys []string
	for _, k := range agentKeys(*in.Config, Slot{}, "") {
		keys = append(keys, k.name)
	}
	in.Agents = Agents{
		Releases: []AgentRelease{{Version: "3.100.0", Keys: keys}},
		Roll:     &AgentRoll{To: "3.100.0", Slots: []int{3}},
	}
	got := planned(t, in)
	before, after := map[string]File{}, map[string]File{}
	for _, f := range want.Files {
		before[f.Path] = f
	}
	for _, f := range got.Files {
		after[f.Path] = f
	}
	const binary = "/usr/local/libexec/kbnode/agents/3.100.0/buildkite-agent"
	for path, f := range after {
		changed := path == binary || path == AgentDir(3)+"/buildkite-agent.cfg" || path == UnitDir+"/"+AgentUnit(3)
		if (cmp.Diff(before[path], f) != "") != changed {
			t.Errorf("%s: changed is %t, want %t", path, !changed, changed)
		}
		if changed && path != binary && (!strings.Contains(f.Content, binary) || strings.Contains(f.Content, AgentCopy)) {
			t.Errorf("%s does not run the release:\n%s", path, f.Content)
		}
	}
	if f := after[binary]; f.Mode != 0o711 || f.Source != binary {
		t.Errorf("the release is %+v", f)
	}
	for i, u := range got.Units {
		if (u.Generation != want.Units[i].Generation) != (u.Name == AgentUnit(3)) {
			t.Errorf("%s: generation %s, was %s", u.Name, u.Generation, want.Units[i].Generation)
		}
	}

	in.Agents.Releases[0].Keys = keys[1:]
	if _, err := Build(in); err == nil || !strings.Contains(err.Error(), "does not support name") {
		t.Errorf("a release that does not close a slot: %v", err)
	}
	in.Config.Agent.Binary = "/opt/agent"
	if p, err := Build(in); err != nil || p.Slots[3].AgentVersion != "" {
		t.Errorf("the configuration names the agent: %v", err)
	}
}

func TestCheckAgentVersion(t *testing.T) {
	t.Parallel()
	for version, ok := range map[string]bool{
		"3.76.2": true, "3.100.0": true, "4.0.0-beta.1": true,
		"": false, "3": false, "v3.76.2": false, "3.76.2/../../x": false, "..": false, "3.76.2 ": false, "latest": false, "3.76.2-": false, "3.76.2\n": false,
	} {
		if err := CheckAgentVersion(version); (err == nil) != ok {
			t.Errorf("%q: %v", version, err)
		}
	}
}

func TestAgentsBegin(t *testing.T) {
	t.Parallel()
	releases := []AgentRelease{{Version: "3.90.0"}, {Version: "3.100.0"}}
	under := &AgentRoll{To: "3.100.0", Slots: []int{0, 1}, Registered: []int{0}, Timeout: time.Minute}
	fresh := func(to string) *AgentRoll {
		return &AgentRoll{To: to, Slots: []int{}, Registered: []int{}, Timeout: time.Minute}
	}
	for _, tt := range []struct {
		name string
		have Agents
		to   string
		want *AgentRoll
	}{
		{"another one", Agents{Version: "3.90.0"}, "3.100.0", fresh("3.100.0")},
		{"to the installed one", Agents{Version: "3.90.0"}, "", fresh("")},
		{"the same", Agents{Version: "3.90.0"}, "3.90.0", nil},
		{"the same again goes on", Agents{Version: "3.90.0", Roll: under}, "3.100.0", under},
		{"the one before takes it back", Agents{Version: "3.90.0", Roll: under}, "3.90.0", nil},
		{"a third one", Agents{Version: "3.90.0", Roll: under}, "", fresh("")},
	} {
		tt.have.Releases = releases
		if diff := cmp.Diff(tt.want, tt.have.Begin(tt.to, time.Minute).Roll); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
	used, unused := Agents{Version: "3.90.0", Releases: releases}.Used()
	if diff := cmp.Diff(releases[:1], used); diff != "" || !unused {
		t.Errorf("unused %t: %s", unused, diff)
	}
}

func TestAgentsFile(t *testing.T) {
	t.Parallel()
	want := Agents{Version: "3.90.0", Releases: []AgentRelease{{"3.90.0", []string{"name"}}}, Roll: &AgentRoll{Slots: []int{2}, Registered: []int{}, Timeout: time.Minute}}
	text, err := RenderAgents(want)
	must.Do(t, err)
	got, err := ParseAgents([]byte(text))
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}
	for _, bad := range []string{
		"", "[]", `{"schema": 99}`, `{"schema": 1, "version": "3.90.0"}`,
		`{"schema": 1, "version": "../x", "releases": [{"version": "../x"}]}`,
		`{"schema": 1, "roll": {"to": "3.90.0"}}`,
	} {
		if _, err := ParseAgents([]byte(bad)); err == nil || !strings.Contains(err.Error(), "delete the file") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
