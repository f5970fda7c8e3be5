package selftest

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/selftest/probe"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/internal/systemd"
)

// testedSlot returns slot 1 of two.
func testedSlot() *trial {
	p, pol := testSlot()
	text, _ := json.Marshal(pol)
	t := &tester{machine: machine{users: map[string]reconcile.UserState{"kbnode-gpu1": {UID: 2001, GID: 2001}}}}
	t.Plan = &plan.Plan{
		Slots: []plan.Slot{p, {Index: 2, Name: "gpu2"}},
		Files: []plan.File{{Path: plan.SlotPolicyPath(1), Content: string(text), Slot: 1}, {Path: "/etc/buildkite-agent/agent-2/x", Slot: 2}, {Path: plan.TokenPath, Slot: -1}},
	}
	t.State = &reconcile.State{Slots: []slot.State{{Index: 1, Slice: slot.Slice{Cgroup: "/buildkite.slice/buildkite-gpu1.slice"}}}}
	return &trial{t: t, plan: p, policy: pol, state: t.State.Slot(1)}
}

// TestAsks tests that the probe tries what belongs to other slots, the node and Docker, and
// also what the slot itself has, without which it would prove nothing.
func TestAsks(t *testing.T) {
	t.Parallel()
	s := testedSlot()
	has := func(what string, list []string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !slices.Contains(list, w) {
				t.Errorf("%s: does not try %s of %q", what, w, list)
			}
		}
	}
	a := s.hostAsk()
	has("open", a.Open, plan.WorkDir(1), plan.TokenPath, plan.WorkDir(2), plan.RunDir(2)+"/agent", "/etc/shadow")
	has("write", a.Write, plan.TokenPath, plan.SlotPolicyPath(1), plan.BindingsPath, "/sys/fs/cgroup/buildkite.slice/buildkite-gpu1.slice/memory.max", "/sys/fs/cgroup/buildkite.slice/cgroup.procs")
	has("unix", a.Unix, plan.SocketPath(1), plan.SocketPath(2), "/var/run/docker.sock")
	if slices.Contains(a.Write, "/etc/buildkite-agent/agent-2/x") || slices.Contains(a.Unix, "") {
		t.Errorf("tries another slot's files as its own: %q", a.Write)
	}
	c := s.containerAsk([]string{"192.0.2.1:9"}, "198.18.2.2:4711")
	has("open", c.Open, plan.ContainerBinary, plan.TokenPath, "/work/out/etc/shadow", plan.WorkDir(1))
	has("write", c.Write, "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/sys/fs/cgroup/memory.max")
	has("unix", c.Unix, "/run/docker.sock", s.policy.Socket)
	has("tcp", c.TCP, "192.0.2.1:9", "198.18.2.2:4711", metadata)
	has("windows", c.Windows, "/proc/bus/pci/devices")
	has("disks", c.Disks, "/", "/work")
	if !c.Calls || !c.Proc || c.Forks <= probePids {
		t.Errorf("tries %+v", c)
	}
	s.policy.Profile, s.policy.DiskBytes = "strict", 0
	if c := s.containerAsk(nil, ""); len(c.Disks) > 0 || slices.Contains(c.TCP, "") {
		t.Errorf("without a disk: %+v", c)
	}
}

// TestHost runs both probes in the slot's slice, and judges what they saw.
func TestHost(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		saw  string // of the token, by the slot's user
		fail error
		out  string // instead of facts
		want string // what does not hold, or the error
	}{
		"held":          {saw: "EACCES"},
		"token is read": {saw: "ok", want: "open " + plan.TokenPath},
		"no program":    {fail: errors.New("start unit: no"), want: "start unit: no"},
		"no facts":      {out: "{", want: "read probe's result"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testedSlot()
			var ran []string
			s.t.Program = func(_ context.Context, p systemd.Program) ([]byte, error) {
				ran = append(ran, p.Unit+" "+p.Slice+" "+p.User)
				if row.out != "" {
					return []byte(row.out), nil
				}
				f := probe.Facts{UID: 2001, Groups: []int{2001}, CPUs: "2-3", Disks: map[string]int64{plan.WorkDir(1): 1 << 20}}
				f.Tries = []probe.Try{{Kind: "open", What: plan.WorkDir(1), Saw: "ok"}, {Kind: "open", What: plan.TokenPath, Saw: row.saw}}
				text, _ := json.Marshal(f)
				return text, row.fail
			}
			checks, err := s.host(t.Context())
			got := strings.Join(bad(checks), "; ")
			if err != nil {
				got = err.Error()
			}
			if row.want == "" && got != "" || !strings.Contains(got, row.want) {
				t.Errorf("got %q, want %q", got, row.want)
			}
			if want := "kbnode-selftest-gpu1-user.service buildkite-gpu1.slice kbnode-gpu1"; len(ran) == 0 || ran[0] != want {
				t.Errorf("ran %q, want %q", ran, want)
			}
			if row.want == "" && (len(ran) != 2 || !strings.HasSuffix(ran[1], "-root.service buildkite-gpu1.slice ")) {
				t.Errorf("ran %q", ran)
			}
		})
	}
	s := testedSlot()
	if _, err := userOf(s.t.machine, "nobody-here"); err == nil {
		t.Error("a user that is not there")
	}
}

// TestOfThePlan finds what belongs to a slot.
func TestOfThePlan(t *testing.T) {
	t.Parallel()
	s := testedSlot()
	if pol, err := policyOf(s.t.Plan, 1); err != nil || pol.Slice != "buildkite-gpu1.slice" {
		t.Errorf("policy is %+v, %v", pol, err)
	}
	if _, err := policyOf(s.t.Plan, 2); err == nil || !strings.Contains(err.Error(), "no policy for slot gpu2") {
		t.Errorf("got %v", err)
	}
	if got := s.t.State.Slot(2); got.Slice.Cgroup != "" {
		t.Errorf("state is %+v", got)
	}
	if o := s.otherSlot(); o == nil || o.Index != 2 {
		t.Errorf("the other slot is %+v", o)
	}
	s.t.Plan.Slots = s.t.Plan.Slots[:1]
	if o := s.otherSlot(); o != nil {
		t.Errorf("one slot has another: %+v", o)
	}
	s.add(Check{Held: true})
	if !s.report.Held() {
		t.Error("what held did not")
	}
	s.add(s.refused("x", errors.New("y")))
	if s.report.Held() || s.report.Checks[1].Do != s.hint() {
		t.Errorf("report is %+v", s.report)
	}
	for want, p := range map[string]plan.Slot{"it is parked: its GPU is lost": {Index: 4095, Parked: "its GPU is lost"}, "": {Index: 4095}} {
		if got := (&trial{t: s.t, plan: p}).away(); got != want {
			t.Errorf("away: %q, want %q", got, want)
		}
	}
	for _, address := range hostAddresses(&net.TCPAddr{Port: 4711}) {
		if !strings.HasSuffix(address, ":4711") || strings.HasPrefix(address, "127.") {
			t.Errorf("containers could not reach %s", address)
		}
	}
}
