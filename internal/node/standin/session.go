package standin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

const (
	callTime   = 15 * time.Second
	maxAnswer  = 1 << 20 // bytes
	leaveTime  = 5 * time.Second
	lostTime   = 3 * time.Minute // without a heartbeat, before it registers again
	heartbeats = time.Minute     // between two, if Buildkite does not say
	// noteTime is the shortest time between two changes of a reason: some have figures that change all the time.
	noteTime = 5 * time.Minute
	// Buildkite resumes a paused agent after five minutes unless the pause says when, after seven days at most. An agent
	// leaves before, and another one takes its place.
	pauseTime, sessionTime = 24 * time.Hour, 23 * time.Hour
)

// session is an agent that is registered with Buildkite and asks for no jobs. Its calls are those of the package api of
// github.com/buildkite/agent, of which the whole would be linked with it.
type session struct {
	network http.RoundTripper
	service Service
	token   string
	headers map[string]string // that Buildkite wants with each call
	every   time.Duration     // between two heartbeats
}

// errStatus is an answer that is no success.
type errStatus struct {
	code int
	text string
}

func (e *errStatus) Error() string { return "Buildkite says " + e.text }

// final reports whether err is an answer that the same call would get again.
func final(err error) bool {
	refused, ok := errors.AsType[*errStatus](err)
	return ok && refused.code < 500 && refused.code != http.StatusTooManyRequests
}

// register makes an agent. ignore_in_dispatches is what an agent says that takes one job by its ID and no other: so it gets
// none, even if someone resumes it in Buildkite.
func register(ctx context.Context, network http.RoundTripper, service Service, token, host string, a Absence) (*session, error) {
	s := &session{network: network, service: service, token: token, every: heartbeats}
	var made struct {
		Token    string            `json:"access_token"`
		Endpoint string            `json:"endpoint"`
		Headers  map[string]string `json:"request_headers"`
		Every    int               `json:"heartbeat_interval"` // seconds
	}
	err := s.post(ctx, "register", map[string]any{
		"name": a.Agent, "hostname": host, "os": runtime.GOOS, "arch": runtime.GOARCH, "version": service.AgentVersion, "build": "kbnode",
		"script_eval_enabled": false, "ignore_in_dispatches": true, "meta_data": a.tags(), "features": []string{},
	}, &made)
	if err != nil {
		return nil, err
	}
	if made.Token == "" {
		return nil, errors.New("register: the answer has no access token")
	}
	s.token = made.Token
	s.headers = made.Headers
	maps.DeleteFunc(s.headers, func(name, _ string) bool { return !strings.HasPrefix(name, "Buildkite-") }) // as the agent
	if made.Endpoint != "" {                                                                                // as the agent, it goes on there
		to, err := url.Parse(made.Endpoint)
		if err != nil || to.Scheme != "https" && !strings.HasPrefix(service.Endpoint, "http://") {
			return nil, errors.New("register: the answer leads to another endpoint without TLS")
		}
		s.service.Endpoint = made.Endpoint
	}
	if made.Every >= 1 {
		s.every = max(10*time.Second, min(time.Duration(made.Every)*time.Second, lostTime/2))
	}
	return s, nil
}

// hold keeps the agent connected and paused until ctx ends, sessionTime is over, or Buildkite forgets the agent. It then
// disconnects it. reason returns the note of the pause, which may change. failed gets errors after which it goes on.
func (s *session) hold(ctx context.Context, reason func() string, failed func(error)) error {
	defer s.leave(ctx)
	if err := s.post(ctx, "connect", nil, nil); err != nil {
		return err
	}
	began := time.Now()
	var note string
	var noted time.Time
	for last := began; time.Since(began) < sessionTime; {
		if now := reason(); noted.IsZero() || now != note && time.Since(noted) >= noteTime {
			err := s.post(ctx, "pause", map[string]any{"note": now, "timeout_in_minutes": int(pauseTime.Minutes())}, nil)
			switch {
			case err == nil || noted.IsZero() && final(err): // refused, its tag still says the state
				note, noted = now, time.Now()
			case final(err):
				return err
			}
			if err != nil {
				failed(err)
			}
		}
		if limit.Sleep(ctx, s.every) != nil {
			break
		}
		err := s.post(ctx, "heartbeat", map[string]any{"sent_at": time.Now().UTC().Format(time.RFC3339Nano)}, nil)
		switch {
		case err == nil:
			last = time.Now()
		case final(err) || time.Since(last) > lostTime:
			return err
		}
	}
	return nil
}

func (s *session) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	_ = s.post(ctx, "disconnect", nil, nil) // Buildkite counts it as lost some minutes later
}

func (s *session) post(ctx context.Context, call string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	shown := config.HideURL(s.service.Endpoint)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(s.service.Endpoint, "/")+"/"+call, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%s: %s is not a valid address", call, shown) // err has parts of it
	}
	for name, value := range s.headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("Authorization", "Token "+s.token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "kbnode")
	client := &http.Client{Transport: s.network, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // it repeats the endpoint
	}
	if err != nil {
		return fmt.Errorf("%s: ask %s: %w", call, shown, err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("%s: %w", call, &errStatus{resp.StatusCode, resp.Status})
	}
	if err == nil && out != nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		return fmt.Errorf("%s: read the answer of %s: %w", call, shown, err)
	}
	return nil
}
