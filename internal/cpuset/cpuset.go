// Package cpuset provides sets of the small numbers that Linux uses for CPUs
// and NUMA nodes, with the kernel's text formats and systemd's binary one. It
// knows nothing about topology.
package cpuset

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Max is the number of CPUs (or nodes) that a Set can name: 0 to Max-1. It is
// the largest NR_CPUS that a kernel can be configured with.
const Max = 8192

// maxText bounds the input of Parse and ParseMask, in bytes. All numbers up to
// Max, one by one with commas, take 40 KiB.
const maxText = 64 << 10

// Set is an immutable set of numbers from 0 to Max-1. The zero value is the
// empty set.
type Set struct {
	words []uint64 // bit i of words[i/64]; the last word is never 0, so equal sets are equal slices
}

// Of returns the set of these numbers. It ignores numbers outside 0 to Max-1,
// so that -1, which means "unknown" elsewhere, adds nothing.
func Of(ids ...int) Set {
	var s Set
	for _, id := range ids {
		if id >= 0 && id < Max {
			s.add(id)
		}
	}
	return s
}

// Parse reads the kernel's list format: "0-3,8,10-11", with blanks allowed
// instead of or next to commas, "0-10:2/5" for the first 2 of each 5, and a
// newline or NUL at the end. Empty text is the empty set.
func Parse(text string) (Set, error) {
	text, err := trim(text)
	if err != nil {
		return Set{}, err
	}
	var s Set
	for _, field := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' || r == '\r' }) {
		if err := s.addField(field); err != nil {
			return Set{}, err
		}
	}
	return s, nil
}

// ParseMask reads the kernel's mask format: hexadecimal words of 32 bits, the
// highest first, separated by commas: "ff,00000000" is 32-39.
func ParseMask(text string) (Set, error) {
	text, err := trim(text)
	if err != nil {
		return Set{}, err
	}
	var s Set
	if text == "" {
		return s, nil
	}
	groups := strings.Split(strings.TrimPrefix(text, "0x"), ",")
	slices.Reverse(groups)
	for i, group := range groups {
		word, err := strconv.ParseUint(group, 16, 32)
		if err != nil {
			return Set{}, fmt.Errorf("parse CPU mask: %q is not a 32-bit hexadecimal word", group)
		}
		for ; word != 0; word &= word - 1 {
			id := i*32 + bits.TrailingZeros64(word)
			if id >= Max {
				return Set{}, beyond(strconv.Itoa(id))
			}
			s.add(id)
		}
	}
	return s, nil
}

// String returns the set in the kernel's list format: "0-3,8"; "" if it is empty.
func (s Set) String() string {
	var b strings.Builder
	ids := s.Ints()
	for i := 0; i < len(ids); {
		j := i
		for j+1 < len(ids) && ids[j+1] == ids[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(ids[i]))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(ids[j]))
		}
		i = j + 1
	}
	return b.String()
}

// Bytes returns the set as a little-endian bit mask, as in systemd's D-Bus
// properties AllowedCPUs and AllowedMemoryNodes (type ay): bit i%8 of byte i/8.
// There are no trailing zero bytes; the empty set has no bytes.
func (s Set) Bytes() []byte {
	out := make([]byte, 0, len(s.words)*8)
	for _, w := range s.words {
		for range 8 {
			out = append(out, byte(w))
			w >>= 8
		}
	}
	for len(out) > 0 && out[len(out)-1] == 0 {
		out = out[:len(out)-1]
	}
	return out
}

// FromBytes returns the set of a mask in the format of Bytes. It ignores bits
// at Max and above.
func FromBytes(mask []byte) Set {
	var s Set
	for i, b := range mask[:min(len(mask), Max/8)] {
		for ; b != 0; b &= b - 1 {
			s.add(i*8 + bits.TrailingZeros8(b))
		}
	}
	return s
}

// Ints returns the members in ascending order.
func (s Set) Ints() []int {
	out := make([]int, 0, s.Len())
	for i, w := range s.words {
		for ; w != 0; w &= w - 1 {
			out = append(out, i*64+bits.TrailingZeros64(w))
		}
	}
	return out
}

// Len returns the number of members.
func (s Set) Len() int {
	n := 0
	for _, w := range s.words {
		n += bits.OnesCount64(w)
	}
	return n
}

// Contains reports whether id is a member.
func (s Set) Contains(id int) bool {
	return id >= 0 && id/64 < len(s.words) && s.words[id/64]>>(id%64)&1 == 1
}

// Union returns the set of what is in s or in t.
func (s Set) Union(t Set) Set {
	if len(s.words) < len(t.words) {
		s, t = t, s
	}
	out := slices.Clone(s.words)
	for i, w := range t.words {
		out[i] |= w
	}
	return Set{out}
}

// Intersect returns the set of what is in both s and t.
func (s Set) Intersect(t Set) Set {
	out := make([]uint64, min(len(s.words), len(t.words)))
	for i := range out {
		out[i] = s.words[i] & t.words[i]
	}
	return trimmed(out)
}

// Difference returns the set of what is in s and not in t.
func (s Set) Difference(t Set) Set {
	out := slices.Clone(s.words)
	for i := range min(len(s.words), len(t.words)) {
		out[i] &^= t.words[i]
	}
	return trimmed(out)
}

// Equal reports whether s and t have the same members.
func (s Set) Equal(t Set) bool { return slices.Equal(s.words, t.words) }

// Disjoint reports whether s and t have no member in common.
func (s Set) Disjoint(t Set) bool { return s.Intersect(t).Len() == 0 }

// add is only for building a new set: it may write to shared words.
func (s *Set) add(id int) {
	if need := id/64 + 1; need > len(s.words) {
		s.words = append(s.words, make([]uint64, need-len(s.words))...)
	}
	s.words[id/64] |= 1 << (id % 64)
}

// addField adds one "a", "a-b" or "a-b:used/group".
func (s *Set) addField(field string) error {
	span, stride, strided := strings.Cut(field, ":")
	first, last, ranged := strings.Cut(span, "-")
	lo, err := number(first)
	if err != nil {
		return err
	}
	hi := lo
	if ranged {
		if hi, err = number(last); err != nil {
			return err
		}
	}
	if hi < lo {
		return fmt.Errorf("parse CPU list: %q ends before it begins", field)
	}
	used, group := 1, 1
	if strided {
		u, g, ok := strings.Cut(stride, "/")
		if !ok || !ranged {
			return fmt.Errorf("parse CPU list: %q is not of the form first-last:used/group", field)
		}
		if used, err = number(u); err != nil {
			return err
		}
		if group, err = number(g); err != nil {
			return err
		}
		if used == 0 || used > group {
			return fmt.Errorf("parse CPU list: %q uses %d of each %d", field, used, group)
		}
	}
	for id := lo; id <= hi; id++ {
		if (id-lo)%group < used {
			s.add(id)
		}
	}
	return nil
}

// number reads one decimal number below Max, without a sign.
func number(text string) (int, error) {
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("parse CPU list: %q is not a number", text)
		}
	}
	n, err := strconv.Atoi(text)
	switch {
	case text == "":
		return 0, fmt.Errorf("parse CPU list: a number is missing")
	case err != nil || n >= Max:
		return 0, beyond(text)
	}
	return n, nil
}

func beyond(number string) error {
	if len(number) > 20 {
		number = number[:20] + "…"
	}
	return fmt.Errorf("parse CPU list: %s is beyond %d, the highest number", number, Max-1)
}

// trim cuts text at a NUL, which ends files copied from sysfs, and removes
// blanks around the rest.
func trim(text string) (string, error) {
	text, _, _ = strings.Cut(text, "\x00")
	if len(text) > maxText {
		return "", fmt.Errorf("parse CPU list: %d bytes are too long", len(text))
	}
	return strings.TrimSpace(text), nil
}

func trimmed(words []uint64) Set {
	for len(words) > 0 && words[len(words)-1] == 0 {
		words = words[:len(words)-1]
	}
	return Set{words}
}
