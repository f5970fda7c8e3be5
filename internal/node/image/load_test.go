package image

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/bundle"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestBundleName is taken back from what a run left that was interrupted.
func TestBundleName(t *testing.T) {
	t.Parallel()
	must.Equal(t, true, strings.HasPrefix(bundle.ImageName, ownNames))
}

func TestLoad(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, w *world, dir string)
		change  func(a *Archive)
		o       Options
		action  string
		reason  string
		err     string
		stands  int
		loads   int
	}{
		{name: "another image", action: ActionUpdated, stands: 7, loads: 1},
		{name: "again", prepare: loads(7), action: ActionNone, reason: "it is the bundle's", stands: 7, loads: 1},
		{name: "again, and the name moved", prepare: func(t *testing.T, w *world, dir string) {
			loads(7)(t, w, dir)
			w.names[name] = id(0)
		}, action: ActionUpdated, reason: "its name had moved", stands: 7, loads: 1},
		{name: "again, and the name is gone", prepare: func(t *testing.T, w *world, dir string) {
			loads(7)(t, w, dir)
			delete(w.names, name)
		}, action: ActionUpdated, stands: 7, loads: 1},
		{name: "again, and the image is gone", prepare: func(t *testing.T, w *world, dir string) {
			loads(7)(t, w, dir)
			delete(w.names, name)
			delete(w.names, ownName(id(7)))
		}, action: ActionUpdated, stands: 7, loads: 2},
		{name: "after a rollback to it", prepare: func(t *testing.T, w *world, dir string) {
			loads(7)(t, w, dir)
			loads(8)(t, w, dir)
			mustDo(t, ActionBack)(w.updater(dir).Rollback(t.Context(), "slow"))
		}, action: ActionNone, stands: 7, loads: 2},
		{name: "unattended, after a rollback", prepare: func(t *testing.T, w *world, dir string) {
			loadsUnattended(7)(t, w, dir)
			mustDo(t, ActionBack)(w.updater(dir).Rollback(t.Context(), "slow"))
		}, o: Options{Auto: true}, action: ActionSkipped, reason: "the bundle's image came before", stands: 0, loads: 1},
		{name: "after a rollback", prepare: func(t *testing.T, w *world, dir string) {
			loadsUnattended(7)(t, w, dir)
			mustDo(t, ActionBack)(w.updater(dir).Rollback(t.Context(), "slow"))
		}, action: ActionUpdated, stands: 7, loads: 2},
		{name: "unattended, after a rollback, and the name is gone", prepare: func(t *testing.T, w *world, dir string) {
			loadsUnattended(7)(t, w, dir)
			mustDo(t, ActionBack)(w.updater(dir).Rollback(t.Context(), "slow"))
			delete(w.names, name)
		}, o: Options{Auto: true}, action: ActionUpdated, stands: 7, loads: 2},
		{name: "unattended, after an update by hand", prepare: func(t *testing.T, w *world, dir string) {
			loadsUnattended(7)(t, w, dir)
			mustDo(t, ActionUpdated)(w.updater(dir).Update(t.Context(), Options{}))
		}, o: Options{Auto: true}, action: ActionSkipped, stands: 1, loads: 1},
		{name: "unattended, after another one came unattended", prepare: func(t *testing.T, w *world, dir string) {
			loadsUnattended(7)(t, w, dir)
			loadsUnattended(8)(t, w, dir)
		}, o: Options{Auto: true}, action: ActionUpdated, stands: 7, loads: 2},
		{name: "unattended, one that came by hand and was rolled back since", prepare: func(t *testing.T, w *world, dir string) {
			loads(7)(t, w, dir)
			mustDo(t, ActionBack)(w.updater(dir).Rollback(t.Context(), "slow"))
		}, o: Options{Auto: true}, action: ActionSkipped, stands: 0, loads: 1},
		{name: "unattended, one that came by hand and failed", prepare: func(t *testing.T, w *world, dir string) {
			w.bad[id(7)] = true
			mustDo(t, ActionRefused)(w.updater(dir).Load(t.Context(), archive(7), Options{}))
		}, o: Options{Auto: true}, action: ActionSkipped, stands: 0, loads: 1},
		{name: "unattended, after one that came by hand", prepare: func(t *testing.T, w *world, dir string) {
			loadsUnattended(7)(t, w, dir)
			loads(8)(t, w, dir)
		}, o: Options{Auto: true}, action: ActionSkipped, stands: 8, loads: 2},
		{name: "unattended, after a rollback and another one", prepare: func(t *testing.T, w *world, dir string) {
			loadsUnattended(7)(t, w, dir)
			mustDo(t, ActionBack)(w.updater(dir).Rollback(t.Context(), "slow"))
			loadsUnattended(8)(t, w, dir)
		}, o: Options{Auto: true}, action: ActionSkipped, stands: 8, loads: 2},
		{name: "unattended, one that was rolled back and taken again", prepare: func(t *testing.T, w *world, dir string) {
			loads(7)(t, w, dir)
			mustDo(t, ActionBack)(w.updater(dir).Rollback(t.Context(), "slow"))
			loads(7)(t, w, dir)
			loads(8)(t, w, dir)
		}, o: Options{Auto: true}, action: ActionUpdated, stands: 7, loads: 3},
		{name: "unattended, one that was rolled back and fetched since", prepare: func(t *testing.T, w *world, dir string) {
			loads(7)(t, w, dir)
			mustDo(t, ActionBack)(w.updater(dir).Rollback(t.Context(), "slow"))
			mustDo(t, ActionUpdated)(w.updater(dir).Update(t.Context(), Options{}))
			a := archive(7)
			a.Open = archive(1).Open
			mustDo(t, ActionNone)(w.updater(dir).Load(t.Context(), a, Options{}))
			loads(8)(t, w, dir)
		}, change: func(a *Archive) { a.Open = archive(1).Open }, o: Options{Auto: true}, action: ActionUpdated, stands: 1, loads: 3},
		{name: "unattended, one that failed", prepare: func(t *testing.T, w *world, dir string) {
			w.bad[id(7)] = true
			mustDo(t, ActionRefused)(w.updater(dir).Load(t.Context(), archive(7), Options{Auto: true}))
		}, o: Options{Auto: true}, action: ActionSkipped, stands: 0, loads: 1},
		{name: "unattended, again", prepare: loadsUnattended(7), o: Options{Auto: true}, action: ActionNone, stands: 7, loads: 1},
		{name: "unattended, cut off before its canary", prepare: func(t *testing.T, w *world, dir string) {
			w.park(t, func(string) error {
				_, err := w.updater(dir).Load(t.Context(), archive(7), Options{Auto: true})
				return err
			}, "")
		}, o: Options{Auto: true}, action: ActionUpdated, stands: 7, loads: 1},
		{name: "the previous one", prepare: func(t *testing.T, w *world, dir string) {
			loads(7)(t, w, dir)
			loads(8)(t, w, dir)
		}, action: ActionUpdated, stands: 7, loads: 2},
		{name: "one that was fetched before", prepare: func(t *testing.T, w *world, dir string) {
			mustDo(t, ActionUpdated)(w.updater(dir).Update(t.Context(), Options{}))
		}, change: func(a *Archive) { a.Open = archive(1).Open }, action: ActionNone, stands: 1, loads: 1},
		{name: "one that fails", prepare: func(_ *testing.T, w *world, _ string) { w.bad[id(7)] = true }, action: ActionRefused, reason: "it fails", stands: 0, loads: 1},
		{name: "one that fails, again", prepare: func(t *testing.T, w *world, dir string) {
			w.bad[id(7)] = true
			mustDo(t, ActionRefused)(w.updater(dir).Load(t.Context(), archive(7), Options{}))
		}, action: ActionRefused, stands: 0, loads: 2},
		{name: "cut off before its canary", prepare: func(t *testing.T, w *world, dir string) {
			w.park(t, func(string) error {
				_, err := w.updater(dir).Load(t.Context(), archive(7), Options{})
				return err
			}, "")
		}, change: func(a *Archive) {
			a.Check = func(context.Context, func(int64, int64)) error { return errors.New("it is not read again") }
		}, action: ActionUpdated, stands: 7, loads: 1},
		{name: "a busy node", prepare: func(_ *testing.T, w *world, _ string) { w.job(1, "job x") }, o: Options{Wait: time.Nanosecond}, change: func(a *Archive) {
			a.Check = func(context.Context, func(int64, int64)) error { return errors.New("it is read beside jobs") }
		}, action: ActionLater, reason: "the load would disturb the timings of gpu1"},
		{name: "a busy node that is told to", prepare: func(_ *testing.T, w *world, _ string) { w.job(1, "job x") }, o: Options{Wait: time.Nanosecond, Beside: true},
			action: ActionUpdated, stands: 7, loads: 1},
		{name: "damaged", change: func(a *Archive) {
			a.Check = func(context.Context, func(int64, int64)) error { return errors.New("it has SHA-256 x") }
		}, err: "it has SHA-256 x"},
		{name: "that cannot be read", change: func(a *Archive) {
			a.Open = func() io.Reader { return iotest.ErrReader(errors.New("input/output error")) }
		}, err: "input/output error"},
		{name: "a full disk", prepare: func(_ *testing.T, w *world, _ string) { w.free = 12<<30 - 1 }, err: "11 GiB are free, but the image and jobs need 13 GiB"},
		{name: "just enough room", prepare: func(_ *testing.T, w *world, _ string) { w.free = 12 << 30 }, action: ActionUpdated, stands: 7, loads: 1},
		{name: "a disk that is not here", prepare: func(_ *testing.T, w *world, _ string) { w.free, w.total = 0, 0 }, action: ActionUpdated, stands: 7, loads: 1},
		{name: "a disk that it fills", prepare: func(_ *testing.T, w *world, _ string) {
			w.onPull = func(context.Context) error {
				time.Sleep(time.Second + 10*time.Millisecond)
				w.free = 9 << 30
				return nil
			}
		}, err: "9 GiB are free"},
		{name: "an engine that loads another name", change: func(a *Archive) { a.Name = ownNames + "x" }, err: "the engine loaded no image from b.tar", loads: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, dir := newWorld(t), t.TempDir()
			if tt.prepare != nil {
				tt.prepare(t, w, dir)
			}
			a := archive(7)
			if tt.change != nil {
				tt.change(&a)
			}
			u := w.updater(dir)
			u.Progress = func(p Progress) {
				if p.Layer == "" {
					t.Errorf("people see %q", p.Status)
				}
			}
			r, err := u.Load(t.Context(), a, tt.o)
			if tt.err != "" {
				must.Err(t, err, tt.err)
			} else if err != nil || r.Action != tt.action || !strings.Contains(r.Reason, tt.reason) {
				t.Errorf("%+v, %v; want %q, %q", r, err, tt.action, tt.reason)
			}
			must.Equal(t, id(tt.stands), w.names[name])
			must.Equal(t, tt.loads, w.loads)
			if _, left := w.names[bundle.ImageName]; left && tt.err == "" {
				t.Error("it keeps the bundle's name")
			}
			present, err := u.Present(t.Context())
			must.Do(t, err)
			must.Equal(t, true, present)
		})
	}
}

// loads loads the image n.
func loads(n int) func(t *testing.T, w *world, dir string) { return loadsWith(n, Options{}) }

func loadsUnattended(n int) func(t *testing.T, w *world, dir string) {
	return loadsWith(n, Options{Auto: true})
}

func loadsWith(n int, o Options) func(t *testing.T, w *world, dir string) {
	return func(t *testing.T, w *world, dir string) {
		t.Helper()
		mustDo(t, ActionUpdated)(w.updater(dir).Load(t.Context(), archive(n), o))
	}
}

// TestLoadedStays checks that the nightly update leaves the image of a bundle alone.
func TestLoadedStays(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	loads(7)(t, w, dir)
	r, err := w.updater(dir).Update(t.Context(), Options{Auto: true})
	if err != nil || r.Action != ActionNone || !strings.Contains(r.Reason, "it came in a bundle") {
		t.Errorf("%+v, %v", r, err)
	}
	s, err := Read(dir)
	must.Do(t, err)
	if !s.Has("archive 7") || s.Has("archive 8") {
		t.Errorf("%+v", s)
	}
	u := w.updater(dir)
	needs := func(n int, want bool) {
		t.Helper()
		got, err := u.Needs(t.Context(), archive(n))
		must.Do(t, err)
		must.Equal(t, want, got)
	}
	needs(7, false)
	needs(8, true)
	w.free = 0
	must.Do(t, u.CheckRoom(t.Context(), archive(7)))
	must.Err(t, u.CheckRoom(t.Context(), archive(8)), "0 GiB are free")
	u.Name = "reg.example/other:1"
	must.Err(t, u.CheckRoom(t.Context(), archive(7)), "0 GiB are free") // it is loaded again for another name
	u.Name = name
	clear(w.names) // the engine lost it
	needs(7, true)
}

// TestRejected has the newest refusal since the current image came, also of an image that no registry has.
func TestRejected(t *testing.T) {
	t.Parallel()
	s := empty()
	s.Current = &Image{ID: "sha256:1", Since: now().Add(-time.Hour)}
	if r := s.Rejected(); r != nil {
		t.Errorf("%+v", r)
	}
	s.refuse(&Image{Archive: "a", Since: now()}, "a bundle's")
	if r := s.Rejected(); r == nil || r.Reason != "a bundle's" || r.Digest != "" {
		t.Errorf("%+v", r)
	}
	s.RefusedLocal.Time = s.RefusedLocal.Time.Add(-time.Minute)
	s.refuse(&Image{Digest: "sha256:d"}, "a registry's")
	if r := s.Rejected(); r == nil || r.Reason != "a registry's" || r.Digest != "sha256:d" {
		t.Errorf("%+v", r)
	}
	s.Current.Since = now().Add(time.Minute)
	if r := s.Rejected(); r != nil {
		t.Errorf("%+v", r)
	}
}
