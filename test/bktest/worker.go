package bktest

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"time"
)

// Work is one job as a Worker performs it.
type Work struct {
	Env    map[string]string
	Files  map[string]string // its artifacts, by path
	Exit   int
	Reason string // of the end, as in signal_reason
	Gone   bool   // the agent is lost with the job
}

// Worker is an agent without a program: a function that determines the outcome of a job.
type Worker struct {
	Name string
	Tags []string
	// Do performs a job. Its context ends when the job is canceled.
	Do func(ctx context.Context, w *Work)
}

// Employ registers a worker and lets it work until ctx ends. It speaks like an agent,
// except to the store, and without a network, so that it works in simulated time.
func (s *Server) Employ(ctx context.Context, w Worker) error {
	var me struct {
		ID        string `json:"id"`
		Token     string `json:"access_token"`
		Ping      int    `json:"ping_interval"`
		Heartbeat int    `json:"heartbeat_interval"`
	}
	err := s.agentRequest(ctx, http.MethodPost, "/v3/register", DefaultAgentToken, map[string]any{"name": w.Name, "hostname": "host-" + w.Name, "meta_data": w.Tags, "version": "3.76.2"}, &me)
	if err == nil {
		err = s.agentRequest(ctx, http.MethodPost, "/v3/connect", me.Token, nil, nil)
	}
	if err != nil {
		return fmt.Errorf("employ worker %s: %w", w.Name, err)
	}
	alive, vanish := context.WithCancel(ctx)
	go func() {
		for s.pause(alive, time.Duration(me.Heartbeat)*time.Second) {
			if s.agentRequest(ctx, http.MethodPost, "/v3/heartbeat", me.Token, map[string]any{"sent_at": time.Now()}, nil) != nil {
				return
			}
		}
	}()
	go func() {
		defer vanish()
		for ctx.Err() == nil {
			var ping struct {
				Job *struct {
					ID string `json:"id"`
				} `json:"job"`
			}
			if err := s.agentRequest(ctx, http.MethodGet, "/v3/ping", me.Token, nil, &ping); err != nil {
				return
			}
			if ping.Job == nil || !s.work(ctx, w, me.Token, ping.Job.ID, vanish) {
				s.pause(ctx, time.Duration(me.Ping)*time.Second)
			}
		}
	}()
	return nil
}

func (s *Server) pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// work performs one job. vanish ends all requests of the agent.
func (s *Server) work(ctx context.Context, w Worker, token, id string, vanish func()) bool {
	var job struct {
		Env map[string]string `json:"env"`
	}
	at := "/v3/jobs/" + id
	if s.agentRequest(ctx, http.MethodPut, at+"/accept", token, nil, &job) != nil || s.agentRequest(ctx, http.MethodPut, at+"/start", token, map[string]any{}, nil) != nil {
		return false
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // polls like an agent
		for {
			select {
			case <-inner.Done():
				return
			case <-time.After(time.Second):
			}
			var state struct {
				State string `json:"state"`
			}
			if err := s.agentRequest(inner, http.MethodGet, at, token, nil, &state); err != nil || state.State != "running" {
				cancel()
			}
		}
	}()
	done := &Work{Env: job.Env, Files: map[string]string{}}
	w.Do(inner, done)
	if done.Gone {
		cancel()
		vanish()
		<-ctx.Done()
		return false
	}
	s.upload(id, done.Files)
	return s.agentRequest(ctx, http.MethodPut, at+"/finish", token, map[string]any{"exit_status": fmt.Sprint(done.Exit), "signal_reason": done.Reason}, nil) == nil
}

// upload stores files as artifacts of a job.
func (s *Server) upload(id string, files map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.job(id)
	for name, text := range files {
		sum := sha1.Sum([]byte(text))
		a := &artifact{job: j, key: "worker/" + id + "/" + name}
		a.Artifact = Artifact{ID: newID(), JobID: id, State: "finished", Path: name, Filename: path.Base(name), FileSize: int64(len(text)), SHA1: hex.EncodeToString(sum[:])}
		j.files = append(j.files, a)
		s.blobs[a.key] = []byte(text)
	}
}

// agentRequest sends a request to the server as an agent.
func (s *Server) agentRequest(ctx context.Context, method, to, token string, body, into any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://buildkite.test"+to, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Token "+token)
	resp, err := s.Wire().RoundTrip(req)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s", method, to, resp.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// Wire returns a transport that reaches the server without a network. A dropped connection
// is an error, as in reality.
func (s *Server) Wire() http.RoundTripper { return wire{s} }

type wire struct{ s *Server }

func (w wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	type answered struct {
		*httptest.ResponseRecorder
		dropped bool
	}
	back := make(chan answered, 1)
	req := r.Clone(context.WithoutCancel(r.Context())) // a server continues after its client has gone
	req.Host, req.RequestURI = r.URL.Host, r.URL.RequestURI()
	if req.Body == nil {
		req.Body = http.NoBody
	}
	go func() {
		a := answered{ResponseRecorder: httptest.NewRecorder()}
		defer func() {
			if p := recover(); p != nil {
				a.dropped = true
			}
			back <- a
		}()
		w.s.ServeHTTP(a, req)
	}()
	select {
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case a := <-back:
		if a.dropped && a.Body.Len() == 0 {
			return nil, errors.New("connection reset by peer")
		}
		resp := a.Result()
		if a.dropped {
			resp.Body = io.NopCloser(io.MultiReader(resp.Body, cutOff{}))
		}
		resp.ContentLength, resp.Request = -1, r
		return resp, nil
	}
}

// cutOff ends a response before its end.
type cutOff struct{}

func (cutOff) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
