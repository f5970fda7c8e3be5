package notify

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
)

// receiver is who is posted to.
type receiver struct {
	mu    sync.Mutex
	got   []message
	tries int
	fail  func(m message) (status int) // 0 is no answer; nil always answers 200
	slow  time.Duration
}

func (r *receiver) RoundTrip(req *http.Request) (*http.Response, error) {
	doc, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	var m message
	if err := json.Unmarshal(doc, &m); err != nil || req.Method != http.MethodPost || req.URL.String() != hook {
		return nil, fmt.Errorf("%s %s: %s: %w", req.Method, req.URL, doc, err)
	}
	r.mu.Lock()
	r.tries++
	r.mu.Unlock()
	select {
	case <-time.After(r.slow):
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	status := http.StatusOK
	if r.fail != nil {
		status = r.fail(m)
	}
	switch status {
	case 0:
		return nil, errors.New("connection refused")
	case http.StatusOK:
		r.got = append(r.got, m)
	}
	return &http.Response{StatusCode: status, Status: "by\x1b[2J them", Body: io.NopCloser(strings.NewReader("x")), Header: http.Header{"Location": {"https://evil.example/"}}}, nil
}

// take returns the messages since the last call, and how often was tried since then.
func (r *receiver) take() (texts string, tries int) {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, m := range r.got {
		all = append(all, m.Message)
	}
	tries = r.tries
	r.got, r.tries = nil, 0
	return strings.Join(all, "|"), tries
}

func (r *receiver) answer(f func(message) int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = f
}

func status(code int) func(message) int { return func(message) int { return code } }

const hook = "https://hooks.example/services/SECRET"

type world struct {
	*testing.T
	receiver
	log events.Log
	n   *Notifier
	out strings.Builder // the notifier's log
}

func bubble(t *testing.T, test func(w *world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, log: events.Log{File: filepath.Join(t.TempDir(), "events.jsonl")}}
		w.add(1, "before")
		w.start()
		w.n.Configure("n1", config.Notify{URL: hook})
		time.Sleep(time.Minute)
		test(w)
		w.n.Close()
		if strings.Contains(w.out.String(), "SECRET") || strings.Contains(w.out.String(), "\x1b") {
			t.Errorf("the log has what it must not: %q", w.out.String())
		}
	})
}

func (w *world) start() {
	w.n = New(Options{Network: &w.receiver, Events: w.log, Dir: filepath.Dir(w.log.File), Log: slog.New(slog.NewTextHandler(&w.out, nil))})
}

func (w *world) add(count int, text string) {
	w.Helper()
	for i := range count {
		t := text
		if count > 1 {
			t += fmt.Sprint(i)
		}
		must.Do(w, w.log.Add(events.Event{Kind: "health", Slot: 3, By: "gpu.lost", Level: "fatal", Text: t}, events.Event{Kind: "changed", Slot: -1, Text: "routine"}))
	}
}

// gets checks what has come within a time.
func (w *world) gets(within time.Duration, want string) {
	w.Helper()
	time.Sleep(within)
	if got, _ := w.take(); got != want {
		w.Errorf("got %q, want %q", got, want)
	}
}

// TestEventsAreSent follows events over restarts, another configuration and none: each is sent once, and routine never.
func TestEventsAreSent(t *testing.T) {
	bubble(t, func(w *world) {
		w.gets(0, "")
		w.add(2, "a")
		w.gets(10*time.Second, "a0|a1")
		w.gets(24*time.Hour, "")
		w.n.Configure("n1", config.Notify{URL: hook})
		w.n.Close()
		w.add(1, "while away")
		must.Do(w, os.Rename(w.log.File, w.log.File+".1"))
		w.add(1, "in the next file")
		w.start()
		w.n.Configure("n1", config.Notify{URL: hook})
		w.gets(10*time.Second, "while away|in the next file")
		w.n.Configure("n2", config.Notify{URL: hook})
		w.add(1, "b")
		w.gets(10*time.Second, "b")
		w.n.Configure("n2", config.Notify{})
		w.add(1, "for no one")
		time.Sleep(time.Minute)
		w.n.Configure("n2", config.Notify{URL: hook})
		time.Sleep(time.Minute)
		w.add(1, "c")
		w.gets(10*time.Second, "c")
		if w.out.Len() > 0 {
			w.Errorf("said: %s", w.out.String())
		}
	})
}

// TestFailures has the receiver fail in each way: an event is tried again, and counted if it is given up.
func TestFailures(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(message) int
		lasts  time.Duration
		tries  int // at most, of the event and then of the number of missed ones
		want   string
	}{
		"no answer for minutes":    {status(0), 5 * time.Minute, 6, "a|b"},
		"a fault for minutes":      {status(500), 5 * time.Minute, 6, "a|b"},
		"too many for minutes":     {status(429), 5 * time.Minute, 6, "a|b"},
		"no answer for two hours":  {status(0), 2 * time.Hour, 24, "1 more event; see kbnode events on the node|b"},
		"a refusal":                {status(404), 10 * time.Minute, 8, "1 more event; see kbnode events on the node|b"},
		"a redirection":            {status(307), 10 * time.Minute, 8, "1 more event; see kbnode events on the node|b"},
		"a refusal of one of them": {func(m message) int { return map[bool]int{true: 400, false: 200}[m.Message == "a"] }, time.Minute, 4, "1 more event; see kbnode events on the node|b"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world) {
				w.answer(c.answer)
				w.add(1, "a")
				w.add(1, "b")
				time.Sleep(c.lasts)
				before, tries := w.take()
				if tries > c.tries || tries < 2 {
					w.Errorf("%d tries in %s, want at most %d", tries, c.lasts, c.tries)
				}
				w.answer(nil)
				time.Sleep(retryMost + poll)
				got, _ := w.take()
				must.Equal(w, c.want, strings.Trim(before+"|"+got, "|"))
				if n := strings.Count(w.out.String(), "notifications fail"); n != 1 {
					w.Errorf("said %d times: %s", n, w.out.String())
				}
			})
		})
	}
}

// TestRateLimit sends many events: some alone, then in each hour the number of the others.
func TestRateLimit(t *testing.T) {
	bubble(t, func(w *world) {
		w.add(100, "a")
		time.Sleep(50 * time.Minute)
		got, _ := w.take()
		if strings.Count(got, "|") != maxSent-1 || !strings.HasSuffix(got, "|a19") {
			w.Errorf("in the first hour: %s", got)
		}
		w.n.Close() // a restart begins no new hour
		w.start()
		w.n.Configure("n1", config.Notify{URL: hook})
		w.add(5, "b")
		w.gets(11*time.Minute, "85 more events; see kbnode events on the node")
		w.add(1, "c")
		w.gets(time.Minute, "c")
		// One that must wait is sent as it is.
		time.Sleep(2 * time.Hour)
		w.add(maxSent+1, "d")
		time.Sleep(30 * time.Minute)
		_, _ = w.take()
		w.gets(time.Hour, fmt.Sprint("d", maxSent))
	})
}

// TestInterruption closes or changes the notifier while a delivery goes on: a short one ends, and no event is lost.
func TestInterruption(t *testing.T) {
	for slow, tries := range map[time.Duration]int{3 * time.Second: 2, 20 * time.Second: 3} {
		for name, interrupt := range map[string]func(w *world){
			"close":  func(w *world) { w.n.Close(); w.start() },
			"change": func(*world) {},
		} {
			t.Run(fmt.Sprint(name, " ", slow), func(t *testing.T) {
				bubble(t, func(w *world) {
					w.slow = slow
					w.add(1, "a")
					time.Sleep(poll + time.Second)
					began := time.Now()
					interrupt(w)
					w.n.Configure("n2", config.Notify{URL: hook})
					if took := time.Since(began); took > graceTime {
						w.Errorf("it took %s", took)
					}
					w.add(1, "b")
					time.Sleep(2 * time.Minute)
					if got, n := w.take(); got != "a|b" || n != tries {
						w.Errorf("got %q after %d tries, want a|b after %d", got, n, tries)
					}
				})
			})
		}
	}
}

// TestBrokenState goes on from now, and says so.
func TestBrokenState(t *testing.T) {
	bubble(t, func(w *world) {
		w.n.Close()
		must.Do(w, os.WriteFile(filepath.Join(filepath.Dir(w.log.File), "notify-url.json"), []byte("{"), 0o600))
		w.add(1, "a")
		w.start()
		w.n.Configure("n1", config.Notify{URL: hook})
		time.Sleep(time.Minute)
		w.add(1, "b")
		w.gets(time.Minute, "b")
		must.Contain(w, w.out.String(), "unexpected end of JSON")
	})
}

// TestEncode shows that a hostile text stays text.
func TestEncode(t *testing.T) {
	t.Parallel()
	e := events.Event{
		Time: time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC), Kind: "health", Slot: 3, By: "gpu.lost", Level: "fatal",
		Text: "gpu.lost raised: \x1b[2J\"<!channel>\u202e @everyone\n\", \"slot\": \"x" + strings.Repeat("y", 2*maxText),
	}
	doc := encode("n1", e)
	var m message
	must.Do(t, json.Unmarshal(doc, &m))
	if len(doc) > 4*maxText || !strings.HasSuffix(m.Message, "y…") {
		t.Errorf("%d bytes: %s", len(doc), doc)
	}
	m.Message = m.Message[:60]
	m.Text, _, _ = strings.Cut(m.Text, "yy")
	must.Equal(t, message{
		Schema: 1, Node: "n1", Time: e.Time, Slot: "gpu3", Event: "health", Level: "fatal", Check: "gpu.lost",
		Message: `gpu.lost raised: "<!channel> @everyone ", "slot": "xyyyyyyyy`,
		Text:    `n1 gpu3: health (fatal): gpu.lost raised: "‹!channel› ＠everyone ", "slot": "x`,
	}, m)
}
