package bktest

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// agentRoutes are the calls of buildkite-agent 3 (its package api). A response other than
// 2xx, 429 or 5xx to ping or heartbeat makes the agent stop.
func (s *Server) agentRoutes() {
	s.handle("POST /v3/register", s.byRegistration, parsed(s.register))
	s.handle("GET /v3/metrics", s.byRegistration, s.metrics)
	s.mux.HandleFunc(StreamRoute, s.streamPings)
	s.handle("POST /v3/connect", s.byAgent, s.connect)
	s.handle("POST /v3/stop", s.byAgent, s.stop)
	s.handle("POST /v3/disconnect", s.byAgent, s.disconnect)
	s.handle("POST /v3/heartbeat", s.byAgent, parsed(s.heartbeat))
	s.handle("POST /v3/pause", s.byAgent, parsed(s.pause))
	s.handle("GET /v3/ping", s.byAgent, s.ping)
	s.handle("PUT /v3/jobs/{job}/accept", s.byAgent, s.accept)
	s.handle("GET /v3/jobs/{job}", s.byJob, s.jobState)
	s.handle("PUT /v3/jobs/{job}/start", s.byJob, s.start)
	s.handle("PUT /v3/jobs/{job}/finish", s.byJob, parsed(s.finished))
	s.handle("POST /v3/jobs/{job}/chunks", s.byJob, s.saveChunk)
	s.handle("POST /v3/jobs/{job}/header_times", s.byJob, func(*call) reply { return reply{} })
	s.handle("POST /v3/jobs/{job}/artifacts", s.byJob, parsed(s.createArtifacts))
	s.handle("PUT /v3/jobs/{job}/artifacts", s.byJob, parsed(s.updateArtifacts))
}

// unauthorized is the response to every wrong token:
// https://github.com/buildkite/agent/issues/743
func unauthorized() (reply, bool) {
	return refuse(http.StatusUnauthorized, "Invalid access token"), false
}

func (s *Server) byRegistration(c *call) (reply, bool) {
	tokens := []string{DefaultAgentToken}
	if s.opts.AgentTokens != nil {
		tokens = s.opts.AgentTokens()
	}
	tokens = append(slices.Clone(tokens), s.tokens...)
	if !slices.ContainsFunc(tokens, func(t string) bool { return credentials(c.Request, "Token") == t }) {
		return unauthorized()
	}
	return reply{}, true
}

func (s *Server) byAgent(c *call) (reply, bool) {
	a := s.byToken[credentials(c.Request, "Token")]
	if a == nil || !a.live() {
		return unauthorized()
	}
	c.agent = a
	c.agent.lastSeen = time.Now()
	return reply{}, true
}

// byJob admits the agent that has the job, and the job's own token while the job runs.
func (s *Server) byJob(c *call) (reply, bool) {
	j := s.job(c.PathValue("job"))
	if j == nil || j.agent == nil {
		return unauthorized()
	}
	token := credentials(c.Request, "Token")
	its := token == j.token && j.open()
	theirs := token == j.agent.token && j.agent.live()
	if !its && !theirs {
		return unauthorized()
	}
	c.job, c.agent = j, j.agent
	c.agent.lastSeen = time.Now()
	return reply{}, true
}

func (s *Server) job(id string) *job {
	for _, b := range s.builds {
		for _, j := range b.jobs {
			if j.ID == id {
				return j
			}
		}
	}
	return nil
}

type registration struct {
	Name     string   `json:"name"`
	Hostname string   `json:"hostname"`
	Version  string   `json:"version"`
	PID      int      `json:"pid"`
	Tags     []string `json:"meta_data"`
	Ignore   bool     `json:"ignore_in_dispatches"`
}

func (s *Server) register(_ *call, req registration) reply {
	a, err := s.enroll(req)
	if err != nil {
		return refuse(http.StatusUnprocessableEntity, "%v", err)
	}
	return reply{body: map[string]any{
		"id": a.ID, "name": a.Name, "access_token": a.token, "meta_data": a.MetaData,
		"ping_interval": s.opts.PingSeconds, "job_status_interval": s.opts.PingSeconds, "heartbeat_interval": 60,
	}}
}

func (s *Server) enroll(req registration) (*agent, error) {
	for _, t := range req.Tags {
		q, isQueue := strings.CutPrefix(t, "queue=")
		if isQueue && s.opts.Queues == nil {
			s.addQueue(q)
		}
		if isQueue && !slices.Contains(s.queues, q) {
			return nil, fmt.Errorf("no queue named %q in this cluster; create it first", q)
		}
	}
	a := &agent{token: "agent-" + rand.Text(), lastSeen: time.Now(), ignored: req.Ignore}
	name := strings.NewReplacer("%hostname", req.Hostname, "%pid", strconv.Itoa(req.PID), "%random", rand.Text()[:6]).Replace(req.Name)
	a.Agent = Agent{
		ID: newID(), Name: name, ConnectionState: "never_connected", Hostname: req.Hostname, Version: req.Version, MetaData: req.Tags,
	}
	s.agents = append(s.agents, a)
	s.byToken[a.token] = a
	return a, nil
}

func (s *Server) connect(c *call) reply {
	c.agent.ConnectionState = "connected"
	return reply{}
}

// stop is what an agent says, since 3.138, that ends after its job.
func (s *Server) stop(c *call) reply {
	c.agent.ConnectionState = "stopping"
	return reply{}
}

func (s *Server) disconnect(c *call) reply {
	c.agent.ConnectionState = "disconnected"
	s.release(c.agent, "agent_stop")
	return reply{}
}

type pausing struct {
	Note    string `json:"note"`
	Minutes int    `json:"timeout_in_minutes"`
}

func (s *Server) pause(c *call, req pausing) reply {
	if req.Minutes < 0 || req.Minutes > 7*24*60 {
		return reply{status: http.StatusUnprocessableEntity, body: map[string]string{"message": "timeout_in_minutes is out of range"}}
	}
	c.agent.Paused, c.agent.PausedNote, c.agent.PausedAt = true, &req.Note, now()
	c.agent.resumes = time.Now().Add(time.Duration(cmp.Or(req.Minutes, 5)) * time.Minute)
	return reply{}
}

func (s *Server) heartbeat(_ *call, hb map[string]any) reply {
	return reply{body: map[string]any{"sent_at": hb["sent_at"], "received_at": now()}}
}

func (s *Server) ping(c *call) reply {
	j := s.offer(c.agent)
	if j == nil {
		return reply{}
	}
	return reply{body: map[string]any{"job": map[string]string{"id": j.ID, "state": "assigned"}}}
}

// offer returns the job that an agent may accept, or nil.
func (s *Server) offer(a *agent) *job {
	if a.job == nil {
		a.job = s.next(a)
		if a.job != nil {
			a.job.State, a.job.agent = "assigned", a
		}
	}
	if a.job == nil || a.job.State != "assigned" {
		return nil
	}
	return a.job
}

func (s *Server) accept(c *call) reply {
	j := s.job(c.PathValue("job"))
	if j == nil || j.agent != c.agent || j.State != "assigned" {
		return refuse(http.StatusUnprocessableEntity, "The job is not offered to this agent any more")
	}
	j.State = "accepted"
	settle(j.build)
	return reply{body: map[string]any{
		"id": j.ID, "state": "accepted", "env": s.jobEnv(j, base(c.Request)), "step": j.step.CommandStep, "token": j.token,
		"chunks_max_size_bytes": maxChunk, "log_max_size_bytes": maxLog, "runnable_at": j.RunnableAt,
	}}
}

// jobState is what a running agent polls; "canceling" is its only word for being stopped.
func (s *Server) jobState(c *call) reply {
	state := c.job.State
	if c.job.stopping() {
		state = "canceling"
	}
	return reply{body: map[string]string{"id": c.job.ID, "state": state}}
}

func (s *Server) start(c *call) reply {
	j := c.job
	if !j.begun() {
		return refuse(http.StatusUnprocessableEntity, "The job cannot start: it is %s", j.State)
	}
	begin(j)
	return reply{}
}

func begin(j *job) {
	j.StartedAt = now()
	if j.State == "assigned" || j.State == "accepted" { // not if it is being canceled
		j.State = "running"
	}
	if j.step.Timeout > 0 {
		j.deadline = time.Now().Add(time.Duration(j.step.Timeout) * time.Minute)
	}
	settle(j.build)
}

type finish struct {
	ExitStatus   string `json:"exit_status"`
	SignalReason string `json:"signal_reason"`
}

func (s *Server) finished(c *call, req finish) reply {
	status, err := strconv.Atoi(req.ExitStatus)
	if err != nil {
		return refuse(http.StatusUnprocessableEntity, "finish: exit_status %q is not a number", req.ExitStatus)
	}
	if !c.job.begun() {
		return refuse(http.StatusUnprocessableEntity, "The job is not running: it is %s", c.job.State)
	}
	c.job.SignalReason = req.SignalReason
	s.finish(c.job, status)
	return reply{}
}

// saveChunk stores a piece of a log; sending it again replaces the first.
func (s *Server) saveChunk(c *call) reply {
	seq, err1 := strconv.ParseUint(c.URL.Query().Get("sequence"), 10, 64)
	offset, err2 := strconv.ParseUint(c.URL.Query().Get("offset"), 10, 64)
	if err1 != nil || err2 != nil || offset > maxLog {
		return refuse(http.StatusUnprocessableEntity, "chunk: sequence and offset must be numbers within the log")
	}
	var data io.Reader = bytes.NewReader(c.body)
	if c.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(data)
		if err != nil {
			return refuse(http.StatusBadRequest, "chunk: %v", err)
		}
		data = z
	}
	text, err := io.ReadAll(io.LimitReader(data, maxChunk+1))
	if err != nil || len(text) > maxChunk {
		return refuse(http.StatusBadRequest, "chunk: not at most %d bytes of text", maxChunk)
	}
	size := c.job.logSize - len(c.job.chunks[seq].data) + len(text)
	if size > maxLog || len(c.job.chunks) > maxLog/64 {
		return refuse(http.StatusRequestEntityTooLarge, "The log is longer than %d bytes", maxLog)
	}
	c.job.logSize = size
	c.job.chunks[seq] = chunk{offset: offset, data: text}
	return reply{}
}
