package bktest

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Limits of what a job leaves, so that none can fill the memory.
const (
	maxLog       = 16 << 20 // bytes of a job
	maxChunk     = 100 << 10
	maxArtifact  = 64 << 20 // bytes of a file
	maxArtifacts = 5000     // of a job: Buildkite's own limit
)

// lostAfter is the silence after which an agent is lost.
const lostAfter = 3 * time.Minute

type build struct {
	Build
	own      map[string]string // the pipeline document's env
	jobEnv   map[string]string // of JobEnvKey
	jobs     []*job
	canceled bool // cancellation was requested
}

type job struct {
	Job
	step     step
	build    *build
	agent    *agent // the agent that has it now, or had it last
	token    string
	deadline time.Time // zero is none
	chunks   map[uint64]chunk
	logSize  int
	files    []*artifact
}

type chunk struct {
	offset uint64
	data   []byte
}

type agent struct {
	Agent
	token    string
	lastSeen time.Time
	job      *job      // assigned to it or run by it
	ignored  bool      // it gets no jobs
	resumes  time.Time // if it is paused
}

type artifact struct {
	Artifact
	job *job
	key string // in the store
}

// open reports whether the job has not ended.
func (j *job) open() bool { return j.FinishedAt == nil }

// begun reports whether an agent has accepted the job.
func (j *job) begun() bool { return j.open() && j.State != "scheduled" && j.State != "assigned" }

// stopping reports whether the job's agent is to stop it.
func (j *job) stopping() bool { return j.State == "canceling" || j.State == "timing_out" }

// live reports whether the agent's token still works.
func (a *agent) live() bool {
	return a.ConnectionState != "disconnected" && a.ConnectionState != "lost"
}

func now() *time.Time {
	t := time.Now().UTC().Truncate(time.Millisecond)
	return &t
}

// create creates a build and its jobs.
func (s *Server) create(nb NewBuild) (*build, error) {
	doc := nb.Steps
	if doc == nil {
		doc = s.opts.Steps
	}
	b := &build{}
	b.Build = Build{
		ID: newID(), Number: len(s.builds) + 1, State: "scheduled",
		Message: nb.Message, Commit: nb.Commit, Branch: nb.Branch,
		Env: maps.Clone(nb.Env), MetaData: maps.Clone(nb.MetaData), CreatedAt: now(),
	}
	if b.Env == nil {
		b.Env = map[string]string{}
	}
	if b.MetaData == nil {
		b.MetaData = map[string]string{}
	}
	if text, ok := b.MetaData[JobEnvKey]; ok {
		if err := json.Unmarshal([]byte(text), &b.jobEnv); err != nil {
			return nil, fmt.Errorf("read the variables in %s: %w", JobEnvKey, err)
		}
		delete(b.MetaData, JobEnvKey)
	}
	env := buildEnv(b)
	maps.Copy(env, b.Env)
	steps, own, err := parsePipeline(doc, env)
	if err != nil {
		return nil, err
	}
	b.own = own
	s.builds = append(s.builds, b)
	for _, st := range steps {
		s.addJob(b, st)
	}
	return b, nil
}

func (s *Server) addJob(b *build, st step) *job {
	for _, r := range st.Agents {
		if q, ok := strings.CutPrefix(r, "queue="); ok && s.opts.Queues == nil {
			s.addQueue(q)
		}
	}
	j := &job{step: st, build: b, token: "job-" + rand.Text(), chunks: map[uint64]chunk{}}
	j.Job = Job{
		ID: newID(), Type: "script", Name: st.Label, State: "scheduled", Command: st.Command,
		ArtifactPaths: strings.Join(st.ArtifactPaths, ";"), AgentQueryRules: slices.Clone(st.Agents),
		RunnableAt: now(), Priority: Priority{st.Priority},
	}
	b.jobs = append(b.jobs, j)
	return j
}

// next returns the job that an idle agent gets, or nil: of those with the highest priority, the oldest.
func (s *Server) next(a *agent) *job {
	if a.Paused || a.ignored || a.ConnectionState == "stopping" {
		return nil
	}
	var first *job
	for _, b := range s.builds {
		for _, j := range b.jobs {
			paused := slices.ContainsFunc(j.step.Agents, func(rule string) bool {
				queue, is := strings.CutPrefix(rule, "queue=")
				_, paused := s.opts.Paused[queue]
				return is && paused
			})
			if j.State == "scheduled" && !paused && matches(j.step.Agents, a.MetaData) && (first == nil || j.step.Priority > first.step.Priority) {
				first = j
			}
		}
	}
	return first
}

// sweep does what a real server does by the clock: it times out jobs and gives up silent
// agents. Every request and every waiter calls it.
func (s *Server) sweep() {
	now := time.Now()
	if now.Sub(s.swept) < time.Second {
		return // with thousands of agents it would be most of the work
	}
	s.swept = now
	for _, a := range s.agents {
		if a.live() && now.Sub(a.lastSeen) > lostAfter {
			a.ConnectionState = "lost"
			s.release(a, agentLost)
		}
		if a.Paused && now.After(a.resumes) {
			a.Paused, a.PausedNote, a.PausedAt = false, nil, nil
		}
	}
	for _, b := range s.builds {
		for _, j := range b.jobs {
			if j.State == "running" && !j.deadline.IsZero() && now.After(j.deadline) {
				j.State = "timing_out"
			}
		}
	}
}

// release takes an agent's job away: a job that was not accepted goes back into the queue,
// any other fails.
func (s *Server) release(a *agent, reason string) {
	j := a.job
	a.job = nil
	if j == nil || !j.open() {
		return
	}
	if j.State == "assigned" {
		j.State, j.agent = "scheduled", nil
		return
	}
	j.SignalReason = reason
	s.finish(j, -1)
}

// finish ends a job with the exit status that its agent reported.
func (s *Server) finish(j *job, status int) {
	j.FinishedAt, j.ExitStatus = now(), &status
	if a := j.agent; a != nil {
		if a.job == j {
			a.job = nil
		}
	}
	text := fmt.Sprint(status)
	switch {
	case j.State == "canceling":
		j.State = "canceled"
	case j.State == "timing_out":
		j.State = "timed_out"
	case status == 0:
		j.State = "passed"
	default:
		j.State = "failed"
	}
	// A canceled job is never run again; a job that timed out may be.
	if j.State == "failed" || j.State == "timed_out" {
		s.retry(j, text)
	}
	settle(j.build)
}

// retry runs a failed job again if the first matching rule allows it.
func (s *Server) retry(j *job, status string) {
	rules := j.step.Retry.Automatic
	i := slices.IndexFunc(rules, func(r retryRule) bool { return r.match(status, j.SignalReason) })
	if i < 0 || j.RetriesCount >= rules[i].Limit || j.build.canceled {
		return
	}
	again := s.addJob(j.build, j.step)
	again.RetriesCount = j.RetriesCount + 1
	j.Retried = true
}

// cancel ends the jobs that no agent runs and asks the agents of the others to stop.
func cancel(b *build) {
	b.canceled = true
	for _, j := range b.jobs {
		cancelJob(j)
	}
	settle(b)
}

func cancelJob(j *job) {
	switch {
	case j.begun() && j.State != "timing_out":
		j.State = "canceling"
	case j.open() && !j.begun():
		j.State, j.FinishedAt = "canceled", now()
		if a := j.agent; a != nil && a.job == j {
			a.job = nil
		}
	}
}

// settle derives a build's state from its jobs.
func settle(b *build) {
	var open, begun, failed bool
	for _, j := range b.jobs {
		open = open || j.open()
		begun = begun || j.begun() || j.StartedAt != nil
		failed = failed || !j.open() && !j.Retried && j.State != "passed"
	}
	switch {
	case open && b.canceled:
		b.State = "canceling"
	case open && failed:
		b.State = "failing"
	case open && begun:
		b.State = "running"
	case open:
		b.State = "scheduled"
	case b.canceled:
		b.State = "canceled"
	case failed:
		b.State = "failed"
	default:
		b.State = "passed"
	}
	if begun && b.StartedAt == nil {
		b.StartedAt = now()
	}
	if !open && b.FinishedAt == nil {
		b.FinishedAt = now()
	}
}

// log assembles a job's output.
func (j *job) log() []byte {
	chunks := slices.SortedFunc(maps.Values(j.chunks), func(a, b chunk) int { return cmp.Compare(a.offset, b.offset) })
	out := make([]byte, 0, j.logSize)
	for _, c := range chunks {
		out = append(out, c.data...)
	}
	return out
}

// addQueue creates the queue with this key if needed.
func (s *Server) addQueue(key string) {
	if !slices.Contains(s.queues, key) {
		s.queues = append(s.queues, key)
	}
}

// newID returns a random UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
