package image

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/test/must"
)

// outcome is what must not depend on how often a run was interrupted.
type outcome struct {
	Names, Digests               map[string]string
	Current, Previous, Candidate string
	Drop                         int
	Moving                       bool
	Refused                      []string
}

func (w *world) outcome(t *testing.T, dir string) outcome {
	t.Helper()
	s, err := Read(dir)
	must.Do(t, err)
	o := outcome{Names: maps.Clone(w.names), Digests: maps.Clone(w.digests), Drop: len(s.Drop), Moving: s.Moving}
	if s.Current != nil {
		o.Current = s.Current.ID
	}
	if s.Candidate != nil {
		o.Candidate = s.Candidate.ID
	}
	if len(s.Previous) > 0 {
		o.Previous = s.Previous[0].ID
	}
	for _, r := range s.Refused {
		o.Refused = append(o.Refused, r.Digest)
	}
	return o
}

func ref(n int) string { return "reg.example/eval@" + digest(n) }

// TestCutOff interrupts each kind of run before and after every step, and makes every step
// fail once. The next run must reach the same outcome as an undisturbed one, and the name
// must never point to an image whose canary did not run.
func TestCutOff(t *testing.T) {
	t.Parallel()
	update := func(w *world, dir string) (Result, error) {
		return w.updater(dir).Update(context.Background(), Options{})
	}
	next := func(w *world, n int) { w.registry[name] = digest(n) }
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, w *world, dir string)
		run     func(w *world, dir string) (Result, error)
		want    outcome
	}{
		{
			name: "the first update", run: update,
			want: outcome{
				Names:   map[string]string{name: id(1), ownName(id(1)): id(1), ownName(id(0)): id(0)},
				Digests: map[string]string{ref(1): id(1)}, Current: id(1), Previous: id(0),
			},
		},
		{
			name: "an update that drops an old image", run: update,
			prepare: func(t *testing.T, w *world, dir string) {
				for n := 1; n <= 2; n++ {
					next(w, n)
					mustDo(t, ActionUpdated)(update(w, dir))
				}
				next(w, 3)
			},
			want: outcome{
				Names:   map[string]string{name: id(3), ownName(id(3)): id(3), ownName(id(2)): id(2)},
				Digests: map[string]string{ref(3): id(3), ref(2): id(2)}, Current: id(3), Previous: id(2),
			},
		},
		{
			name: "an image whose canary fails", run: update,
			prepare: func(t *testing.T, w *world, dir string) {
				mustDo(t, ActionUpdated)(update(w, dir))
				next(w, 2)
				w.bad[id(2)] = true
			},
			want: outcome{
				Names:   map[string]string{name: id(1), ownName(id(1)): id(1), ownName(id(0)): id(0)},
				Digests: map[string]string{ref(1): id(1)}, Current: id(1), Previous: id(0), Refused: []string{digest(2)},
			},
		},
		{
			name: "a rollback",
			run: func(w *world, dir string) (Result, error) {
				s, err := Read(dir)
				if err == nil && s.Current.ID != id(2) {
					return Result{}, w.updater(dir).reopen() // already done, as a person would see
				}
				return w.updater(dir).Rollback(context.Background(), "told to")
			},
			prepare: func(t *testing.T, w *world, dir string) {
				for n := 1; n <= 2; n++ {
					next(w, n)
					mustDo(t, ActionUpdated)(update(w, dir))
				}
			},
			want: outcome{
				Names:   map[string]string{name: id(1), ownName(id(1)): id(1)},
				Digests: map[string]string{ref(1): id(1)}, Current: id(1), Refused: []string{digest(2)},
			},
		},
		{
			name: "a build",
			run: func(w *world, dir string) (Result, error) {
				return w.updater(dir).Build(context.Background(), Source{Files: fstest.MapFS{}}, Options{})
			},
			prepare: func(t *testing.T, w *world, dir string) {
				mustDo(t, ActionUpdated)(update(w, dir))
				w.built = id(7)
			},
			want: outcome{
				Names:   map[string]string{name: id(7), ownName(id(7)): id(7), ownName(id(1)): id(1)},
				Digests: map[string]string{ref(1): id(1)}, Current: id(7), Previous: id(1),
			},
		},
		{
			name: "a bundle on a node without an image",
			run: func(w *world, dir string) (Result, error) {
				return w.updater(dir).Load(context.Background(), archive(7), Options{})
			},
			prepare: func(_ *testing.T, w *world, _ string) { delete(w.names, name) },
			want:    outcome{Names: map[string]string{name: id(7), ownName(id(7)): id(7)}, Digests: map[string]string{}, Current: id(7)},
		},
		{
			name: "a bundle",
			run: func(w *world, dir string) (Result, error) {
				return w.updater(dir).Load(context.Background(), archive(7), Options{})
			},
			prepare: func(t *testing.T, w *world, dir string) { mustDo(t, ActionUpdated)(update(w, dir)) },
			want: outcome{
				Names:   map[string]string{name: id(7), ownName(id(7)): id(7), ownName(id(1)): id(1)},
				Digests: map[string]string{ref(1): id(1)}, Current: id(7), Previous: id(1),
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cuts := 0
			for at := 0; ; at++ {
				w, killed := cutOffAt(t, tt.prepare, tt.run, at, true, tt.want)
				if killed == "" {
					break
				}
				cutOffAt(t, tt.prepare, tt.run, at, false, tt.want)
				cuts++
				if cuts > 500 || w == nil {
					t.Fatal("no end")
				}
			}
			if cuts < 10 {
				t.Errorf("cut off at %d places only", cuts)
			}
		})
	}
}

// reopen only finishes what an earlier run began.
func (u *Updater) reopen() error {
	release, err := u.open(context.Background())
	if err != nil {
		return err
	}
	defer release()
	return u.prune(context.Background())
}

func cutOffAt(t *testing.T, prepare func(*testing.T, *world, string), run func(*world, string) (Result, error), at int, killing bool, want outcome) (*world, string) {
	t.Helper()
	w, dir := newWorld(t), must.MemoryDir(t)
	if prepare != nil {
		prepare(t, w, dir)
	}
	w.steps = 0
	if killing {
		w.killAt = at
	} else {
		w.failAt = at
	}
	killed, err := cutOff(func() (Result, error) { return run(w, dir) })
	if err != nil && !errors.Is(err, errFault) {
		t.Errorf("step %d: %v", at, err)
	}
	w.killAt, w.failAt = -1, -1
	for range 2 { // the second one changes nothing
		if _, err := run(w, dir); err != nil {
			t.Errorf("after %q (step %d): %v", killed, at, err)
		}
		if diff := cmp.Diff(want, w.outcome(t, dir)); diff != "" {
			t.Errorf("after %q (step %d): %s", killed, at, diff)
		}
	}
	return w, killed
}

func mustDo(t *testing.T, action string) func(Result, error) {
	return func(r Result, err error) {
		t.Helper()
		if err != nil || r.Action != action {
			t.Fatalf("%+v, %v; want %q", r, err, action)
		}
	}
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	auto := Options{Auto: true, Wait: 20 * time.Millisecond}
	for _, tt := range []struct {
		name   string
		change func(w *world) // after the first update
		o      Options
		action string
		reason string // in it
		err    string
		stands int // what the name points to afterward; -1 for nothing
	}{
		{name: "nothing new", o: auto, action: ActionNone, stands: 1},
		{name: "something new", change: func(w *world) { w.registry[name] = digest(2) }, o: auto, action: ActionUpdated, stands: 2},
		{name: "only looked at", change: func(w *world) { w.registry[name] = digest(2) }, o: Options{Check: true}, action: ActionNewer, stands: 1},
		{
			name: "only looked at after the name moved", change: func(w *world) { w.names[name] = id(0) }, o: Options{Check: true},
			action: ActionMoved, reason: "another image has its name", stands: 0,
		},
		{
			name: "only looked at after the name was removed", change: func(w *world) { delete(w.names, name) }, o: Options{Check: true},
			action: ActionMoved, reason: "no image has its name", stands: -1,
		},
		{name: "the name was removed", change: func(w *world) { delete(w.names, name) }, o: auto, action: ActionUpdated, stands: 1},
		{name: "a registry that refuses", change: func(w *world) { delete(w.registry, name) }, o: auto, err: "the registry refuses it", stands: 1},
		{name: "a full disk", change: func(w *world) { w.registry[name] = digest(2); w.free = 10<<30 - 1 }, o: auto, err: "need 11 GiB; sudo docker rmi", stands: 1},
		{name: "just enough room", change: func(w *world) { w.registry[name] = digest(2); w.free = 10 << 30 }, o: auto, action: ActionUpdated, stands: 2},
		{name: "a small disk", change: func(w *world) { w.registry[name] = digest(2); w.free, w.total = 4<<30, 40<<30 }, o: auto, action: ActionUpdated, stands: 2},
		{name: "a small disk that is full", change: func(w *world) { w.registry[name] = digest(2); w.free, w.total = 3<<30, 40<<30 }, o: auto, err: "3 GiB are free", stands: 1},
		{name: "a disk that the pull fills", change: func(w *world) {
			w.registry[name] = digest(2)
			w.onPull = func(context.Context) error { time.Sleep(docker.RoomPoll); w.free = 9 << 30; return nil }
		}, o: auto, err: "9 GiB are free", stands: 1},
		{name: "a pull that is cut", change: func(w *world) { w.registry[name] = digest(2); w.cut = true }, o: auto, err: "unexpected EOF", stands: 1},
		{
			name: "a busy node", change: func(w *world) { w.registry[name] = digest(2); w.job(1, "job x") }, o: auto,
			action: ActionLater, reason: "the pull would disturb the timings of gpu1", stands: 1,
		},
		{
			name: "a busy node that is told to", change: func(w *world) { w.registry[name] = digest(2); w.job(1, "job x") }, o: Options{Beside: true, Wait: time.Millisecond},
			action: ActionUpdated, stands: 2,
		},
		{
			name: "no idle slot for the canary", change: func(w *world) { w.registry[name] = digest(2); w.job(0, "job x"); w.job(1, "job y") },
			o: Options{Beside: true, Wait: time.Millisecond}, action: ActionLater, reason: "no slot is idle to try the image in; gpu0, gpu1 run jobs", stands: 1,
		},
		{
			name: "no slot that is fit", change: func(w *world) {
				w.registry[name] = digest(2)
				w.slots[0].Away, w.slots[1].Away = "it is parked", "it is broken"
			}, o: auto, err: "no slot can try the image; gpu0: it is parked; gpu1: it is broken", stands: 1,
		},
		{
			name: "slots that owe an evaluation", change: func(w *world) {
				w.registry[name] = digest(2)
				w.slots[0].Owes, w.slots[1].Owes = "gpu.proof", "gpu.proof"
				delete(w.names, name)
			}, o: auto, action: ActionUpdated, stands: 2,
		},
		{
			name: "one that does, and one that is busy", change: func(w *world) {
				w.registry[name], w.slots[0].Owes = digest(2), "gpu.proof"
				w.job(1, "job x")
			}, o: Options{Beside: true, Wait: time.Millisecond}, action: ActionLater, reason: "no slot is idle", stands: 1,
		},
		{
			name: "one that does and fails", change: func(w *world) {
				w.registry[name], w.slots[0].Owes, w.slots[1].Away = digest(2), "gpu.proof", "it is parked"
				w.bad[id(1)], w.bad[id(2)] = true, true
			}, o: auto, err: "no slot can try the image; gpu0: its GPU may be at fault: it fails; gpu1: it is parked", stands: 1,
		},
		{
			name: "a bad image where the current one passes", change: func(w *world) {
				w.registry[name], w.slots[0].Owes, w.slots[1].Owes = digest(2), "gpu.proof", "gpu.proof"
				w.bad[id(2)] = true
			}, o: auto, action: ActionRefused, stands: 1,
		},
		{
			name: "a slot in which nothing can be tried", change: func(w *world) {
				w.registry[name] = digest(2)
				w.onCanary = func(_ context.Context, s Slot) error {
					if s.Index == 0 {
						return errors.New("its socket is away")
					}
					return nil
				}
			}, o: auto, action: ActionUpdated, stands: 2,
		},
		{
			name: "jobs that always come first", change: func(w *world) {
				w.registry[name] = digest(2)
				w.onCanary = func(context.Context, Slot) error { return errJob }
			}, o: auto, action: ActionLater, reason: "a job started in slot gpu0", stands: 1,
		},
		{name: "a canary that fails once", change: func(w *world) { w.registry[name] = digest(2); w.fails = 1 }, o: auto, action: ActionUpdated, stands: 2},
		{
			name: "a canary that is killed once", change: func(w *world) {
				w.registry[name] = digest(2)
				kills := 1
				w.onCanary = func(context.Context, Slot) error {
					kills--
					if kills >= 0 {
						return ErrKilled
					}
					return nil
				}
			}, o: auto, action: ActionUpdated, stands: 2,
		},
		{
			name: "a canary that is killed always", change: func(w *world) {
				w.registry[name] = digest(2)
				w.onCanary = func(context.Context, Slot) error { return ErrKilled }
			}, o: auto, err: "killed before it reported anything", stands: 1,
		},
		{
			name: "a job in place of the current image's canary", change: func(w *world) {
				w.registry[name], w.fails = digest(2), 2
				n := 0
				w.onCanary = func(context.Context, Slot) error {
					n++
					if n == 3 {
						return errJob
					}
					return nil
				}
			}, o: auto, action: ActionUpdated, stands: 2,
		},
		{
			name: "all images fail, so the slots are sick", change: func(w *world) {
				w.registry[name] = digest(2)
				w.bad[id(1)], w.bad[id(2)] = true, true
			}, o: auto, err: "the current image fails there, too", stands: 1,
		},
		{
			name: "the name was given to another image", change: func(w *world) { w.names[name] = id(5) }, o: auto,
			action: ActionUpdated, reason: "its name had moved to another image", stands: 1,
		},
		{
			name: "the name went to what fails, by a pull", change: func(w *world) {
				w.registry[name], w.names[name], w.digests[ref(2)] = digest(2), id(2), id(2)
				w.bad[id(2)] = true
			}, o: auto, action: ActionRefused, reason: "moved back", stands: 1,
		},
		{name: "another by hand", change: func(w *world) { w.registry["reg.example/eval:v3"] = digest(3) }, o: Options{From: "reg.example/eval:v3"}, action: ActionUpdated, stands: 3},
		{
			name: "the same image with another manifest", change: func(w *world) {
				w.registry[name], w.digests[ref(4)] = digest(4), id(1)
			}, o: auto, action: ActionNone, stands: 1,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, dir := newWorld(t), t.TempDir()
			mustDo(t, ActionUpdated)(w.updater(dir).Update(t.Context(), Options{}))
			if tt.change != nil {
				tt.change(w)
			}
			r, err := w.updater(dir).Update(t.Context(), tt.o)
			if tt.err != "" {
				must.Err(t, err, tt.err)
			} else if err != nil || r.Action != tt.action || !strings.Contains(r.Reason, tt.reason) {
				t.Errorf("%+v, %v; want %q, %q", r, err, tt.action, tt.reason)
			}
			want := id(tt.stands)
			if tt.stands < 0 {
				want = ""
			}
			must.Equal(t, want, w.names[name])
		})
	}
}

// TestFirstIsBad tries the first image, which there is none to compare with, in two slots before it refuses it.
func TestFirstIsBad(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name          string
		change        func(*world)
		action        string
		tries, stands int
	}{
		{"a bad image", func(w *world) { w.bad[id(1)] = true }, ActionRefused, 4, 0},
		{"a bad image in the only slot", func(w *world) { w.bad[id(1)], w.slots = true, w.slots[:1] }, ActionRefused, 2, 0},
		{"a bad image, and no other slot is fit", func(w *world) { w.bad[id(1)], w.slots[1].Away = true, "it is parked" }, ActionRefused, 2, 0},
		{"a bad image, and the other slot is busy", func(w *world) { w.bad[id(1)] = true; w.job(1, "job x") }, ActionLater, 2, 0},
		{"a bad slot", func(w *world) { w.fails = 2 }, ActionUpdated, 3, 1},
		{"a bad image, and a slot that owes an evaluation", func(w *world) { w.bad[id(1)], w.slots[0].Owes = true, "gpu.proof" }, ActionRefused, 4, 0},
		{"slots that owe one, of which one is bad", func(w *world) { w.fails, w.slots[0].Owes, w.slots[1].Owes = 2, "gpu.proof", "gpu.proof" }, ActionUpdated, 3, 1},
		{"a bad slot, and one where nothing can be tried", func(w *world) {
			w.fails, w.slots = 2, append(w.slots, Slot{Index: 2, Name: "gpu2"})
			w.onCanary = func(_ context.Context, s Slot) error {
				if s.Index == 1 {
					return errors.New("its socket is away")
				}
				return nil
			}
		}, ActionUpdated, 3, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.change(w)
			mustDo(t, tt.action)(w.updater(t.TempDir()).Update(t.Context(), Options{Beside: true, Wait: time.Millisecond}))
			if w.names[name] != id(tt.stands) || len(w.tried) != tt.tries {
				t.Errorf("the name stands for %s, tried %q", w.names[name], w.tried)
			}
		})
	}
}

// TestOwedEvaluation tries the first image in the only slot, whose GPU may be what fails: that refuses no image.
func TestOwedEvaluation(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	w.bad[id(1)], w.slots = true, []Slot{{Name: "gpu0", Owes: "gpu.proof"}}
	if r, err := w.updater(dir).Update(t.Context(), Options{}); !errors.Is(err, errNoSlot) {
		t.Errorf("%+v, %v", r, err)
	}
	must.Equal(t, 0, len(w.outcome(t, dir).Refused))
	w.bad[id(1)] = false
	mustDo(t, ActionUpdated)(w.updater(dir).Update(t.Context(), Options{}))
}

// TestByHandStays checks that the nightly update respects decisions made by hand.
func TestByHandStays(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	w.registry["reg.example/eval:v3"] = digest(3)
	do := func(o Options, action string) Result {
		t.Helper()
		r, err := w.updater(dir).Update(t.Context(), o)
		if err != nil || r.Action != action {
			t.Fatalf("%+v, %v; want %q", r, err, action)
		}
		return r
	}
	do(Options{From: "reg.example/eval:v3"}, ActionUpdated)
	if r := do(Options{Auto: true}, ActionNone); !strings.Contains(r.Reason, "chosen by hand") {
		t.Errorf("reason is %q", r.Reason)
	}
	do(Options{}, ActionUpdated) // the name's own
	w.registry[name] = digest(2)
	do(Options{Auto: true}, ActionUpdated)
	mustDo(t, ActionBack)(w.updater(dir).Rollback(t.Context(), "it is slow"))
	if r := do(Options{Auto: true}, ActionSkipped); !strings.Contains(r.Reason, "it is slow") {
		t.Errorf("reason is %q", r.Reason)
	}
	do(Options{}, ActionUpdated)
	do(Options{Auto: true}, ActionNone)
	w.built = id(7)
	mustDo(t, ActionUpdated)(w.updater(dir).Build(t.Context(), Source{Files: fstest.MapFS{}}, Options{}))
	if r := do(Options{Auto: true}, ActionNone); !strings.Contains(r.Reason, "built here") {
		t.Errorf("reason is %q", r.Reason)
	}
}

// TestLastChoice keeps what was typed last, whatever the image was called before.
func TestLastChoice(t *testing.T) {
	t.Parallel()
	const v2 = "reg.example/eval:v2" // the same image as the name's own
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, w *world, update func(from string) error)
		from    string
		stays   bool
	}{
		{"cut off by its name, then chosen", func(t *testing.T, w *world, update func(string) error) { w.park(t, update, "") }, v2, true},
		{"cut off as chosen, then by its name", func(t *testing.T, w *world, update func(string) error) { w.park(t, update, v2) }, "", false},
		{"chosen after the name moved", func(t *testing.T, w *world, update func(string) error) {
			must.Do(t, update(""))
			w.names[name] = id(0)
		}, v2, true},
		{"its name after it moved", func(t *testing.T, w *world, update func(string) error) {
			must.Do(t, update(v2))
			w.names[name] = id(0)
		}, "", false},
		{"chosen after the name was removed", func(t *testing.T, w *world, update func(string) error) {
			must.Do(t, update(""))
			delete(w.names, name)
		}, v2, true},
		{"chosen while it is current", func(t *testing.T, _ *world, update func(string) error) { must.Do(t, update("")) }, v2, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, dir := newWorld(t), t.TempDir()
			w.registry[v2] = w.registry[name]
			update := func(from string) error {
				_, err := w.updater(dir).Update(t.Context(), Options{From: from})
				return err
			}
			tt.prepare(t, w, update)
			must.Do(t, update(tt.from))
			must.Equal(t, id(1), w.names[name])
			w.registry[name] = digest(2)
			mustDo(t, map[bool]string{true: ActionNone, false: ActionUpdated}[tt.stays])(w.updater(dir).Update(t.Context(), Options{Auto: true}))
		})
	}
}

// park ends an update after the pull.
func (w *world) park(t *testing.T, update func(from string) error, from string) {
	t.Helper()
	for i := range w.slots {
		w.slots[i].Away = "it is parked"
	}
	must.Err(t, update(from), "it is parked")
	for i := range w.slots {
		w.slots[i].Away = ""
	}
}

// TestJobGoesFirst starts jobs during a pull and a canary.
func TestJobGoesFirst(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	comes := func(slot int) func(context.Context) error {
		first := true
		return func(ctx context.Context) error {
			if !first {
				return nil
			}
			first = false
			w.job(slot, "job x")
			<-ctx.Done() // hangs until it is interrupted
			go func() { time.Sleep(5 * time.Millisecond); w.job(slot, "") }()
			return ctx.Err()
		}
	}
	w.onPull = comes(1)
	inCanary := true
	w.onCanary = func(context.Context, Slot) error {
		if !inCanary {
			return nil
		}
		inCanary = false
		return errJob
	}
	var said []string
	u := w.updater(dir)
	u.Say = func(s string) { said = append(said, s) }
	mustDo(t, ActionUpdated)(u.Update(t.Context(), Options{Wait: time.Minute}))
	text := strings.Join(said, "\n")
	must.Contain(t, text, "the pull continues after it", "a job started in slot gpu0 and goes first")
}

func TestOneAtATime(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	release, err := w.updater(dir).open(t.Context())
	must.Do(t, err)
	_, err = w.updater(dir).Update(t.Context(), Options{})
	if locked, ok := errors.AsType[*reconcile.LockedError](err); !ok || locked.PID == "" {
		t.Errorf("%v, want LockedError with a process", err)
	}
	release()
	mustDo(t, ActionUpdated)(w.updater(dir).Update(t.Context(), Options{}))
}

// TestRollbackBesideUpdate rolls back while an update waits for idle slots, as its error says.
func TestRollbackBesideUpdate(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	for n := 1; n <= 2; n++ {
		w.registry[name] = digest(n)
		mustDo(t, ActionUpdated)(w.updater(dir).Update(t.Context(), Options{}))
	}
	w.registry[name] = digest(3)
	w.job(1, "job x")
	ctx, kill := context.WithCancel(t.Context())
	waits, ended := make(chan string, 1), make(chan error)
	waiting := w.updater(dir)
	waiting.Say = func(s string) { waits <- s }
	go func() {
		_, err := waiting.Update(ctx, Options{})
		ended <- err
	}()
	must.Contain(t, <-waits, "waiting: the pull would disturb")
	_, err := w.updater(dir).Rollback(t.Context(), "jobs fail")
	must.Err(t, err, fmt.Sprintf("try again when it is done, or end it with sudo kill %d: jobs keep", os.Getpid()))
	kill()
	must.Err(t, <-ended, "context canceled")
	mustDo(t, ActionBack)(w.updater(dir).Rollback(t.Context(), "jobs fail"))
	must.Equal(t, id(1), w.names[name])
	w.job(1, "")
	mustDo(t, ActionUpdated)(w.updater(dir).Update(t.Context(), Options{Auto: true}))
	must.Equal(t, id(3), w.names[name])
}

// TestPrunedAfterCanary leaves the name where it is if someone removes the image before the name goes to it.
func TestPrunedAfterCanary(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	for n := range 2 {
		w.registry[name], w.pruning = digest(n+1), true
		_, err := w.updater(dir).Update(t.Context(), Options{})
		must.Err(t, err, "is missing; run kbnode image update again")
		must.Equal(t, id(n), w.names[name])
		w.pruning = false
		mustDo(t, ActionUpdated)(w.updater(dir).Update(t.Context(), Options{}))
		must.Equal(t, id(n+1), w.names[name])
	}
}

// TestPruneLeavesOthers checks that only kbnode's own images that are not in use are
// removed.
func TestPruneLeavesOthers(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	for n := 1; n <= 4; n++ {
		w.registry[name] = digest(n)
		w.used[id(1)] = n < 4 // a container runs it for a while
		if n == 2 {
			w.names["other:tag"] = id(2)
		}
		mustDo(t, ActionUpdated)(w.updater(dir).Update(t.Context(), Options{}))
	}
	must.Equal(t, []string{id(1)}, w.removed[len(w.removed)-1:])
	if w.names["other:tag"] != id(2) || w.find(ref(2)) == "" {
		t.Error("an image that has somebody else's name is gone")
	}
}

// TestNothingIsLost checks that what a run left when it was interrupted at a bad moment is
// removed, and so is what no one asks for anymore.
func TestNothingIsLost(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	mustDo(t, ActionUpdated)(w.updater(dir).Update(t.Context(), Options{}))
	w.registry[name] = digest(2)
	u := w.updater(dir)
	w.onPull = func(context.Context) error { w.steps, w.killAt = 0, 1; return nil } // right after it
	if killed, err := cutOff(func() (Result, error) { return u.Update(t.Context(), Options{}) }); killed != "after pull" {
		t.Fatalf("killed at %q, %v", killed, err)
	}
	w.onPull, w.killAt = nil, -1
	w.registry[name] = digest(3) // meanwhile
	w.names[ownNames+"building"], w.names[ownName(id(8))] = id(9), id(8)
	mustDo(t, ActionUpdated)(w.updater(dir).Update(t.Context(), Options{}))
	for n, want := range map[int]bool{1: true, 2: false, 3: true, 8: false, 9: false} {
		if got := w.find(id(n)) != ""; got != want {
			t.Errorf("image %d is there: %v, want %v", n, got, want)
		}
	}
}

// TestNameIsTakenBack checks that the name goes back to the image that kbnode chose after a
// pull by name moved it, even if nothing is fetched.
func TestNameIsTakenBack(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	w.registry["reg.example/eval:v3"] = digest(3)
	auto := Options{Auto: true, Wait: 20 * time.Millisecond}
	update := func(o Options, action string) {
		t.Helper()
		mustDo(t, action)(w.updater(dir).Update(t.Context(), o))
	}
	update(Options{From: "reg.example/eval:v3"}, ActionUpdated)
	w.names[name] = id(1)
	update(Options{Check: true}, ActionNewer)
	must.Equal(t, id(1), w.names[name])
	update(auto, ActionUpdated)
	must.Equal(t, id(3), w.names[name])
	update(Options{}, ActionUpdated)
	w.registry[name], w.bad[id(2)] = digest(2), true
	update(auto, ActionRefused)
	w.names[name], w.digests[ref(2)] = id(2), id(2)
	update(auto, ActionUpdated)
	update(auto, ActionSkipped)
	must.Equal(t, id(1), w.names[name])
}

// TestOtherManifest checks that no digest of an image with two is forgotten.
func TestOtherManifest(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	for _, n := range []int{1, 4, 5, 6} {
		w.registry[name] = digest(n)
		if n == 4 { // the image of digest 1, pushed again
			w.digests[ref(4)] = id(1)
		}
		if _, err := w.updater(dir).Update(t.Context(), Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if w.find(id(1)) != "" {
		t.Errorf("the image stays: %v", w.digests)
	}
}

// TestEditedState updates although someone removed the image to which an interrupted update was moving the name.
func TestEditedState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	u := w.updater(t.TempDir())
	must.Write(t, u.Dir, stateName, `{"written_by": "kbnode", "schema": 1, "name": "`+name+`", "moving": true}`)
	if r, err := u.Update(t.Context(), Options{}); err != nil || r.Action != ActionUpdated {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestEvents checks which results people are notified of: what failed while no one watched.
func TestEvents(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	u := w.updater(dir)
	u.Events = events.Log{File: filepath.Join(dir, "events.jsonl")}
	auto := Options{Auto: true}
	mustDo(t, ActionUpdated)(u.Update(t.Context(), auto))
	w.registry[name], w.bad[id(2)] = digest(2), true
	mustDo(t, ActionRefused)(u.Update(t.Context(), auto))
	mustDo(t, ActionSkipped)(u.Update(t.Context(), auto))
	failed := func(want string) {
		t.Helper()
		s, err := Read(dir)
		must.Do(t, err)
		reason := ""
		if s.Failed != nil {
			reason = s.Failed.Reason
		}
		if !strings.Contains(reason, want) || (want == "") != (reason == "") {
			t.Errorf("the last failure is %q, want %q", reason, want)
		}
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	_, _ = u.Update(stopped, auto)
	delete(w.registry, name)
	failed("")
	for _, o := range []Options{{}, auto, {Check: true}} {
		_, err := u.Update(t.Context(), o)
		must.Err(t, err, "the registry refuses it")
		failed(map[bool]string{true: "the registry refuses it"}[o != Options{}])
	}
	w.registry[name] = digest(3)
	_, err := u.Update(t.Context(), Options{Check: true})
	must.Do(t, err)
	failed("the registry refuses it")
	mustDo(t, ActionUpdated)(u.Update(t.Context(), auto))
	failed("")
	mustDo(t, ActionBack)(u.Rollback(t.Context(), "it is slow"))
	var got []string
	must.Do(t, u.Events.Read(func(e events.Event) {
		if e.Level != "" {
			got = append(got, e.Level+": "+strings.ReplaceAll(strings.ReplaceAll(e.Text, digest(2), "2"), digest(1), "1"))
		}
	}))
	must.Equal(t, []string{
		"warn: 2 was refused for " + name + ": it fails", "warn: " + name + " was not updated: the registry refuses it", "warn: " + name + " rolled back to 1: it is slow",
	}, got)
}
