package bktest_test

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// realAgent is a server over TLS and one slot's agent, which is started again when it has done its job, as systemd does.
type realAgent struct {
	*bktest.Server
	addr, cert, began string
	log               strings.Builder
}

// startAgent starts the agent that KBNODE_TEST_AGENT names. It reaches the server through another address if via is not nil.
func startAgent(t testing.TB, o bktest.Options, mode string, via func(server string) string) *realAgent {
	t.Helper()
	agent := os.Getenv("KBNODE_TEST_AGENT")
	if agent == "" {
		t.Skip("KBNODE_TEST_AGENT does not name a buildkite-agent")
	}
	dir := t.TempDir()
	o.Repo, o.Steps = "https://example.com/x.git", "steps: [{command: x, agents: {queue: q}}]"
	r := &realAgent{Server: bktest.New(o), cert: filepath.Join(dir, "cert.pem"), began: filepath.Join(dir, "began")}
	must.Do(t, r.ListenTLS("127.0.0.1:0", r.cert))
	t.Cleanup(func() { _ = r.Close() })
	r.addr = strings.TrimPrefix(r.URL(), "https://")
	endpoint := r.Endpoint()
	if via != nil {
		endpoint = "https://" + via(r.addr) + "/v3"
	}
	bootstrap := filepath.Join(dir, "bootstrap")
	must.Program(t, bootstrap, "#!/bin/sh\necho $BUILDKITE_JOB_ID $(date +%s%N) >>"+r.began+"\n")
	must.Do(t, os.Symlink(agent, filepath.Join(dir, "buildkite-agent")))
	var stopped atomic.Bool
	var current atomic.Pointer[os.Process]
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !stopped.Load() {
			cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "buildkite-agent"), "start", "--endpoint", endpoint, "--ping-mode", mode,
				"--tags", "queue=q", "--name", "node-gpu0", "--build-path", dir+"/b", "--hooks-path", dir, "--plugins-path", dir+"/p", "--sockets-path", dir+"/s",
				"--bootstrap-script", bootstrap, "--disconnect-after-job", "--no-color")
			cmd.Env = []string{"BUILDKITE_AGENT_TOKEN=" + bktest.DefaultAgentToken, "HOME=" + dir, "PATH=" + os.Getenv("PATH"), "SSL_CERT_FILE=" + r.cert}
			cmd.Stdout, cmd.Stderr = &r.log, &r.log
			cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
			cmd.WaitDelay = 10 * time.Second
			if cmd.Start() != nil {
				return
			}
			current.Store(cmd.Process)
			_ = cmd.Wait()
			time.Sleep(100 * time.Millisecond) // RestartSec of systemd/agent.service.tmpl
		}
	}()
	t.Cleanup(func() {
		stopped.Store(true)
		if p := current.Load(); p != nil {
			_ = p.Signal(syscall.SIGQUIT)
		}
		<-ended
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	return r
}

// submit creates a build and returns its job.
func (r *realAgent) submit(t testing.TB) string {
	t.Helper()
	b, err := r.Submit(bktest.NewBuild{})
	must.Do(t, err)
	return b.Jobs[0].ID
}

// began returns when a job's bootstrap began, and waits for that.
func (r *realAgent) wait(t testing.TB, job string) time.Time {
	t.Helper()
	var at time.Time
	r.until(t, "job "+job+" to begin", func() bool {
		text, _ := os.ReadFile(r.began)
		for line := range strings.Lines(string(text)) {
			if id, ns, _ := strings.Cut(strings.TrimSpace(line), " "); id == job {
				n, err := strconv.ParseInt(ns, 10, 64)
				at = time.Unix(0, n)
				return err == nil
			}
		}
		return false
	})
	return at
}

func (r *realAgent) until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for %s: requests %v", what, r.Requests())
		}
	}
}

// streams waits until the agent has a stream, and has stopped polling.
func (r *realAgent) streams(t testing.TB) {
	t.Helper()
	r.until(t, "a stream", func() bool { return r.Streams() == 1 })
}

const ping = "GET /v3/ping"

// TestStream has the real agent get jobs over a stream, and loses none whatever becomes of the stream.
func TestStream(t *testing.T) {
	t.Parallel()
	t.Run("no polling while idle", func(t *testing.T) {
		t.Parallel()
		r := startAgent(t, bktest.Options{}, "auto", nil)
		r.streams(t)
		r.wait(t, r.submit(t))
		r.until(t, "the next agent", func() bool { return len(r.Agents()) == 2 })
		r.streams(t)
		before := r.Requests()[ping]
		time.Sleep(4 * time.Second) // four intervals
		if n := r.Requests()[ping] - before; n > 1 {
			t.Errorf("%d pings in four intervals", n)
		}
		r.wait(t, r.submit(t))
	})
	t.Run("broken", func(t *testing.T) {
		t.Parallel()
		r := startAgent(t, bktest.Options{}, "auto", nil)
		r.streams(t)
		r.Inject(bktest.Fault{Route: bktest.StreamRoute, Status: 503, Times: -1})
		r.CutStreams()
		for range 2 {
			r.wait(t, r.submit(t))
		}
		r.Recover()
		r.streams(t)
		r.wait(t, r.submit(t))
	})
	t.Run("the server restarts", func(t *testing.T) {
		t.Parallel()
		r := startAgent(t, bktest.Options{}, "auto", nil)
		r.streams(t)
		must.Do(t, r.Close())
		job := r.submit(t)
		time.Sleep(2 * time.Second)
		must.Do(t, r.ListenTLS(r.addr, r.cert))
		r.wait(t, job)
		r.streams(t)
		r.wait(t, r.submit(t))
	})
	t.Run("half-open", func(t *testing.T) {
		t.Parallel()
		var line *relay
		r := startAgent(t, bktest.Options{}, "auto", func(server string) string {
			line = newRelay(t, server)
			return line.addr
		})
		r.streams(t)
		line.freeze() // the job goes into a connection that leads nowhere, and neither end knows
		r.wait(t, r.submit(t))
		r.streams(t)
		r.wait(t, r.submit(t))
	})
}

// relay forwards connections to a server.
type relay struct {
	addr   string
	frozen atomic.Int64 // connections up to this one forward nothing
	last   atomic.Int64
}

func newRelay(t testing.TB, server string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	t.Cleanup(func() { _ = l.Close() })
	r := &relay{addr: l.Addr().String()}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server)
			if err != nil {
				_ = c.Close()
				continue
			}
			n := r.last.Add(1)
			for _, pair := range [][2]net.Conn{{c, up}, {up, c}} {
				go func() {
					_, _ = io.Copy(pair[0], gated{pair[1], func() bool { return n <= r.frozen.Load() }})
					_ = pair[0].Close()
				}()
			}
		}
	}()
	return r
}

// freeze has the connections of now forward nothing any more, and stay open.
func (r *relay) freeze() { r.frozen.Store(r.last.Load()) }

// gated reads, and drops what it has read when it is shut.
type gated struct {
	net.Conn
	shut func() bool
}

func (g gated) Read(p []byte) (int, error) {
	for {
		n, err := g.Conn.Read(p)
		if err != nil || !g.shut() {
			return n, err
		}
	}
}

// BenchmarkDispatch measures with the real agent how long a job waits for its bootstrap: from the build's creation on an idle
// slot, and from the end of the job before on the same slot.
func BenchmarkDispatch(b *testing.B) {
	for _, way := range []struct {
		name, mode string
		samples    int
	}{{"streaming", "auto", 15}, {"polling", "poll-only", 7}} {
		b.Run(way.name, func(b *testing.B) {
			r := startAgent(b, bktest.Options{PingSeconds: 10}, way.mode, nil) // Buildkite's interval
			var idle, next []float64
			for range way.samples {
				agents := len(r.Agents())
				r.until(b, "an idle agent", func() bool {
					return len(r.Agents()) > 0 && r.Agents()[len(r.Agents())-1].ConnectionState == "connected"
				})
				time.Sleep(3 * time.Second) // the first poll, or the stream
				created := time.Now()
				job, second := r.submit(b), r.submit(b)
				idle = append(idle, float64(r.wait(b, job).Sub(created).Milliseconds()))
				began := r.wait(b, second)
				next = append(next, float64(began.Sub(r.finished(b, job)).Milliseconds()))
				r.finished(b, second)
				r.until(b, "the agent after it", func() bool { return len(r.Agents()) >= agents+2 })
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(idle), "ms-created-to-bootstrap")
			b.ReportMetric(median(next), "ms-end-to-next-bootstrap")
		})
	}
}

// finished returns when a job ended, and waits for that.
func (r *realAgent) finished(t testing.TB, job string) (at time.Time) {
	t.Helper()
	r.until(t, "the end of "+job, func() bool {
		for _, b := range r.Builds() {
			if b.Jobs[0].ID == job && b.Jobs[0].FinishedAt != nil {
				at = *b.Jobs[0].FinishedAt
				return true
			}
		}
		return false
	})
	return at
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
