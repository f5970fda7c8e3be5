// Package arena tries known cheats against a problem: it wraps an honest submission in each attack of a corpus,
// and judges from the evaluations which of them the problem's program lets through.
package arena

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Attack is a file of a corpus: Python that surrounds an honest submission.
type Attack struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	Tries  string `json:"tries"`  // what it does, as a sentence without a subject
	Source string `json:"source"` // where it was published
	Wrong  bool   `json:"wrong"`  // its output is knowingly wrong
	Needs  Needs  `json:"needs,omitempty"`
	Code   string `json:"code"`
}

// Needs is what must be on the machine for an attack to make sense.
type Needs string

// What an attack may need.
const (
	Nothing Needs = ""
	Torch   Needs = "torch"
	GPU     Needs = "gpu" // and torch
)

// Corpus is a collection of attacks.
type Corpus struct {
	Attacks []Attack          // by kind, then by name
	Cures   map[string]string // what would stop a kind, a sentence
}

//go:embed corpus
var embedded embed.FS

//go:embed harness.py
var harness string

// Bounds of a corpus.
const (
	maxAttacks = 1000
	maxAttack  = 1 << 20 // bytes
)

const curesFile = "kinds.txt"

// Embedded returns the corpus that kbnode carries along.
func Embedded() (*Corpus, error) {
	c := &Corpus{Cures: map[string]string{}}
	dir, err := fs.Sub(embedded, "corpus")
	if err != nil {
		return nil, err
	}
	_, err = c.add(dir, "corpus")
	return c, err
}

// Add adds the attacks of a directory. One with the name of a known attack replaces it.
func (c *Corpus) Add(dir string) error {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("%.300s is not a directory; name one with attacks, NAME.py", dir)
	}
	n, err := c.add(os.DirFS(dir), dir)
	if err == nil && n == 0 {
		err = fmt.Errorf("%.300s has no attack; write one to NAME.py there", dir)
	}
	return err
}

// add returns how many attacks it read.
func (c *Corpus) add(dir fs.FS, shown string) (n int, err error) {
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return 0, fmt.Errorf("read corpus: %w", err)
	}
	var errs []error
	for _, e := range entries {
		name, isAttack := strings.CutSuffix(e.Name(), ".py")
		if !isAttack && e.Name() != curesFile || !e.Type().IsRegular() {
			continue
		}
		text, err := readText(dir, e)
		if err == nil && !isAttack {
			c.readCures(text)
			continue
		}
		var a Attack
		if err == nil {
			a, err = parse(name, text)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%.300s/%.100s: %w", shown, e.Name(), err))
			continue
		}
		c.Attacks = slices.DeleteFunc(c.Attacks, func(known Attack) bool { return known.Name == name })
		c.Attacks = append(c.Attacks, a)
		n++
	}
	if len(c.Attacks) > maxAttacks {
		errs = append(errs, fmt.Errorf("%.300s brings the corpus to over %d attacks; remove some", shown, maxAttacks))
	}
	slices.SortFunc(c.Attacks, func(a, b Attack) int {
		if a.Kind != b.Kind {
			return strings.Compare(a.Kind, b.Kind)
		}
		return strings.Compare(a.Name, b.Name)
	})
	return n, errors.Join(errs...)
}

func readText(dir fs.FS, e fs.DirEntry) (string, error) {
	if info, err := e.Info(); err == nil && info.Size() > maxAttack {
		return "", fmt.Errorf("is over %d bytes; make it smaller", maxAttack)
	}
	text, err := fs.ReadFile(dir, e.Name())
	if err == nil && !utf8.Valid(text) {
		err = errors.New("is not UTF-8 text; save it as UTF-8")
	}
	return string(text), err
}

// readCures reads lines such as "clock: what would stop it".
func (c *Corpus) readCures(text string) {
	for line := range strings.Lines(text) {
		if kind, cure, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, "#") {
			c.Cures[strings.TrimSpace(kind)] = strings.TrimSpace(cure)
		}
	}
}

// parse reads an attack. It begins with comments that describe it, such as "# kind: clock".
func parse(name, text string) (Attack, error) {
	a := Attack{Name: name, Code: text}
	var errs []error
	for line := range strings.Lines(text) {
		comment, ok := strings.CutPrefix(line, "#")
		if !ok {
			break
		}
		key, value, _ := strings.Cut(comment, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "kind":
			a.Kind = value
		case "tries":
			a.Tries = value
		case "source":
			a.Source = value
		case "output":
			a.Wrong = value == "wrong"
			if value != "wrong" && value != "right" {
				errs = append(errs, fmt.Errorf("output is %.60q; write right or wrong", value))
			}
		case "needs":
			a.Needs = Needs(value)
			if a.Needs != Torch && a.Needs != GPU {
				errs = append(errs, fmt.Errorf("needs %.60q is not known; write torch or gpu", value))
			}
		default:
			errs = append(errs, fmt.Errorf("unknown line %.60q; write # kind:, # tries:, # source:, # output: or # needs: before the code", strings.TrimSpace(line)))
		}
	}
	for _, f := range []struct{ key, value string }{{"kind", a.Kind}, {"tries", a.Tries}, {"source", a.Source}} {
		if f.value == "" {
			errs = append(errs, fmt.Errorf("begins with no # %s: line; write one", f.key))
		}
	}
	return a, errors.Join(errs...)
}

// Wrap returns a submission that is an attack around an honest one.
func (a Attack) Wrap(honest string) string {
	return strings.NewReplacer(
		"@HONEST@", strconv.QuoteToASCII(honest), "@ATTACK@", strconv.QuoteToASCII(a.Code),
	).Replace(harness)
}
