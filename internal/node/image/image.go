// Package image keeps the image of a node's jobs up to date: it fetches by digest, runs a
// canary in an idle slot, and only then points the name that jobs use to the new image. It
// keeps the previous image, and can go back to it. It writes down each step before it takes
// it, so that it can be interrupted anywhere.
package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// ownNames is the prefix of the names by which kbnode protects images from docker image
// prune. No one can own the domain (RFC 2606), so nothing is ever pulled by these names.
const ownNames = "kbnode.invalid/image:"

// ownName returns kbnode's own name of an image.
func ownName(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return ownNames + id[:min(12, len(id))]
}

// Progress is what the engine reports of one layer of a pull, or of a build.
type Progress = docker.Progress

// ParseName returns the whole name of an image: docker.io/library/python:3 for python:3.
func ParseName(name string) (string, error) { return docker.ParseRef(name) }

// Engine is the part of Docker that updates need.
type Engine interface {
	Image(ctx context.Context, ref string) (docker.Image, error)
	Resolve(ctx context.Context, ref string) (digest string, err error)
	Pull(ctx context.Context, ref string, report func(Progress)) error
	Build(ctx context.Context, ref string, archive io.Reader, dockerfile string, args map[string]string, report func(Progress)) error
	Load(ctx context.Context, archive io.Reader, size int64, report func(Progress)) error
	Tag(ctx context.Context, source, name string) error
	Untag(ctx context.Context, name string) error
	Names(ctx context.Context, prefix string) (map[string]string, error)
	ImagesInUse(ctx context.Context) (map[string]bool, error)
	Room(ctx context.Context) (free, total int64, err error)
}

// Slot is the current state of one of the node's slots.
type Slot struct {
	Index int
	Name  string
	Away  string // why no canary can run in it; "" if one can
	Job   string // what runs in it; "" if it is idle
	// Owes says that jobs are kept from it until its GPU has passed an evaluation, for which there must be an image: a canary
	// runs in it if in no other one, and says nothing about the image if it fails. "" means that they are not.
	Owes string

	policy plan.JobPolicy
}

// Node is where canaries run.
type Node interface {
	// Slots returns the state of all slots.
	Slots(ctx context.Context) ([]Slot, error)
	// Canary runs an image in a slot. An error means that it could not be tried there: errJob, that
	// a job goes first.
	Canary(ctx context.Context, slot Slot, imageID string) (Canary, error)
}

// Updater changes the images of one node.
type Updater struct {
	Engine Engine
	Node   Node
	Dir    string // of the state
	Name   string // what jobs call the image, in full
	Keep   int    // how many previous images to keep, at least 1

	Say      func(string)   // receives what is being done, in words
	Progress func(Progress) // receives the progress of a pull or a build
	// Pause is the time between two looks at the slots.
	Pause time.Duration
	// Events records what happened to images.
	Events events.Log

	state State
}

// Options are how one update is done.
type Options struct {
	From   string        // what to fetch instead of the name
	Auto   bool          // run unattended: decisions made by hand stay
	Beside bool          // also while jobs run
	Check  bool          // only check
	Wait   time.Duration // for idle slots; 0 means forever
}

// Result is the result of a command.
type Result struct {
	Name     string `json:"name"`
	Action   string `json:"action"` // one of those below
	Reason   string `json:"reason,omitempty"`
	Current  *Image `json:"current,omitempty"`
	Previous *Image `json:"previous,omitempty"`
	Newer    string `json:"newer,omitempty"` // digest of an image that can be fetched
}

// The values of Result.Action.
const (
	ActionNone    = "none"        // there was nothing to do
	ActionNewer   = "newer"       // there is a newer image, and Options.Check was set
	ActionMoved   = "moved"       // the name does not point to the current image, and Options.Check was set
	ActionLater   = "later"       // the node was busy
	ActionSkipped = "skipped"     // the registry's image has failed before, or the bundle's was refused or replaced
	ActionUpdated = "updated"     // the name points to the new image
	ActionRefused = "refused"     // the canary failed; the name was not changed
	ActionBack    = "rolled back" // the name points to the previous image
)

// ErrNoPrevious means that there is no image to go back to.
var ErrNoPrevious = errors.New("no previous image is kept; kbnode image list shows the kept images")

// open takes the lock, reads the state, and continues what was interrupted. The error is a
// *reconcile.LockedError if another kbnode has the lock.
func (u *Updater) open(ctx context.Context) (release func(), err error) {
	unlock, err := reconcile.LockFile(filepath.Join(u.Dir, lockName))
	if locked, ok := errors.AsType[*reconcile.LockedError](err); ok && locked.PID != "" {
		// It may wait for idle slots for hours, and a rollback cannot. Each run can be ended anywhere.
		err = fmt.Errorf("%w, or end it with sudo kill %s: jobs keep their image, and the next update continues", err, locked.PID)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if release == nil {
			unlock()
		}
	}()
	s, err := Read(u.Dir)
	if err != nil {
		return nil, err
	}
	u.state = s.named(u.Name)
	if err := u.recover(ctx); err != nil {
		return nil, err
	}
	return unlock, nil
}

// recover finishes what an earlier run began.
func (u *Updater) recover(ctx context.Context) error {
	if u.state.Moving {
		if err := u.move(ctx); err != nil && !errors.Is(err, errMissing) {
			return err
		}
	}
	names, err := u.Engine.Names(ctx, ownNames)
	if err != nil {
		return err
	}
	for name := range names {
		known := func(i Image) bool { return i.ID != "" && ownName(i.ID) == name }
		if !slices.ContainsFunc(u.state.retained(), known) && !slices.ContainsFunc(u.state.Drop, known) {
			if err := u.Engine.Untag(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (u *Updater) save() error { return u.state.write(u.Dir) }

var errMissing = errors.New("the image that kbnode chose is missing; run kbnode image update again")

// move points the name to the current image, as the state already says. The error is errMissing if someone removed
// the image: there is no current one then, and the name keeps pointing to what it did.
func (u *Updater) move(ctx context.Context) error {
	err := u.Engine.Tag(ctx, u.state.Current.ID, u.Name)
	if errors.Is(err, docker.ErrNotFound) {
		u.state.Current, err = nil, errMissing
	} else if err != nil {
		return err
	}
	u.state.Moving = false
	return cmp.Or(u.save(), err)
}

// Rollback points the name to the previous image again.
func (u *Updater) Rollback(ctx context.Context, reason string) (Result, error) {
	release, err := u.open(ctx)
	if err != nil {
		return Result{}, err
	}
	defer release()
	s := &u.state
	for len(s.Previous) > 0 {
		_, err := u.Engine.Image(ctx, s.Previous[0].ID)
		if err == nil {
			break
		} else if !errors.Is(err, docker.ErrNotFound) {
			return Result{}, err
		}
		s.Previous = s.Previous[1:] // someone removed it
	}
	if len(s.Previous) == 0 {
		return Result{}, ErrNoPrevious
	}
	bad := s.Current
	s.back(reason)
	if err := u.save(); err != nil {
		return Result{}, err
	}
	if err := u.move(ctx); err != nil {
		return Result{}, err
	}
	u.note(events.Warn, "%s rolled back to %s: %s", u.Name, u.state.Current.label(), reason)
	r := u.result(ActionBack, reason)
	r.Previous = bad
	return r, u.prune(ctx)
}

// prune removes dropped images that nothing uses: kbnode's own names and digests, and the
// image with its last name. Other names stay.
func (u *Updater) prune(ctx context.Context) error {
	used, err := u.Engine.ImagesInUse(ctx)
	if err != nil {
		return err
	}
	var errs []error
	drop := u.state.Drop
	u.state.Drop = []Image{}
	for _, i := range drop {
		same := func(k Image) bool { return k.ID == i.ID && i.ID != "" || k.Digest == i.Digest && i.Digest != "" }
		switch {
		case slices.ContainsFunc(u.state.retained(), same):
			continue // it came back
		case !used[i.ID]:
			err := u.remove(ctx, i)
			if err == nil {
				continue
			}
			errs = append(errs, err)
		}
		u.state.Drop = append(u.state.Drop, i)
	}
	if len(u.state.Drop) < len(drop) {
		errs = append(errs, u.save())
	}
	return errors.Join(errs...)
}

// remove removes kbnode's names from an image, its digests last: once those are gone,
// everything is.
func (u *Updater) remove(ctx context.Context, i Image) error {
	if i.ID != "" {
		if err := u.Engine.Untag(ctx, ownName(i.ID)); err != nil {
			return err
		}
	}
	if i.Digest == "" || i.From == "" {
		return nil
	}
	ref, err := docker.WithDigest(i.From, i.Digest)
	if err != nil {
		return err
	}
	have, err := u.Engine.Image(ctx, ref)
	if errors.Is(err, docker.ErrNotFound) {
		return nil
	}
	if err != nil || len(have.Names) > 0 {
		return err // someone else uses it too
	}
	// The same image may have had another digest there.
	repository := strings.TrimSuffix(ref, i.Digest)
	for _, d := range have.Digests {
		if strings.HasPrefix(d, repository) {
			if err := u.Engine.Untag(ctx, d); err != nil {
				return err
			}
		}
	}
	return nil
}

func (u *Updater) result(action, reason string) Result {
	r := Result{Name: u.Name, Action: action, Reason: reason, Current: u.state.Current}
	if len(u.state.Previous) > 0 {
		r.Previous = &u.state.Previous[0]
	}
	return r
}

// fullName returns the name as ParseRef writes it.
func (u *Updater) fullName() string {
	if name, err := docker.ParseRef(u.Name); err == nil {
		return name
	}
	return u.Name
}

func now() time.Time { return time.Now().UTC() }

func (u *Updater) say(format string, args ...any) {
	if u.Say != nil {
		u.Say(fmt.Sprintf(format, args...))
	}
}

// note records an event, with events.Event.Level. Failing to do so is no reason to stop.
func (u *Updater) note(level, format string, args ...any) {
	if err := u.Events.Add(events.Event{Kind: "image", Slot: -1, Level: level, Time: now(), Text: fmt.Sprintf(format, args...)}); err != nil {
		u.say("%v", err)
	}
}

func (u *Updater) report(p Progress) {
	if u.Progress != nil {
		u.Progress(p)
	}
}
