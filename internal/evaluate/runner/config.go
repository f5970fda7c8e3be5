package runner

import (
	"errors"
	"fmt"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// config holds the values of a payload that the engine uses, checked. Lines and texts
// are in the form in which programs get them.
type config struct {
	lang       string
	mode       string
	main       string               // py: the program
	sources    result.Pairs[string] // cu: in the order in which they are compiled
	headers    result.Pairs[string] // cu: written, not compiled
	flags      []string             // cu: of the compiler, after its own
	includes   []string             // cu: directories that must exist
	arch       string               // cu: the flag that names the architecture
	tests      string
	benchmarks string
	last       bool   // only the last benchmark line counts
	seed       string // POPCORN_SEED, if hasSeed
	hasSeed    bool
	multiGPU   bool
	test       timeLimit
	benchmark  timeLimit
	ranked     timeLimit
	other      map[string]string // compare: the files that the second submission has in place of those above
	rounds     int               // compare
}

// timeLimit is a program's time limit.
type timeLimit struct {
	seconds float64 // +Inf for none
	text    string  // as in the payload; the result's duration after a timeout
}

// Limits in seconds: the Python engine's default, and limits for programs that it ran
// without one.
const (
	defaultLimit = 180
	toolLimit    = 10
	reportLimit  = 60 // for ncu to print its report and details
)

// compileLimit is for the compiler, and for the pre-run, which takes its place in lang py. Tests replace it.
var compileLimit = timeLimit{120, "120"}

func seconds(n int) timeLimit { return timeLimit{float64(n), strconv.Itoa(n)} }

// fields reads members of the payload and collects what is wrong with them.
type fields struct {
	*payload.Object
	errs []error
}

// maxSeed bounds the seed, in bytes: Linux takes 128 KiB in one variable.
const maxSeed = 100_000

// maxFaults bounds the faults that are reported: a payload may have a million.
const maxFaults = 20

func (f *fields) refuse(format string, args ...any) {
	switch {
	case len(f.errs) < maxFaults:
		f.errs = append(f.errs, fmt.Errorf(format, args...))
	case len(f.errs) == maxFaults:
		f.errs = append(f.errs, errors.New("and more"))
	}
}

// parseConfig checks the whole payload before anything is changed. Its one error lists
// all faults.
func parseConfig(o *payload.Object) (*config, error) {
	f := &fields{Object: o}
	c := &config{
		lang: f.choice("lang", "py", "cu"),
		mode: f.choice("mode", "test", "benchmark", "leaderboard", "private", "profile", result.ModeCompare),
		last: true,
	}
	if v, ok := f.member("sources"); ok {
		c.sources = f.texts("sources", v)
	}
	c.tests = f.lines("tests")
	c.benchmarks = f.lines("benchmarks")
	c.test, c.benchmark, c.ranked = f.limit("test_timeout"), f.limit("benchmark_timeout"), f.limit("ranked_timeout")
	if v, ok := f.Get("ranking_by"); ok {
		c.last = v == "last"
	}
	if v, _ := f.Get("seed"); v != nil {
		c.seed, c.hasSeed = payload.Str(v), true
		if strings.Contains(c.seed, "\x00") || payload.HasSurrogate(c.seed) {
			f.refuse("seed: holds a character that an environment variable cannot hold")
		}
		if len(c.seed) > maxSeed {
			f.refuse("seed: has %d bytes, more than an environment variable can hold; write a number", len(c.seed))
		}
	}
	if v, _ := f.Get("multi_gpu"); v != nil {
		c.multiGPU = typed[bool](f, "multi_gpu:", v, "true or false")
	}
	switch c.lang {
	case "cu":
		f.cuda(c)
	case "py":
		if v, ok := f.member("main"); ok {
			c.main = typed[string](f, "main:", v, "a string")
			if c.main == v && !c.sources.Has(c.main) {
				f.refuse("main: %q is not among the sources; add it there or name another", c.main)
			}
		}
	}
	f.comparison(c)
	if c.last && c.benchmarks == "" && c.mode != "test" && c.mode != "profile" && len(f.errs) == 0 {
		f.refuse(`benchmarks: mode %s with ranking_by "last" needs one at least`, c.mode)
	}
	if len(f.errs) > 0 {
		return nil, errors.Join(f.errs...)
	}
	return c, nil
}

// member returns a required member.
func (f *fields) member(key string) (payload.Value, bool) {
	v, ok := f.Get(key)
	if !ok {
		f.refuse("%s: is missing; %s", key, f.instead(key))
	}
	return v, ok
}

// instead says what to write for a member that is missing.
func (f *fields) instead(key string) string {
	n := 0
	for other := range f.All() {
		n++
		if n > maxFaults { // a payload may have a million
			break
		}
		if key == "sources" && other == "files" || text.Edits(key, other) <= 2 {
			return fmt.Sprintf("write %q in place of %q", key, other)
		}
	}
	switch key {
	case "lang":
		return `write "lang": "py" or "cu"`
	case "mode":
		return `write "mode": "test"`
	case "rounds":
		return `write "rounds": 10`
	case otherSources:
		return `write the second submission, as in "other_sources": {"submission.py": "…"}`
	case "main":
		for _, files := range []string{"sources", "files"} {
			v, _ := f.Get(files)
			for name := range objectOf(v).All() {
				if strings.HasSuffix(name, ".py") {
					return fmt.Sprintf("name the file to run, as in \"main\": %.100q", name)
				}
			}
		}
		return `name the file to run, as in "main": "main.py"`
	}
	return `write the files, as in "sources": {"main.py": "…"}`
}

// objectOf returns a value that is an object, or an empty one.
func objectOf(v payload.Value) *payload.Object {
	o, _ := v.(*payload.Object)
	if o == nil {
		return &payload.Object{}
	}
	return o
}

// Check returns what a runner would refuse of a payload on any node, all of it.
func Check(o *payload.Object) error {
	c, err := parseConfig(o)
	if err != nil {
		return err
	}
	files := slices.Concat(c.sources, c.headers)
	known := map[string]bool{}
	for _, file := range files {
		known[path.Clean(file.Key)] = true
	}
	var errs []error
	for _, file := range files {
		err := nameFault(file.Key)
		if filepath.IsAbs(file.Key) {
			err = nil // the node's directory decides
		}
		if parent := parentFile(file.Key, known); err == nil && parent != "" {
			err = fmt.Errorf("is below %.100q, which is a file as well; name one of them otherwise", parent)
		}
		if err != nil && len(errs) < maxFaults {
			errs = append(errs, fmt.Errorf("%.300q %w", file.Key, err))
		}
	}
	return errors.Join(errs...)
}

// maxLooked bounds the names that are taken apart, in bytes: a payload may have one of millions.
const maxLooked = 4096

// parentFile returns the known file that a name has as a directory; "" if there is none.
func parentFile(name string, known map[string]bool) string {
	if len(name) > maxLooked {
		return ""
	}
	for dir := path.Dir(path.Clean(name)); dir != "." && dir != "/"; dir = path.Dir(dir) {
		if known[dir] {
			return dir
		}
	}
	return ""
}

// typed returns a value if it has the type, and refuses another.
func typed[T payload.Value](f *fields, where string, v payload.Value, what string) T {
	t, ok := v.(T)
	if !ok {
		f.refuse("%s is a %s; it must be %s", where, payload.TypeName(v), what)
	}
	return t
}

func (f *fields) choice(key string, words ...string) string {
	v, ok := f.member(key)
	if !ok {
		return ""
	}
	if word, _ := v.(string); slices.Contains(words, word) {
		return word
	}
	f.refuse("%s: is %.100s; it must be one of %s", key, payload.Repr(v), strings.Join(words, ", "))
	return ""
}

// texts returns an object of names and file contents.
func (f *fields) texts(key string, v payload.Value) result.Pairs[string] {
	var files result.Pairs[string]
	for name, v := range typed[*payload.Object](f, key+":", v, "an object of file names and texts").All() {
		text := typed[string](f, fmt.Sprintf("%s: %q", key, name), v, "a string")
		switch {
		case payload.HasSurrogate(name):
			f.refuse("%s: the name %q holds half of a surrogate pair", key, name)
		case payload.HasSurrogate(text):
			f.refuse("%s: %q holds half of a surrogate pair", key, name)
		}
		files = append(files, result.Pair[string]{Key: name, Value: text})
	}
	return files
}

// lines renders a list of test cases, one line each: "key: value; key: value".
func (f *fields) lines(key string) string {
	v, ok := f.Get(key)
	if !ok {
		return ""
	}
	if none, ok := v.(*payload.Object); v == "" || ok && none.Len() == 0 {
		return "" // Python iterates over these without an error
	}
	var b strings.Builder
	for i, e := range typed[[]payload.Value](f, key+":", v, "a list of objects") {
		sep := ""
		for k, v := range typed[*payload.Object](f, fmt.Sprintf("%s[%d]:", key, i), e, "an object").All() {
			b.WriteString(sep + k + ": " + payload.Str(v))
			sep = "; "
		}
		b.WriteByte('\n')
	}
	if payload.HasSurrogate(b.String()) {
		f.refuse("%s: a text holds half of a surrogate pair", key)
	}
	return b.String()
}

func (f *fields) limit(key string) timeLimit {
	v, ok := f.Get(key)
	if !ok {
		return seconds(defaultLimit)
	}
	switch v := v.(type) {
	case nil:
		return timeLimit{seconds: math.Inf(1)}
	case bool:
		if v {
			return seconds(1)
		}
		return seconds(0)
	case payload.Int:
		n, err := strconv.ParseFloat(string(v), 64)
		if err == nil || errors.Is(err, strconv.ErrRange) {
			return timeLimit{n, string(v)}
		}
	case payload.Float:
		if !math.IsNaN(float64(v)) && !math.IsInf(float64(v), -1) {
			return timeLimit{float64(v), payload.Repr(v)}
		}
	}
	f.refuse("%s: is %.100s; it must be a number of seconds or null", key, payload.Repr(v))
	return timeLimit{}
}

// benchmarkLines returns the benchmark lines, or only the last one for ranking_by
// "last".
func (c *config) benchmarkLines() string {
	if !c.last {
		return c.benchmarks
	}
	lines := slices.Collect(splitLines(c.benchmarks))
	return lines[len(lines)-1] // parseConfig checked that there is one
}
