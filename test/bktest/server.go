// Package bktest is a fake of Buildkite's servers, for tests and for machines without a
// network: the agent API that a real buildkite-agent registers with, the part of REST that
// a client of builds, agents and artifacts needs, and the artifact store. Its state is in
// memory, and it supports only command steps.
package bktest

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The one organization and its one pipeline.
const (
	org  = "kbnode"
	slug = "kernelbot"
)

// Options configure a Server; all zero values are sensible.
type Options struct {
	// AgentTokens, if set, returns the tokens that can register agents now instead of
	// DefaultAgentToken. A token that it no longer returns is revoked, which does not affect
	// connected agents.
	AgentTokens func() []string
	Steps       string            // of the pipeline: YAML, interpolated when a build is created; "" is for builds with their own
	Repo        string            // that agents check out; "" is none
	Clusters    []string          // names; nil is one, and the first has the queues
	Hosted      []string          // queues for Buildkite's own agents
	Paused      map[string]string // queues that are paused, and the notes
	Queues      []string          // of the cluster; nil creates each queue when it is first named
	PingSeconds int               // ping and job status interval of agents; 0 is 1
	RateLimit   int               // REST requests per minute; 0 refuses none
}

// The tokens of a Server for agents and for REST.
const (
	DefaultAgentToken = "bktest-agent-token"
	DefaultAPIToken   = "bktest-api-token"
)

// Server is the fake. Its methods may be called from any goroutine.
type Server struct {
	opts Options
	mux  *http.ServeMux

	url     string // of the listener that was opened last
	servers []*http.Server

	mu       sync.Mutex // guards everything below
	byToken  map[string]*agent
	swept    time.Time // time of the last search for lost agents
	builds   []*build
	agents   []*agent
	queues   []string
	tokens   []string      // that REST has made
	made     []NewPipeline // pipelines that REST has made
	blobs    map[string][]byte
	faults   []Fault
	requests map[string]int
	window   time.Time // start of the rate limit's minute
	used     int
	over     int
	changed  chan struct{} // closed when there may be another job for an agent
	cut      chan struct{} // closed to end all streams
	streams  int
}

// New returns a server that is reached through ServeHTTP, or over the network after Listen.
func New(o Options) *Server {
	o.PingSeconds = cmp.Or(o.PingSeconds, 1)
	s := &Server{
		opts: o, mux: http.NewServeMux(),
		blobs:   map[string][]byte{},
		byToken: map[string]*agent{}, requests: map[string]int{},
		changed: make(chan struct{}), cut: make(chan struct{}),
	}
	for _, q := range o.Queues {
		s.addQueue(q)
	}
	s.agentRoutes()
	s.restRoutes()
	s.storeRoutes()
	return s
}

// Listen serves the APIs and the store on addr, besides other addresses. Port 0 is any free port.
func (s *Server) Listen(addr string) error { return s.listen("http", addr, nil) }

func (s *Server) listen(scheme, addr string, secure *tls.Config) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("serve Buildkite's APIs: %w", err)
	}
	s.url = scheme + "://" + l.Addr().String()
	server := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, TLSConfig: secure}
	s.servers = append(s.servers, server)
	if secure == nil {
		go func() { _ = server.Serve(l) }()
	} else {
		go func() { _ = server.ServeTLS(l, "", "") }()
	}
	return nil
}

// Close stops listening and drops all connections.
func (s *Server) Close() (err error) {
	for _, server := range s.servers {
		err = errors.Join(err, server.Close())
	}
	s.servers = nil
	return err
}

// URL returns the address where Listen listens, without a trailing slash.
func (s *Server) URL() string { return s.url }

// Endpoint returns the endpoint to configure in an agent.
func (s *Server) Endpoint() string { return s.url + "/v3" }

// Fault makes requests of one route fail, for tests of clients.
type Fault struct {
	Route   string        // such as "GET /v3/ping"; "" is every one
	Status  int           // to respond with; 0 drops the connection
	Message string        // of the response
	Header  http.Header   // of the answer
	Perform bool          // perform the request first, and lose only the response
	Delay   time.Duration // before it, or with Perform after it; alone, nothing else fails
	Cut     bool          // send half of the real response
	Times   int           // number of requests; 0 is one, negative is all
}

// Inject adds a fault. Faults of a route apply in the order they were added.
func (s *Server) Inject(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
}

// Recover removes all faults.
func (s *Server) Recover() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Requests returns the number of requests so far by route, such as "GET /v3/ping"; requests
// without a route are under "".
func (s *Server) Requests() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.requests)
}

// Over returns the number of REST requests that the rate limit has refused.
func (s *Server) Over() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

func (s *Server) takeFault(route string) (Fault, bool) {
	i := slices.IndexFunc(s.faults, func(f Fault) bool { return f.Route == "" || f.Route == route })
	if i < 0 {
		return Fault{}, false
	}
	f := s.faults[i]
	switch {
	case f.Times > 1:
		s.faults[i].Times--
	case f.Times >= 0:
		s.faults = slices.Delete(s.faults, i, i+1)
	}
	return f, true
}

// ServeHTTP counts the request, applies a fault, and answers.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, route := s.mux.Handler(r)
	s.mu.Lock()
	s.requests[route]++
	f, broken := s.takeFault(route)
	s.mu.Unlock()
	if !broken {
		s.mux.ServeHTTP(w, r)
		return
	}
	if !f.Perform {
		time.Sleep(f.Delay)
	}
	if f.Delay > 0 && f.Status == 0 && !f.Perform && !f.Cut {
		s.mux.ServeHTTP(w, r)
		return
	}
	if f.Perform || f.Cut {
		lost := httptest.NewRecorder()
		s.mux.ServeHTTP(lost, r)
		if f.Perform {
			time.Sleep(f.Delay)
		}
		if f.Cut {
			maps.Copy(w.Header(), lost.Header())
			w.Header().Set("Content-Length", strconv.Itoa(lost.Body.Len()))
			w.WriteHeader(lost.Code)
			_, _ = w.Write(lost.Body.Bytes()[:lost.Body.Len()/2])
			panic(http.ErrAbortHandler)
		}
	}
	if f.Status == 0 {
		panic(http.ErrAbortHandler) // net/http drops the connection
	}
	maps.Copy(w.Header(), f.Header)
	writeJSON(w, f.Status, map[string]string{"message": f.Message})
}

// call is a request whose body was read and whose sender is known.
type call struct {
	*http.Request
	body  []byte
	agent *agent // set on routes for agents
	job   *job   // set on routes that name a job of an agent
}

// reply is a response: body is sent as JSON.
type reply struct {
	status int // 0 is 200
	body   any
	header map[string]string
}

func refuse(status int, format string, args ...any) reply {
	return reply{status: status, body: map[string]string{"message": fmt.Sprintf(format, args...)}}
}

// handler answers with the server's lock held.
type handler func(c *call) reply

// maxBody is how many bytes a request may have; a build's environment fits.
const maxBody = 4 << 20

// handle routes a pattern of http.ServeMux to h. allow identifies the sender; it refuses the request if ok
// is false.
func (s *Server) handle(pattern string, allow func(c *call) (reply, bool), h handler) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			writeJSON(w, http.StatusRequestEntityTooLarge, map[string]string{"message": err.Error()})
			return
		}
		a := s.answer(&call{Request: r, body: body}, allow, h)
		if a.status == 0 {
			a.status = http.StatusOK
		}
		for k, v := range a.header {
			w.Header().Set(k, v)
		}
		if a.body == nil {
			a.body = struct{}{}
		}
		writeJSON(w, a.status, a.body)
	})
}

func (s *Server) answer(c *call, allow func(c *call) (reply, bool), h handler) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	if no, ok := allow(c); !ok {
		return no
	}
	defer s.wake()
	return h(c)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	out, err := json.Marshal(v)
	if err != nil {
		status, out = http.StatusInternalServerError, []byte(`{"message":"an answer that is no JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(append(out, '\n')) // if the client hung up, only its response is lost
}

// parsed is a handler that gets the body as T; an empty body is the zero value.
func parsed[T any](h func(c *call, req T) reply) handler {
	return func(c *call) reply {
		var req T
		if len(c.body) > 0 {
			if err := json.Unmarshal(c.body, &req); err != nil {
				return refuse(http.StatusBadRequest, "There was a problem parsing your JSON: %v", err)
			}
		}
		return h(c, req)
	}
}

// credentials returns the part of Authorization after the scheme.
func credentials(r *http.Request, scheme string) string {
	have, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(have, scheme) {
		return ""
	}
	return token
}

// base returns the address that the client used, for the links in a response.
func base(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}
