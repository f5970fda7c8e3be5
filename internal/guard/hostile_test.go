package guard

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/selftest/hostile"
)

// TestHostileRequests sends what kbnode selftest sends to a live guard, and also checks what the
// engine was asked.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	requests := slices.DeleteFunc(hostile.Requests(), func(r hostile.Request) bool {
		return r.Patience > time.Minute // half a minute for a body; the live guard is tried with that
	})
	if len(requests) < 60 {
		t.Errorf("the table has %d requests", len(requests))
	}
	seen := map[string]bool{}
	for batch := range slices.Chunk(requests, 8) {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			target := hostileTarget(t, r)
			strict := newRig(t, func(r *rig) { r.policy.Profile, r.policy.Network = "strict", "none" })
			strictTarget := hostileTarget(t, strict)
			for _, req := range batch {
				t.Run(req.Group+"/"+req.Name, func(t *testing.T) {
					if req.Patience > 0 {
						t.Parallel()
					} else {
						strict.attack(t, req, strictTarget)
					}
					r.attack(t, req, target)
				})
			}
		})
		for _, req := range batch {
			if id := req.Group + ": " + req.Name; seen[id] {
				t.Errorf("two requests are called %q", id)
			} else {
				seen[id] = true
			}
		}
	}
}

// hostileTarget puts into the rig what the requests target.
func hostileTarget(t *testing.T, r *rig) hostile.Target {
	t.Helper()
	other := filepath.Join(t.TempDir(), "gpu-1")
	target := hostile.Target{
		Image: "img", Node: "secret-host", Other: neighbour, OtherName: "kbnode-gpu1-job", OtherGPU: "GPU-99999999-2222-3333-4444-555555555555",
		OtherSlice: "buildkite-gpu1.slice", OtherWork: other, WorkRoot: r.policy.WorkRoot,
		Checkout: filepath.Join(r.policy.WorkRoot, "checkout"), Socket: r.socket, EngineSocket: r.engine.socket,
	}
	target.OutLink, target.OtherLink = filepath.Join(target.Checkout, "out"), filepath.Join(target.Checkout, "other")
	for _, err := range []error{os.Mkdir(other, 0o700), os.Symlink("/", target.OutLink), os.Symlink(other, target.OtherLink)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	r.engine.add(neighbour, target.OtherName, target.OtherSlice, "1")
	target.Own = r.create(t, "own")
	return target
}

func (r *rig) attack(t *testing.T, req hostile.Request, target hostile.Target) {
	r.engine.mu.Lock()
	r.engine.requests, r.engine.created = nil, nil
	r.engine.mu.Unlock()
	answer, err := req.Send(t.Context(), r.socket, target)
	if err != nil {
		t.Fatal(err)
	}
	saw, held := req.Check(answer, target)
	if !held {
		t.Errorf("came back: %s", saw)
	}
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	for _, asked := range r.engine.requests {
		looks := strings.HasPrefix(asked, "GET ") || strings.HasPrefix(asked, "HEAD /_ping")
		attaches := req.Before > 0 && strings.HasSuffix(req.Name, "behind an attach") && strings.Contains(asked, "/attach?")
		if !looks && !attaches && req.Want != hostile.Rebuilt && (req.Want != hostile.Contained || answer.Created() == "") {
			t.Errorf("the engine was asked %s", asked)
		}
	}
	if req.Want == hostile.Rebuilt || answer.Created() != "" {
		if len(r.engine.created) != 1 || answer.Created() == "" {
			t.Fatalf("%d containers were made: %s", len(r.engine.created), saw)
		}
		made := r.engine.created[0]
		for _, fault := range hostile.Faults(r.policy, made.Config, made.HostConfig) {
			if fault != "it runs as root" || os.Getuid() != 0 { // the slot's user here runs the tests
				t.Errorf("the container has more than its slot: %s", fault)
			}
		}
	}
	if r.engine.containers[neighbour] == nil || r.engine.containers[target.Own] == nil {
		t.Error("a container is gone")
	}
}

// TestHostileRequestsAreSeen sends the table straight to the engine: if many requests looked
// refused there, the table would prove nothing about a guard.
func TestHostileRequestsAreSeen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	target := hostileTarget(t, r)
	missed := map[string]bool{}
	for _, req := range hostile.Requests() {
		// The engine refuses malformed requests in the same words.
		if req.Want == hostile.Blind && req.Name != "GET /info" || req.Group == "http" || req.Group == "slow clients" || req.Group == "paths" || req.Group == "json" {
			continue
		}
		answer, err := req.Send(t.Context(), r.engine.socket, target)
		if err != nil {
			t.Fatal(err)
		}
		saw, held := req.Check(answer, target)
		if id := answer.Created(); id != "" && (req.Want == hostile.Rebuilt || req.Want == hostile.Contained) {
			made := r.engine.created[len(r.engine.created)-1]
			if made.HostConfig == nil {
				continue
			}
			held = len(hostile.Faults(r.policy, made.Config, made.HostConfig)) == 0
		}
		if held {
			missed[req.Group+": "+req.Name+": "+saw] = true
		}
	}
	if len(missed) > 0 {
		t.Errorf("not seen without a guard: %v", missed)
	}
}

// TestHostileFaults finds everything that a container of the slot must not have.
func TestHostileFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if status, answer := r.ask(t, http.MethodPost, "/containers/create", `{"Image":"img"}`); status != http.StatusCreated {
		t.Fatal(answer)
	}
	made := r.engine.created[0]
	for name, row := range map[string]struct {
		change func(*plan.JobPolicy)
		want   string
	}{
		"another GPU":  {func(p *plan.JobPolicy) { p.CDIDevices = []string{"nvidia.com/gpu=x"} }, "it gets the devices"},
		"other CPUs":   {func(p *plan.JobPolicy) { p.CPUs = "0-1" }, "its CPUs are"},
		"less memory":  {func(p *plan.JobPolicy) { p.MemoryBytes /= 2 }, "its memory is"},
		"no network":   {func(p *plan.JobPolicy) { p.Network = "none" }, "its network is"},
		"strict":       {func(p *plan.JobPolicy) { p.Profile = "strict" }, "its root is writable"},
		"another slot": {func(p *plan.JobPolicy) { p.Slot = 3 }, "its label names slot"},
		"other slice":  {func(p *plan.JobPolicy) { p.Slice = "x.slice" }, "it is below"},
		"other binary": {func(p *plan.JobPolicy) { p.Binary = "/opt/kbnode" }, "it mounts bind /usr/bin/kbnode"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planned := r.policy
			row.change(&planned)
			if got := strings.Join(hostile.Faults(planned, made.Config, made.HostConfig), "\n"); !strings.Contains(got, row.want) {
				t.Errorf("found %q, want %q", got, row.want)
			}
		})
	}
	t.Run("the slice's CPUs", func(t *testing.T) {
		t.Parallel()
		host := *made.HostConfig
		host.CpusetCpus, host.CpusetMems = "", ""
		if got := hostile.Faults(r.policy, made.Config, &host); len(got) > 0 {
			t.Errorf("found %q", got)
		}
		host.CpusetMems = "0-63"
		if got := hostile.Faults(r.policy, made.Config, &host); len(got) != 1 {
			t.Errorf("all memory nodes: found %q", got)
		}
	})
}
