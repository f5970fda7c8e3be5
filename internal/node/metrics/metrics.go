// Package metrics exports to Prometheus what the daemon sees and does. Only this package
// imports Prometheus's client; docs/metrics.md has a row for each metric.
package metrics

import (
	"cmp"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/daemon"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// maxLabel bounds the value of a label, in characters.
const maxLabel = 256

// Options are what an Exporter needs.
type Options struct {
	Version, Commit string // of kbnode
	// Images reads the state of the node's images; it may be nil.
	Images func() (image.State, error)
	Log    *slog.Logger // nil discards
	Root   string       // of the machine; without it, no file is written
}

// Exporter turns snapshots into metrics and serves them.
type Exporter struct {
	Options
	registry *prometheus.Registry
	web
	file file

	mu sync.Mutex // held while metrics change together, and while they are read

	slotInfo, slotState, slotDrained, verdicts  *prometheus.GaugeVec
	imageInfo, imageSince, imageFailed, loanEnd *prometheus.GaugeVec
	passes, changes, implausible                *prometheus.CounterVec
	waiting, lastPass, lastGood                 prometheus.Gauge
	counted                                     map[string]int // of implausible, by slot

	gpus gpuMetrics
	busy busyTime
}

// New returns an Exporter that serves and writes nothing yet.
func New(o Options) *Exporter {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	e := &Exporter{Options: o, registry: prometheus.NewRegistry(), counted: map[string]int{}}
	e.file.Root = o.Root
	metrics := promauto.With(e.registry)
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return metrics.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return metrics.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge("kbnode_build_info", "Version of kbnode; always 1.", "version", "commit", "go").
		WithLabelValues(o.Version, o.Commit, runtime.Version()).Set(1)

	e.slotInfo = gauge("kbnode_slot_info", "A slot and its GPU; always 1.", "slot", "gpu_uuid", "gpu_model", "queue")
	e.slotState = gauge("kbnode_slot_state", "Whether a slot is in this state, as kbnode status shows it.", "slot", "state")
	e.slotDrained = gauge("kbnode_slot_drained", "Who drained a slot; 1 if someone did.", "slot", "by")
	e.verdicts = gauge("kbnode_health_verdicts", "Verdicts about the health of a slot, or of the node where slot is empty.", "check", "level", "slot")

	e.implausible = counter("kbnode_implausible_jobs_total", "Jobs whose result has times that cannot be.", "slot")

	e.gpus = newGPUMetrics(gauge)
	e.busy = busyTime{
		seconds: counter("kbnode_slot_busy_seconds_total", "Time in which a job had the slot.", "slot"),
		gpus:    gauge("kbnode_slot_gpus", "GPUs of a slot; a part of a GPU counts as one.", "slot"),
	}

	e.imageInfo = gauge("kbnode_image_info", "The jobs' image in use; always 1.", "name", "digest")
	e.imageSince = gauge("kbnode_image_since_timestamp_seconds", "When the image in use arrived on this node.")
	e.imageFailed = gauge("kbnode_image_update_failed", "Whether the last unattended update of the image ended with an error, or an image was refused or rolled back since the one in use came.")
	e.loanEnd = gauge("kbnode_loan_end_timestamp_seconds", "From when on slots take no jobs.")

	e.passes = counter("kbnode_passes_total", "Passes of the daemon over the node.", "kind", "result")
	e.changes = counter("kbnode_changes_total", "Changes that passes made to the node.", "kind")
	e.waiting = gauge("kbnode_changes_waiting", "Changes that wait for a job to end.").WithLabelValues()
	e.lastPass = gauge("kbnode_last_pass_timestamp_seconds", "When the last pass began.").WithLabelValues()
	e.lastGood = gauge("kbnode_last_good_pass_timestamp_seconds", "When the last successful pass began; 0 if there is none.").WithLabelValues()
	for _, kind := range []string{"look", "whole"} {
		for _, result := range []string{"ok", "error", "locked"} {
			e.passes.WithLabelValues(kind, result)
		}
	}
	e.registry.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return e
}

// Publish records a pass, moves the server to the address that it names, and writes the file. It must not be called
// concurrently.
func (e *Exporter) Publish(s daemon.Snapshot) {
	var images image.State
	if e.Images != nil {
		var err error
		if images, err = e.Images(); err != nil {
			e.Log.Debug("images not read", "err", err)
		}
	}
	e.mu.Lock()
	e.pass(s)
	e.loanEnd.Reset()
	if s.Plan != nil && !s.Plan.LoanUntil.IsZero() {
		e.loanEnd.WithLabelValues().Set(seconds(s.Plan.LoanUntil))
	}
	e.slots(s)
	e.gpus.record(s)
	e.busy.record(s)
	e.image(images)
	e.mu.Unlock()
	e.serve(s.Metrics.Listen)
	if s.Plan != nil || s.Metrics.Textfile != "" { // else it may not be known yet which file is wanted; an old one shows its age
		e.keepFile(s.Metrics.Textfile)
	}
}

func (e *Exporter) pass(s daemon.Snapshot) {
	kind, result := "look", "ok"
	if s.Whole {
		kind = "whole"
	}
	e.lastPass.Set(seconds(s.Began))
	var locked *reconcile.LockedError
	switch {
	case errors.As(s.Err, &locked):
		result = "locked"
	case s.Err != nil:
		result = "error"
	default:
		e.lastGood.Set(seconds(s.Began))
		e.waiting.Set(float64(s.Waiting))
	}
	e.passes.WithLabelValues(kind, result).Inc()
	for _, c := range s.Applied {
		e.changes.WithLabelValues(string(c.Kind)).Inc()
	}
}

// slots updates the metrics of slots. What the snapshot lacks keeps its value.
func (e *Exporter) slots(s daemon.Snapshot) {
	e.verdicts.Reset()
	for _, v := range s.Verdicts {
		if len(v.Slots) == 0 {
			e.verdicts.WithLabelValues(v.Check, v.Level.String(), "").Inc()
		}
		for _, k := range v.Slots {
			e.verdicts.WithLabelValues(v.Check, v.Level.String(), plan.SlotName(k)).Inc()
		}
	}
	if s.State == nil {
		return
	}
	at := map[int]slot.State{}
	for _, ss := range s.State.Slots {
		at[ss.Index] = ss
	}
	e.slotInfo.Reset()
	e.slotState.Reset()
	e.slotDrained.Reset()
	for _, sl := range s.Plan.Slots {
		ss := at[sl.Index]
		uuids := sl.Each(func(g plan.SlotGPU) string { return g.UUID })
		e.slotInfo.WithLabelValues(sl.Name, label(strings.Join(uuids, ",")), label(sl.Model()), label(sl.Queue)).Set(1)
		for _, word := range slot.Words {
			e.slotState.WithLabelValues(sl.Name, word).Set(number(word == ss.Word(sl)))
		}
		e.countImplausible(sl.Name, ss.Implausible)
		for _, d := range sl.Drains {
			e.slotDrained.WithLabelValues(sl.Name, label(d.By)).Set(1)
		}
	}
}

// countImplausible takes the number that a slot's jobs have counted since the boot.
func (e *Exporter) countImplausible(slot string, n int) {
	c := e.implausible.WithLabelValues(slot) // also for none
	if more := n - e.counted[slot]; more > 0 {
		c.Add(float64(more))
	}
	e.counted[slot] = n
}

func (e *Exporter) image(s image.State) {
	e.imageInfo.Reset()
	e.imageSince.Reset()
	e.imageFailed.Reset()
	if s.Name != "" {
		e.imageFailed.WithLabelValues().Set(number(s.Failed != nil || s.Rejected() != nil))
	}
	if s.Current == nil {
		return
	}
	e.imageInfo.WithLabelValues(label(s.Name), label(cmp.Or(s.Current.Digest, s.Current.ID))).Set(1)
	e.imageSince.WithLabelValues().Set(seconds(s.Current.Since))
}

// label makes a text valid as the value of a label: the client panics on invalid UTF-8.
func label(s string) string { return text.Line(s, maxLabel) }

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
