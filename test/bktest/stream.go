package bktest

import (
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// StreamRoute is the call on which Buildkite sends an agent its jobs: gRPC, and so only over HTTP/2.
const StreamRoute = "POST /agentedge.v1.AgentEdgeService/StreamPings"

// keepalive is how often an idle stream has a message.
const keepalive = 15 * time.Second

// The fields of StreamPingsRequest and StreamPingsResponse that are used: api/proto/agentedge.proto of
// github.com/buildkite/agent, since 3.120.
const (
	agentIDField     protowire.Number = 1
	resumeField      protowire.Number = 2
	jobAssignedField protowire.Number = 5
	keepaliveField   protowire.Number = 7
)

// streamPings sends an agent an action each time that it has another one to do, until the agent disconnects or
// CutStreams.
func (s *Server) streamPings(w http.ResponseWriter, r *http.Request) {
	id, err := streamRequest(r)
	if err != nil || r.ProtoMajor < 2 {
		http.Error(w, "not a gRPC request", http.StatusUnsupportedMediaType)
		return
	}
	w.Header().Set("Content-Type", "application/grpc+proto")
	w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
	c := &call{Request: r}
	s.mu.Lock()
	_, ok := s.byAgent(c)
	s.mu.Unlock()
	if !ok || c.agent.ID != id {
		w.Header().Set("Grpc-Status", "16") // unauthenticated
		w.Header().Set("Grpc-Message", "Invalid access token")
		return
	}
	w.Header().Set("Grpc-Status", s.stream(w, r, c.agent))
}

// stream returns the status that the call ends with.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, a *agent) string {
	const ended, unavailable = "0", "14"
	sent := ""
	field := resumeField // tells the agent that the stream is up
	tick := time.NewTicker(keepalive)
	defer tick.Stop()
	s.mu.Lock()
	cut := s.cut
	s.streams++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.streams--
		s.mu.Unlock()
	}()
	for {
		s.mu.Lock()
		s.sweep()
		var action []byte
		if !a.live() {
			s.mu.Unlock()
			return ended
		}
		a.lastSeen = time.Now()
		if j := s.offer(a); j != nil && j.ID != sent {
			sent, field = j.ID, jobAssignedField
			job := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), j.ID)
			action = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), job)
		}
		changed := s.changed
		s.mu.Unlock()
		if field != 0 {
			if err := writeFrame(w, protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), action)); err != nil {
				return unavailable
			}
		}
		field = 0
		select {
		case <-changed:
		case <-tick.C:
			field = keepaliveField
		case <-cut:
			return unavailable
		case <-r.Context().Done():
			return unavailable
		}
	}
}

// Streams returns how many streams are up.
func (s *Server) Streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams
}

// CutStreams ends all streams with an error. Agents connect again, unless a Fault keeps them from it.
func (s *Server) CutStreams() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

// wake has streams look for a job again. The server's lock is held.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// writeFrame sends one message, not compressed: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
func writeFrame(w http.ResponseWriter, message []byte) error {
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	if _, err := w.Write(append(frame, message...)); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}

// streamRequest returns the agent's ID in the one message of a request.
func streamRequest(r *http.Request) (string, error) {
	if !strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		return "", errors.New("no gRPC")
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 64<<10))
	if err != nil {
		return "", err
	}
	if len(body) < 5 || body[0] != 0 {
		return "", errors.New("no message, or a compressed one")
	}
	body = body[5:]
	for len(body) > 0 {
		number, kind, n := protowire.ConsumeTag(body)
		if n < 0 {
			return "", protowire.ParseError(n)
		}
		body = body[n:]
		if number == agentIDField && kind == protowire.BytesType {
			id, n := protowire.ConsumeString(body)
			return id, protowire.ParseError(min(n, 0))
		}
		n = protowire.ConsumeFieldValue(number, kind, body)
		if n < 0 {
			return "", protowire.ParseError(n)
		}
		body = body[n:]
	}
	return "", errors.New("no agent_id")
}
