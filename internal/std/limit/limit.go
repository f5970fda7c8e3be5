// Package limit waits and reads with a limit. A read of a hanging device or file system
// sleeps in the kernel, where no context and no signal ends it.
package limit

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// Sleep waits, and returns the context's error if that ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// Until returns what f returns, or the context's error if that ends first: nothing ends a read of a
// terminal, or of a pipe without a writer.
func Until[T any](ctx context.Context, f func() (T, error)) (T, error) {
	var value T
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		value, err = f()
	}()
	select {
	case <-done:
		return value, err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// Reader reads from r until ctx ends.
func Reader(ctx context.Context, r io.Reader) io.Reader { return reader{ctx, r} }

type reader struct {
	ctx context.Context
	io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	data, err := Until(r.ctx, func() ([]byte, error) {
		own := make([]byte, len(p)) // a read that is given up may still write
		n, err := r.Reader.Read(own)
		return own[:n], err
	})
	return copy(p, data), err
}

// ReadFile returns the first bytes of a file, at most that many.
func ReadFile(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	return io.ReadAll(io.LimitReader(f, most))
}

// Error reports that a call has not returned in time.
type Error struct {
	Call  string
	After time.Duration
}

func (e *Error) Error() string { return fmt.Sprintf("%s: no answer in %s", e.Call, e.After) }

// calls are the calls of this process that have not returned.
var (
	mu    sync.Mutex
	calls = map[id]*call{}
)

type id struct{ scope, name string }

type call struct {
	done chan struct{} // closed when it returns
	late bool          // a caller has given up
}

// Call returns what f returns, or an *Error if that takes longer than within. f then
// continues, and its result is dropped. scope is what the call reads, such as the root of a
// machine's tree. Only one call of a scope and name runs at a time. A second one waits for
// the first, or fails at once if the first is overdue, so that calls that hang for days
// hold one thread.
func Call[T any](scope, name string, within time.Duration, f func() (T, error)) (T, error) {
	var none T
	timer := time.NewTimer(within)
	defer timer.Stop()
	key := id{scope, name}
	var mine *call
	for mine == nil {
		mu.Lock()
		other := calls[key]
		if other == nil {
			mine = &call{done: make(chan struct{})}
			calls[key] = mine
		}
		late := other != nil && other.late
		mu.Unlock()
		switch {
		case mine != nil:
		case late:
			return none, &Error{name, within}
		default:
			select {
			case <-other.done:
			case <-timer.C:
				return none, &Error{name, within}
			}
		}
	}
	var value T
	var err error
	go func() {
		defer func() {
			mu.Lock()
			delete(calls, key)
			mu.Unlock()
			close(mine.done)
		}()
		value, err = f()
	}()
	select {
	case <-mine.done:
		return value, err
	case <-timer.C:
		mu.Lock()
		mine.late = true
		mu.Unlock()
		return none, &Error{name, within}
	}
}

// Overdue returns the sorted names of a scope's overdue calls.
func Overdue(scope string) []string {
	mu.Lock()
	defer mu.Unlock()
	var late []string
	for key, c := range calls {
		if c.late && key.scope == scope {
			late = append(late, key.name)
		}
	}
	slices.Sort(late)
	return late
}
