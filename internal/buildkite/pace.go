package buildkite

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/limit"
)

const (
	// perMinute is how many requests a person's tokens may make:
	// https://buildkite.com/docs/apis/rest-api/rate-limits
	perMinute = 50
	// window is Buildkite's minute, plus some transit time.
	window   = 61 * time.Second
	maxReset = 5 * time.Minute
)

// pace keeps a client below a rate limit that others may share: responses tell how
// much they left. A request counts from when it is sent until a minute after its
// response, so no minute of Buildkite's exceeds the limit, wherever it begins.
type pace struct {
	mu     sync.Mutex
	limit  int
	flying int         // requests without a response yet
	counts []time.Time // when each answered request stops counting, in order

	left  int       // for the minute that ends at reset, less flying
	reset time.Time // zero before the first response
}

func newPace() *pace { return &pace{limit: perMinute} }

// worthTelling is the shortest wait that is logged.
const worthTelling = 3 * time.Second

// begin waits until a request may be sent, and calls log before a long wait.
func (p *pace) begin(ctx context.Context, log func(string, time.Duration)) error {
	for {
		wait := p.try(time.Now())
		if wait <= 0 {
			return nil
		}
		if wait > worthTelling && log != nil {
			log("the API token's rate limit is used up", wait)
		}
		if limit.Sleep(ctx, wait) != nil {
			return ctx.Err()
		}
	}
}

// try counts a request and returns 0, or returns how long to wait before the next try.
func (p *pace) try(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.counts) > 0 && !p.counts[0].After(now) {
		p.counts = p.counts[1:]
	}
	if p.left <= 0 && now.Before(p.reset) {
		return p.reset.Sub(now)
	}
	if p.flying+len(p.counts) >= p.limit {
		if len(p.counts) == 0 {
			return time.Second // none is answered yet
		}
		return p.counts[0].Sub(now)
	}
	p.flying++
	p.left--
	return 0
}

// end records what a response says about the limit; nil if there was none.
func (p *pace) end(resp *http.Response) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.flying--
	p.counts = append(p.counts, now.Add(window))
	if resp == nil {
		return
	}
	// The organization has a limit, and so does the token's owner.
	for _, prefix := range []string{"RateLimit-", "RateLimit-User-"} {
		number := func(name string) (int, bool) {
			n, err := strconv.Atoi(resp.Header.Get(prefix + name))
			return n, err == nil && n >= 0
		}
		if limit, ok := number("Limit"); ok && limit > 0 && prefix == "RateLimit-User-" {
			p.limit = limit
		}
		left, ok := number("Remaining")
		seconds, timed := number("Reset")
		if !ok || !timed {
			continue
		}
		reset := now.Add(min(time.Duration(seconds)*time.Second, maxReset))
		left -= p.flying
		switch {
		case now.After(p.reset) || left < p.left: // a new minute, or others made requests
			p.left, p.reset = left, reset
		case reset.Sub(p.reset) > window/2:
			p.left, p.reset = left, reset
		}
	}
	if resp.StatusCode == http.StatusTooManyRequests && (p.left > 0 || !now.Before(p.reset)) {
		p.left, p.reset = 0, now.Add(10*time.Second) // no reset time given
	}
}
