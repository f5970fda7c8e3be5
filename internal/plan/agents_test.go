package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestAgentRelease gives slots another release, which changes their agents and nothing else.
func TestAgentRelease(t *testing.T) {
	t.Parallel()
	in := input(readMachine(t, machinetest.B200x8()), config.Config{Queue: "b200"})
	want := planned(t, in)
	var keys []string
	for _, k := range agentKeys(*in.Config, Slot{}, PinnedAgentVersion, "") {
		keys = append(keys, k.name)
	}
	in.Agent = AgentRelease{Version: "3.100.0", Keys: keys}
	got := planned(t, in)
	before := map[string]File{}
	for _, f := range want.Files {
		before[f.Path] = f
	}
	const binary = "/usr/local/libexec/kbnode/agents/3.100.0/buildkite-agent"
	for _, f := range got.Files {
		changed := f.Path == binary || strings.HasSuffix(f.Path, "/buildkite-agent.cfg") || f.Slot >= 0 && f.Path == UnitDir+"/"+AgentUnit(f.Slot)
		if (cmp.Diff(before[f.Path], f) != "") != changed {
			t.Errorf("%s: changed is %t, want %t", f.Path, !changed, changed)
		}
		if changed && f.Path != binary && (!strings.Contains(f.Content, binary) || strings.Contains(f.Content, AgentCopy)) {
			t.Errorf("%s does not run the release:\n%s", f.Path, f.Content)
		}
	}
	if i := slices.IndexFunc(got.Files, func(f File) bool { return f.Path == binary }); i < 0 || got.Files[i].Mode != 0o711 || got.Files[i].Source != binary {
		t.Error("the release is not planned")
	}
	for i, u := range got.Units {
		if (u.Generation != want.Units[i].Generation) != (u.Slot >= 0 && u.Name == AgentUnit(u.Slot)) {
			t.Errorf("%s: generation %s, was %s", u.Name, u.Generation, want.Units[i].Generation)
		}
	}

	in.Agent.Keys = keys[1:]
	if _, err := Build(in); err == nil || !strings.Contains(err.Error(), "does not support name") {
		t.Errorf("a release that does not close a slot: %v", err)
	}
	in.Config.Agent.Binary = "/opt/agent"
	p, err := Build(in)
	if err != nil || p.Slots[3].AgentVersion != "" {
		t.Fatalf("the configuration names the agent: %v", err)
	}
	if !slices.ContainsFunc(p.Files, func(f File) bool { return f.Path == binary }) {
		t.Error("the release that would run without the configuration's line is not planned")
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

func TestAgentFile(t *testing.T) {
	t.Parallel()
	want := AgentRelease{"3.90.0", []string{"name"}}
	text, err := RenderAgent(want)
	must.Do(t, err)
	got, err := ParseAgent([]byte(text))
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}
	for _, bad := range []string{"", "[]", `{"schema": 99}`, `{"schema": 1, "version": "../x"}`} {
		if _, err := ParseAgent([]byte(bad)); err == nil || !strings.Contains(err.Error(), "delete the file") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
