// Package image keeps the image that a node's jobs run up to date: it fetches
// by digest, runs a canary in an idle slot, and only then lets the name that
// jobs use stand for the new image. It remembers the one before, and goes back
// to it. What it does it writes down first, so that it can be cut off anywhere.
package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/events"
)

// ownNames begin the names by which kbnode keeps images from docker image
// prune. The domain is one that nobody can have (RFC 2606), so nothing is ever
// pulled by them.
const ownNames = "kbnode.invalid/image:"

// ownName is kbnode's own name of an image.
func ownName(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return ownNames + id[:min(12, len(id))]
}

// Engine is what is asked of Docker.
type Engine interface {
	Image(ctx context.Context, ref string) (docker.Image, error)
	Resolve(ctx context.Context, ref string) (digest string, err error)
	Pull(ctx context.Context, ref string, tell func(docker.Progress)) error
	Push(ctx context.Context, ref string, tell func(docker.Progress)) error
	Build(ctx context.Context, ref string, archive io.Reader, dockerfile string, args map[string]string, tell func(docker.Progress)) error
	Tag(ctx context.Context, source, name string) error
	Untag(ctx context.Context, name string) error
	Names(ctx context.Context, prefix string) (map[string]string, error)
	ImagesInUse(ctx context.Context) (map[string]bool, error)
	Room(ctx context.Context) (free, total int64, err error)
	Ends(ctx context.Context, label string, since time.Time) ([]docker.End, error)
}

// Slot is one of the node's as it is at the moment.
type Slot struct {
	Index int
	Name  string
	Away  string // why no canary runs in it; "" where one may
	Job   string // what runs in it; "" where it is idle
}

// Node is where canaries run.
type Node interface {
	// Slots looks at all of them.
	Slots(ctx context.Context) ([]Slot, error)
	// Canary runs an image in a slot. An error says that it could not be tried there.
	Canary(ctx context.Context, slot Slot, imageID string) (Canary, error)
	// Tidy removes what a canary left that was cut off.
	Tidy(ctx context.Context) error
}

// Updater changes the images of one node.
type Updater struct {
	Engine    Engine
	Node      Node
	Dir       string // of the state
	Name      string // what jobs call the image, whole
	Keep      int    // how many previous images stay, at least 1
	FirstJobs int    // that must all fail for the image to be taken back

	Say   func(string)          // what is being done, in words
	Tell  func(docker.Progress) // how a pull, a push or a build goes on
	Pause time.Duration         // between two looks at the slots, and times two before the first retry; 0 is a second
	Now   func() time.Time      // nil is the clock
	// Events is where it is kept what became of images.
	Events events.Log

	state  State
	before func(what string) // tests cut the run off here
}

// Options are how one update is done.
type Options struct {
	From   string        // what to fetch instead of the name
	Auto   bool          // nobody looks on: what was decided by hand stays
	Beside bool          // also while jobs run
	Check  bool          // only look
	Wait   time.Duration // for idle slots; 0 is for ever
}

// Result is what came of a command.
type Result struct {
	Name     string `json:"name"`
	Action   string `json:"action"` // one of those below
	Reason   string `json:"reason,omitempty"`
	Current  *Image `json:"current,omitempty"`
	Previous *Image `json:"previous,omitempty"`
	Newer    string `json:"newer,omitempty"` // a digest that is there to be fetched
}

// What Result.Action may be.
const (
	ActionNone    = "none"        // nothing was to be done
	ActionNewer   = "newer"       // there is a newer image, and it was only looked
	ActionLater   = "later"       // the node was busy
	ActionSkipped = "skipped"     // the registry's image has failed before
	ActionUpdated = "updated"     // the name stands for the new image
	ActionRefused = "refused"     // the canary failed, the name stands for what it did
	ActionBack    = "rolled back" // the name stands for the previous image
)

// ErrNoPrevious says that there is nothing to go back to.
var ErrNoPrevious = errors.New("no previous image is kept; kbnode image list shows those that are")

// open locks, reads, and goes on with what was cut off.
func (u *Updater) open(ctx context.Context) (release func(), err error) {
	unlock, err := lock(u.Dir)
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

// recover ends what a run before this one began.
func (u *Updater) recover(ctx context.Context) error {
	if err := u.Node.Tidy(ctx); err != nil {
		return err
	}
	if u.state.Moving {
		if err := u.move(ctx); err != nil {
			return err
		}
	}
	names, err := u.Engine.Names(ctx, ownNames)
	if err != nil {
		return err
	}
	for name := range names {
		known := func(i Image) bool { return i.ID != "" && ownName(i.ID) == name }
		if !slices.ContainsFunc(u.state.kept(), known) && !slices.ContainsFunc(u.state.Drop, known) {
			if err := u.Engine.Untag(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// save writes the state; nothing that it says is done before.
func (u *Updater) save(s State) error {
	u.step("save")
	if err := s.write(u.Dir); err != nil {
		return err
	}
	u.state = s
	u.step("saved")
	return nil
}

func (u *Updater) step(what string) {
	if u.before != nil {
		u.before(what)
	}
}

// move lets the name stand for the current image, as the state says already.
func (u *Updater) move(ctx context.Context) error {
	s := u.state
	err := u.Engine.Tag(ctx, s.Current.ID, u.Name)
	if errors.Is(err, docker.ErrNotFound) {
		// Somebody removed it. The name stands for what it did.
		s.Current = nil
	} else if err != nil {
		return err
	}
	s.Moving = false
	return u.save(s)
}

// Rollback lets the name stand for the previous image again.
func (u *Updater) Rollback(ctx context.Context, reason string) (Result, error) {
	release, err := u.open(ctx)
	if err != nil {
		return Result{}, err
	}
	defer release()
	return u.rollback(ctx, reason)
}

func (u *Updater) rollback(ctx context.Context, reason string) (Result, error) {
	s := u.state
	for len(s.Previous) > 0 {
		_, err := u.Engine.Image(ctx, s.Previous[0].ID)
		if err == nil {
			break
		} else if !errors.Is(err, docker.ErrNotFound) {
			return Result{}, err
		}
		s.Previous = slices.Clone(s.Previous[1:]) // somebody removed it
	}
	if len(s.Previous) == 0 {
		return Result{}, ErrNoPrevious
	}
	bad := s.Current
	if err := u.save(s.back(reason, u.now())); err != nil {
		return Result{}, err
	}
	if err := u.move(ctx); err != nil {
		return Result{}, err
	}
	u.note("%s goes back to %s: %s", u.Name, u.state.Current.label(), reason)
	r := u.result(ActionBack, reason)
	r.Previous = bad
	return r, u.prune(ctx)
}

// prune removes what is to go and nothing uses: kbnode's own names and digests,
// and with the last of its names the image. Others' names stay.
func (u *Updater) prune(ctx context.Context) error {
	used, err := u.Engine.ImagesInUse(ctx)
	if err != nil {
		return err
	}
	s := u.state
	s.Drop = []Image{}
	var errs []error
	for _, i := range u.state.Drop {
		same := func(k Image) bool { return k.ID == i.ID && i.ID != "" || k.Digest == i.Digest && i.Digest != "" }
		switch {
		case slices.ContainsFunc(u.state.kept(), same):
			continue // it came back
		case used[i.ID]:
			s.Drop = append(s.Drop, i)
			continue
		}
		if err := u.remove(ctx, i); err != nil {
			errs = append(errs, err)
			s.Drop = append(s.Drop, i)
		}
	}
	if len(s.Drop) == len(u.state.Drop) {
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, u.save(s))...)
}

// remove takes from an image what kbnode gave it, its digests last: where those
// are gone, all is.
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
		return err // it is somebody else's too
	}
	// The same image may have had another digest there, too.
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

func (u *Updater) now() time.Time {
	if u.Now != nil {
		return u.Now().UTC()
	}
	return time.Now().UTC()
}

func (u *Updater) say(format string, args ...any) {
	if u.Say != nil {
		u.Say(fmt.Sprintf(format, args...))
	}
}

// note keeps what happened. That it could not be is no reason to stop.
func (u *Updater) note(format string, args ...any) {
	if err := u.Events.Add(events.Event{Kind: "image", Slot: -1, Time: u.now(), Text: fmt.Sprintf(format, args...)}); err != nil {
		u.say("%v", err)
	}
}

func (u *Updater) tell(p docker.Progress) {
	if u.Tell != nil {
		u.Tell(p)
	}
}
