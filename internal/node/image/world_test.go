package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/node/bundle"
)

const name = "reg.example/eval:latest"

// world is a fake engine, registry and node. Every call is a step before and after which
// the run can be interrupted or fail.
type world struct {
	t *testing.T

	mu       sync.Mutex
	names    map[string]string // of images, to IDs
	digests  map[string]string // references by digest, to IDs
	registry map[string]string // references to digests; an image's ID is "sha256:" and i for its digest's d
	used     map[string]bool
	bad      map[string]bool // IDs whose canary fails
	fails    int             // number of the next canaries to fail
	tried    []string        // IDs that canaries ran
	original string          // what the name pointed to before kbnode
	passed   map[string]bool
	slots    []Slot
	free     int64
	total    int64
	cut      bool // pulls are interrupted
	pulled   []string
	onPull   func(context.Context) error
	onCanary func(context.Context, Slot) error
	pruning  bool   // someone removes an image right after its canary
	built    string // ID
	loads    int
	removed  []string

	steps  int
	killAt int // -1 for never
	failAt int
}

type kill struct{ at string }

var errFault = errors.New("a fault")

func digest(n int) string { return fmt.Sprintf("sha256:%064x", 0xd00+n) }
func id(n int) string     { return fmt.Sprintf("sha256:%012x%052x", 0x1d00+n, n) }

func idOf(d string) string {
	var n int
	_, _ = fmt.Sscanf(strings.TrimLeft(strings.TrimPrefix(d, "sha256:"), "0"), "%x", &n)
	return id(n - 0xd00)
}

func newWorld(t *testing.T) *world {
	return &world{
		t: t, names: map[string]string{name: id(0)}, digests: map[string]string{}, original: id(0),
		registry: map[string]string{name: digest(1)}, used: map[string]bool{}, bad: map[string]bool{}, passed: map[string]bool{},
		slots: []Slot{{Index: 0, Name: "gpu0"}, {Index: 1, Name: "gpu1"}}, free: 1 << 40, total: 1 << 41, killAt: -1, failAt: -1,
	}
}

// step is a place where the run can be interrupted.
func (w *world) step(what string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps++
	switch w.steps - 1 {
	case w.killAt:
		panic(kill{what})
	case w.failAt:
		return fmt.Errorf("%s: %w", what, errFault)
	}
	return nil
}

// do makes a change between two steps.
func (w *world) do(what string, change func() error) error {
	if err := w.step("before " + what); err != nil {
		return err
	}
	w.mu.Lock()
	err := change()
	w.mu.Unlock()
	if err != nil {
		return err
	}
	return w.step("after " + what)
}

func (w *world) find(ref string) string {
	if i := w.names[ref]; i != "" {
		return i
	}
	if i := w.digests[ref]; i != "" {
		return i
	}
	for _, m := range []map[string]string{w.names, w.digests} {
		for _, i := range m {
			if i == ref {
				return i
			}
		}
	}
	return ""
}

func (w *world) Image(_ context.Context, ref string) (docker.Image, error) {
	if err := w.step("look at " + ref); err != nil {
		return docker.Image{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.find(ref)
	if i == "" {
		return docker.Image{}, fmt.Errorf("%s: %w", ref, docker.ErrNotFound)
	}
	out := docker.Image{ID: i, Size: 7}
	for n, to := range w.names {
		if to == i {
			out.Names = append(out.Names, n)
		}
	}
	for d, to := range w.digests {
		if to == i {
			out.Digests = append(out.Digests, d)
		}
	}
	return out, nil
}

func (w *world) Resolve(_ context.Context, ref string) (string, error) {
	if err := w.step("resolve " + ref); err != nil {
		return "", err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if d := w.registry[ref]; d != "" {
		return d, nil
	}
	return "", docker.ErrRefused
}

func (w *world) Pull(ctx context.Context, ref string, report func(docker.Progress)) error {
	if w.onPull != nil {
		if err := w.onPull(ctx); err != nil {
			return err
		}
	}
	report(docker.Progress{Layer: "aaaaaaaaaaaa", Status: "Downloading", Current: 1, Total: 1 << 20})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return w.do("pull", func() error {
		w.pulled = append(w.pulled, ref)
		if w.cut {
			return errors.New("unexpected EOF")
		}
		report(docker.Progress{Layer: "aaaaaaaaaaaa", Status: "Pull complete"})
		w.digests[ref] = idOf(digestOf(ref))
		return nil
	})
}

func (w *world) Build(_ context.Context, ref string, archive io.Reader, _ string, _ map[string]string, _ func(docker.Progress)) error {
	if _, err := io.ReadAll(archive); err != nil {
		return err
	}
	return w.do("build", func() error {
		w.names[ref] = w.built
		return nil
	})
}

// Load loads an archive, which has but the image's ID in it.
func (w *world) Load(ctx context.Context, archive io.Reader, _ int64, report func(docker.Progress)) error {
	text, err := io.ReadAll(archive)
	if err != nil {
		return err
	}
	if w.onPull != nil {
		if err := w.onPull(ctx); err != nil {
			return err
		}
	}
	report(docker.Progress{Layer: "image", Status: "sent", Current: 1, Total: 1})
	report(docker.Progress{Status: "Loaded image: x"})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return w.do("load", func() error {
		w.loads++
		w.names[bundle.ImageName] = string(text)
		return nil
	})
}

// archive is one with the image n.
func archive(n int) Archive {
	return Archive{
		Source: "b.tar", Name: bundle.ImageName, SHA256: fmt.Sprint("archive ", n), Size: 1 << 30,
		Check: func(_ context.Context, report func(done, total int64)) error { report(1, 2); return nil },
		Open:  func() io.Reader { return strings.NewReader(id(n)) },
	}
}

// Tag checks kbnode's promise: the name never points to an image whose canary has not
// passed, except to the one from before kbnode.
func (w *world) Tag(_ context.Context, source, to string) error {
	return w.do("tag "+to, func() error {
		i := w.find(source)
		if i == "" {
			return docker.ErrNotFound
		}
		if to == name && !w.passed[i] && i != w.original {
			w.t.Errorf("the name goes to %s, which no canary ran", i)
		}
		w.names[to] = i
		return nil
	})
}

func (w *world) Untag(_ context.Context, ref string) error {
	return w.do("untag "+ref, func() error {
		i := w.find(ref)
		if i == "" {
			return nil
		}
		if ref == name || ref == "other:tag" {
			w.t.Errorf("%s is untagged, which is not kbnode's", ref)
		}
		delete(w.names, ref)
		delete(w.digests, ref)
		if w.find(i) == "" {
			w.removed = append(w.removed, i)
			if w.used[i] {
				w.t.Errorf("%s is removed, and a container uses it", i)
			}
		}
		return nil
	})
}

func (w *world) Names(_ context.Context, prefix string) (map[string]string, error) {
	if err := w.step("names"); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	out := maps.Clone(w.names)
	maps.DeleteFunc(out, func(n, _ string) bool { return !strings.HasPrefix(n, prefix) })
	return out, nil
}

func (w *world) ImagesInUse(context.Context) (map[string]bool, error) {
	if err := w.step("in use"); err != nil {
		return nil, err
	}
	return maps.Clone(w.used), nil
}

func (w *world) Room(context.Context) (int64, int64, error) { return w.free, w.total, w.step("room") }

func (w *world) Slots(context.Context) ([]Slot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.slots), nil
}

func (w *world) job(slot int, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slots[slot].Job = what
}

func (w *world) Canary(ctx context.Context, slot Slot, image string) (Canary, error) {
	if w.onCanary != nil {
		if err := w.onCanary(ctx, slot); err != nil {
			return Canary{}, err
		}
	}
	c := Canary{Slot: slot.Name, Passed: true}
	err := w.do("canary", func() error {
		w.tried = append(w.tried, image)
		if w.find(image) == "" {
			return docker.ErrNotFound
		}
		w.fails--
		if w.bad[image] || w.fails >= 0 {
			c.Passed, c.Reason = false, "it fails"
		} else {
			w.passed[image] = true
		}
		if w.pruning {
			removed := func(_, i string) bool { return i == image }
			maps.DeleteFunc(w.names, removed)
			maps.DeleteFunc(w.digests, removed)
		}
		return nil
	})
	return c, err
}

func (w *world) updater(dir string) *Updater {
	return &Updater{Engine: w, Node: w, Dir: dir, Name: name, Keep: 1, Pause: time.Millisecond}
}

// cutOff calls run, which may be killed in the middle.
func cutOff(run func() (Result, error)) (killed string, err error) {
	defer func() {
		if k, ok := recover().(kill); ok {
			killed = k.at
		}
	}()
	_, err = run()
	return "", err
}
