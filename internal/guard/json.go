package guard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Bounds on a request's JSON. Docker's own command line stays below depth 6 and a thousand
// values, and its environment, which may hold a submission, below the 2 MiB that Linux allows.
const (
	maxBody  = 3 << 20 // bytes
	maxDepth = 12
	maxNodes = 50_000
)

// parse reads one JSON object into maps, slices, strings, json.Number, bool and nil. It refuses
// what could be read in two ways: the engine's own decoder takes the last of two equal keys,
// replaces bytes that are not UTF-8 and ignores what follows the object.
func parse(body []byte) (map[string]any, error) {
	obj, err := parseObject(body)
	if err != nil {
		return nil, fmt.Errorf("%w; send what Docker's own client sends, and put what is large into a file", err)
	}
	return obj, nil
}

func parseObject(body []byte) (map[string]any, error) {
	if len(body) > maxBody {
		return nil, fmt.Errorf("the body is larger than %d bytes", maxBody)
	}
	if !utf8.Valid(body) {
		return nil, errors.New("the body is not UTF-8")
	}
	p := parser{dec: json.NewDecoder(bytes.NewReader(body))}
	p.dec.UseNumber()
	tok, err := p.dec.Token()
	if err != nil {
		return nil, fmt.Errorf("the body is not JSON: %w", err)
	}
	if tok != json.Delim('{') {
		return nil, errors.New("the body is not a JSON object")
	}
	obj, err := p.object(1)
	if err != nil {
		return nil, err
	}
	if _, err := p.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("unexpected data after the JSON object")
	}
	return obj, nil
}

type parser struct {
	dec   *json.Decoder
	nodes int
}

func (p *parser) object(depth int) (map[string]any, error) {
	obj := map[string]any{}
	for p.dec.More() {
		tok, err := p.dec.Token()
		if err != nil {
			return nil, fmt.Errorf("the body is not JSON: %w", err)
		}
		key, _ := tok.(string)
		if strings.ContainsRune(key, 0) {
			return nil, errors.New("a key contains a NUL byte")
		}
		if _, twice := obj[key]; twice {
			return nil, fmt.Errorf("duplicate key %.40q", key)
		}
		if obj[key], err = p.value(depth); err != nil {
			return nil, err
		}
	}
	return obj, p.closing()
}

func (p *parser) array(depth int) ([]any, error) {
	list := []any{}
	for p.dec.More() {
		v, err := p.value(depth)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, p.closing()
}

func (p *parser) closing() error {
	if _, err := p.dec.Token(); err != nil {
		return fmt.Errorf("the body is not JSON: %w", err)
	}
	return nil
}

func (p *parser) value(depth int) (any, error) {
	if p.nodes++; p.nodes > maxNodes {
		return nil, fmt.Errorf("the body has more than %d values", maxNodes)
	}
	tok, err := p.dec.Token()
	if err != nil {
		return nil, fmt.Errorf("the body is not JSON: %w", err)
	}
	switch t := tok.(type) {
	case json.Delim:
		if depth >= maxDepth {
			return nil, fmt.Errorf("the body is nested more than %d levels deep", maxDepth)
		}
		if t == '{' {
			return p.object(depth + 1)
		}
		return p.array(depth + 1)
	case string:
		if strings.ContainsRune(t, 0) {
			return nil, errors.New("a string contains a NUL byte")
		}
	}
	return tok, nil
}

// empty reports whether v requests nothing. An object with a key requests something, since the
// key may be the request.
func empty(v any) bool {
	if obj, ok := v.(map[string]any); ok {
		return len(obj) == 0
	}
	return zero(v)
}

// zero reports whether v has only zero values: clients send every field they know, and most are
// zero.
func zero(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == ""
	case json.Number:
		f, err := v.Float64()
		return err == nil && f == 0
	case []any:
		for _, e := range v {
			if !zero(e) {
				return false
			}
		}
		return true
	case map[string]any:
		for _, e := range v {
			if !zero(e) {
				return false
			}
		}
		return true
	}
	return false
}
