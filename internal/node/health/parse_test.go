package health

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// facts formats the facts of a recorded log, one per line.
func facts(t *testing.T, name string) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(must.Read(t, filepath.Join("testdata", name))) {
		f, ok := Parse([]byte(strings.TrimSuffix(line, "\n")))
		if !ok {
			continue
		}
		fmt.Fprintf(&b, "%d %s %s", f.Seq, f.Kind, f.PCI)
		if f.Xid != 0 {
			fmt.Fprintf(&b, " %d", f.Xid)
		}
		if f.Xid == 154 {
			fmt.Fprintf(&b, " to %d", f.To)
		}
		fmt.Fprintf(&b, " %s\n", f.Severity)
	}
	return strings.ReplaceAll(strings.ReplaceAll(b.String(), " \n", "\n"), " \n", "\n")
}

func TestRecordedLogs(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"nvidia.kmsg": `1024 driver-loaded
2203 xid 0000:1d:00.0 31
2204 xid 0000:1d:00.0 45
2205 xid 0000:1d:00.0 94
2206 xid 0000:1a:00.0 145 Nonfatal
2207 xid 0000:1a:00.0 149 Fatal
2208 xid 0000:1b:00.0 79
2209 fallen 0000:1b:00.0
2210 xid 0000:1b:00.0 154 to 2
2211 xid 0008:01:00.0 154 to 0
2212 fallen 0000:1c:00.0
2213 fallen 0000:1e:00.0
2218 xid 0000:1a:00.0 13
`,
		"amd.kmsg": `1500 page-fault 0000:1d:00.0
1502 ring-timeout 0000:1d:00.0
1503 ring-timeout
1504 reset-begin 0000:1d:00.0
1506 reset-done 0000:1d:00.0
1507 reset-begin 0000:1d:00.0
1508 reset-failed 0000:1d:00.0
1509 reset-failed 0000:1d:00.0
1511 reset-failed
1512 reset-failed 0000:1d:00.0
1513 ras 0000:1a:00.0
1514 ras 0000:1a:00.0
1517 fallen 0000:1b:00.0
1518 vram-lost 0000:1d:00.0
1519 page-fault 0000:1d:00.0
`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			must.Equal(t, want, facts(t, name))
		})
	}
}

// TestBuiltInAMD has a line of an amdgpu that is no module, so that the kernel names none.
func TestBuiltInAMD(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"[drm:amdgpu_job_timedout [amdgpu]]", "[drm:amdgpu_job_timedout]"} {
		f, ok := Parse([]byte("3,9,1,-;" + from + " *ERROR* ring comp_1.0.0 timeout, signaled seq=2, emitted seq=4"))
		if !ok || f.Kind != KindRing {
			t.Errorf("%s: %+v", from, f)
		}
	}
}

// Lines that a process can make the kernel write are not trusted.
func TestForgedLines(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, record string }{
		{"root wrote it to /dev/kmsg", `11,9,1,-;NVRM: Xid (PCI:0000:1d:00): 79, GPU has fallen off the bus.`},
		{"a daemon's facility", `30,9,1,-;NVRM: Xid (PCI:0000:1d:00): 48, pid=1`},
		{"the name of a program that crashed", `6,9,1,-;NVRM: Xid (PCI[812]: segfault at 0 ip 0 sp 0 error 4`},
		{"a line feed in a name", `6,9,1,-;overlayfs: a\x0aNVRM: Xid (PCI:0000:1d:00): 79, x`},
		{"behind a prefix", `6,9,1,-;audit: comm="NVRM: Xid (PCI:0000:1d:00): 79,"`},
		{"a continuation", ` NVRM: Xid (PCI:0000:1d:00): 79, x`},
		{"no record", `NVRM: Xid (PCI:0000:1d:00): 79, x`},
		{"a process called GPU reset begin", `6,9,1,-;amdgpu 0000:1d:00.0: amdgpu:  Process GPU reset begin pid 5 thread ring timeout pid 5`},
		{"the version of a client", `3,9,1,-;NVRM: API mismatch: the client has the version GPU 0000:1d:00.0: GPU has fallen off the bus., but\x0aNVRM: this kernel module has the version 580.95.05.`},
		{"the version of a client, with a line feed", `3,9,1,-;NVRM: API mismatch: the client has the version \x0aNVRM: GPU at 0000:1d:00.0 has fallen off the bus., but`},
		{"the version of a client, named", `3,9,1,-;NVRM: API mismatch: the client 'PCI:0000:1d:00' (pid 1)\x0aNVRM: has the version fallen off the bus and is not responding, but`},
		{"no address", `3,9,1,-;NVRM: Xid (PCI:0000:1d): 79, x`},
		{"no number", `3,9,1,-;NVRM: Xid (PCI:0000:1d:00): abc, pid=1`},
		{"a number too large", `3,9,1,-;NVRM: Xid (PCI:0000:1d:00): 12345678901, pid=1`},
		{"a priority too large", `99999999999,9,1,-;NVRM: Xid (PCI:0000:1d:00): 79, x`},
		{"a negative time", `3,9,-1,-;NVRM: Xid (PCI:0000:1d:00): 79, x`},
	} {
		if f, ok := Parse([]byte(row.record)); ok {
			t.Errorf("%s: believed as %+v", row.name, f)
		}
	}
	// A name within a genuine line changes nothing.
	f, ok := Parse([]byte(`3,9,1,-;NVRM: Xid (PCI:0000:1d:00): 31, pid=7, name=): 79, pid=1, Ch 00000008`))
	if !ok || f.Xid != 31 {
		t.Errorf("got %+v", f)
	}
}

// The severity of an NVLink Xid is the one that ends the line, whatever a process is
// called.
func TestSeverity(t *testing.T) {
	t.Parallel()
	names := []string{
		"ray::WorkerDict", "python3", "<unknown>", "", ",", ", Nonfatal", ", Fatal XC0 i0", "Fatal XC0 i0 Li", "Nonfatal XC0 i0", "a, Fatal XC1 i1",
		"x) Fatal (0x0)", "Nonfatal, Fatal", "Fatal XC 1 i 2 ", "Fatal, Fatal", "', name=' Fatal", "a', Fatal", "Fatal Fatal Fat", `\xff\xff\xff\xff, Fatal`, " Fatal XC0 i0 L", "145, pid=1, na", "): 149, pid=1, ", ", name=Fatal XC", "Link 13 (0x1)", `\x5cx0aFatal`, `\xff\xfe\x0a`,
	}
	for _, row := range []struct{ message, want string }{
		{"RLW_SRC_TRACK Fatal XC0 i0 Link 13 (0x00000007 0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)", "Fatal"},
		{"RLW_REMAP Nonfatal XC1 i0 Link -1 (0x00000082 0x00000040 0x00000000 0x00000000 0x00000000 0x00000000)", "Nonfatal"},
		{"NETIR_INT  Fatal   XC0 i0 Link -1", "Fatal"},
		{`MSE degraded Nonfatal XC0 i1 Link 02 (0x0 0x0 0x0 0x0 0x0 0x0)\x0a`, "Nonfatal"},
		{"NVLINK_SW_DEFINED_ERROR  Fatal   XC0 i0 Link 02 : Link Down While Active.", "Fatal"},
		{"NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]", "Fatal"}, // before r575
		{"NETIR_LINK_EVT  Fatal   XC 1 i 2 Link -1 (0x021425c6 0x00000000)", "Fatal"},
		{"TREX_ERR Nonfatal XC 00 i 00 Link 02 (0x00000005)", "Nonfatal"},
		{"NETIR/LINK_EVT Fatal XC1 i2 Link 1", "Fatal"},
		{"NVLPW_CTRL/NVLW Nonfatal XC0 i0 Link 0x05", "Nonfatal"},
		{"TLW_RX/TLW_RX_PIPE0 Fatal XC0 i0 Link -1 (0x00000010)", "Fatal"},
		{"NVLPW_CTRL Fatal XC0 i0 Link 05", "Fatal"},
		{"MSE Fatal XC1 i0 Links 01-03 [0xa/0xb]", "Fatal"},
		{"SAW_MVB Non-fatal XC0 i0 Link 0", "Nonfatal"},
		{"NETIR_LINK_EVT FATAL link=1 unit=2", "Fatal"},
		{"NETIR_FATAL_EVT Nonfatal XC0 i0 Link 09", "Nonfatal"},
		{"a message of another form", ""},
		{"Link 13 (0x0)", ""},
		{"", ""},
	} {
		for _, name := range names {
			for _, process := range []string{"pid=4711, name=" + name + ", ", "pid='4711', name='" + name + "', "} {
				f, ok := Parse([]byte("3,9,1,-;NVRM: Xid (PCI:0000:1d:00): 145, " + process + row.message))
				if !ok || f.Xid != 145 || f.PCI != "0000:1d:00.0" || f.Severity != row.want {
					t.Errorf("%q of %q: %+v, want %q", row.message, name, f, row.want)
				}
			}
			if f, _ := Parse([]byte("3,9,1,-;NVRM: Xid (PCI:0000:1d:00): 149, " + row.message)); f.Severity != row.want {
				t.Errorf("%q of no process: %+v, want %q", row.message, f, row.want)
			}
			change := "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
			f, _ := Parse([]byte("3,9,1,-;NVRM: Xid (PCI:0000:1d:00): 154, pid=4711, name=" + name + ", " + change))
			if f.Xid != 154 || f.To != 2 {
				t.Errorf("%q: %+v", name, f)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"nvidia.kmsg", "amd.kmsg"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		must.Do(f, err)
		for line := range strings.Lines(string(text)) {
			f.Add([]byte(strings.TrimSuffix(line, "\n")))
		}
	}
	f.Fuzz(func(t *testing.T, record []byte) {
		fact, ok := Parse(record)
		if !ok {
			return
		}
		if len(fact.Text) > maxText || fact.Xid < 0 || fact.To < -1 || fact.To > 255 || fact.Kind == "" {
			t.Errorf("%+v", fact)
		}
		if fact.PCI != "" && normalPCI(fact.PCI) != fact.PCI {
			t.Errorf("address %q", fact.PCI)
		}
		if fact.Kind == KindXid && fact.PCI == "" {
			t.Errorf("an Xid of no GPU: %+v", fact)
		}
		in := machine(8)
		in.Kernel = []Fact{fact}
		state, _, _ := Judge(State{}, in)
		if len(state.Marks) > 2 {
			t.Errorf("%d marks of one line", len(state.Marks))
		}
	})
}

// The cost of an ordinary line, as nearly all are.
func BenchmarkParseOrdinary(b *testing.B) {
	line := []byte("6,2219,97000000,-;docker0: port 3(veth3a) entered forwarding state of a bridge with many ports")
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := Parse(line); ok {
			b.Fatal("believed")
		}
	}
}

// TestDocument compares docs/health.md with the checks and the table of Xids.
func TestDocument(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/health.md")
	must.Do(t, err)
	var rows []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z]+\\.[a-z]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		rows = append(rows, m[1])
	}
	must.Equal(t, slices.Sorted(slices.Values(Checks)), slices.Sorted(slices.Values(rows)))
	want, got := map[string]string{}, map[string]string{}
	for number := range XidLast + 1 {
		class := LookupXid(number).Class
		want[string(class)] = list(class)
	}
	want[string(XidUnknown)] = "all others"
	_, table, _ := strings.Cut(string(page), "\n## Xids\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\| ([^|]*) \\|").FindAllStringSubmatch(table, -1) {
		got[m[1]] = m[2]
	}
	must.Equal(t, want, got)
	for i, name := range levels {
		if i > 0 && !strings.Contains(string(page), "| `"+name+"` |") {
			t.Errorf("no row for the level %s", name)
		}
	}
}

// list returns the Xids of a class: "31-32, 45".
func list(class XidClass) string {
	var parts []string
	inClass := func(number int) bool { return LookupXid(number).Class == class }
	for i := 0; i <= XidLast; i++ {
		if !inClass(i) {
			continue
		}
		from := i
		for inClass(i + 1) {
			i++
		}
		part := strconv.Itoa(from)
		if i > from {
			part = fmt.Sprintf("%d-%d", from, i)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}
