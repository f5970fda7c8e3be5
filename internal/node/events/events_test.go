package events

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/test/must"
)

func texts(tb testing.TB, l Log) (all []string) {
	tb.Helper()
	must.Do(tb, l.Read(func(e Event) { all = append(all, e.Text) }))
	return all
}

func TestAddAndRead(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	l := Log{File: filepath.Join(t.TempDir(), "events.jsonl")}
	if got := texts(t, l); got != nil {
		t.Errorf("of no file: %q", got)
	}
	must.Do(t, l.Add(Event{Time: at, Kind: "drain", Slot: 3, By: "operator", Text: "new fan"}, Event{Kind: "resume", Slot: 3, Text: strings.Repeat("x", 2*maxText)}))
	var got []Event
	must.Do(t, l.Read(func(e Event) { got = append(got, e) }))
	want := Event{Time: at, Kind: "drain", Slot: 3, By: "operator", Text: "new fan"}
	if diff := cmp.Diff(want, got[0]); diff != "" || len(got) != 2 || len(got[1].Text) > maxText+4 || time.Since(got[1].Time) > time.Minute {
		t.Errorf("%d events, %s", len(got), diff)
	}
}

// TestCutOff appends after a line that a crash cut off.
func TestCutOff(t *testing.T) {
	t.Parallel()
	l := Log{File: filepath.Join(t.TempDir(), "events.jsonl")}
	torn := `{"kind":"drain","slot":0,"text":"first"}` + "\n" + `{"kind":"dra`
	must.Do(t, os.WriteFile(l.File, []byte(torn), 0o600))
	must.Do(t, l.Add(Event{Kind: "resume", Text: "second"}))
	must.Equal(t, []string{"first", "second"}, texts(t, l))
}

// TestBounded checks that many writers fill several files, of which two stay, that no line
// is torn, and that the newest are there.
func TestBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "events.jsonl")
	var group sync.WaitGroup
	for w := range 4 {
		group.Go(func() {
			for i := range 300 {
				if err := (Log{File: file}).Add(Event{Kind: "x", Text: fmt.Sprintf("%d:%d:%s", w, i, strings.Repeat("y", 3000))}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	// The last events of a writer that finished long before the others may rightly be gone.
	for w := range 4 {
		if err := (Log{File: file}).Add(Event{Kind: "x", Text: fmt.Sprintf("%d:last:", w)}); err != nil {
			t.Error(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Fatalf("%v %v", entries, err)
	}
	lines := 0
	for _, e := range entries {
		fi, _ := e.Info()
		if fi.Size() > maxFile+4*maxLine {
			t.Errorf("%s has %d bytes", e.Name(), fi.Size())
		}
		text, _ := os.ReadFile(filepath.Join(dir, e.Name()))
		lines += strings.Count(string(text), `{"time"`)
	}
	got := texts(t, Log{File: file})
	if len(got) != lines {
		t.Errorf("%d events in %d lines", len(got), lines)
	}
	for w := range 4 {
		last := fmt.Sprintf("%d:last:", w)
		must.Contain(t, strings.Join(got, "\n"), last)
	}
}

// TestFollow checks that each event is seen once, also when the file is moved.
func TestFollow(t *testing.T) {
	t.Parallel()
	l := Log{File: filepath.Join(t.TempDir(), "events.jsonl")}
	must.Do(t, l.Add(Event{Kind: "x", Text: "0"}))
	ctx, stop := context.WithTimeout(t.Context(), must.Patience)
	defer stop()
	const most = 5
	texts := make(chan string, 100)
	done := make(chan error, 1)
	go func() { done <- l.Follow(ctx, func(e Event) { texts <- e.Text }) }()
	for i := range most {
		if got := <-texts; got != fmt.Sprint(i) {
			t.Fatalf("saw %s, want %d", got, i)
		}
		add := func(n int) error { return l.Add(Event{Kind: "x", Text: fmt.Sprint(n)}) }
		var err error
		switch {
		case i == 2: // the next one is in the file that is moved
			err = errors.Join(add(3), os.Rename(l.File, l.File+".1"), add(4))
		case i < 2:
			err = add(i + 1)
		}
		must.Do(t, err)
	}
	stop()
	if err := <-done; err != nil || len(texts) > 0 {
		t.Errorf("%v, %d more", err, len(texts))
	}
}

// TestReadFrom goes on after each event, whatever happens to the files meanwhile.
func TestReadFrom(t *testing.T) {
	t.Parallel()
	l := Log{File: filepath.Join(t.TempDir(), "events.jsonl")}
	at, err := l.End()
	must.Do(t, err)
	read := func() (texts string) {
		t.Helper()
		must.Do(t, l.ReadFrom(at, func(e Event, after Place) { texts, at = texts+e.Text, after }))
		return texts
	}
	for i, step := range []struct {
		do   func() error
		want string
	}{
		{func() error { return nil }, ""},
		{func() error { return l.Add(Event{Kind: "x", Text: "a"}, Event{Kind: "x", Text: "b"}) }, "ab"},
		{func() error { return nil }, ""},
		{func() error { return errors.Join(l.Add(Event{Kind: "x", Text: "c"}), os.Rename(l.File, l.File+".1")) }, "c"},
		{func() error { return l.Add(Event{Kind: "x", Text: "d"}) }, "d"},
		{func() error { return errors.Join(os.Rename(l.File, l.File+".1"), l.Add(Event{Kind: "x", Text: "e"})) }, "e"},
		{func() error { return errors.Join(os.Remove(l.File), os.Remove(l.File+".1")) }, ""},
		{func() error { return l.Add(Event{Kind: "x", Text: "f"}) }, "f"},
		{func() error { return os.Truncate(l.File, 0) }, ""}, // the same file, with less in it
		{func() error { return l.Add(Event{Kind: "x", Text: "g"}) }, "g"},
		{func() error { at = Place{1, 5}; return os.Rename(l.File, l.File+".1") }, "g"}, // a lost place
		{func() error { at = Place{1, 5}; return os.Link(l.File+".1", l.File) }, "g"},   // as if it was moved meanwhile
		{func() error { return os.Remove(l.File) }, ""},
	} {
		must.Do(t, step.do())
		if got := read(); got != step.want {
			t.Errorf("step %d: read %q, want %q", i, got, step.want)
		}
	}
	must.Do(t, l.Add(Event{Kind: "x", Text: "old"}))
	at, err = l.End()
	must.Do(t, err)
	must.Do(t, l.Add(Event{Kind: "x", Text: "new"}))
	if got := read(); got != "new" {
		t.Errorf("after the end: %q", got)
	}
}

// TestPlaceAfterTheEnd has a crash take the last event after someone has read it: those that follow are read all the same.
func TestPlaceAfterTheEnd(t *testing.T) {
	t.Parallel()
	l := Log{File: filepath.Join(t.TempDir(), "events.jsonl")}
	must.Do(t, l.Add(Event{Kind: "x", Text: "a"}))
	info, err := os.Stat(l.File)
	must.Do(t, err)
	must.Do(t, l.Add(Event{Kind: "x", Text: "lost, and longer than the next one"}))
	at, err := l.End()
	must.Do(t, err)
	must.Do(t, os.Truncate(l.File, info.Size()))
	must.Do(t, l.Add(Event{Kind: "x", Text: "b"}))
	var texts string
	must.Do(t, l.ReadFrom(at, func(e Event, _ Place) { texts += e.Text }))
	must.Equal(t, "ab", texts)
}
