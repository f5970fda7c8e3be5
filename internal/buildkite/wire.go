package buildkite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/text"
)

const (
	// maxBody bounds a response in bytes: a page of builds carries their payloads.
	maxBody = 64 << 20
	// requestTime bounds one request with its response.
	requestTime = time.Minute
	// maxPause is the longest pause between two attempts.
	maxPause = 30 * time.Second
	// maxRefused is how many times in a row the rate limit may refuse a request.
	maxRefused = 15
)

// errTooLarge is not retried: the response would be no smaller.
var errTooLarge = fmt.Errorf("the answer is over %d MiB", maxBody>>20)

// Refusal is an error response. What was requested was not done.
type Refusal struct {
	Status  int    // HTTP status code
	Message string // from Buildkite, truncated
	advice  string // what to do about it, in place of all else
}

func (r *Refusal) Error() string {
	switch {
	case r.advice != "":
		return r.advice
	case r.Message == "":
		return fmt.Sprintf("Buildkite returned %d %s", r.Status, http.StatusText(r.Status))
	}
	return fmt.Sprintf("Buildkite returned %d %s: %s", r.Status, http.StatusText(r.Status), r.Message)
}

// wire is the transport of the library's requests. It reads responses to the
// end, so that a truncated one is never used.
type wire struct {
	network  http.RoundTripper
	pace     *pace         // nil ignores the rate limit
	attempts int           // for a request that may be repeated
	each     time.Duration // timeout of one attempt
	log      func(what string, pause time.Duration)
}

// RoundTrip implements http.RoundTripper. It repeats a request that the rate limit
// refused, since it had no effect. If a response is lost or is a server error, the
// request may have been carried out, so only idempotent requests are repeated.
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, over := r.Context(), 0
	for attempt := 1; ; attempt++ {
		if w.pace != nil {
			if err := w.pace.begin(ctx, w.log); err != nil {
				return nil, err
			}
		}
		resp, err := w.send(r)
		if err == nil || ctx.Err() != nil {
			return resp, err
		}
		pause := backOff(attempt)
		refused, answered := errors.AsType[*Refusal](err)
		switch {
		case answered && refused.Status == http.StatusTooManyRequests:
			if w.pace == nil {
				return nil, errors.New("the API token's rate limit is used up; try again in a minute")
			}
			if over++; over == maxRefused {
				return nil, err
			}
			attempt-- // the pace waits for the next minute
			continue
		case attempt >= w.attempts, r.Method == http.MethodPost, answered && refused.Status < 500, errors.Is(err, errTooLarge):
			return nil, err
		}
		if w.log != nil {
			w.log(err.Error(), pause)
		}
		if limit.Sleep(ctx, pause) != nil {
			return nil, err
		}
	}
}

// backOff returns the pause after a failed attempt: a second, doubled each time, plus
// up to half of that, so that clients that failed together do not return together.
func backOff(attempt int) time.Duration {
	pause := min(time.Second<<min(attempt-1, 10), maxPause)
	return pause + rand.N(pause/2) //nolint:gosec // no secret
}

func (w *wire) send(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), w.each)
	defer cancel()
	req := r.Clone(ctx)
	if r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, fmt.Errorf("repeat request: %w", err)
		}
		req.Body = body
	}
	resp, err := w.network.RoundTrip(req)
	if w.pace != nil {
		w.pace.end(resp)
	}
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	_ = resp.Body.Close()
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer: %w", err)
	case len(body) > maxBody:
		return nil, errTooLarge
	case resp.StatusCode >= 400:
		return nil, &Refusal{Status: resp.StatusCode, Message: message(body)}
	case resp.StatusCode < 300 && len(body) > 0 && !json.Valid(body):
		return nil, fmt.Errorf("the answer is not JSON: %.60q", body)
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

func message(body []byte) string {
	var reply struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &reply) != nil {
		return ""
	}
	return text.Line(reply.Message, 500)
}

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
