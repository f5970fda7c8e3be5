package cpuset_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, in, want, wantErr string
	}{
		{name: "nothing", in: "", want: ""},
		{name: "only a newline", in: "\n", want: ""},
		{name: "a newline and a NUL as in dumps of sysfs", in: "\n\x00", want: ""},
		{name: "one", in: "5", want: "5"},
		{name: "ranges and singles", in: "0-3,8,10-11\n", want: "0-3,8,10-11"},
		{name: "trailing NUL", in: "0-7\n\x00", want: "0-7"},
		{name: "blanks", in: " 0-1, 4 6 ", want: "0-1,4,6"},
		{name: "neighbours are joined", in: "3,1,2,2", want: "1-3"},
		{name: "the last number", in: "8191", want: "8191"},
		{name: "one too many", in: "8192", wantErr: "8192 is beyond 8191"},
		{name: "a range that must not be allocated", in: "0-4294967295", wantErr: "4294967295 is beyond 8191"},
		{name: "a number that fits no integer", in: "99999999999999999999999", wantErr: "beyond 8191"},
		{name: "backwards", in: "5-3", wantErr: "ends before it begins"},
		{name: "negative", in: "-1", wantErr: "a number is missing"},
		{name: "open range", in: "4-", wantErr: "a number is missing"},
		{name: "sign", in: "+4", wantErr: "not a number"},
		{name: "a word", in: "all", wantErr: "not a number"},
		{name: "a stride", in: "0-10:2/5", wantErr: "not a number"},
		{name: "too long", in: strings.Repeat("1,", 40<<10), wantErr: "too long"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := cpuset.Parse(tt.in)
			checkParsed(t, got, err, tt.want, tt.wantErr)
		})
	}
}

func TestParseMask(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, in, want, wantErr string
	}{
		{name: "nothing", in: "\n", want: ""},
		{name: "one word", in: "f0\n", want: "4-7"},
		{name: "words, highest first", in: "ff,00000000", want: "32-39"},
		{name: "two words and a NUL", in: "00000001,80000001\n\x00", want: "0,31-32"},
		{name: "zeros beyond the highest number", in: strings.Repeat("00000000,", 300) + "3", want: "0-1"},
		{name: "beyond the highest number", in: "1" + strings.Repeat(",00000000", 256), wantErr: "8192 is beyond 8191"},
		{name: "not hexadecimal", in: "fg", wantErr: `"fg" is not a 32-bit hexadecimal word`},
		{name: "a word of more than 32 bits", in: "100000000", wantErr: "32-bit"},
		{name: "a list", in: "0-3", wantErr: "32-bit"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := cpuset.ParseMask(tt.in)
			checkParsed(t, got, err, tt.want, tt.wantErr)
		})
	}
}

func checkParsed(t *testing.T, got cpuset.Set, err error, want, wantErr string) {
	t.Helper()
	switch {
	case wantErr == "" && err != nil:
		t.Fatalf("got error %v, want %q", err, want)
	case wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)):
		t.Fatalf("got error %v, want one with %q", err, wantErr)
	case got.String() != want:
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestOperations(t *testing.T) {
	t.Parallel()
	low, high := cpuset.Of(0, 1, 2, 3), cpuset.Of(2, 3, 4, 200)
	for _, tt := range []struct {
		name string
		got  cpuset.Set
		want string
	}{
		{"union", low.Union(high), "0-4,200"},
		{"union the other way", high.Union(low), "0-4,200"},
		{"intersection", high.Intersect(low), "2-3"},
		{"difference", high.Difference(low), "4,200"},
		{"difference with itself", high.Difference(high), ""},
		{"numbers out of range", cpuset.Of(-1, 7, cpuset.Max), "7"},
		{"the operands are unchanged", low, "0-3"},
	} {
		if tt.got.String() != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, tt.got, tt.want)
		}
	}
	if !high.Difference(cpuset.Of(200)).Equal(cpuset.Of(2, 3, 4)) {
		t.Error("a set that lost its highest member differs from one that never had it")
	}
	if low.Disjoint(high) || !low.Disjoint(cpuset.Of(4, 64)) || !low.Disjoint(cpuset.Set{}) {
		t.Error("Disjoint is wrong")
	}
	if !low.Contains(3) || low.Contains(4) || low.Contains(-1) || low.Contains(1<<40) {
		t.Error("Contains is wrong")
	}
	if high.Len() != 4 || (cpuset.Set{}).Len() != 0 {
		t.Error("Len is wrong")
	}
	must.Equal(t, []int{2, 3, 4, 200}, high.Ints())
}

func TestBytes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		list string
		want []byte
	}{
		{"", []byte{}},
		{"0", []byte{1}},
		{"0-7", []byte{0xff}},
		{"1,8-9,63", []byte{2, 3, 0, 0, 0, 0, 0, 0x80}},
		{"64", []byte{0, 0, 0, 0, 0, 0, 0, 0, 1}},
	} {
		s, err := cpuset.Parse(tt.list)
		must.Do(t, err)
		if diff := cmp.Diff(tt.want, s.Bytes()); diff != "" {
			t.Errorf("%q: %s", tt.list, diff)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "0-3,8,10-11\n\x00", "0-10:2/5", "0-4294967295", "ff,00000000", "4-", "a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if mask, err := cpuset.ParseMask(text); err == nil && len(mask.Bytes()) > cpuset.Max/8 {
			t.Fatalf("mask %q has more members than a set", text)
		}
		s, err := cpuset.Parse(text)
		if err != nil {
			return
		}
		back, err := cpuset.Parse(s.String())
		if err != nil || !back.Equal(s) {
			t.Fatalf("%q: %q came back as %q, %v", text, s, back, err)
		}
		ids := s.Ints()
		if len(ids) != s.Len() || !slices.IsSorted(ids) || !cpuset.Of(ids...).Equal(s) {
			t.Fatalf("%q: Ints %v do not make the set %q", text, ids, s)
		}
	})
}
