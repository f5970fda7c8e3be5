package image

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// errJob interrupts what must not go on when a job begins.
var errJob = errors.New("a job started")

// busyError means that the node was busy for the whole wait.
type busyError struct{ why string }

func (e *busyError) Error() string { return e.why }

// whileIdle calls do, which would disturb timings, while no slot runs a job: it waits for
// that, and starts over if a job comes meanwhile.
func (u *Updater) whileIdle(ctx context.Context, o Options, what string, do func(context.Context) error) error {
	if o.Beside {
		return do(ctx)
	}
	// Only the jobs know whether they are timed, so all of them count.
	idle := func(slots []Slot) string {
		var busy []string
		for _, s := range slots {
			if s.Job != "" {
				busy = append(busy, s.Name)
			}
		}
		if len(busy) == 0 {
			return ""
		}
		return what + " would disturb the timings of " + strings.Join(busy, ", ")
	}
	hint := "; --now does not wait for them"
	if o.Auto {
		hint = "" // kbnode install has no such flag
	}
	for end := u.deadline(o); ; {
		if err := u.await(ctx, end, idle, hint); err != nil {
			return err
		}
		err := u.interruptible(ctx, func(slots []Slot) bool { return idle(slots) != "" }, do)
		if !errors.Is(err, errJob) {
			return err
		}
		u.say("a job started and goes first; %s continues after it", what)
	}
}

// deadline returns when a wait for idle slots ends; zero means never.
func (u *Updater) deadline(o Options) time.Time {
	if o.Wait <= 0 {
		return time.Time{}
	}
	return time.Now().Add(o.Wait)
}

// await waits until why returns "".
func (u *Updater) await(ctx context.Context, end time.Time, why func([]Slot) string, hint string) error {
	for last := ""; ; {
		slots, err := u.Node.Slots(ctx)
		if err != nil {
			return err
		}
		text := why(slots)
		if text == "" {
			return nil
		}
		if !end.IsZero() && time.Now().After(end) {
			return &busyError{text}
		}
		if text != last {
			u.say("waiting: %s%s", text, hint)
			last = text
		}
		if limit.Sleep(ctx, u.Pause) != nil {
			return context.Cause(ctx)
		}
	}
}

// interruptible calls do and interrupts it with errJob as soon as over reports true for the slots.
func (u *Updater) interruptible(ctx context.Context, over func([]Slot) bool, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for limit.Sleep(ctx, u.Pause) == nil {
			if slots, err := u.Node.Slots(ctx); err == nil && over(slots) {
				cancel(errJob)
			}
		}
	}()
	err := do(ctx)
	cause := context.Cause(ctx)
	cancel(nil)
	<-watched
	if errors.Is(cause, errJob) {
		return errJob
	}
	return err
}

// ErrKilled means that a canary was killed before it gave a result.
var ErrKilled = errors.New("it was killed before it reported anything")

// canary runs the candidate in one idle slot. If it fails, it runs once more, and then the
// current image does. If that fails too, the slot is unfit, and another one is tried. Without a current image that
// has passed, the slot may be at fault as well as the image, so another slot decides, if there is one. A failure in a slot
// whose GPU owes an evaluation decides nothing.
func (u *Updater) canary(ctx context.Context, o Options) (Canary, error) {
	unfit := map[int]string{}
	id, cur := u.state.Candidate.ID, u.state.Current
	proven := cur.passed() && cur.ID != id
	var failed *Canary // in a slot where no proven image was tried
	for end := u.deadline(o); ; {
		slot, err := u.idleSlot(ctx, end, unfit)
		if failed != nil && errors.Is(err, errNoSlot) {
			return *failed, nil
		}
		if err != nil {
			return Canary{}, err
		}
		u.say("trying the image in slot %s", slot.Name)
		verdict, err := u.Node.Canary(ctx, slot, id)
		if err == nil && !verdict.Passed {
			u.say("it failed in slot %s (%s); trying again", slot.Name, verdict.Reason)
			verdict, err = u.Node.Canary(ctx, slot, id)
		}
		var control Canary
		if err == nil && !verdict.Passed && proven {
			control, err = u.Node.Canary(ctx, slot, cur.ID)
		}
		switch {
		case ctx.Err() != nil:
			return Canary{}, context.Cause(ctx)
		case errors.Is(err, errJob):
			if !end.IsZero() && time.Now().After(end) {
				return Canary{}, &busyError{"a job started in slot " + slot.Name}
			}
			u.say("a job started in slot %s and goes first; the image is tried again", slot.Name)
			if limit.Sleep(ctx, u.Pause) != nil {
				return Canary{}, context.Cause(ctx)
			}
			continue
		case err != nil:
			unfit[slot.Index] = err.Error()
			continue
		case slot.Owes != "" && !verdict.Passed && !control.Passed:
			unfit[slot.Index] = "its GPU may be at fault: " + verdict.Reason
			continue
		case verdict.Passed, control.Passed, failed != nil:
			return verdict, nil
		case !proven:
			u.say("it failed in slot %s (%s); another slot decides, if one can", slot.Name, verdict.Reason)
			failed, unfit[slot.Index] = &verdict, verdict.Reason
			continue
		}
		unfit[slot.Index] = "the current image fails there, too: " + verdict.Reason
	}
}

// errNoSlot means that waiting brings no slot to try an image in.
var errNoSlot = errors.New("no slot can try the image")

// idleSlot waits for a slot that can run a canary.
func (u *Updater) idleSlot(ctx context.Context, end time.Time, unfit map[int]string) (found Slot, err error) {
	reasons := ""
	err = u.await(ctx, end, func(slots []Slot) string {
		var busy, away []string
		owing := -1
		for i, s := range slots {
			if s.Away == "" {
				s.Away = unfit[s.Index]
			}
			switch {
			case s.Away != "":
				away = append(away, s.Name+": "+s.Away)
			case s.Job != "":
				busy = append(busy, s.Name)
			case s.Owes != "":
				owing = i
			default:
				found, reasons = s, ""
				return ""
			}
		}
		if len(busy) == 0 && owing >= 0 {
			found, reasons = slots[owing], ""
			return ""
		}
		if len(busy) == 0 {
			reasons = strings.Join(away, "; ")
			return "" // waiting does not help
		}
		return "no slot is idle to try the image in; " + strings.Join(busy, ", ") + text.Plural(len(busy), " runs a job", " run jobs")
	}, "; kbnode drain keeps the next job off a slot")
	if err == nil && reasons != "" {
		err = fmt.Errorf("%w; %s", errNoSlot, reasons)
	} else if err == nil && found.Name == "" {
		err = errors.New("this node has no slot to try the image in; run sudo kbnode install")
	}
	return found, err
}
