package compile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// names are those of a program's temporary directories, which are random, and the names that stand for them in what a
// compiler sees, in its arguments and in files, where they are as long. So the same source in directories with other names
// makes the same. Only after a slash: elsewhere it may be a symbol's name. What has such a name in it is not shared.
type names struct {
	random string
	real   map[string]string // by the name that stands for it
	stand  map[string]string
	full   bool
}

// mark begins the names that are replaced, as Python's tempfile makes them: it and eight characters.
const (
	mark     = "/tmp"
	nameSize = 11
	maxNames = 100 // of a request; they have two digits
)

func newNames(random string) *names {
	return &names{random: random, real: map[string]string{}, stand: map[string]string{}}
}

// temporary finds paths of temporary directories: in a program's home, which is its TMPDIR, and beside it. They may follow
// an option (-I/tmp/tmpxxxxxxxx), but are no part of another path (/usr/tmp/tmpxxxxxxxx).
type temporary struct {
	*regexp.Regexp
	home string // its name, which is that of all programs' homes
}

func temporaryDirs(home string) temporary {
	return temporary{
		regexp.MustCompile(`((?:^|[^A-Za-z0-9_.+/-])[A-Za-z0-9_.+-]*` + regexp.QuoteMeta(filepath.Dir(home)) + `)((?:/tmp[a-z0-9_]{8})+)\b`),
		filepath.Base(home),
	}
}

// replace replaces the names of temporary directories in a text.
func (n *names) replace(text string, dirs temporary) string {
	if !strings.Contains(text, mark) {
		return text
	}
	return dirs.ReplaceAllStringFunc(text, func(match string) string {
		parts := dirs.FindStringSubmatch(match)
		var b strings.Builder
		b.WriteString(parts[1])
		for i, name := range strings.Split(parts[2], "/")[1:] {
			if i > 0 || name != dirs.home {
				name = n.standFor(name)
			}
			b.WriteString("/" + name)
		}
		return b.String()
	})
}

func (n *names) standFor(name string) string {
	if s := n.stand[name]; s != "" {
		return s
	}
	if len(n.stand) == maxNames {
		n.full = true
		return name
	}
	s := fmt.Sprintf("tmp%s%02d", n.random, len(n.stand))
	n.stand[name], n.real[s] = s, name
	return s
}

// isIn reports whether a name that stands for another is in a text, or may be.
func (n *names) isIn(text io.Reader) bool {
	return len(n.stand) > 0 && holdsAny(text, "tmp"+n.random)
}

// holdsAny reports whether a text has one of some shorter texts in it. What cannot be read may have.
func holdsAny(text io.Reader, wanted ...string) bool {
	const most = 64 // bytes of one
	piece, kept := make([]byte, 1<<16), 0
	for {
		got, err := text.Read(piece[kept:])
		window := piece[:kept+got]
		if slices.ContainsFunc(wanted, func(w string) bool { return bytes.Contains(window, []byte(w)) }) {
			return true
		}
		if err != nil {
			return !errors.Is(err, io.EOF)
		}
		kept = copy(piece, window[max(0, len(window)-most):]) // one may be cut
	}
}

// realPath returns a path with the real names.
func (n *names) realPath(path string) string {
	var b strings.Builder
	w := &swapper{to: &b, names: n.real}
	_, _ = w.Write([]byte(path)) // a Builder takes all
	_ = w.flush()
	return b.String()
}

// swapper replaces names in what it writes.
type swapper struct {
	to    io.Writer
	names map[string]string
	rest  []byte // that may begin with a name
}

func (w *swapper) Write(p []byte) (int, error) {
	text := append(w.rest, p...)
	w.rest = nil
	var done []byte
	if len(w.names) == 0 {
		_, err := w.to.Write(text)
		return len(p), err
	}
	for {
		i := bytes.Index(text, []byte(mark))
		if i < 0 {
			i = max(0, len(text)-len(mark)+1) // the mark may be cut
		}
		done, text = append(done, text[:i]...), text[i:]
		if len(text) < 1+nameSize {
			break
		}
		name, known := w.names[string(text[1:1+nameSize])]
		if !known {
			name = string(text[1:len(mark)])
		}
		done, text = append(append(done, '/'), name...), text[1+len(name):]
	}
	w.rest = bytes.Clone(text)
	_, err := w.to.Write(done)
	return len(p), err
}

// flush writes what is left.
func (w *swapper) flush() error {
	_, err := w.to.Write(w.rest)
	w.rest = nil
	return err
}
