package buildkite

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const (
	// maxBody bounds a response in bytes: a page of builds carries their payloads, a result traces.
	maxBody = 128 << 20
	// requestTime bounds one request with its response, and storeTime that of a file.
	requestTime, storeTime = time.Minute, 3 * time.Minute
	// maxPause is the longest pause between two attempts.
	maxPause = 30 * time.Second
	// maxRefused is how many times in a row the rate limit may refuse a request.
	maxRefused = 15
)

// errTooLarge is not retried: the response would be no smaller.
var errTooLarge = fmt.Errorf("the answer is over %d MiB", maxBody>>20)

// Refusal is an error response, or a redirect of the API's. What was requested was not done.
type Refusal struct {
	Status  int    // HTTP status code
	Message string // from Buildkite, truncated
	advice  string // what to do about it, in place of all else

	path     string   // of the request
	location *url.URL // where a redirect leads to; may be nil
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
	json     bool          // a response is JSON, or is not accepted
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
		case answered && refused.Status == http.StatusTooManyRequests && w.attempts == 1:
			return nil, errors.New("the API token's rate limit is used up; try again in a minute")
		case answered && refused.Status == http.StatusTooManyRequests && w.pace != nil:
			over++
			if over == maxRefused {
				return nil, err
			}
			attempt-- // the pace waits for the next minute
			continue
		case attempt >= w.attempts, r.Method == http.MethodPost, answered && refused.Status < 500 && refused.Status != http.StatusTooManyRequests, errors.Is(err, errTooLarge):
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
		return nil, unreached(r.URL.Host, err)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	_ = resp.Body.Close()
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer: %w", err)
	case len(body) > maxBody:
		return nil, errTooLarge
	case resp.StatusCode >= 400:
		return nil, &Refusal{Status: resp.StatusCode, Message: message(body), path: r.URL.Path}
	case w.json && resp.StatusCode >= 300: // it would send the token elsewhere
		location, _ := resp.Location()
		return nil, &Refusal{Status: resp.StatusCode, Message: message(body), location: location}
	case w.json && len(body) > 0 && !json.Valid(body):
		return nil, fmt.Errorf("what answers is not Buildkite, but perhaps a proxy: %.60q; check HTTPS_PROXY and BUILDKITE_API_URL", text.Line(string(body), 60))
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// noAnswer is the error of a request that had none.
type noAnswer struct {
	text  string
	cause error
}

func (n *noAnswer) Error() string { return n.text }
func (n *noAnswer) Unwrap() error { return n.cause }

// unreached says for people why a server cannot be reached.
func unreached(host string, err error) error {
	const check = "check the network, HTTPS_PROXY and BUILDKITE_API_URL"
	_, name := errors.AsType[*net.DNSError](err)
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "proxyconnect" {
		host = "the proxy"
		if dial, ok := errors.AsType[*net.OpError](op.Err); ok && dial.Addr != nil {
			host += " " + dial.Addr.String()
		}
	}
	switch {
	case name:
		return &noAnswer{fmt.Sprintf("no address is known for %s; %s", host, check), err}
	case errors.Is(err, syscall.ECONNREFUSED):
		return &noAnswer{fmt.Sprintf("nothing answers at %s; %s", host, check), err}
	case certificate:
		return &noAnswer{fmt.Sprintf("the certificate of %s is not trusted here; set SSL_CERT_FILE to the authorities of your network's proxy", host), err}
	case plain:
		return &noAnswer{fmt.Sprintf("%s does not speak https; %s", host, check), err}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return &noAnswer{fmt.Sprintf("%s did not answer in time; %s", host, check), err}
	}
	return err
}

// message returns what a refusal says, with the fields that it is about.
func message(body []byte) string {
	var reply struct {
		Message string `json:"message"`
		Errors  []struct {
			Field string `json:"field"`
			Code  string `json:"code"`
		} `json:"errors"`
	}
	if json.Unmarshal(body, &reply) != nil {
		return ""
	}
	for i, e := range reply.Errors {
		reply.Message += map[bool]string{true: ": ", false: ", "}[i == 0] + e.Field + " is " + strings.ReplaceAll(e.Code, "_", " ")
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
	flying int         // requests without a response yet
	counts []time.Time // when each answered request stops counting, in order
	until  time.Time   // when there is more again, if others left too little
}

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
	switch {
	case now.Before(p.until):
		return p.until.Sub(now)
	case p.flying+len(p.counts) < perMinute:
		p.flying++
		return 0
	case len(p.counts) == 0:
		return time.Second // none is answered yet
	}
	return p.counts[0].Sub(now)
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
	refused := resp.StatusCode == http.StatusTooManyRequests
	// The organization has a limit, and so does the token's owner.
	for _, prefix := range []string{"RateLimit-", "RateLimit-User-"} {
		left, err := strconv.Atoi(resp.Header.Get(prefix + "Remaining"))
		reset, rerr := strconv.Atoi(resp.Header.Get(prefix + "Reset"))
		if err == nil && rerr == nil && reset >= 0 && left <= p.flying {
			p.until, refused = now.Add(min(time.Duration(reset)*time.Second, maxReset)), false
		}
	}
	if refused {
		p.until = now.Add(10 * time.Second) // no reset time given
	}
}
