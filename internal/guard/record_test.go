package guard

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/inventory/probe"
	"github.com/gpu-mode/kbnode/internal/noise"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// records gives a rig a recorder whose GPU is sampled by samples.
func (r *slotRig) records(samples noise.Samples) {
	policy := testPolicy()
	r.noise = newRecorder(policy, r.procs)
	r.noise.config.Samples = samples
	r.put(filepath.Join(r.procs.root, r.procs.slice, "cpu.stat"), "usage_usec 1000\n")
	r.put(filepath.Join(r.procs.proc, "stat"), "cpu  1 1 1 1\ncpu0 100 0 50 9000 10 0 5 0 0 0\n")
	r.put(filepath.Join(r.procs.proc, "interrupts"), "  CPU0\n")
}

// sampled counts who samples the GPU.
type sampled struct{ by atomic.Int32 }

func (s *sampled) samples(ctx context.Context, each func(probe.Sample)) error {
	s.by.Add(1)
	defer s.by.Add(-1)
	each(probe.Sample{Clock: new(uint32(1965)), Reasons: new(uint64(0x40))})
	<-ctx.Done()
	return nil
}

func TestRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t)
		gpu := &sampled{}
		r.records(gpu.samples)
		ask := func() (noise.Record, error) { return r.record(t.Context(), hookPID) }

		r.start(99, 1, agentCgroup)
		if _, err := ask(); !refuses(err, http.StatusNotFound, "did not see a job begin") || len(r.killed) != 1 {
			t.Errorf("before a job: %v, killed %v", err, r.killed)
		}
		r.killed = nil
		r.want(r.begin, "")
		time.Sleep(3 * time.Second)
		r.start(103, bootstrap, agentCgroup)
		r.start(104, 1, jobCgroup)
		if _, err := r.record(t.Context(), 104); !refuses(err, http.StatusForbidden, "only the slot's own agent") || len(r.killed) > 0 {
			t.Errorf("asked by the job: %v, killed %v", err, r.killed)
		}
		rec, err := ask()
		if err != nil || !rec.Noisy || rec.Seconds != 3 || rec.GPU.Samples != 1 || rec.Slot != "gpu0" {
			t.Errorf("it says %+v, %v", rec, err)
		}
		if diff := cmp.Diff([]int{103, 104}, r.killed); diff != "" {
			t.Errorf("what the job left: %s", diff)
		}
		if len(r.asked) > 2 || r.looks != 1 {
			t.Errorf("cleared %v, %d looks at the GPU; that is for the end", r.asked, r.looks)
		}
		if _, err := ask(); err != nil || gpu.by.Load() != 1 {
			t.Errorf("a second time: %v, sampled by %d", err, gpu.by.Load())
		}
		r.want(r.end, "")
		synctest.Wait()
		if gpu.by.Load() != 0 {
			t.Error("the GPU is sampled after the job")
		}
		if _, err := ask(); !refuses(err, http.StatusNotFound, "did not see a job begin") {
			t.Errorf("after the job: %v", err)
		}
	})
}

func refuses(err error, status int, piece string) bool {
	no, ok := errors.AsType[refusal](err)
	return ok && no.status == status && strings.Contains(no.sentence, piece)
}

// TestSamplingEnds: the GPU is released when the next job begins, an agent starts again, or the
// agent has no job.
func TestSamplingEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t)
		gpu := &sampled{}
		r.records(gpu.samples)
		r.want(r.begin, "")
		synctest.Wait()
		first := r.noise.run
		r.want(r.begin, "")
		synctest.Wait()
		if gpu.by.Load() != 1 || r.noise.run == first {
			t.Error("the next job is not sampled by itself")
		}
		r.want(r.ready, "")
		if gpu.by.Load() != 0 {
			t.Error("sampled without an agent")
		}
		r.want(r.begin, "")
		for _, pid := range []int{bootstrap, hookPID} {
			delete(r.cgroups, pid)
		}
		r.list(agentCgroup)
		time.Sleep(time.Minute)
		if gpu.by.Load() != 0 {
			t.Error("sampled although the agent is alone")
		}
	})
}

// TestSamplerHangs: a sampler that hangs delays neither the job's begin nor its end for long.
func TestSamplerHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t)
		r.records(func(context.Context, func(probe.Sample)) error { time.Sleep(time.Hour); return nil })
		begun := time.Now()
		r.want(r.begin, "")
		if d := time.Since(begun); d > 0 {
			t.Errorf("the begin took %v", d)
		}
		time.Sleep(time.Minute)
		rec, err := r.record(t.Context(), hookPID)
		if err != nil || !strings.HasPrefix(rec.GPU.Error, "not sampled: ") || rec.Noisy {
			t.Errorf("it says %+v, %v", rec, err)
		}
		begun = time.Now()
		r.want(r.end, "")
		if d := time.Since(begun); d > 6*time.Second {
			t.Errorf("the end took %v", d)
		}
		time.Sleep(time.Hour)
	})
}

// TestRecordProfile: the record names the looser job profile of the job's containers, and none
// of an earlier job's.
func TestRecordProfile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t)
		r.records(new(sampled).samples)
		for _, row := range []struct {
			made []string
			want string
		}{
			{[]string{"strict"}, "strict"},
			{[]string{"strict", "compatible", "strict"}, "compatible"},
			{nil, ""},
		} {
			r.want(r.begin, "")
			for _, profile := range row.made {
				r.made(profile)
			}
			if rec, err := r.record(t.Context(), hookPID); err != nil || rec.Profile != row.want {
				t.Errorf("after %q: %q, %v", row.made, rec.Profile, err)
			}
			r.want(r.end, "")
		}
	})
}

// TestRecordBesideAProcess: the record mentions a process that does not end, and is written all
// the same.
func TestRecordBesideAProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t)
		r.records(new(sampled).samples)
		r.want(r.begin, "")
		r.start(104, 1, agentCgroup)
		r.immortal = 104
		rec, err := r.record(t.Context(), hookPID)
		if all := strings.Join(rec.Notes, "\n"); err != nil || !strings.Contains(all, "a process of the job was still running when this was written and may have overwritten files: process 104 (p104)") {
			t.Errorf("notes %q, %v", all, err)
		}
		r.immortal = 0
		r.want(r.end, "")
	})
}

// TestTellRecord goes through the socket.
func TestTellRecord(t *testing.T) {
	t.Parallel()
	s := newSlotRig(t)
	s.records(new(sampled).samples)
	s.start(os.Getpid(), bootstrap, agentCgroup)
	policy := testPolicy()
	policy.Socket = filepath.Join(t.TempDir(), "s")
	l, err := listen(policy.Socket, os.Getuid(), os.Getgid())
	if err != nil {
		t.Fatal(err)
	}
	g := newGuard(Config{Policy: policy, Log: slog.New(slog.DiscardHandler)}, nil)
	g.cleaner = s.cleaner
	g.table = g.routes()
	server := &http.Server{Handler: http.HandlerFunc(g.serve), ConnContext: notePeer}
	go func() {
		_ = server.Serve(&peers{UnixListener: l, allowed: []int{os.Getuid()}, slots: make(chan struct{}, 8), log: g.log})
	}()
	t.Cleanup(func() { _ = server.Close() })
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", policy.Socket) }}}
	post := func(path string) (int, string) {
		resp, err := client.Post("http://guard"+path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		var says struct{ Message string }
		if len(text) > 0 {
			if err := json.Unmarshal(text, &says); err != nil {
				t.Fatal(err)
			}
		}
		return resp.StatusCode, says.Message
	}
	if code, says := post(slot.RecordPath); code != http.StatusNotFound || !strings.Contains(says, "no record") {
		t.Errorf("before a job: %d %q", code, says)
	}
	if code, says := post(slot.BeginPath); code != http.StatusNoContent {
		t.Fatalf("begin: %d %q", code, says)
	}
	code, says := post(slot.RecordPath)
	var rec noise.Record
	if err := json.Unmarshal([]byte(says), &rec); err != nil || code != http.StatusOK || rec.Schema != noise.Schema || !strings.HasSuffix(says, "}\n") {
		t.Errorf("the record: %d %q, %v", code, says, err)
	}
	if code, says := post(slot.EndPath); code != http.StatusNoContent {
		t.Errorf("end: %d %q", code, says)
	}
}
