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
}

func (r *Refusal) Error() string {
	if r.Message == "" {
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
		resp, err := w.once(r)
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

func (w *wire) once(r *http.Request) (*http.Response, error) {
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
		return nil, &Refusal{resp.StatusCode, message(body)}
	case resp.StatusCode < 300 && len(body) > 0 && !json.Valid(body):
		return nil, fmt.Errorf("the answer is not JSON: %.60q", body)
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// message returns the error message in a response.
func message(body []byte) string {
	var says struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &says) != nil {
		return ""
	}
	return text.Line(says.Message, 500)
}
