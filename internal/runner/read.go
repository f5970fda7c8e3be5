package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gpu-mode/kbnode/internal/text"
)

// MaxResult bounds a result.json, in bytes: the traces of profiles are part of it.
const MaxResult = 96 << 20

// maxPairs bounds an object whose order matters; a program's report has fewer keys.
const maxPairs = 1 << 18

// ReadResult reads a result.json, which may come from anyone. It ignores unknown keys.
func ReadResult(data []byte) (*Result, error) {
	if len(data) > MaxResult {
		return nil, fmt.Errorf("read %s: it has %d bytes, %d are read at most", ResultFile, len(data), MaxResult)
	}
	var r *Result
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("read %s: %w", ResultFile, err)
	}
	if r == nil {
		return nil, fmt.Errorf("read %s: it is null", ResultFile)
	}
	if r.System != nil && *r.System == (System{}) {
		r.System = nil
	}
	for _, run := range r.Runs {
		if run.Value == nil {
			return nil, fmt.Errorf("read %s: run %s is null", ResultFile, text.Line(run.Key, lineRunes))
		}
	}
	return r, nil
}

// Verdict returns a sentence on how the job went, and whether the submission passed.
func (r *Result) Verdict() (sentence string, ok bool) {
	return verdictOf(r, r.summaries())
}

// Report writes the end of the job's log for people, and all details of what did not
// pass.
func (r *Result) Report(w io.Writer) {
	l := &buildLog{out: w, err: w}
	list := r.summaries()
	for i, s := range list {
		if s.verdict != passed {
			l.done(s, r.Runs[i].Value)
			l.line("")
		}
	}
	sentence, _ := verdictOf(r, list)
	l.line("%s", sentence)
	l.tables(r, list)
}

func (r *Result) summaries() []*evalSummary {
	var list []*evalSummary
	for _, run := range r.Runs {
		list = append(list, summarize(context.Background(), run.Key, run.Value))
	}
	return list
}

// UnmarshalJSON keeps the order of the members. Null is an empty object.
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
	at := map[string]int{} // the last of duplicate keys counts
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

// UnmarshalJSON reads Python's isoformat, with or without a zone. Any other text is the
// zero time.
func (t *localTime) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	*t = localTime{}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02 15:04:05", time.RFC3339} { // each accepts a fraction too
		if at, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			*t = localTime(at)
			break
		}
	}
	return nil
}
