package buildkite

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// perMinute is how many requests a person's tokens have:
	// https://buildkite.com/docs/apis/rest-api/rate-limits
	perMinute = 50
	// window is Buildkite's minute, and a little for the way there.
	window   = 61 * time.Second
	maxReset = 5 * time.Minute
)

// pace keeps a client below the rate limit, which may be shared with others: their
// requests are known from what answers say is left. A request counts from when it is
// sent until a minute after its answer, so in no minute of Buildkite's are there more
// than the limit, wherever that minute begins.
type pace struct {
	mu     sync.Mutex
	limit  int
	flying int         // sent and not answered
	counts []time.Time // when an answered request counts no longer; in order

	left  int       // of the minute that ends at reset, less what is flying
	reset time.Time // zero before the first answer
}

func newPace() *pace { return &pace{limit: perMinute} }

// worthTelling is how long a wait is when somebody should know why.
const worthTelling = 3 * time.Second

// begin waits until a request may be sent. log is told of a long wait.
func (p *pace) begin(ctx context.Context, log func(string, time.Duration)) error {
	for {
		wait := p.try(time.Now())
		if wait <= 0 {
			return nil
		}
		if wait > worthTelling && log != nil {
			log("the API token's rate limit is used up", wait)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// try counts a request, or says how long to wait before the next try.
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
			return time.Second // all are on their way
		}
		return p.counts[0].Sub(now)
	}
	p.flying++
	p.left--
	return 0
}

// end takes what an answer says of the limit; nil is none.
func (p *pace) end(resp *http.Response) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.flying--
	p.counts = append(p.counts, now.Add(window))
	if resp == nil {
		return
	}
	// There is a limit for the organization, and one for the token's owner.
	for _, of := range []string{"RateLimit-", "RateLimit-User-"} {
		number := func(name string) (int, bool) {
			n, err := strconv.Atoi(resp.Header.Get(of + name))
			return n, err == nil && n >= 0
		}
		if limit, ok := number("Limit"); ok && limit > 0 && of == "RateLimit-User-" {
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
		case now.After(p.reset) || left < p.left: // another minute, or others ask too
			p.left, p.reset = left, reset
		case reset.Sub(p.reset) > window/2:
			p.left, p.reset = left, reset
		}
	}
	if resp.StatusCode == http.StatusTooManyRequests && (p.left > 0 || !now.Before(p.reset)) {
		p.left, p.reset = 0, now.Add(10*time.Second) // it does not say until when
	}
}
