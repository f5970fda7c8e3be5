package plan

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// An empty list allows nothing. A policy without the key would allow all images.
func TestEmptyListsAllowNothing(t *testing.T) {
	t.Parallel()
	for _, images := range [][]string{nil, {}, {"^a$"}} {
		text, err := json.Marshal(JobPolicy{Images: images})
		var back JobPolicy
		must.Do(t, json.Unmarshal(text, &back))
		if err != nil || (back.Images == nil) != (images == nil) || len(back.Images) != len(images) {
			t.Errorf("%#v is read back as %#v, %v", images, back.Images, err)
		}
	}
}

// TestReservedEnv tests that no job can give a variable of its slot another value.
func TestReservedEnv(t *testing.T) {
	t.Parallel()
	for _, vendor := range []string{"nvidia", "amd", ""} {
		s := Slot{CPUs: "0-3"}
		if vendor != "" {
			s.GPUs = []SlotGPU{{Vendor: vendor, UUID: "GPU-1"}}
		}
		env := slotEnv(s)
		if len(env) < 5 {
			t.Errorf("%q: %q", vendor, env)
		}
		for _, e := range env {
			name, _, _ := strings.Cut(e, "=")
			if !slices.ContainsFunc(ReservedEnv, func(p string) bool {
				prefix, isPrefix := strings.CutSuffix(p, "*")
				return p == name || isPrefix && strings.HasPrefix(name, prefix)
			}) {
				t.Errorf("a job may set %s, although the slot does", name)
			}
		}
	}
}

func TestRegistries(t *testing.T) {
	t.Parallel()
	for image, want := range map[string][]string{
		"ghcr.io/gpu-mode/kernelbot:latest": {"lan:5000", "ghcr.io"}, "127.0.0.1:5000/eval:latest": {"lan:5000", "127.0.0.1:5000"},
		"localhost/eval:1": {"lan:5000", "localhost"}, "gpu-mode/eval:1": {"lan:5000"}, "eval:1": {"lan:5000"},
	} {
		cfg := config.Config{Image: config.Image{Name: image}, Job: config.Job{PrivateRegistries: []string{"lan:5000"}}}
		if diff := cmp.Diff(want, registries(cfg)); diff != "" {
			t.Errorf("%s: %s", image, diff)
		}
	}
}

// TestAllowedNetworks checks that the networks are in the slots' policies, and that a
// list that closes nothing causes a warning, as does an address that no job reaches.
func TestAllowedNetworks(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	for network, warns := range map[string]bool{"": true, config.NetworkBridge: true, config.NetworkInternet: false, config.NetworkNone: false} {
		p := build(t, inv, config.Config{Queue: "b200", Job: config.Job{Network: network, AllowedNetworks: []string{"10.1.2.3:5000", "[fd00::1]:443"}}}, nil, false)
		must.Contain(t, strings.Join(p.Warnings, "\n"), "job.allowed_networks: [fd00::1]:443: no job reaches an IPv6 address")
		if got := strings.Contains(strings.Join(p.Warnings, "\n"), "set job.network: internet"); got != warns {
			t.Errorf("%q: warnings %q", network, p.Warnings)
		}
		must.Contain(t, fileOf(p, SlotPolicyPath(7)), `"10.1.2.3:5000"`)
	}
}

// TestStopTimeout lets a job within its time limit end when its agent is stopped.
func TestStopTimeout(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	for want, job := range map[string]config.Job{
		"9900": {}, "110700": {TimeLimit: "30h", MaxMinutes: 30}, "10860": {MaxMinutes: 180}, "7260": {TimeLimit: config.NoLimit, MaxMinutes: 120},
		"2592120": {TimeLimit: config.NoLimit, MaxMinutes: 43201}, "2013265980": {TimeLimit: config.NoLimit, MaxMinutes: math.MaxInt},
	} {
		p := build(t, inv, config.Config{Queue: "b200", Job: job}, nil, false)
		must.Contain(t, fileOf(p, UnitDir+"/"+AgentUnit(7)), "\nTimeoutStopSec="+want+"\n")
	}
}

// TestDrainedSlot takes a slot's agent down and changes nothing else.
func TestDrainedSlot(t *testing.T) {
	t.Parallel()
	in := input(readMachine(t, machinetest.B200x8()), config.Config{Queue: "b200"})
	want := planned(t, in)
	at := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	health := Drain{Slot: 3, By: "gpu.ecc", Reason: "it needs a reset", Since: at}
	operator := Drain{Slot: 3, By: ByOperator, Reason: "new fan", Since: at.Add(time.Hour)}
	in.Drains = []Drain{health, operator, {Slot: 42, By: ByOperator}, {Slot: 43, By: "gpu.ecc"}}
	got := planned(t, in)
	if diff := cmp.Diff([]Drain{operator, health}, got.Slots[3].Drains); diff != "" || got.Slots[3].Serves() || !got.Slots[2].Serves() {
		t.Errorf("serves: %t; %s", got.Slots[3].Serves(), diff)
	}
	want.Slots[3].Drains = got.Slots[3].Drains
	for i, u := range want.Units {
		if u.Name == AgentUnit(3) {
			want.Units[i].Active = false
		}
	}
	want.Warnings = append(want.Warnings, "gpu42 is drained by operator, but does not exist now; a later gpu42 will be drained unless you run sudo kbnode resume gpu42 first")
	must.Equal(t, want, got)
}

func TestDrainsFile(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	operator := Drain{Slot: 2, By: ByOperator, Reason: "new fan", Since: at}
	drains := AddDrain(AddDrain(nil, operator), Drain{Slot: 2, By: "gpu.lost", Reason: "gone", Since: at})
	again := operator
	again.Reason, again.Since = "new board", at.Add(time.Hour)
	drains = AddDrain(AddDrain(drains, again), Drain{Slot: 0, By: ByOperator, Since: at})

	text, err := RenderDrains(drains)
	must.Do(t, err)
	got, err := ParseDrains([]byte(text))
	must.Do(t, err)
	operator.Reason = "new board"
	want := []Drain{{Slot: 0, By: ByOperator, Since: at}, {Slot: 2, By: "gpu.lost", Reason: "gone", Since: at}, operator}
	must.Equal(t, want, got)
	must.Equal(t, want[:2], RemoveDrain(got, 2, ByOperator))
	// A kbnode that knows more has written a drain.
	got, err = ParseDrains([]byte(`{"schema": ` + strconv.Itoa(Schema) + `, "drains": [{"slot": 2, "by": "operator", "later": true}]}`))
	must.Do(t, err)
	must.Equal(t, []Drain{{Slot: 2, By: ByOperator}}, got)
	for _, bad := range []string{"", "[]", `{"schema": 99}`} {
		if _, err := ParseDrains([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestDrainEnds(t *testing.T) {
	t.Parallel()
	until := time.Date(2026, 12, 24, 18, 0, 0, 0, time.UTC)
	fan := Drain{Slot: 2, By: ByOperator, Reason: "fan"}
	limited, reboots, waits, both := fan, fan, fan, fan
	limited.Until, reboots.Reboot = until, "1"
	waits.Reboot, waits.Stays = "1", true
	both.Until, both.Reboot, both.Stays = until, "1", true
	held := fan
	held.Reboot = "1"
	for _, tt := range []struct {
		name    string
		in      Drain
		boot    string
		reached bool
		want    Drain
		ended   bool
		text    string
	}{
		{"no end", fan, "2", true, fan, false, "drained by operator: fan"},
		{"before its end", limited, "2", false, limited, false, "drained by operator until 2026-12-24 18:00 UTC: fan"},
		{"at its end", limited, "2", true, limited, true, "drained by operator until 2026-12-24 18:00 UTC: fan"},
		{"before the reboot", reboots, "1", true, reboots, false, "drained by operator until the reboot: fan"},
		{"in an unknown boot", reboots, "", true, reboots, false, "drained by operator until the reboot: fan"},
		{"after the reboot", reboots, "2", true, reboots, true, "drained by operator until the reboot: fan"},
		{"drained before, before the reboot", waits, "1", true, waits, false, "drained by operator: fan"},
		{"drained before, after the reboot", waits, "2", true, fan, false, "drained by operator: fan"},
		{"at its end, before the reboot", both, "1", true, held, false, "drained by operator until 2026-12-24 18:00 UTC: fan"},
		{"before its end, after the reboot", both, "2", false, limited, false, "drained by operator until 2026-12-24 18:00 UTC: fan"},
		{"at its end, after the reboot", both, "2", true, limited, true, "drained by operator until 2026-12-24 18:00 UTC: fan"},
	} {
		got, ok := tt.in.Now(tt.boot, func(time.Time) bool { return tt.reached })
		if ok == tt.ended || ok && got != tt.want || tt.in.String() != tt.text {
			t.Errorf("%s: got %+v, %v, %q", tt.name, got, ok, tt.in)
		}
	}
	// A reboot waits for all drains, and a drain replaces all of them.
	reboot := Drain{Slot: 2, By: ByOperator, Reason: "driver", Reboot: "1"}
	must.Equal(t, []Drain{waits}, AddDrain(AddDrain([]Drain{fan}, reboot), reboot))
	must.Equal(t, []Drain{reboot}, AddDrain(AddDrain(nil, reboot), reboot))
	must.Equal(t, []Drain{both}, AddDrain([]Drain{limited}, reboot))
	must.Equal(t, []Drain{fan}, AddDrain([]Drain{both}, fan))
	// Canceled, it leaves what there was before.
	must.Equal(t, []Drain{fan}, Resume([]Drain{waits}, 2, "1"))
	must.Equal(t, []Drain{limited}, Resume([]Drain{both}, 2, ""))
	must.Equal(t, []Drain{}, Resume([]Drain{reboot}, 2, "1"))
	must.Equal(t, []Drain{}, Resume([]Drain{waits}, 2, "2")) // it was rebooted
}

// TestHooks puts the site's hooks into each slot's policy, and nothing where there are none.
func TestHooks(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	for name, row := range map[string]struct {
		job  config.Job
		want *Hooks
	}{
		"none":         {config.Job{HookTimeLimit: "2m"}, nil},
		"a prolog":     {config.Job{Prolog: "/opt/p"}, &Hooks{Prolog: "/opt/p", LimitSeconds: 60, Node: "box"}},
		"both, longer": {config.Job{Prolog: "/opt/p", Epilog: "/opt/e", HookTimeLimit: "1m30s"}, &Hooks{Prolog: "/opt/p", Epilog: "/opt/e", LimitSeconds: 90, Node: "box"}},
	} {
		p := build(t, inv, config.Config{Queue: "b200", Node: "box", Job: row.job}, nil, false)
		var got JobPolicy
		must.Do(t, json.Unmarshal([]byte(fileOf(p, SlotPolicyPath(7))), &got))
		if diff := cmp.Diff(row.want, got.Hooks); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
