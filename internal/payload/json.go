package payload

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
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
	values []Value
	index  map[string]int // created when linear search would be slow
}

// indexFrom is the number of keys at which an Object starts to keep an index.
const indexFrom = 16

func (o *Object) find(key string) int {
	if o == nil {
		return -1
	}
	if o.index != nil {
		if i, ok := o.index[key]; ok {
			return i
		}
		return -1
	}
	for i, k := range o.keys {
		if k == key {
			return i
		}
	}
	return -1
}

// Set adds a member, or replaces the value of an existing one.
func (o *Object) Set(key string, v Value) {
	if i := o.find(key); i >= 0 {
		o.values[i] = v
		return
	}
	o.keys, o.values = append(o.keys, key), append(o.values, v)
	switch {
	case o.index != nil:
		o.index[key] = len(o.keys) - 1
	case len(o.keys) == indexFrom:
		o.index = make(map[string]int, 2*indexFrom)
		for i, k := range o.keys {
			o.index[k] = i
		}
	}
}

// Get returns the value of a key and whether the key is there.
func (o *Object) Get(key string) (Value, bool) {
	if i := o.find(key); i >= 0 {
		return o.values[i], true
	}
	return nil, false
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
			if !yield(o.keys[i], o.values[i]) {
				return
			}
		}
	}
}

// ParseObject reads a JSON text that is an object, by the rules of Python's json.loads:
// NaN, Infinity and -Infinity are numbers, and control characters in strings are
// errors. Only white space may follow the object.
func ParseObject(doc string, lim Limits) (*Object, error) {
	p := parser{in: doc, lim: lim.orDefault()}
	v, err := p.value(0)
	if err == nil {
		if p.space(); p.pos < len(p.in) {
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
	lim    Limits
}

func (p *parser) space() {
	for ; p.pos < len(p.in); p.pos++ {
		if c := p.in[p.pos]; c > ' ' || c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return
		}
	}
}

// next skips white space and consumes c if it comes next.
func (p *parser) next(c byte) bool {
	if p.space(); p.pos < len(p.in) && p.in[p.pos] == c {
		p.pos++
		return true
	}
	return false
}

func (p *parser) value(depth int) (Value, error) {
	if p.values++; p.values > p.lim.Values {
		return nil, fmt.Errorf("more than %d values", p.lim.Values)
	}
	if depth > p.lim.Depth {
		return nil, fmt.Errorf("nested deeper than %d", p.lim.Depth)
	}
	switch {
	case p.next('{'):
		return p.object(depth + 1)
	case p.next('['):
		return p.list(depth + 1)
	case p.next('"'):
		return p.str()
	}
	if p.pos < len(p.in) && p.in[p.pos] >= '0' && p.in[p.pos] <= '9' {
		return p.number()
	}
	switch {
	case p.word("null"):
		return nil, nil
	case p.word("true"):
		return true, nil
	case p.word("false"):
		return false, nil
	case p.word("NaN"):
		return Float(math.NaN()), nil
	case p.word("Infinity"):
		return Float(math.Inf(1)), nil
	case p.word("-Infinity"):
		return Float(math.Inf(-1)), nil
	}
	return p.number()
}

// word consumes a word if it comes next.
func (p *parser) word(w string) bool {
	if !strings.HasPrefix(p.in[p.pos:], w) {
		return false
	}
	p.pos += len(w)
	return true
}

func (p *parser) object(depth int) (Value, error) {
	o := &Object{}
	if p.next('}') {
		return o, nil
	}
	for {
		if !p.next('"') {
			return nil, errors.New("a key in double quotes is missing")
		}
		key, err := p.str()
		if err != nil {
			return nil, err
		}
		if !p.next(':') {
			return nil, errors.New("a colon is missing after a key")
		}
		v, err := p.value(depth)
		if err != nil {
			return nil, err
		}
		o.Set(key, v)
		if p.next('}') {
			return o, nil
		}
		if !p.next(',') {
			return nil, errors.New("a comma or } is missing in an object")
		}
	}
}

func (p *parser) list(depth int) (Value, error) {
	var l []Value
	if p.next(']') {
		return l, nil
	}
	for {
		v, err := p.value(depth)
		if err != nil {
			return nil, err
		}
		l = append(l, v)
		if p.next(']') {
			return l, nil
		}
		if !p.next(',') {
			return nil, errors.New("a comma or ] is missing in a list")
		}
	}
}

// str reads a string after its opening quote.
func (p *parser) str() (string, error) {
	start := p.pos
	var b []byte // nil until the first escape, so that plain strings share the document's memory
	for p.pos < len(p.in) {
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
			r, err := p.escape()
			if err != nil {
				return "", err
			}
			b = appendRune(b, r)
			start = p.pos
		default:
			p.pos++
		}
	}
	return "", errors.New("a string is not closed")
}

func (p *parser) escape() (rune, error) {
	bad := errors.New("an escape in a string is not one of JSON's")
	if p.pos+1 >= len(p.in) {
		return 0, bad
	}
	c := p.in[p.pos+1]
	if c == 'u' {
		r, ok := p.hex(p.pos)
		if !ok {
			return 0, bad
		}
		p.pos += 6
		if low, ok := p.hex(p.pos); ok && isHigh(r) && isLow(low) {
			p.pos += 6
			return 0x10000 + (r-0xD800)<<10 + (low - 0xDC00), nil
		}
		return r, nil
	}
	i := strings.IndexByte(`"\/bfnrt`, c)
	if i < 0 {
		return 0, bad
	}
	p.pos += 2
	return rune("\"\\/\b\f\n\r\t"[i]), nil
}

// hex reads the escape \uXXXX at an offset.
func (p *parser) hex(at int) (rune, bool) {
	if at+6 > len(p.in) || p.in[at] != '\\' || p.in[at+1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(p.in[at+2:at+6], 16, 16) // accepts only hex digits
	return rune(n), err == nil
}

func isHigh(r rune) bool { return r >= 0xD800 && r < 0xDC00 }
func isLow(r rune) bool  { return r >= 0xDC00 && r < 0xE000 }

// appendRune is utf8.AppendRune, except that it keeps surrogates.
func appendRune(b []byte, r rune) []byte {
	if isHigh(r) || isLow(r) {
		return append(b, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0xBF, 0x80|byte(r)&0xBF)
	}
	return utf8.AppendRune(b, r)
}

func (p *parser) number() (Value, error) {
	s, i := p.in[p.pos:], 0
	digits := func() int {
		from := i
		for i < len(s) && s[i] >= '0' && s[i] <= '9' {
			i++
		}
		return i - from
	}
	if i < len(s) && s[i] == '-' {
		i++
	}
	if i < len(s) && s[i] == '0' {
		i++
	} else if digits() == 0 {
		return nil, errors.New("a value is missing or not one of JSON's")
	}
	end := i // a fraction or exponent belongs to the number only if it is complete
	if i < len(s) && s[i] == '.' {
		i++
		if digits() > 0 {
			end = i
		} else {
			i = end
		}
	}
	if i < len(s) && (s[i] == 'e' || s[i] == 'E') {
		if i++; i < len(s) && (s[i] == '+' || s[i] == '-') {
			i++
		}
		if digits() > 0 {
			end = i
		}
	}
	text := s[:end]
	p.pos += end
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
