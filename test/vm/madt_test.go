package vm

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/test/must"
)

// madt makes a table with processors of the given APIC IDs, and an I/O APIC
// after the first.
func madt(ids ...byte) []byte {
	b := make([]byte, 44)
	copy(b, "APIC")
	for i, id := range ids {
		b = append(b, 0, 8, byte(i), id, 1, 0, 0, 0)
		if i == 0 {
			b = append(b, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
		}
	}
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)))
	return b
}

func TestReorderMADT(t *testing.T) {
	t.Parallel()
	in := madt(0, 1, 2, 3, 4, 5)
	out, err := reorderMADT(in, 2)
	must.Do(t, err)
	if len(out) != len(in) {
		t.Fatalf("%d bytes became %d", len(in), len(out))
	}
	var ids []byte
	for i := range 6 {
		ids = append(ids, out[44+8*i+3])
	}
	if diff := cmp.Diff([]byte{0, 2, 4, 1, 3, 5}, ids); diff != "" {
		t.Errorf("order of the APIC IDs:\n%s", diff)
	}
	var sum byte
	for _, c := range out {
		sum += c
	}
	if sum != 0 {
		t.Errorf("the bytes add up to %d", sum)
	}
	if was, is := binary.LittleEndian.Uint32(in[24:]), binary.LittleEndian.Uint32(out[24:]); is <= was {
		t.Errorf("OEM revision %d is not above the firmware's %d", is, was)
	}
}

func TestCpioArchive(t *testing.T) {
	t.Parallel()
	got := string(cpioArchive([]cpioFile{{"dir", 0o040755, nil}, {"f", 0o100644, []byte("abc")}}))
	want := "07070100000001000041ed000000000000000000000001000000000000000000000000000000000000000000000000" +
		"0000000400000000dir\x00\x00\x00" +
		"07070100000002000081a4000000000000000000000001000000000000000300000000000000000000000000000000" +
		"0000000200000000f\x00abc\x00" +
		"0707010000000300000000000000000000000000000001000000000000000000000000000000000000000000000000" +
		"0000000b00000000TRAILER!!!\x00\x00\x00\x00"
	must.Equal(t, want, got)
}
