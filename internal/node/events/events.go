// Package events records what happened on a node: one line of JSON per event, in a file of
// bounded size that survives a reboot. The journal has more detail; this is where an
// operator looks first.
package events

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Path is a node's file of events.
const Path = "/var/lib/kbnode/events.jsonl"

const (
	maxFile = 1 << 20  // bytes; with the previous file, about ten thousand events
	maxLine = 16 << 10 // bytes
	maxText = 2 << 10  // characters of a sentence
	poll    = 500 * time.Millisecond
)

// Event is something that happened.
type Event struct {
	Time time.Time `json:"time"`
	Kind string    `json:"kind"` // "drain", "resume", "changed", "health", …
	Slot int       `json:"slot"` // -1 for the node
	By   string    `json:"by,omitempty"`
	Text string    `json:"text"` // a sentence
	// Level is the name of a health.Level, Info when all is well again. "" is what no one need be notified of.
	Level string `json:"level,omitempty"`
}

// Levels of events that are not about a verdict.
const (
	Info = "info"
	Warn = "warn"
)

// Log is a node's events. The zero value keeps none.
type Log struct{ File string }

// Add appends events. Several processes may call it.
func (l Log) Add(events ...Event) error {
	if l.File == "" || len(events) == 0 {
		return nil
	}
	var lines []byte
	for _, e := range events {
		if e.Time.IsZero() {
			e.Time = time.Now().UTC().Truncate(time.Millisecond)
		}
		e.Text = text.Line(e.Text, maxText)
		line, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("write event: %w", err)
		}
		lines = append(append(lines, line...), '\n')
	}
	if err := l.append(lines); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	return nil
}

// append adds text to the file in one write, which the kernel keeps apart from those of other
// processes. It starts a new file when the old one is full.
func (l Log) append(text []byte) error {
	if fi, err := os.Lstat(l.File); err == nil && fi.Size() >= maxFile {
		if err := os.Rename(l.File, l.File+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	f, err := os.OpenFile(l.File, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o644) //nolint:gosec // for all to read
	if err != nil {
		return err
	}
	if text, err = afterLine(f, text); err == nil {
		_, err = f.Write(text)
	}
	if err == nil { // what led to a crash must outlast it, and a Place that is stored must not be after the end
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// afterLine starts a new line if the last write was cut off.
func afterLine(f *os.File, text []byte) ([]byte, error) {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || end == 0 {
		return text, err
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, end-1); err != nil {
		return text, err
	}
	if last[0] != '\n' {
		text = append([]byte{'\n'}, text...)
	}
	return text, nil
}

// Read calls fn with every stored event, the oldest first. It skips lines that are not
// events.
func (l Log) Read(fn func(Event)) error {
	return errors.Join(readFile(l.File+".1", 0, fn), readFile(l.File, 0, fn))
}

func readFile(name string, from int64, fn func(Event)) error {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	_, err = scan(f, from, func(e Event, _ int64) { fn(e) })
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	return nil
}

// scan reads complete lines from an offset, and returns the offset of the next one. It passes each event with that offset.
func scan(f *os.File, from int64, fn func(Event, int64)) (int64, error) {
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return from, err
	}
	r := bufio.NewReaderSize(io.LimitReader(f, 4*maxFile), maxLine)
	for {
		line, err := r.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull): // not an event, nor is the rest of the line
			from += int64(len(line))
			continue
		case errors.Is(err, io.EOF):
			return from, nil
		case err != nil:
			return from, err
		}
		from += int64(len(line))
		var e Event
		if json.Unmarshal(line, &e) == nil && e.Kind != "" {
			fn(e, from)
		}
	}
}

// Follow calls fn with every stored event and then with each new one, until ctx ends.
func (l Log) Follow(ctx context.Context, fn func(Event)) error {
	if err := readFile(l.File+".1", 0, fn); err != nil {
		return err
	}
	var last os.FileInfo // the file that was read up to at
	for at := int64(0); ; {
		f, err := os.Open(l.File)
		if err == nil {
			var now os.FileInfo
			if now, err = f.Stat(); err == nil && last != nil && !os.SameFile(now, last) {
				err, at = readFile(l.File+".1", at, fn), 0 // it was moved there
			}
			last = now
			if err == nil {
				at, err = scan(f, at, func(e Event, _ int64) { fn(e) })
			}
			err = errors.Join(err, f.Close())
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read events: %w", err)
		}
		if limit.Sleep(ctx, poll) != nil {
			return nil
		}
	}
}
