package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/operate/cache"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// checkCached returns what is wrong with other flags beside --cached and --refresh.
func (f *submitFlags) checkCached() error {
	var errs []error
	switch {
	case f.refresh && !f.cached:
		errs = append(errs, errors.New("--refresh replaces what --cached answers with; add --cached"))
	case !f.cached:
	default:
		if !f.Inline {
			errs = append(errs, errors.New("--cached needs --inline-steps; otherwise the pipeline's steps decide what runs, and anyone may have changed them"))
		}
		if f.runID != "" {
			errs = append(errs, errors.New("--cached may answer with an earlier run, which has its own run ID; leave out --run-id"))
		}
	}
	return errors.Join(errs...)
}

// checkCachedMode returns an error if a payload has a mode whose results are not kept. What no runner takes, the job says.
func checkCachedMode(doc string) error {
	o, err := payload.ParseObject(doc)
	mode, _ := o.Get("mode")
	if err == nil && mode == result.ModeCompare {
		return errors.New("--cached answers only mode test, and a comparison measures times; leave out --cached")
	}
	if name := payload.Str(mode); err == nil && name != cache.Mode && slices.Contains(task.Modes, name) {
		return fmt.Errorf("--cached answers only mode %s: mode %s measures times, and those of an earlier run say nothing about this one; leave out --cached, or write --mode %[1]s", cache.Mode, name)
	}
	return nil
}

// fromCache returns the outcome of an identical submission, or nil. With --refresh, it forgets that outcome. What keeps it
// from looking is no reason not to evaluate.
func (f *submitFlags) fromCache(ctx context.Context, s term.Streams, c *buildkite.Client, r submit.Request) *submit.Outcome {
	out, err := f.lookUp(ctx, c, r)
	if err != nil && ctx.Err() == nil {
		s.Warn("nothing is answered from the cache: %v", err)
	}
	return out
}

func (f *submitFlags) lookUp(ctx context.Context, c *buildkite.Client, r submit.Request) (*submit.Outcome, error) {
	store, err := cache.Open()
	if err != nil {
		return nil, err
	}
	kind, err := cache.QueueKind(ctx, c, r.Org, r.Queue)
	if err != nil || kind == "" {
		return nil, err
	}
	key, err := cache.KeyOf(apiURL(), r, kind)
	if err != nil {
		return nil, err
	}
	if f.refresh {
		return nil, store.Forget(key)
	}
	return store.Get(key, time.Now())
}

// toCache keeps an outcome for identical submissions.
func (f *submitFlags) toCache(s term.Streams, r submit.Request, out submit.Outcome) {
	store, err := cache.Open()
	if err == nil && f.refresh { // it was not known which to forget, if the agents differed, or could not be listed
		err = store.ForgetOf(apiURL(), r, out)
	}
	if err == nil {
		err = store.Keep(apiURL(), r, out, time.Now())
	}
	if err != nil {
		s.Warn("the result is not kept for --cached: %v", err)
	}
}

func apiURL() string { return buildkite.BaseURL(os.Getenv("BUILDKITE_API_URL")) }

// cachedLine returns where the result of an earlier submission is from.
func cachedLine(out submit.Outcome) string {
	return fmt.Sprintf("cached: build %d on %s, of %s, %s; --refresh evaluates it again",
		out.Build, text.Line(out.Agent, 100), out.Cached.Local().Format(time.DateTime), text.Line(out.URL, 300))
}
