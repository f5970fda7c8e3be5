package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// MaxBytes bounds a result.json: the traces of profiles are part of it.
const MaxBytes = 96 << 20

const (
	maxPairs = 1 << 18 // members of an object whose order matters
	maxError = 500     // characters of an error, which may quote the document
)

// Read reads a result.json, which may come from anyone. It ignores unknown keys.
func Read(data []byte) (*Result, error) { return read(data, false) }

// ReadStrict is Read, but refuses unknown keys in all objects, as kernelbot does.
func ReadStrict(data []byte) (*Result, error) { return read(data, true) }

func read(data []byte, strict bool) (*Result, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("read %s: it has %d bytes, more than %d", File, len(data), MaxBytes)
	}
	if !json.Valid(data) {
		return nil, fmt.Errorf("read %s: it is not one JSON document; it may be cut off", File)
	}
	type plain Result
	r, err := decode[struct {
		plain
		Runs Pairs[json.RawMessage] `json:"runs"`
	}](data, strict)
	if err != nil {
		return nil, fmt.Errorf("read %s: %s", File, text.Line(err.Error(), maxError))
	}
	if r.System != nil && *r.System == (System{}) {
		r.System = nil
	}
	for _, run := range r.Runs {
		ev, err := decode[Evaluation](run.Value, strict)
		if err != nil {
			return nil, fmt.Errorf("read %s: run %s: %s", File, text.Line(run.Key, maxLine), text.Line(err.Error(), maxError))
		}
		r.plain.Runs = append(r.plain.Runs, Pair[*Evaluation]{run.Key, ev})
	}
	return (*Result)(&r.plain), nil
}

func decode[T any](data []byte, strict bool) (v *T, err error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if strict {
		dec.DisallowUnknownFields()
	}
	if err = dec.Decode(&v); err == nil && v == nil {
		err = errors.New("it is null")
	}
	return v, err
}

// ReadFile returns the content of a result.json below root, where anyone may have put
// anything.
func ReadFile(root *os.Root, name string) ([]byte, error) {
	f, err := OpenFile(root, name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	if info, err := f.Stat(); err != nil || info.Size() > MaxBytes {
		return nil, errors.Join(err, fmt.Errorf("%s has more than %d bytes", name, MaxBytes))
	}
	return io.ReadAll(io.LimitReader(f, MaxBytes))
}

// OpenFile opens a regular file for reading. It returns an error for a link, a pipe or
// a device. An os.Root alone follows links that stay inside it, even with O_NOFOLLOW.
func OpenFile(root *os.Root, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	open, err := f.Stat()
	named, nerr := root.Lstat(name)
	if err = errors.Join(err, nerr); err == nil && (!named.Mode().IsRegular() || !os.SameFile(open, named)) {
		err = fmt.Errorf("%s is not a file", name)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// UnmarshalJSON keeps the order of the members. Null is an empty object, and the last of
// duplicate keys counts, as in Python.
func (p *Pairs[T]) UnmarshalJSON(text []byte) error {
	*p = nil
	dec := json.NewDecoder(bytes.NewReader(text))
	switch open, err := dec.Token(); {
	case err != nil:
		return err
	case open == nil:
		return nil
	case open != json.Delim('{'):
		return errors.New("not an object")
	}
	at := map[string]int{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		var m Pair[T]
		if err := dec.Decode(&m.Value); err != nil {
			return err
		}
		m.Key, _ = key.(string)
		if i, again := at[m.Key]; again {
			(*p)[i] = m
			continue
		}
		if len(*p) == maxPairs {
			return fmt.Errorf("an object has more than %d members", maxPairs)
		}
		at[m.Key] = len(*p)
		*p = append(*p, m)
	}
	return nil
}

// UnmarshalJSON reads Python's isoformat without a zone. Any other text is the zero time.
func (t *Time) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	at, _ := time.Parse("2006-01-02T15:04:05", s) // it accepts a fraction, too
	*t = Time(at)
	return nil
}
