package metrics

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/daemon"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

var update = flag.Bool("update", false, "write testdata again")

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// scrape returns what Prometheus reads, without values that depend on the build or run.
func scrape(t *testing.T, e *Exporter) string {
	t.Helper()
	w := httptest.NewRecorder()
	e.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	out := regexp.MustCompile(`go="[^"]*"`).ReplaceAllString(w.Body.String(), `go="-"`)
	return regexp.MustCompile(`(?m)^(process_\w+) \S+$`).ReplaceAllString(out, "$1 -")
}

// samples returns the lines of some metrics.
func samples(t *testing.T, e *Exporter, names string) []string {
	t.Helper()
	var list []string
	for line := range strings.Lines(scrape(t, e)) {
		if regexp.MustCompile(`^(` + names + `)[{ ]`).MatchString(line) {
			list = append(list, strings.TrimSpace(line))
		}
	}
	return list
}

func running(k int, job string, since time.Time) slot.State {
	s := slot.State{Index: k, Name: plan.SlotName(k), Agent: slot.Unit{Active: "active", Sub: "running"}}
	if job != "" {
		s.Job = &slot.Job{ID: job, Pipeline: "p", Since: since}
	}
	return s
}

// full is a pass over a node that has a bit of everything.
func full() daemon.Snapshot {
	p := &plan.Plan{Slots: systemdtest.Slots(4), LoanUntil: noon.Add(36 * time.Hour)}
	for i := range p.Slots {
		p.Slots[i].GPUs = []plan.SlotGPU{p.Slots[i].GPUs[0]}
		p.Slots[i].GPUs[0].Number, p.Slots[i].GPUs[0].PCI = i, fmt.Sprintf("0000:%02x:00.0", 16+i)
	}
	p.Slots[1].Drains = []plan.Drain{{Slot: 1, By: plan.ByOperator, Reason: "a new fan"}, {Slot: 1, By: "gpu.ecc"}, {Slot: 1, By: "gpu.ecc"}}
	p.Slots[3].Queue = "by \"name\"\n\xff"
	parked := running(3, "", time.Time{})
	parked.Parked, parked.Implausible = []slot.Parked{{Reason: "its GPU is in use"}}, 2
	return daemon.Snapshot{
		Began: noon, Duration: 1200 * time.Millisecond, Whole: true, Plan: p, Waiting: 2,
		State: &reconcile.State{Slots: []slot.State{
			running(0, "job-a", noon.Add(-time.Minute)), {Index: 1, Agent: slot.Unit{Active: "inactive"}}, running(2, "", time.Time{}), parked,
		}},
		Verdicts: []health.Verdict{
			{Check: "gpu.ecc", GPU: "GPU-1", Slots: []int{1}, Level: health.Fatal, Effect: health.Drain},
			{Check: "gpu.nvlink", GPU: "GPU-x", Slots: []int{0, 2}, Level: health.Warn},
			{Check: "node.disk", Level: health.Warn}, {Check: "node.disk", Level: health.Warn},
		},
		GPUs: &health.GPUs{List: []inventory.GPU{
			{Vendor: "nvidia", PCI: p.Slots[0].GPUs[0].PCI, Healthy: true, MemoryBytes: 192 << 30, NVML: &nvml.GPU{
				Busy: new(uint32(97)), ClockReasons: new(uint64(0x41)), Memory: &nvml.Memory{}, Temperature: &nvml.Temperature{GPU: new(uint32(64))},
				Power:  &nvml.Power{Usage: new(uint32(712_500)), Enforced: new(uint32(1_000_000))},
				Clocks: &nvml.Clocks{SM: new(uint32(1965)), Memory: new(uint32(3996))},
			}},
			{Vendor: "nvidia", PCI: p.Slots[1].GPUs[0].PCI, Error: "GPU is lost", NVML: &nvml.GPU{}},
		}},
		Applied: []reconcile.Change{{Kind: reconcile.Create}, {Kind: reconcile.Create}, {Kind: reconcile.Restart}},
	}
}

func images() (image.State, error) {
	return image.State{
		Name:    "ghcr.io/gpu-mode/kernelbot:latest",
		Current: &image.Image{ID: "sha256:1", Digest: "sha256:d1", Since: noon.Add(-48 * time.Hour)},
	}, nil
}

// TestText compares all output, for a look after a full pass.
func TestText(t *testing.T) {
	t.Parallel()
	e := New(Options{Version: "1.2.3", Commit: "abc", Images: images})
	e.Publish(full())
	short := full()
	short.Began, short.Duration, short.Whole, short.Applied = noon.Add(30*time.Second), 20*time.Millisecond, false, nil
	short.State.Slots[0].Job = nil
	e.Publish(short)
	got := scrape(t, e)
	for _, secret := range []string{"job-a", "a new fan"} {
		if strings.Contains(got, secret) {
			t.Errorf("%q is told", secret)
		}
	}
	must.Golden(t, "testdata/metrics.txt", *update, got)
}

// TestImageFailed tells the last update that ended with an error from one that refused its image, and both from an old refusal.
func TestImageFailed(t *testing.T) {
	t.Parallel()
	refused := func(at time.Duration) []image.Refusal {
		return []image.Refusal{{Digest: "sha256:d2", Time: noon.Add(at)}}
	}
	for _, tt := range []struct {
		name   string
		change func(s *image.State)
		want   string
	}{
		{"fine", func(*image.State) {}, "0"},
		{"an error", func(s *image.State) { s.Failed = &image.Failure{Reason: "no registry"} }, "1"},
		{"refused since", func(s *image.State) { s.Refused = refused(-time.Hour) }, "1"},
		{"refused before", func(s *image.State) { s.Refused = refused(-72 * time.Hour) }, "0"},
		{"a bundle's refused since", func(s *image.State) { s.RefusedLocal = &image.Failure{Time: noon.Add(-time.Hour)} }, "1"},
		{"a bundle's refused before", func(s *image.State) { s.RefusedLocal = &image.Failure{Time: noon.Add(-72 * time.Hour)} }, "0"},
		{"refused without another", func(s *image.State) { s.Refused, s.Current = refused(-72*time.Hour), nil }, "1"},
	} {
		e := New(Options{Images: func() (image.State, error) {
			s, err := images()
			tt.change(&s)
			return s, err
		}})
		e.Publish(full())
		if got := samples(t, e, "kbnode_image_update_failed"); len(got) != 1 || got[0] != "kbnode_image_update_failed "+tt.want {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
}

// TestLoanEnd has no sample once the configuration names no end.
func TestLoanEnd(t *testing.T) {
	t.Parallel()
	e := New(Options{})
	e.Publish(full())
	if got := samples(t, e, "kbnode_loan_end_timestamp_seconds"); len(got) != 1 {
		t.Errorf("lent: %q", got)
	}
	s := full()
	s.Plan.LoanUntil = time.Time{}
	e.Publish(s)
	if got := samples(t, e, "kbnode_loan_end_timestamp_seconds"); len(got) != 0 {
		t.Errorf("not lent: %q", got)
	}
}

// TestImplausible counts on when a slot's count begins again, as after a boot.
func TestImplausible(t *testing.T) {
	t.Parallel()
	e := New(Options{})
	for _, n := range []int{1, 3, 3, 0, 1} {
		s := full()
		s.State.Slots[3].Implausible = n
		e.Publish(s)
	}
	got := samples(t, e, "kbnode_implausible_jobs_total")
	if len(got) != 4 || got[0] != `kbnode_implausible_jobs_total{slot="gpu0"} 0` || got[3] != `kbnode_implausible_jobs_total{slot="gpu3"} 4` {
		t.Errorf("%q", got)
	}
}

// TestFailedPass checks that known values stay, and that their age shows.
func TestFailedPass(t *testing.T) {
	t.Parallel()
	const known = `kbnode_slot_info|kbnode_slot_state|kbnode_slot_drained|kbnode_changes_waiting|kbnode_health_verdicts`
	e := New(Options{})
	s := full()
	e.Publish(s)
	before := samples(t, e, known)
	if len(before) < 10 {
		t.Fatalf("samples: %q", before)
	}
	e.Publish(daemon.Snapshot{Began: noon.Add(time.Minute), Plan: s.Plan, Verdicts: s.Verdicts, Whole: true, Err: fmt.Errorf("lock: %w", &reconcile.LockedError{})})
	e.Publish(daemon.Snapshot{Began: noon.Add(2 * time.Minute), Plan: s.Plan, Verdicts: s.Verdicts, Err: errors.New("no bus")})
	must.Equal(t, before, samples(t, e, known))
	want := []string{
		"kbnode_last_good_pass_timestamp_seconds 1.7723664e+09",
		"kbnode_last_pass_timestamp_seconds 1.77236652e+09",
		`kbnode_passes_total{kind="look",result="error"} 1`,
		`kbnode_passes_total{kind="look",result="locked"} 0`,
		`kbnode_passes_total{kind="look",result="ok"} 0`,
		`kbnode_passes_total{kind="whole",result="error"} 0`,
		`kbnode_passes_total{kind="whole",result="locked"} 1`,
		`kbnode_passes_total{kind="whole",result="ok"} 1`,
	}
	must.Equal(t, want, samples(t, e, `kbnode_last_\w+|kbnode_passes_total`))

	// A slot or image that is gone is no longer exported.
	s.Plan = &plan.Plan{Slots: systemdtest.Slots(1)}
	e.Publish(s)
	for _, line := range samples(t, e, `kbnode_slot_\w+|kbnode_image_\w+`) {
		if strings.Contains(line, "gpu1") || strings.HasPrefix(line, "kbnode_image") {
			t.Errorf("still told: %s", line)
		}
	}
}
