// Package cpuset provides sets of the small numbers that Linux uses for CPUs
// and NUMA nodes, with the kernel's text formats and systemd's binary one. It
// knows nothing about topology.
package cpuset

import (
	"fmt"
	"math/big"
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
	bits big.Int // bit i is set if i is a member
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
// instead of or next to commas, and a newline or NUL at the end. Empty text is the empty set.
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
		w := new(big.Int).SetUint64(word)
		s.bits.Or(&s.bits, w.Lsh(w, uint(i)*32))
	}
	if n := s.bits.BitLen(); n > Max {
		return Set{}, rangeError(strconv.Itoa(n - 1))
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
	out := s.bits.Bytes()
	slices.Reverse(out)
	return out
}

// Ints returns the members in ascending order.
func (s Set) Ints() []int {
	out := make([]int, 0, s.Len())
	for i, w := range s.bits.Bits() {
		for ; w != 0; w &= w - 1 {
			out = append(out, i*bits.UintSize+bits.TrailingZeros(uint(w)))
		}
	}
	return out
}

// Len returns the number of members.
func (s Set) Len() (n int) {
	for _, w := range s.bits.Bits() {
		n += bits.OnesCount(uint(w))
	}
	return n
}

// Contains reports whether id is a member.
func (s Set) Contains(id int) bool { return id >= 0 && s.bits.Bit(id) == 1 }

// Union returns the set of what is in s or in t.
func (s Set) Union(t Set) (out Set) {
	out.bits.Or(&s.bits, &t.bits)
	return out
}

// Intersect returns the set of what is in both s and t.
func (s Set) Intersect(t Set) (out Set) {
	out.bits.And(&s.bits, &t.bits)
	return out
}

// Difference returns the set of what is in s and not in t.
func (s Set) Difference(t Set) (out Set) {
	out.bits.AndNot(&s.bits, &t.bits)
	return out
}

// Equal reports whether s and t have the same members.
func (s Set) Equal(t Set) bool { return s.bits.Cmp(&t.bits) == 0 }

// Disjoint reports whether s and t have no member in common.
func (s Set) Disjoint(t Set) bool { return s.Intersect(t).Len() == 0 }

// add is only for building a new set.
func (s *Set) add(id int) { s.bits.SetBit(&s.bits, id, 1) }

// addField adds one "a" or "a-b".
func (s *Set) addField(field string) error {
	first, last, ranged := strings.Cut(field, "-")
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
	for id := lo; id <= hi; id++ {
		s.add(id)
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
		return 0, rangeError(text)
	}
	return n, nil
}

func rangeError(number string) error {
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
