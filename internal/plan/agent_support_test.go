package plan

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestSupportOfAgent compares with the dates that Buildkite's policy gives.
func TestSupportOfAgent(t *testing.T) {
	t.Parallel()
	for version, want := range map[string][2]string{
		"3.76.2":        {"2026-10-01", "2027-01-01"}, // all that were out when the policy began
		"3.115.4":       {"2026-10-01", "2027-01-01"},
		"3.116.0":       {"2026-10-29", "2027-01-29"},
		"3.138.3":       {"2027-06-03", "2027-09-03"},
		"4.0.9":         {"2027-06-01", "2027-09-01"},
		"4.10.1":        {"2027-08-05", "2027-11-05"},
		"4.0.0-beta.15": {"2027-06-01", "2027-09-01"},
		"4.11.0":        {}, // newer than this kbnode
		"3.139.0":       {},
		"5.0.0":         {},
		"":              {},
		"latest":        {},
	} {
		s := SupportOfAgent(version)
		var got [2]string
		if !s.Ends.IsZero() {
			got = [2]string{s.Warns.Format(time.DateOnly), s.Ends.Format(time.DateOnly)}
		}
		if got != want {
			t.Errorf("%s: %v, want %v", version, got, want)
		}
	}
}

// TestAgentLines finds a misspelled day or a minor version that was left out.
func TestAgentLines(t *testing.T) {
	t.Parallel()
	var days []string
	for major, minors := range map[string][2]int{"v3.": {116, 138}, "v4.": {0, 10}} {
		last := ""
		for m := minors[0]; m <= minors[1]; m++ {
			day := agentLines[major+strconv.Itoa(m)]
			if _, err := time.Parse(time.DateOnly, day); err != nil || day <= last {
				t.Errorf("%s%d: %q after %q", major, m, day, last)
			}
			last, days = day, append(days, day)
		}
	}
	must.Equal(t, len(agentLines), len(days))
	if s := SupportOfAgent(PinnedAgentVersion); s.Ends.IsZero() || !slices.Contains(days, s.Ends.AddDate(-1, 0, 0).Format(time.DateOnly)) {
		t.Errorf("the pinned agent is supported until %v", s.Ends)
	}
}

// TestPinnedAgent has tests run the agent that install fetches.
func TestPinnedAgent(t *testing.T) {
	t.Parallel()
	must.Equal(t, PinnedAgentVersion, machinetest.AgentVersion)
	for file, line := range map[string]string{
		"../../Makefile":          "\nAGENT_VERSION := " + PinnedAgentVersion + "\n",
		"../../test/agent/go.mod": "github.com/buildkite/agent/v3 v" + PinnedAgentVersion + " ",
	} {
		text, err := os.ReadFile(file)
		must.Do(t, err)
		must.Contain(t, string(text), line)
	}
}
