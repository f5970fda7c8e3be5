package bktest

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
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

// Employ registers a worker and lets it work until ctx ends. It does what an agent's requests do without
// sending them, so that it works in simulated time.
func (s *Server) Employ(ctx context.Context, w Worker) error {
	s.mu.Lock()
	a, err := s.enroll(registration{Name: w.Name, Hostname: "host-" + w.Name, Version: "3.76.2", Tags: w.Tags})
	if err == nil {
		a.ConnectionState = "connected"
	}
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("employ worker %s: %w", w.Name, err)
	}
	go func() {
		for ctx.Err() == nil {
			s.mu.Lock()
			a.lastSeen = time.Now()
			s.sweep()
			j := s.offer(a)
			if j != nil {
				begin(j)
			}
			s.mu.Unlock()
			if j == nil && !pause(ctx, time.Duration(s.opts.PingSeconds)*time.Second) || j != nil && !s.work(ctx, w, j) {
				return
			}
		}
	}()
	return nil
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// work performs a job that has begun. It returns false if the worker is gone with it.
func (s *Server) work(ctx context.Context, w Worker, j *job) bool {
	s.mu.Lock()
	done := &Work{Env: s.jobEnv(j, "http://buildkite.test"), Files: map[string]string{}}
	s.mu.Unlock()
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // looks at the job like an agent
		for pause(inner, time.Second) {
			s.mu.Lock()
			s.sweep()
			j.agent.lastSeen = time.Now()
			if j.stopping() || !j.open() {
				cancel()
			}
			s.mu.Unlock()
		}
	}()
	w.Do(inner, done)
	s.mu.Lock()
	defer s.mu.Unlock()
	if done.Gone || ctx.Err() != nil || !j.begun() {
		return false
	}
	s.keep(j, done.Files)
	j.SignalReason = done.Reason
	s.finish(j, done.Exit)
	return true
}

// keep stores files as artifacts of a job.
func (s *Server) keep(j *job, files map[string]string) {
	for name, text := range files {
		sum := sha1.Sum([]byte(text))
		a := &artifact{job: j, key: "worker/" + j.ID + "/" + name}
		a.Artifact = Artifact{ID: newID(), JobID: j.ID, State: "finished", Path: name, Filename: path.Base(name), FileSize: int64(len(text)), SHA1: hex.EncodeToString(sum[:])}
		j.files = append(j.files, a)
		s.blobs[a.key] = []byte(text)
	}
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
