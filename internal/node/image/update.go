package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Update points the name to what its registry has now, or to Options.From, if a canary
// passes. After an error the name keeps pointing to what it did.
func (u *Updater) Update(ctx context.Context, o Options) (Result, error) {
	release, err := u.open(ctx)
	var r Result
	if err == nil {
		defer release()
		r, err = u.update(ctx, o)
		if ctx.Err() == nil {
			err = errors.Join(err, u.remember(err, o))
		}
	}
	if _, locked := errors.AsType[*reconcile.LockedError](err); err != nil && o.Auto && !locked && ctx.Err() == nil {
		u.note(events.Warn, "%s was not updated: %v", u.Name, err) // no one reads the error
	}
	return r, err
}

// remember stores how an update ended, for those who do not read its error.
func (u *Updater) remember(err error, o Options) error {
	switch {
	case err != nil && o.Auto:
		u.state.Failed = &Failure{Reason: text.Line(err.Error(), maxReason), Time: now()}
	case err == nil && !o.Check && u.state.Failed != nil:
		u.state.Failed = nil
	default:
		return nil
	}
	return u.save()
}

func (u *Updater) update(ctx context.Context, o Options) (Result, error) {
	if name, err := docker.ParseRef(o.From); err == nil && name == u.fullName() {
		o.From = ""
	}
	tagged, err := u.tagged(ctx)
	if err != nil {
		return Result{}, err
	}
	cur := u.state.Current
	// It passed, and someone pointed its name to another image.
	lost := cur.passed() && tagged != nil && tagged.ID != cur.ID && !o.Check
	if why := u.state.chosen(); why != "" && o.Auto {
		if lost {
			return u.restoreName(ctx)
		}
		return u.result(ActionNone, why), nil
	}
	from := cmp.Or(o.From, u.Name)
	digest, err := u.Engine.Resolve(ctx, from)
	if err != nil {
		return Result{}, err
	}
	if cur.passed() && cur.Digest == digest {
		switch {
		case tagged == nil && o.Check:
			return u.result(ActionMoved, "no image has its name"), nil
		case tagged == nil: // fetched again
		case tagged.ID != cur.ID && o.Check:
			return u.result(ActionMoved, "another image has its name"), nil
		case lost:
			cur.From = from
			return u.restoreName(ctx)
		case tagged.ID == cur.ID && o.Check:
			return u.result(ActionNone, ""), nil
		case tagged.ID == cur.ID:
			return u.isCurrent(ctx, from)
		}
	}
	if bad := u.state.refused(digest); bad != nil && o.Auto {
		if lost {
			return u.restoreName(ctx)
		}
		return u.result(ActionSkipped, fmt.Sprintf("%s was refused at %s: %s; kbnode image update tries it again", digest, bad.Time.Format(time.DateTime), bad.Reason)), nil
	}
	if o.Check {
		r := u.result(ActionNewer, "")
		r.Newer = digest
		return r, nil
	}
	if err := u.fetch(ctx, from, digest, o); err != nil {
		return u.laterIfBusy(err)
	}
	if next := u.state.Candidate; cur.passed() && cur.ID == next.ID && tagged != nil && tagged.ID == cur.ID {
		// The registry has the same image with another manifest.
		cur.Digest, cur.From, u.state.Candidate = digest, from, nil
		return u.result(ActionNone, ""), u.save()
	}
	return u.prove(ctx, tagged, o)
}

// isCurrent ends an update that finds nothing to fetch.
func (u *Updater) isCurrent(ctx context.Context, from string) (Result, error) {
	if u.state.Candidate != nil || u.state.Current.From != from { // it was chosen by hand and is the same as the registry's
		u.state.Current.From = from
		u.state.abandon()
		if err := u.save(); err != nil {
			return Result{}, err
		}
	}
	return u.result(ActionNone, ""), u.prune(ctx)
}

// restoreName points the name back to the current image.
func (u *Updater) restoreName(ctx context.Context) (Result, error) {
	u.say("%s refers to a different image than kbnode chose; restoring it", u.Name)
	u.state.Moving = true
	if err := u.save(); err != nil {
		return Result{}, err
	}
	if err := u.move(ctx); err != nil {
		return Result{}, err
	}
	return u.result(ActionUpdated, "its name had moved to another image"), u.prune(ctx)
}

// tagged returns what the name points to; nil for nothing.
func (u *Updater) tagged(ctx context.Context) (*docker.Image, error) {
	i, err := u.Engine.Image(ctx, u.Name)
	if errors.Is(err, docker.ErrNotFound) {
		return nil, nil //nolint:nilnil // said above
	}
	return &i, err
}

// fetch makes the image with a digest the candidate. No name moves.
func (u *Updater) fetch(ctx context.Context, from, digest string, o Options) error {
	ref, err := docker.WithDigest(from, digest)
	if err != nil {
		return err
	}
	if c := u.state.Candidate; c == nil || c.Digest != digest {
		u.state.pursue(Image{Digest: digest, Since: now()})
	}
	u.state.Candidate.From = from // an earlier run may have known it by another name
	if err := u.save(); err != nil {
		return err
	}
	have, err := u.Engine.Image(ctx, ref)
	if errors.Is(err, docker.ErrNotFound) {
		if err := u.whileIdle(ctx, o, "the pull", func(ctx context.Context) error { return u.pull(ctx, ref) }); err != nil {
			return err
		}
		have, err = u.Engine.Image(ctx, ref)
	}
	if err != nil {
		return err
	}
	return u.hold(ctx, have)
}

// hold records the candidate's ID, and gives it one of kbnode's own names.
func (u *Updater) hold(ctx context.Context, have docker.Image) error {
	if c := u.state.Candidate; c.ID != have.ID {
		c.ID, c.Size, c.Canary = have.ID, have.Size, nil
		if err := u.save(); err != nil {
			return err
		}
	}
	return u.Engine.Tag(ctx, have.ID, ownName(have.ID))
}

// pull pulls an image. How large it gets, no one knows before. Docker itself retries a layer.
func (u *Updater) pull(ctx context.Context, ref string) error {
	return u.withRoom(ctx, 0, func(ctx context.Context, report func(Progress)) error {
		u.say("pulling %s", ref)
		return u.Engine.Pull(ctx, ref, report)
	})
}

// withRoom calls do, which brings an image, and gives up when the disk has no room for the rest. size is how many
// bytes it needs, as far as that is known.
func (u *Updater) withRoom(ctx context.Context, size int64, do func(ctx context.Context, report func(Progress)) error) error {
	if err := u.room(ctx, size); err != nil {
		return err
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	last := time.Now()
	return do(ctx, func(p Progress) {
		u.report(p)
		if time.Since(last) < docker.RoomPoll {
			return
		}
		last = time.Now()
		if err := u.room(ctx, 0); errors.Is(err, docker.ErrDiskFull) {
			giveUp(err)
		}
	})
}

// minFree must be free on the engine's disk, in bytes: with less, jobs cannot pull.
const minFree = 10 << 30

// room returns an error if the engine's disk has none for another image, of at least size bytes.
func (u *Updater) room(ctx context.Context, size int64) error {
	free, total, err := u.Engine.Room(ctx)
	if need := min(minFree, total/10) + size; err == nil && total > 0 && free < need {
		err = fmt.Errorf("%w: %d GiB are free, but the image and jobs need %d GiB; %s", docker.ErrDiskFull, free>>30, need>>30+1, docker.RoomAdvice)
	}
	return err
}

// prove runs the candidate's canary and points the name to it if that passes.
func (u *Updater) prove(ctx context.Context, tagged *docker.Image, o Options) (Result, error) {
	if !u.state.Candidate.passed() {
		verdict, err := u.canary(ctx, o)
		if err != nil {
			return u.laterIfBusy(err)
		}
		u.state.Candidate.Canary = &verdict
		if !verdict.Passed {
			u.state.refuse(u.state.Candidate, verdict.Reason)
			u.state.abandon()
		}
		if err := u.save(); err != nil {
			return Result{}, err
		}
		if !verdict.Passed {
			return u.refuseCandidate(ctx, tagged, verdict.Reason)
		}
	}
	var before *Image
	if tagged != nil && u.state.Current == nil && tagged.ID != u.state.Candidate.ID {
		before = &Image{ID: tagged.ID, From: u.Name, Size: tagged.Size, Since: now()}
		if len(tagged.Digests) > 0 {
			before.Digest = digestOf(tagged.Digests[0])
		}
		if err := u.Engine.Tag(ctx, before.ID, ownName(before.ID)); err != nil {
			return Result{}, err
		}
	}
	u.state.take(before, max(1, u.Keep))
	if err := u.save(); err != nil {
		return Result{}, err
	}
	if err := u.move(ctx); err != nil {
		return Result{}, err
	}
	u.note("", "%s is now %s; it passed its canary in slot %s", u.Name, u.state.Current.label(), u.state.Current.Canary.Slot)
	return u.result(ActionUpdated, ""), u.prune(ctx)
}

// refuseCandidate ends an update whose canary failed. If the name points to that very image, because
// someone pulled it by name, the name goes back to the current image.
func (u *Updater) refuseCandidate(ctx context.Context, tagged *docker.Image, reason string) (Result, error) {
	bad := u.state.Drop[len(u.state.Drop)-1]
	u.note(events.Warn, "%s was refused for %s: %s", bad.label(), u.Name, reason)
	if cur := u.state.Current; tagged != nil && tagged.ID == bad.ID && cur.passed() && cur.ID != bad.ID {
		if _, err := u.restoreName(ctx); err != nil {
			return Result{}, err
		}
		reason += "; its name was moved back"
	}
	return u.result(ActionRefused, reason), u.prune(ctx)
}

// laterIfBusy turns an expired wait into a result.
func (u *Updater) laterIfBusy(err error) (Result, error) {
	if busy, ok := errors.AsType[*busyError](err); ok {
		return u.result(ActionLater, busy.Error()), nil
	}
	return Result{}, err
}

func digestOf(ref string) string {
	_, digest, _ := strings.Cut(ref, "@")
	return digest
}
