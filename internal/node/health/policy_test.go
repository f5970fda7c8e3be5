package health

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

func withPolicy(h config.Health) Signals {
	in := machine(8)
	in.Policy = h.Policy()
	return in
}

// Each row has lines of an Xid of the fourth GPU, an hour apart, and the verdict after each.
func TestPolicyOfXids(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		xid  int
		job  string
		want []string
	}{
		{"48=ignore", 48, "", []string{""}},
		{"48=warn", 48, "", []string{"gpu.xid warn none [3]"}},
		{"48=degraded", 48, "", []string{"gpu.xid degraded none [3]"}},
		{"63=drain", 63, "", []string{"gpu.xid fatal drain [3]"}},
		{"63=park", 63, "job-1", []string{"gpu.xid fatal park [3]"}},
		{"63=drain@3/24h", 63, "", []string{"gpu.xid degraded none [3]", "gpu.xid degraded none [3]", "gpu.xid fatal drain [3]", "gpu.xid fatal drain [3]"}},
		{"48=drain@2/24h", 48, "", []string{"gpu.xid degraded none [3]", "gpu.xid fatal drain [3]"}},
		{"63=drain@2/1h", 63, "", []string{"gpu.xid degraded none [3]", "gpu.xid fatal drain [3]"}},
		{"999=park", 999, "", []string{"gpu.xid fatal park [3]"}},
		{"999=park", 999, "job-1", []string{""}},
		{"999=degraded", 999, "job-1", []string{"gpu.xid degraded none [3]"}},
		{"999=warn", 999, "job-1", []string{"gpu.xid warn none [3]"}},
		{"999=ignore", 999, "job-1", []string{""}},
		{"999=drain@2/24h", 999, "job-1", []string{"", "", ""}},
		{"999=drain@2/24h", 999, "", []string{"gpu.xid warn none [3]", "gpu.xid fatal drain [3]"}},
		{"14=drain", 14, "", []string{"gpu.xid fatal drain [3]"}},
		{"14=drain", 14, "job-1", []string{""}},
		{"14=drain@2/24h", 14, "", []string{"", "gpu.xid fatal drain [3]"}},
		{"145=drain", 145, "job-1", []string{"gpu.xid degraded none [3]"}},
		{"145=drain", 145, "", []string{"gpu.xid fatal drain [3]"}},
		{"137=drain", 137, "job-1", []string{"gpu.xid degraded none [3]"}},
		{"137=drain", 137, "", []string{"gpu.xid fatal drain [3]"}},
	} {
		t.Run(row.rule+" "+row.job, func(t *testing.T) {
			t.Parallel()
			in := withPolicy(config.Health{Xids: []string{row.rule}})
			in.Slots[3].Job = row.job
			n := newNode(t, in)
			for _, want := range row.want {
				got := n.lines(time.Hour, xidLineOf(3, row.xid, "words"))
				if want == "" {
					n.want(got)
				} else {
					n.want(got, want)
				}
			}
		})
	}
}

// A policy changes what follows from the Xids that it names, and from nothing else.
func TestPolicyNamesOne(t *testing.T) {
	t.Parallel()
	actions := []string{"ignore", "warn", "degraded", "drain", "park", "drain@2/24h"}
	for number := 1; number <= XidLast+1; number++ {
		for _, job := range []string{"", "job-1"} {
			after := func(h config.Health) string {
				in := withPolicy(h)
				in.Slots[3].Job = job
				n := newNode(t, in)
				return fmt.Sprint(n.lines(time.Second, xidLineOf(3, number, "words")), n.events)
			}
			other := fmt.Sprintf("%d=%s", number+1, actions[number%len(actions)])
			must.Equal(t, after(config.Health{}), after(config.Health{Xids: []string{other}}))
		}
	}
}

// What drains a GPU lasts until a reset: a later, milder line of the same Xid does not return it.
func TestMilderLine(t *testing.T) {
	t.Parallel()
	const drained = "gpu.xid fatal drain [3]"
	n := newNode(t, withPolicy(config.Health{Xids: []string{"999=drain"}}))
	n.want(n.lines(time.Second, xidLineOf(3, 145, "RLW_SRC_TRACK Fatal XC0 i0 Link 13 (0x0)")), drained)
	n.want(n.lines(time.Second, xidLineOf(3, 145, "RLW_SRC_TRACK Nonfatal XC0 i0 Link 13 (0x0)")), drained)
	n = newNode(t, n.in)
	n.want(n.lines(time.Second, xidLineOf(3, 999, "words")), drained)
	n.in.Slots[3].Unread = []string{CheckAgent}
	n.want(n.lines(time.Second, xidLineOf(3, 999, "words")), drained)
	n.in.Policy = config.Health{Xids: []string{"999=warn"}}.Policy() // which counts from the next line on
	n.want(n.lines(time.Second, xidLineOf(3, 999, "words")), "gpu.xid warn none [3]")
}

// A storm of lines is one, however long; and while no one knows what the slots run, a job may be why.
func TestPolicyOfStorms(t *testing.T) {
	t.Parallel()
	n := newNode(t, withPolicy(config.Health{Xids: []string{"63=drain@2/24h", "999=drain"}}))
	for range 20 {
		n.want(n.lines(10*time.Second, xidLineOf(3, 63, "words")), "gpu.xid degraded none [3]")
	}
	n.want(n.lines(2*time.Minute, xidLineOf(3, 63, "words")), "gpu.xid fatal drain [3]")
	n.in.Slots[4].Unread = []string{CheckAgent}
	n.want(n.lines(time.Second, xidLineOf(4, 999, "words")), "gpu.xid fatal drain [3]", "gpu.xid warn none [4]")
}

func TestWatchOnly(t *testing.T) {
	t.Parallel()
	for xid, want := range map[int]string{48: "gpu.xid fatal none [3]", 79: "gpu.lost fatal park [3]"} {
		n := newNode(t, withPolicy(config.Health{WatchOnly: true}))
		n.want(n.lines(time.Second, xidLineOf(3, xid, "words")), want)
		if len(n.events) == 0 {
			t.Errorf("Xid %d: no event", xid)
		}
	}
}

// fail lets the fourth GPU fail and be reset.
func (n *node) fail(later time.Duration) []Verdict {
	n.lines(later, xidLineOf(3, 48, "words"), xidLineOf(3, 64, "words"))
	n.in.ResetByHand = map[string]time.Duration{pci(3): n.in.Up + time.Second}
	got := n.judgeAfter(time.Minute, nil)
	n.in.ResetByHand = nil
	return got
}

func TestRepeats(t *testing.T) {
	t.Parallel()
	const out = "gpu.repeats fatal drain [3]"
	week := config.Health{Repeats: "3/168h"}
	start := func(t *testing.T, h config.Health, faults int) *node {
		n := newNode(t, withPolicy(h))
		for i := range faults {
			if got := n.fail(time.Hour); i < 2 {
				n.want(got)
			}
		}
		return n
	}
	t.Run("until an operator says so", func(t *testing.T) {
		n := start(t, week, 3)
		got := n.judgeAfter(400*time.Hour, nil)
		n.want(got, out)
		if !strings.Contains(got[0].Reason, "3 faults in 7 days (Xid 48, Xid 48, Xid 48)") || got[0].Fix != "sudo kbnode resume gpu3" {
			t.Errorf("it says %q, %q", got[0].Reason, got[0].Fix)
		}
		n.in.Returned = map[string]time.Duration{uuid(3): n.in.Up}
		n.want(n.judgeAfter(time.Second, nil))
		n.in.Returned = nil
		n.want(n.fail(time.Hour)) // the count is new
		n.want(n.fail(time.Hour))
		n.want(n.fail(time.Hour), out)
	})
	t.Run("shared with another GPU", func(t *testing.T) {
		n := start(t, week, 2)
		for range 4 {
			n.lines(time.Hour, xidLineOf(3, 48, "words"), xidLineOf(5, 48, "words"))
			n.in.ResetByHand = map[string]time.Duration{uuid(3): n.in.Up + time.Second, uuid(5): n.in.Up + time.Second}
			n.want(n.judgeAfter(time.Minute, nil))
			n.in.ResetByHand = nil
		}
		n.want(n.fail(time.Hour), out)
	})
	t.Run("shared with another GPU a moment later", func(t *testing.T) {
		n := start(t, week, 2)
		n.want(n.lines(time.Hour, xidLineOf(3, 48, "words")), "gpu.xid fatal drain [3]")
		n.want(n.lines(20*time.Second, xidLineOf(5, 48, "words")), "gpu.xid fatal drain [3]", "gpu.xid fatal drain [5]")
		n.in.ResetByHand = map[string]time.Duration{uuid(3): n.in.Up + time.Second, uuid(5): n.in.Up + time.Second}
		n.want(n.judgeAfter(time.Minute, nil))
	})
	t.Run("after an Xid of a job", func(t *testing.T) {
		for xid, want := range map[int][]string{31: nil, 109: nil, 999: {out}} {
			n := start(t, week, 2)
			n.in.Slots[3].Job = "job-1"
			n.lines(time.Hour, xidLineOf(3, xid, "words"), xidLineOf(3, 154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"))
			n.in.ResetByHand = map[string]time.Duration{uuid(3): n.in.Up + time.Second}
			n.want(n.judgeAfter(time.Minute, nil), want...)
		}
	})
	t.Run("with a recovery action that is not fatal", func(t *testing.T) {
		action := func(from, to int) string {
			return xidLineOf(3, 154, fmt.Sprintf("GPU recovery action changed from 0x%d (x) to 0x%d (x)", from, to))
		}
		const fatal = "RLW_SRC_TRACK Fatal XC0 i0 Link 13 (0x0)"
		for _, later := range []time.Duration{0, time.Second} { // whether one look has both lines
			for to, want := range map[int][]string{1: {out}, 3: nil, 5: nil} {
				n := start(t, week, 2)
				n.in.GPUs.List[3].NVML.RecoveryAction = nil
				if later > 0 {
					n.lines(time.Hour, xidLineOf(3, 145, fatal))
					n.lines(later, action(0, to))
				} else {
					n.lines(time.Hour, xidLineOf(3, 145, fatal), action(0, to))
				}
				n.lines(time.Hour, action(to, 0))
				n.want(n.judgeAfter(time.Minute, nil), want...)
			}
		}
	})
	t.Run("lost for seconds or for minutes", func(t *testing.T) {
		dead := func(in *Signals) { in.GPUs.Bus[pci(3)] = Bus{Dead: true} }
		wants := func(in *Signals) { in.GPUs.List[3].Healthy, in.GPUs.List[3].NVML.Code = false, nvml.CodeReset }
		for _, sick := range []func(*Signals){dead, wants} {
			for readings, want := range map[int][]string{1: nil, 2: nil, 4: {out}} { // 30 seconds apart
				n := start(t, week, 0)
				for range 3 {
					for range readings {
						n.judgeAfter(30*time.Second, sick)
						n.lines(time.Second) // a look without a reading proves nothing
					}
					n.judgeAfter(time.Hour, nil)
				}
				n.want(n.judgeAfter(time.Hour, nil), want...)
			}
		}
	})
	t.Run("known by its address first", func(t *testing.T) {
		n := newNode(t, withPolicy(week))
		n.state, n.in.Slots[3].UUID, n.in.GPUs.List[3].UUID = State{}, "", ""
		n.fail(time.Hour)
		n.want(n.fail(time.Hour))
		n.in.Slots[3].UUID, n.in.GPUs.List[3].UUID = uuid(3), uuid(3)
		n.want(n.fail(time.Hour), out)
	})
	t.Run("away for repair", func(t *testing.T) {
		away := func(in *Signals) {
			in.Slots, in.GPUs.List = slices.Delete(in.Slots, 3, 4), slices.Delete(in.GPUs.List, 3, 4)
		}
		unread := func(in *Signals) { away(in); in.GPUs.Unread = []string{inventory.SubjectGPUs} }
		for days, want := range map[time.Duration][]string{80: {out}, 100: nil} {
			n := start(t, week, 3)
			n.want(n.judgeAfter(time.Hour, away))
			n.in.Boot, n.in.Up = "another", time.Minute
			n.judgeAfter(days*12*time.Hour, away)
			n.judgeAfter(time.Hour, unread)
			n.want(n.judgeAfter(days*12*time.Hour, away))
			n.want(n.judgeAfter(time.Hour, nil), want...)
		}
	})
	t.Run("while it was only watched", func(t *testing.T) {
		watching := week
		watching.WatchOnly = true
		n := start(t, watching, 2)
		n.want(n.fail(time.Hour), "gpu.repeats fatal none [3]")
		n.judgeAfter(200*time.Hour, nil)
		n.in.Policy = week.Policy()
		n.want(n.judgeAfter(time.Hour, nil))
	})
	t.Run("over a reboot, a clock that jumps and a restart", func(t *testing.T) {
		n := start(t, week, 2)
		n.in.Boot, n.in.Up, n.in.Now = "another", time.Minute, n.in.Now.Add(-9999*time.Hour)
		n.judgeAfter(time.Second, nil)
		n.in.Now = n.in.Now.Add(99999 * time.Hour)
		n.want(n.judgeAfter(time.Second, nil))
		text, err := json.Marshal(n.state)
		must.Do(t, err)
		n.state, err = ParseState(text)
		must.Do(t, err)
		n.want(n.fail(time.Hour), out)
		n.in.Boot, n.in.Up = "a third", time.Minute
		n.want(n.judgeAfter(time.Second, nil), out)
	})
	t.Run("not those of long ago", func(t *testing.T) {
		n := start(t, week, 2)
		n.want(n.fail(168 * time.Hour))
		n.want(n.fail(time.Hour))
		n.want(n.fail(time.Hour), out)
	})
	t.Run("none", func(t *testing.T) {
		n := start(t, config.Health{Repeats: config.NoLimit}, 5)
		n.want(n.judgeAfter(time.Hour, nil))
	})
	t.Run("a lost state", func(t *testing.T) {
		n := newNode(t, withPolicy(week))
		n.in.Out = map[int]string{3: "3 faults"}
		n.want(n.judgeAfter(time.Second, nil), out)
		n.in.Out = nil
		n.want(n.judgeAfter(time.Hour, nil), out)
	})
	t.Run("the operator's word is older than the last fault", func(t *testing.T) {
		n := start(t, week, 1)
		said := n.in.Up
		n.fail(time.Hour)
		n.in.Returned = map[string]time.Duration{uuid(3): said}
		n.judgeAfter(time.Second, nil)
		n.in.Returned = nil
		n.want(n.fail(time.Hour))
		n.want(n.fail(time.Hour), out)
	})
}

// What time ends is forgotten, and of many GPUs those that were taken out first.
func TestForgotten(t *testing.T) {
	t.Parallel()
	n := newNode(t, withPolicy(config.Health{Xids: []string{"63=drain@3/1h"}}))
	n.lines(time.Second, xidLineOf(3, 63, "words"))
	must.Equal(t, 1, n.state.FaultCount())
	n.judgeAfter(2*time.Hour, nil)
	must.Equal(t, 0, n.state.FaultCount())

	s := State{GPUs: []gpu{{ID: "b", record: record{RemovedAt: 9}}}}
	for i := range maxGPUs {
		s.GPUs = append(s.GPUs, gpu{ID: fmt.Sprint("c", i), record: record{RemovedAt: time.Duration(max(0, 8-i))}})
	}
	s.truncate()
	if ids := fmt.Sprint(s.GPUs); len(s.GPUs) != maxGPUs || !strings.Contains(ids, "{b ") || !strings.Contains(ids, "{c63 ") || !strings.Contains(ids, "{c1 ") || strings.Contains(ids, "{c7 ") {
		t.Errorf("left %s", ids)
	}
}

// A line is about the GPU that is at its address now, not one that was taken out and is remembered for its faults.
func TestAnotherGPUInItsPlace(t *testing.T) {
	t.Parallel()
	n := newNode(t, withPolicy(config.Health{Repeats: "3/168h"}))
	n.in.Slots = n.in.Slots[:3]
	n.fail(time.Hour)
	n.in.GPUs.List[3].UUID = "GPU-0"
	n.judgeAfter(time.Minute, nil)
	n.lines(time.Second, xidLineOf(3, 31, "words"))
	if len(n.state.GPUs) != 9 || len(n.events) != 1 || n.events[0].GPU != "GPU-0" {
		t.Errorf("%d GPUs, events %+v", len(n.state.GPUs), n.events)
	}
}

// Xids that the configuration refuses are those that a job can cause, by the table.
func TestXidsOfJobs(t *testing.T) {
	t.Parallel()
	refused := map[int]bool{}
	for number := 1; number <= XidLast; number++ {
		c := config.Config{Health: config.Health{Xids: []string{fmt.Sprintf("%d=drain", number)}}}
		refused[number] = len(config.Validate(c)) > 0
		class := LookupXid(number).Class
		must.Equal(t, class == XidApplication || class == XidLost || class == XidRecovery, refused[number])
	}
	must.Equal(t, XidLast, len(slices.Collect(maps.Keys(refused))))
}
