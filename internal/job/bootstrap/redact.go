package bootstrap

import (
	"io"
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
// with it. Its time does not depend on the secrets, which a build chooses. It is safe for concurrent use.
type Redactor struct {
	mu      sync.Mutex
	out     io.Writer
	secrets matcher
	state   int32  // of secrets, after what is held
	held    []byte // not written yet
	spans   []span // the secrets in it. Those that overlap are one
	midLine bool   // the last byte ended no line
	marked  bool   // the first of spans began before what is held, and its mark is written
}

// span is a part of what is held.
type span struct{ from, to int }

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
	for _, v := range values {
		for _, v := range []string{v, strings.TrimSpace(v)} {
			// A terminal ends each line with a carriage return, too.
			for _, v := range []string{v, strings.ReplaceAll(v, "\n", "\r\n")} {
				if len(v) >= minSecret {
					r.secrets.add(v)
				}
			}
		}
	}
	r.secrets.link()
	r.state = 0
	r.spans = r.spans[:min(len(r.spans), 1)]
	if !r.marked {
		r.spans = nil
	}
	r.find(0)
}

// Write writes what p completes.
func (r *Redactor) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(p) > 0 {
		r.midLine = p[len(p)-1] != '\n'
	}
	r.held = append(r.held, p...)
	r.find(len(r.held) - len(p))
	r.flush(len(r.held) - r.secrets.begun(r.state))
	return len(p), nil
}

// inLine reports whether what was written last ended no line.
func (r *Redactor) inLine() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.midLine
}

// Close writes what was held back. It does not close the log.
func (r *Redactor) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flush(len(r.held))
	r.state = 0
}

// find finds the secrets that end in what is held, from a byte on.
func (r *Redactor) find(from int) {
	for i := from; i < len(r.held); i++ {
		var length int
		r.state, length = r.secrets.next(r.state, r.held[i])
		if length == 0 {
			continue
		}
		s := span{i + 1 - length, i + 1}
		for n := len(r.spans); n > 0 && r.spans[n-1].to > s.from; n-- {
			s.from, s.to = min(s.from, r.spans[n-1].from), max(s.to, r.spans[n-1].to)
			r.spans = r.spans[:n-1]
		}
		r.spans = append(r.spans, s)
	}
}

// flush writes the first n bytes of what is held. No secret that is not found yet begins there.
func (r *Redactor) flush(n int) {
	var line []byte
	at, done := 0, 0
	for ; done < len(r.spans) && r.spans[done].from < n; done++ {
		s := r.spans[done]
		line = append(line, r.held[at:s.from]...)
		if !r.marked {
			line = append(line, redacted...)
		}
		at, r.marked = min(s.to, n), s.to > n
		if r.marked {
			break
		}
	}
	line = append(line, r.held[at:n]...)
	r.held, r.spans = append(r.held[:0], r.held[n:]...), append(r.spans[:0], r.spans[done:]...)
	for i, s := range r.spans {
		r.spans[i] = span{max(0, s.from-n), s.to - n}
	}
	if len(line) > 0 {
		_, _ = r.out.Write(line) // its reader may be gone
	}
}
