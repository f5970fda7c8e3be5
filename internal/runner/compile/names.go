package compile

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// names are those of temporary directories, which are random, and the names that stand for them in what a compiler sees.
// They are as long, so they can be replaced in files, too: the same source in directories with other names makes the same.
// Only after a slash: elsewhere it may be the name of a symbol, which products have as a hash, too.
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

// temporaryDirs matches paths of temporary directories below a directory, also after an option: -I/tmp/tmpxxxxxxxx, but not
// within another path: /usr/tmp/tmpxxxxxxxx.
func temporaryDirs(dir string) *regexp.Regexp {
	return regexp.MustCompile(`((?:^|[^A-Za-z0-9_.+/-])[A-Za-z0-9_.+-]*` + regexp.QuoteMeta(dir) + `)((?:/tmp[a-z0-9_]{8})+)\b`)
}

// replace replaces the names of temporary directories in a text.
func (n *names) replace(text string, dirs *regexp.Regexp) string {
	if !strings.Contains(text, mark) {
		return text
	}
	return dirs.ReplaceAllStringFunc(text, func(match string) string {
		parts := dirs.FindStringSubmatch(match)
		var b strings.Builder
		b.WriteString(parts[1])
		for _, name := range strings.Split(parts[2], "/")[1:] {
			b.WriteString("/" + n.standFor(name))
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
