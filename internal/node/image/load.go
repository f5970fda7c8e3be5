package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Archive is an image in a file, as docker save writes it.
type Archive struct {
	Source string // for people
	Name   string // of the image in the archive, its only one: one of kbnode's own, which recover takes back
	SHA256 string // of the archive, in hexadecimal
	Size   int64  // bytes of it
	// Check refuses an archive that is not what it should be. It is called before one is opened.
	Check func(ctx context.Context, report func(done, total int64)) error
	Open  func() io.Reader
}

// Load loads the image of an archive, and points the name to it if a canary passes. What an earlier run has loaded is
// not loaded again. With Options.Auto, and while jobs have an image, neither is what State.Left says.
func (u *Updater) Load(ctx context.Context, a Archive, o Options) (Result, error) {
	release, err := u.open(ctx)
	if err != nil {
		return Result{}, err
	}
	defer release()
	tagged, err := u.tagged(ctx)
	if err != nil {
		return Result{}, err
	}
	if tagged != nil && o.Auto && u.state.Left(a.SHA256) {
		return u.result(ActionSkipped, "the bundle's image came before, and was refused or replaced since; kbnode image update --bundle tries it again"), nil
	}
	r, err := u.load(ctx, a, tagged, o)
	if err == nil && o.Auto && r.Action != ActionLater && u.state.Installed != a.SHA256 {
		u.state.Installed = a.SHA256
		err = u.save()
	}
	if ctx.Err() == nil {
		err = errors.Join(err, u.remember(err, o))
	}
	return r, err
}

func (u *Updater) load(ctx context.Context, a Archive, tagged *docker.Image, o Options) (Result, error) {
	have, err := u.loaded(ctx, a)
	if err != nil {
		return Result{}, err
	}
	cur := u.state.Current
	if have != nil && cur.passed() && cur.ID == have.ID {
		if tagged == nil || tagged.ID != cur.ID {
			return u.restoreName(ctx)
		}
		u.state.abandon()
		if err := u.save(); err != nil {
			return Result{}, err
		}
		return u.result(ActionNone, "it is the bundle's"), u.prune(ctx)
	}
	if have == nil {
		if have, err = u.unpack(ctx, a, o); err != nil {
			return u.laterIfBusy(err)
		}
	}
	if cur.passed() && cur.ID == have.ID && tagged != nil && tagged.ID == cur.ID {
		// It was here before, from a registry or another archive.
		cur.Archive = a.SHA256
		u.state.forgive(a.SHA256)
		u.state.abandon()
		if err := u.save(); err != nil {
			return Result{}, err
		}
		return u.result(ActionNone, "it is the bundle's"), errors.Join(u.Engine.Untag(ctx, a.Name), u.prune(ctx))
	}
	if c := u.state.Candidate; c == nil || c.ID != have.ID {
		u.state.pursue(Image{ID: have.ID, Size: have.Size, Since: now(), Archive: a.SHA256})
		if err := u.save(); err != nil {
			return Result{}, err
		}
	}
	if err := u.hold(ctx, *have); err != nil {
		return Result{}, err
	}
	r, err := u.prove(ctx, tagged, o)
	if err != nil {
		return Result{}, err
	}
	return r, u.Engine.Untag(ctx, a.Name)
}

// loaded returns the image of an archive if an earlier run has loaded it, else nil.
func (u *Updater) loaded(ctx context.Context, a Archive) (*docker.Image, error) {
	for _, i := range u.state.retained() {
		if i.Archive != a.SHA256 || i.ID == "" {
			continue
		}
		have, err := u.Engine.Image(ctx, i.ID)
		if err == nil {
			return &have, nil
		}
		if !errors.Is(err, docker.ErrNotFound) {
			return nil, err
		}
	}
	return nil, nil //nolint:nilnil // said above
}

// unpack loads the image of an archive into the engine. No name of jobs moves.
func (u *Updater) unpack(ctx context.Context, a Archive, o Options) (*docker.Image, error) {
	err := u.whileIdle(ctx, o, "the load", func(ctx context.Context) error {
		// Reading all of it disturbs timings, too, and while this waited the file may have become another one.
		if err := a.Check(ctx, func(done, total int64) {
			u.report(Progress{Layer: "bundle", Status: "checked", Current: done, Total: total})
		}); err != nil {
			return err
		}
		return u.withRoom(ctx, a.room(), func(ctx context.Context, report func(Progress)) error {
			u.say("loading the image of %s (%s)", a.Source, text.Bytes(a.Size))
			return u.Engine.Load(ctx, a.Open(), a.Size, func(p Progress) {
				if p.Layer != "" { // the engine says the name that it loaded, which means nothing to people
					report(p)
				}
			})
		})
	})
	if err != nil {
		return nil, err
	}
	have, err := u.Engine.Image(ctx, a.Name)
	if errors.Is(err, docker.ErrNotFound) {
		err = fmt.Errorf("the engine loaded no image from %s; make the bundle again: %w", a.Source, err)
	}
	return &have, err
}

// room returns how many bytes the engine needs to load the archive: it may unpack it twice, as a whole, and by layers.
func (a Archive) room() int64 { return 2 * a.Size }

// Needs reports whether Load, with Options.Auto, would load an archive: the engine may have lost what State has.
func (u *Updater) Needs(ctx context.Context, a Archive) (bool, error) {
	s, err := Read(u.Dir)
	if err != nil {
		return false, err
	}
	u.state = s.named(u.Name)
	tagged, err := u.tagged(ctx)
	if err != nil || tagged != nil && u.state.Left(a.SHA256) {
		return false, err
	}
	have, err := u.loaded(ctx, a)
	return err == nil && have == nil, err
}

// CheckRoom returns an error if the engine's disk has no room for an archive that Load, with Options.Auto, would load.
func (u *Updater) CheckRoom(ctx context.Context, a Archive) error {
	needs, err := u.Needs(ctx, a)
	if err != nil || !needs {
		return err
	}
	return u.room(ctx, a.room())
}

// Present reports whether jobs have an image.
func (u *Updater) Present(ctx context.Context) (bool, error) {
	i, err := u.tagged(ctx)
	return i != nil, err
}

// Left reports whether an unattended Load leaves an archive alone. Its image is neither current nor on its way: its canary
// failed, someone rolled it back, or an unattended Load brought it last, and someone chose another one since.
func (s *State) Left(archive string) bool {
	for _, i := range []*Image{s.Current, s.Candidate} {
		if i != nil && i.Archive == archive {
			return false
		}
	}
	return s.Installed == archive || slices.Contains(s.RefusedArchives, archive)
}

// Has reports whether an image was loaded from an archive with this SHA-256, and not dropped since.
func (s *State) Has(archive string) bool {
	for _, i := range s.retained() {
		if i.Archive == archive {
			return true
		}
	}
	return false
}
