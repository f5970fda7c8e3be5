package guard

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/bootstrap"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

// again ends the service and starts the next one.
func (r *jobRig) again(t *testing.T) {
	t.Helper()
	r.stop()
	select {
	case err := <-r.done:
		must.Do(t, err)
	case <-time.After(must.Patience):
		t.Fatal("the service waits for the job")
	}
	r.serve(t)
}

// TestServiceRestarts cuts the stream of a job at once. The job goes on, and so does its log.
func TestServiceRestarts(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	r.engine.logs = func(write func(string)) { write("hello\n"); write("more\n"); <-r.engine.exit }
	done, out := r.running(t.Context(), t)
	r.again(t)
	_ = out.Close()
	must.Until(t, "its output", func() bool { return strings.Contains(r.log.String(), "hello\nmore\n") })
	r.engine.end()
	if e := r.wait(t, done); e.status != 7 || strings.Contains(r.log.String(), "lost its place") || r.made() != 1 {
		t.Errorf("%+v, %d containers made: %s", e, r.made(), r.log.String())
	}
	// The one after that has only the outcome, and the files.
	r.again(t)
	before := r.log.String()
	if e := r.wait(t, r.start(t.Context())); e.status != 7 || r.made() != 1 || !strings.Contains(r.log.String()[len(before):], "uploaded\n") {
		t.Errorf("%+v, %d containers made: %s", e, r.made(), r.log.String())
	}
}

// TestBothRestart goes on with a job whose engine restarts together with the service.
func TestBothRestart(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	r.engine.logs = func(write func(string)) { write("hello\n"); <-r.engine.exit }
	var away atomic.Int32
	r.engine.fault = func(req *http.Request) int {
		return map[bool]int{true: -1}[strings.HasSuffix(req.URL.Path, jobContainer+"/json") && away.Add(-1) >= 0]
	}
	done, out := r.running(t.Context(), t)
	away.Store(2)
	r.again(t)
	_ = out.Close()
	must.Until(t, "the engine to be back", func() bool { return away.Load() <= 0 })
	r.engine.end()
	if e := r.wait(t, done); e.status != 7 || r.made() != 1 {
		t.Errorf("%+v, %d containers made: %s", e, r.made(), r.log.String())
	}
}

// made is how many containers of jobs were made.
func (r *jobRig) made() (n int) {
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	for _, c := range r.engine.created {
		if c.Labels[jobLabel] != "" {
			n++
		}
	}
	return n
}

// TestPullsAgain begins a job again whose image was being pulled when its service or its client ended.
func TestPullsAgain(t *testing.T) {
	t.Parallel()
	for _, ends := range []string{"service", "client"} {
		t.Run(ends, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(t, map[string]string{"BUILDKITE_PLUGINS": absentPlugin})
			pulls := make(chan struct{}, 2)
			var n atomic.Int32
			r.engine.fault = func(req *http.Request) int {
				if req.URL.Path == "/images/create" {
					pulls <- struct{}{}
					if n.Add(1) == 1 {
						<-req.Context().Done()
					}
				}
				return 0
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := r.start(ctx)
			<-pulls
			if first := done; ends == "client" {
				done = r.start(t.Context()) // it waits for the first
				cancel()
				r.wait(t, first)
			} else {
				r.again(t)
			}
			<-pulls
			if e := r.finish(t, done); e.status != 7 || r.made() != 1 {
				t.Errorf("%+v, %d containers made: %s", e, r.made(), r.log.String())
			}
			cancel()
		})
	}
}

// TestServiceDiedWhileSettling does what an earlier service did not come to.
func TestServiceDiedWhileSettling(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		rec  runRecord
		put  func(work string) error
		want string
	}{
		"before all": {runRecord{Outcome: &slot.Outcome{ExitCode: 3}}, nil, "uploaded\n"},
		"after files were given": {runRecord{Outcome: &slot.Outcome{ExitCode: 3}}, func(work string) error {
			return os.Rename(filepath.Join(work, someRun, "checkout"), filepath.Join(work, runPrefix+"files-"+strings.TrimPrefix(someRun, runPrefix)))
		}, "uploaded\n"},
		"before the end was seen": {runRecord{}, nil, "was removed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(t, nil)
			row.rec.JobID, row.rec.Top, row.rec.Container = "0190", someRun, strings.Repeat("e", 64)
			r.writeRecord(t, row.rec)
			if row.put != nil {
				must.Do(t, row.put(r.policy.WorkRoot))
			}
			e := r.wait(t, r.start(t.Context()))
			if status := map[bool]int{true: 3, false: bootstrap.ExitNode}[row.rec.Outcome != nil]; e.status != status || r.made() != 0 || !strings.Contains(r.log.String(), row.want) {
				t.Errorf("%+v: %s", e, r.log.String())
			}
		})
	}
}

// TestOtherVersion follows a job that another version of kbnode sent, and starts none.
func TestOtherVersion(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]slot.Outcome{
		"0190": {ExitCode: 3},
		"0191": {NodeFault: "the job comes from another version of kbnode than the slot's service; run it again"},
	} {
		r := newJobRig(t, nil)
		r.writeRecord(t, runRecord{JobID: "0190", Top: someRun, Container: strings.Repeat("e", 64), Outcome: &slot.Outcome{ExitCode: 3}})
		spec, err := rootSpec(id).Marshal()
		must.Do(t, err)
		body := strings.Replace(string(spec), `{"kind"`, `{"payload":"","kind"`, 1)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://slot"+slot.RunPath, strings.NewReader(body))
		must.Do(t, err)
		resp, err := r.client.Do(req)
		must.Do(t, err)
		o, err := slot.ReadFrames(resp.Body, func(slot.FrameKind, []byte) {})
		hangUp(resp.Body)
		must.Do(t, err)
		must.Equal(t, want, o)
		must.Equal(t, 0, r.made())
	}
}

// TestNeverStarted makes another container where an earlier service did not start the first.
func TestNeverStarted(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	id := strings.Repeat("e", 64)
	r.engine.add(id, "kbnode-gpu0-x", r.policy.Slice)
	r.engine.containers[id].State.Status, r.engine.containers[id].State.Running = "created", false
	r.writeRecord(t, runRecord{JobID: "0190", Top: someRun, Container: id})
	if e := r.finish(t, r.start(t.Context())); e.status != 7 || r.made() != 1 || !r.engine.requested("DELETE /v1.45/containers/"+id) {
		t.Errorf("%+v: %s", e, r.log.String())
	}
}

// TestStartFailed starts a job again that asks the next service, as one whose start took longer than the last one had.
func TestStartFailed(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	var starts atomic.Int32
	r.engine.fault = func(req *http.Request) int {
		return map[bool]int{true: 500}[strings.HasSuffix(req.URL.Path, jobContainer+"/start") && starts.Add(1) == 1]
	}
	done := r.start(t.Context())
	<-r.engine.attached
	r.expect(t, r.wait(t, done), bootstrap.ExitNode, "out of order")
	r.again(t)
	if e := r.finish(t, r.start(t.Context())); e.status != 7 || r.made() != 2 {
		t.Errorf("%+v, %d containers made: %s", e, r.made(), r.log.String())
	}
}

// TestEndedBetweenServices gives the output of a job that ended while no service ran.
func TestEndedBetweenServices(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	r.engine.logs = func(write func(string)) { write("hello\n"); write("more\n") }
	id := strings.Repeat("e", 64)
	r.engine.add(id, "kbnode-gpu0-x", r.policy.Slice)
	r.writeRecord(t, runRecord{JobID: "0190", Top: someRun, Container: id})
	r.engine.end()
	if e := r.wait(t, r.start(t.Context())); e.status != 7 || r.made() != 0 || !strings.Contains(r.log.String(), "hello\nmore\n") {
		t.Errorf("%+v, %d containers made: %s", e, r.made(), r.log.String())
	}
}

// TestBrokenRecord keeps no slot from its next job.
func TestBrokenRecord(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	must.Do(t, os.WriteFile(filepath.Join(filepath.Dir(r.socket), "job.json"), []byte(`{"job_id":"0190"`), 0o600))
	r.expect(t, r.finish(t, r.start(t.Context())), 7, "")
}

// TestOldJobComesBack does not run it again, and not in place of the next one, whenever the service starts again.
func TestOldJobComesBack(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]bool{"after both": false, "between them": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(t, nil)
			r.finish(t, r.start(t.Context()))
			if between {
				r.again(t)
			}
			r.in.Env["BUILDKITE_JOB_ID"] = "0191"
			r.finish(t, r.start(t.Context()))
			if !between {
				r.again(t)
			}
			r.in.Env["BUILDKITE_JOB_ID"] = "0190"
			if e := r.wait(t, r.start(t.Context())); e.status != bootstrap.ExitNode || r.made() != 2 || !strings.Contains(r.log.String(), "has ended") {
				t.Errorf("%+v, %d containers made: %s", e, r.made(), r.log.String())
			}
		})
	}
}

// TestSecondReader gets all output of the one container although the first one went away.
func TestSecondReader(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	last := make(chan struct{})
	r.engine.logs = func(write func(string)) { write("again\n"); <-last; write("end\n") }
	ctx, cancel := context.WithCancel(t.Context())
	first, _ := r.running(ctx, t)
	second := r.start(t.Context())
	must.Until(t, "the second reader", func() bool { return strings.Contains(r.log.String(), "again\n") })
	cancel()
	r.wait(t, first)
	asked := func() int { return r.engine.asked("GET /v1.45/containers/" + jobContainer + "/json") }
	before := asked()
	r.engine.end()
	must.Until(t, "the end to be seen", func() bool { return asked() > before })
	time.Sleep(50 * time.Millisecond) // the container could be removed
	removed := r.engine.requested("DELETE /v1.45/containers/" + jobContainer)
	close(last)
	if e := r.wait(t, second); removed || e.status != 7 || r.made() != 1 || !strings.Contains(r.log.String(), "end\n") || strings.Contains(r.log.String(), "missing") {
		t.Errorf("%+v: %s", e, r.log.String())
	}
}
