// Package limit waits and reads with a limit. A read of a hanging device or file system
// sleeps in the kernel, where no context and no signal ends it.
package limit

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
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

// Room returns how many bytes may be written to the disk of a directory, less than 0 if there are too many
// already: a tenth of it stays free, or 10 GiB of a large one, and a tenth of its inodes.
func Room(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("look at the disk of %s: %w", dir, err)
	}
	if st.Files > 0 && st.Ffree < st.Files/10 { // some file systems count none
		return -1, nil
	}
	return int64(st.Bavail)*st.Bsize - min(int64(st.Blocks)*st.Bsize/10, 10<<30), nil
}

// Error reports that a call has not returned in time.
type Error struct {
	Call  string
	After time.Duration
}

func (e *Error) Error() string { return fmt.Sprintf("%s: no answer in %s", e.Call, e.After) }

// calls are the calls of this process that have not returned, by name.
var (
	mu    sync.Mutex
	calls = map[string]*call{}
)

type call struct {
	done chan struct{} // closed when it returns
	late bool          // a caller has given up
}

// Call returns what f returns, or an *Error if that takes longer than within. f then
// continues, and its result is dropped. Only one call of a name runs at a time. A
// second one waits for the first, or fails at once if the first is overdue, so that
// calls that hang for days hold one thread.
func Call[T any](name string, within time.Duration, f func() (T, error)) (T, error) {
	var none T
	timer := time.NewTimer(within)
	defer timer.Stop()
	var mine *call
	for mine == nil {
		mu.Lock()
		other := calls[name]
		if other == nil {
			mine = &call{done: make(chan struct{})}
			calls[name] = mine
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
			delete(calls, name)
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

// Calls returns the sorted names of the overdue calls whose names contain path, such as
// the root of a machine's tree.
func Calls(path string) []string {
	mu.Lock()
	defer mu.Unlock()
	var late []string
	for name, c := range calls {
		if c.late && strings.Contains(name, path) {
			late = append(late, name)
		}
	}
	slices.Sort(late)
	return late
}
