package bootstrap

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"sync"
)

// redacted is in a log in place of a secret.
const redacted = "[REDACTED]"

// minSecret is the length in bytes from which a value is a secret. Shorter ones, such as "true",
// would make holes everywhere. Source: buildkite-agent.
const minSecret = 6

// Redactor writes a log without its secrets, also where one is cut into several writes. It holds
// back only what may become a secret, and goes on where the log ends: a program that writes to it must not end
// with it. It is safe for concurrent use.
type Redactor struct {
	mu      sync.Mutex
	out     io.Writer
	secrets [][]byte
	held    []byte
	covered int // how many of the held bytes are of a secret that was written
}

// NewRedactor returns a Redactor that writes to out. Values that are too short are not secrets.
func NewRedactor(out io.Writer, values []string) *Redactor {
	r := &Redactor{out: out}
	r.Hide(values)
	return r
}

// Hide adds secrets. What was written before stays.
func (r *Redactor) Hide(values []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, v := range values {
		for _, v := range []string{v, strings.TrimSpace(v)} {
			// A terminal ends each line with a carriage return, too.
			all = append(all, v, strings.ReplaceAll(v, "\n", "\r\n"))
		}
	}
	slices.Sort(all)
	for _, v := range slices.Compact(all) {
		if len(v) >= minSecret {
			r.secrets = append(r.secrets, []byte(v))
		}
	}
}

// Write writes what p completes.
func (r *Redactor) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = append(r.held, p...)
	keep := 0
	for _, s := range r.secrets {
		keep = max(keep, begun(r.held, s))
	}
	r.flush(len(r.held) - keep)
	return len(p), nil
}

// Close writes what was held back. It does not close the log.
func (r *Redactor) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flush(len(r.held))
}

// flush writes the first n bytes of what is held.
func (r *Redactor) flush(n int) {
	var ends []int // of the longest secret that begins there
	for _, s := range r.secrets {
		for at := 0; ; at++ {
			i := bytes.Index(r.held[at:], s)
			if i < 0 {
				break
			}
			if ends == nil {
				ends = make([]int, len(r.held))
			}
			at += i
			ends[at] = max(ends[at], at+len(s))
		}
	}
	var line []byte
	at := r.covered
	for from, to := range ends {
		// Secrets that overlap are one.
		if from >= max(n, at) {
			break
		}
		if to > 0 && from >= at {
			line = append(append(line, r.held[at:from]...), redacted...)
		}
		at = max(at, to)
	}
	if n > at {
		line, at = append(line, r.held[at:n]...), n
	}
	r.held, r.covered = append(r.held[:0], r.held[n:]...), at-n
	if len(line) > 0 {
		_, _ = r.out.Write(line) // its reader may be gone
	}
}

// begun returns how many of the last bytes of text may be the beginning of a secret.
func begun(text, secret []byte) int {
	n := min(len(text), len(secret)-1)
	for n > 0 && !bytes.HasSuffix(text, secret[:n]) {
		n--
	}
	return n
}
