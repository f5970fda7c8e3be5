package bktest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxInterpolated bounds the strings of one expanded pipeline, in bytes.
const maxInterpolated = 8 << 20

// interpolator expands variables as a pipeline upload does: $NAME, ${NAME}, ${NAME:-word},
// ${NAME-word}, ${NAME:?word}, ${NAME?word} and ${NAME:offset:length}; $$ and \$ are a
// dollar sign.
type interpolator struct {
	env  map[string]string
	used int // bytes written so far
}

// value expands every string of a decoded document, keys included.
func (in *interpolator) value(v any, depth int) (any, error) {
	if depth > 32 {
		return nil, errors.New("nested deeper than 32 levels")
	}
	switch v := v.(type) {
	case string:
		return in.expand(v)
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			x, err := in.value(e, depth+1)
			if err != nil {
				return nil, err
			}
			out[i] = x
		}
		return out, nil
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			key, err := in.expand(k)
			if err != nil {
				return nil, err
			}
			if out[key], err = in.value(e, depth+1); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return v, nil
}

func (in *interpolator) expand(s string) (string, error) {
	out, rest, err := in.scan(s, false, 0)
	if err == nil && rest != "" {
		err = fmt.Errorf("expand %q: unexpected text", s)
	}
	return out, err
}

// scan expands s to its end, or to the brace that closes the word it is in.
func (in *interpolator) scan(s string, inWord bool, depth int) (out, rest string, err error) {
	if depth > 16 {
		return "", "", errors.New("expand: braces nested deeper than 16 levels")
	}
	var b strings.Builder
	for s != "" {
		switch {
		case inWord && s[0] == '}':
			return b.String(), s, nil
		case strings.HasPrefix(s, "$$"), strings.HasPrefix(s, `\$`):
			b.WriteByte('$')
			s = s[2:]
		case strings.HasPrefix(s, "${"):
			var v string
			if v, s, err = in.braced(s[2:], depth); err != nil {
				return "", "", err
			}
			b.WriteString(v)
			in.used += len(v)
		case s[0] == '$' && nameLen(s[1:]) > 0:
			n := 1 + nameLen(s[1:])
			v := in.env[s[1:n]]
			b.WriteString(v)
			in.used += len(v)
			s = s[n:]
		default:
			b.WriteByte(s[0])
			in.used++
			s = s[1:]
		}
		if in.used > maxInterpolated {
			return "", "", fmt.Errorf("the pipeline is longer than %d bytes once its variables are put in", maxInterpolated)
		}
	}
	if inWord {
		return "", "", errors.New("expand: a ${ is not closed; write $$ for a dollar sign")
	}
	return b.String(), "", nil
}

// braced expands what follows "${" and returns what follows its "}".
func (in *interpolator) braced(s string, depth int) (value, rest string, err error) {
	n := nameLen(s)
	if n == 0 {
		return "", "", fmt.Errorf("expand ${%.20s: no variable name; write $$ for a dollar sign", s)
	}
	name, s := s[:n], s[n:]
	value, set := in.env[name]
	op := ""
	for _, o := range []string{":-", ":?", ":", "-", "?"} {
		if strings.HasPrefix(s, o) {
			op = o
			break
		}
	}
	word, s, err := in.scan(s[len(op):], true, depth+1)
	if err != nil {
		return "", "", err
	}
	rest = s[1:]
	switch op {
	case "":
		if word != "" {
			return "", "", fmt.Errorf("expand ${%s%s}: unexpected text after the name", name, word)
		}
	case ":-", ":?":
		set = set && value != ""
	case ":":
		value, err = substring(value, word)
		return value, rest, err
	}
	if set || op == "" {
		return value, rest, nil
	}
	if strings.HasSuffix(op, "?") {
		if word == "" {
			word = "not set"
		}
		return "", "", fmt.Errorf("$%s: %s", name, word)
	}
	return word, rest, nil
}

// substring returns the part "offset" or "offset:length" of v; a negative offset counts
// from the end.
func substring(v, word string) (string, error) {
	off, length, hasLength := strings.Cut(strings.TrimSpace(word), ":")
	o, err := strconv.Atoi(strings.TrimSpace(off))
	if err != nil {
		return "", fmt.Errorf("expand: %q is not an offset", word)
	}
	if o < 0 {
		o = max(o+len(v), 0)
	}
	v = v[min(o, len(v)):]
	if !hasLength {
		return v, nil
	}
	n, err := strconv.Atoi(strings.TrimSpace(length))
	if err != nil || n < 0 {
		return "", fmt.Errorf("expand: %q is not a length", length)
	}
	return v[:min(n, len(v))], nil
}

// nameLen returns the length of the variable name that s begins with.
func nameLen(s string) int {
	for i := range len(s) {
		c := s[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return i
		}
	}
	return len(s)
}
