package vm

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// reorderMADT returns the ACPI table APIC with its processors in the order of
// real servers, where Linux numbers all first threads of the cores and then
// all second ones; QEMU lists siblings side by side. The kernel takes the
// table in place of the firmware's because its OEM revision is higher
// (Documentation/admin-guide/acpi/initrd_table_override.rst).
func reorderMADT(table []byte, threads int) ([]byte, error) {
	const (
		header      = 44 // common header, local APIC address, flags
		oemRevision = 24
		checksum    = 9
	)
	if len(table) < header || !bytes.HasPrefix(table, []byte("APIC")) {
		return nil, errors.New("not an ACPI table named APIC")
	}
	if n := binary.LittleEndian.Uint32(table[4:]); int(n) != len(table) {
		return nil, fmt.Errorf("table APIC says it has %d bytes and has %d", n, len(table))
	}
	var cpus, rest [][]byte
	for b := table[header:]; len(b) > 0; {
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			return nil, errors.New("table APIC holds a cut entry")
		}
		entry := b[:b[1]]
		b = b[b[1]:]
		if entry[0] == 0 && len(entry) >= 4 { // a processor with an 8-bit APIC ID
			cpus = append(cpus, entry)
		} else {
			rest = append(rest, entry)
		}
	}
	slices.SortStableFunc(cpus, func(a, b []byte) int {
		return cmp.Or(cmp.Compare(int(a[3])%threads, int(b[3])%threads), cmp.Compare(a[3], b[3]))
	})
	out := slices.Concat(table[:header], slices.Concat(cpus...), slices.Concat(rest...))
	rev := binary.LittleEndian.Uint32(out[oemRevision:])
	binary.LittleEndian.PutUint32(out[oemRevision:], rev+1)
	out[checksum] = 0
	var sum byte
	for _, c := range out {
		sum += c
	}
	out[checksum] = -sum
	return out, nil
}

// cpioFile is one entry of an initramfs.
type cpioFile struct {
	name string
	mode uint32 // with the file type
	data []byte
}

// cpioArchive writes the "newc" format that the kernel unpacks.
func cpioArchive(files []cpioFile) []byte {
	var b bytes.Buffer
	pad := func() {
		for b.Len()%4 != 0 {
			b.WriteByte(0)
		}
	}
	for i, f := range append(slices.Clone(files), cpioFile{name: "TRAILER!!!"}) {
		fmt.Fprintf(&b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
			i+1, f.mode, 0, 0, 1, 0, len(f.data), 0, 0, 0, 0, len(f.name)+1, 0)
		b.WriteString(f.name)
		b.WriteByte(0)
		pad()
		b.Write(f.data)
		pad()
	}
	return b.Bytes()
}
