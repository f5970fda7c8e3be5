package payload

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Value is a JSON value as Python reads it: nil, bool, Int, Float, string, []Value or
// *Object. A string may contain lone surrogates, which JSON can escape. Each is kept as
// the three bytes that its code point would have, so the string is not valid UTF-8.
type Value any

// Int is an integer of any size, in decimal without leading zeros.
type Int string

// Float is a number that was written with a fraction or an exponent, or NaN or
// an infinity.
type Float float64

// Object is a JSON object that keeps the order of its keys. The last value of a
// duplicate key counts, in the place of the first. Nil is an empty object.
type Object struct {
	keys   []string
	values map[string]Value
}

// Set adds a member, or replaces the value of an existing one.
func (o *Object) Set(key string, v Value) {
	if o.values == nil {
		o.values = map[string]Value{}
	}
	if _, ok := o.values[key]; !ok {
		o.keys = append(o.keys, key)
	}
	o.values[key] = v
}

// Get returns the value of a key and whether the key is there.
func (o *Object) Get(key string) (Value, bool) {
	if o == nil {
		return nil, false
	}
	v, ok := o.values[key]
	return v, ok
}

// Len returns the number of members.
func (o *Object) Len() int {
	if o == nil {
		return 0
	}
	return len(o.keys)
}

// All yields the members in order.
func (o *Object) All() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for i := range o.Len() {
			if !yield(o.keys[i], o.values[o.keys[i]]) {
				return
			}
		}
	}
}

// ParseObject reads a JSON text that is an object, by the rules of Python's json.loads:
// NaN, Infinity and -Infinity are numbers, and control characters in strings are
// errors. Only white space may follow the object. No library does this and keeps the order.
func ParseObject(doc string) (*Object, error) {
	p := parser{in: doc}
	v, err := p.value(0)
	if err == nil {
		p.space()
		if p.pos < len(p.in) {
			err = errors.New("something follows the JSON value")
		}
	}
	if err != nil {
		line := 1 + strings.Count(doc[:p.pos], "\n")
		return nil, fmt.Errorf("the payload is not JSON: line %d, byte %d: %w", line, p.pos, err)
	}
	o, ok := v.(*Object)
	if !ok {
		return nil, fmt.Errorf("the payload is a JSON %s; send an object", TypeName(v))
	}
	return o, nil
}

type parser struct {
	in     string
	pos    int
	values int
}

func (p *parser) space() {
	for p.pos < len(p.in) && strings.IndexByte(" \t\n\r", p.in[p.pos]) >= 0 {
		p.pos++
	}
}

// next skips white space and consumes a token if it comes next.
func (p *parser) next(token string) bool {
	p.space()
	found := strings.HasPrefix(p.in[p.pos:], token)
	if found {
		p.pos += len(token)
	}
	return found
}

func (p *parser) value(depth int) (Value, error) {
	p.values++
	if p.values > maxValues {
		return nil, fmt.Errorf("more than %d values", maxValues)
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	switch {
	case p.next("{"):
		o := &Object{}
		return o, p.members("}", func() error {
			if !p.next(`"`) {
				return errors.New("a key in double quotes is missing")
			}
			key, err := p.str()
			if err == nil && !p.next(":") {
				err = errors.New("a colon is missing after a key")
			}
			if err != nil {
				return err
			}
			v, err := p.value(depth + 1)
			o.Set(key, v)
			return err
		})
	case p.next("["):
		var list []Value
		err := p.members("]", func() error {
			v, err := p.value(depth + 1)
			list = append(list, v)
			return err
		})
		return list, err
	case p.next(`"`):
		return p.str()
	case p.next("null"):
		return nil, nil
	case p.next("true"):
		return true, nil
	case p.next("false"):
		return false, nil
	case p.next("NaN"):
		return Float(math.NaN()), nil
	case p.next("Infinity"):
		return Float(math.Inf(1)), nil
	case p.next("-Infinity"):
		return Float(math.Inf(-1)), nil
	}
	return p.number()
}

// members reads what is between commas up to the end of a list or an object.
func (p *parser) members(end string, member func() error) error {
	if p.next(end) {
		return nil
	}
	for {
		if err := member(); err != nil || p.next(end) {
			return err
		}
		if !p.next(",") {
			return fmt.Errorf("a comma or %s is missing", end)
		}
	}
}

// str reads a string after its opening quote.
func (p *parser) str() (string, error) {
	start := p.pos
	var b []byte // nil until the first escape, so that plain strings share the document's memory
	for ; p.pos < len(p.in); p.pos++ {
		switch c := p.in[p.pos]; {
		case c == '"':
			s := p.in[start:p.pos]
			p.pos++
			if b != nil {
				s = string(append(b, s...))
			}
			return s, nil
		case c < ' ':
			return "", errors.New("a control character is inside of a string; escape it")
		case c == '\\':
			b = append(b, p.in[start:p.pos]...)
			p.pos++
			r, ok := p.escaped()
			if !ok {
				return "", errors.New("an escape in a string is not one of JSON's")
			}
			b, start = appendRune(b, r), p.pos+1
		}
	}
	return "", errors.New("a string is not closed")
}

// escaped reads what follows a backslash, and stays at its last byte.
func (p *parser) escaped() (r rune, ok bool) {
	r, ok = hex(p.in[p.pos:])
	if ok {
		p.pos += 4
		if next, ok := strings.CutPrefix(p.in[p.pos+1:], `\`); ok {
			low, _ := hex(next)
			if both := utf16.DecodeRune(r, low); both != utf8.RuneError {
				p.pos += 6
				r = both
			}
		}
		return r, true
	}
	i := -1
	if p.pos < len(p.in) {
		i = strings.IndexByte(`"\/bfnrt`, p.in[p.pos])
	}
	if i < 0 {
		return 0, false
	}
	return rune("\"\\/\b\f\n\r\t"[i]), true
}

// hex reads uXXXX.
func hex(s string) (rune, bool) {
	if len(s) < 5 || s[0] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(s[1:5], 16, 16) // accepts only hex digits
	return rune(n), err == nil
}

// appendRune is utf8.AppendRune, except that it keeps surrogates.
func appendRune(b []byte, r rune) []byte {
	if utf16.IsSurrogate(r) {
		return append(b, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0xBF, 0x80|byte(r)&0xBF)
	}
	return utf8.AppendRune(b, r)
}

// decodeRune is utf8.DecodeRuneInString, except that it decodes the surrogates that
// appendRune wrote.
func decodeRune(s string) (rune, int) {
	if len(s) >= 3 && s[0] == 0xED && s[1]&0xE0 == 0xA0 && s[2]&0xC0 == 0x80 {
		return 0xD000 | rune(s[1]&0x3F)<<6 | rune(s[2]&0x3F), 3
	}
	return utf8.DecodeRuneInString(s)
}

func (p *parser) number() (Value, error) {
	text := p.in[p.pos:]
	if end := strings.IndexFunc(text, func(r rune) bool { return !strings.ContainsRune("0123456789+-.eE", r) }); end >= 0 {
		text = text[:end]
	}
	if !json.Valid([]byte(text)) {
		return nil, errors.New("a value is missing or not one of JSON's")
	}
	p.pos += len(text)
	if !strings.ContainsAny(text, ".eE") {
		if text == "-0" {
			text = "0"
		}
		return Int(text), nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) { // out of range is an infinity or 0, as in Python
		return nil, fmt.Errorf("read number %s: %w", text, err)
	}
	return Float(f), nil
}

// TypeName returns JSON's name for the type of a value, for messages.
func TypeName(v Value) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case Int, Float:
		return "number"
	case string:
		return "string"
	case []Value:
		return "list"
	default:
		return "object"
	}
}
