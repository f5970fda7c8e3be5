package health

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Kind is the kind of event that a line of the kernel reports.
type Kind string

// The kinds.
const (
	KindXid         Kind = "xid"
	KindFallen      Kind = "fallen"        // off the bus
	KindLoaded      Kind = "driver-loaded" // NVIDIA's kernel module was loaded: GPUs restarted
	KindResetBegin  Kind = "reset-begin"   // AMD, as are those that follow
	KindResetDone   Kind = "reset-done"
	KindResetFailed Kind = "reset-failed"
	KindRing        Kind = "ring-timeout"
	KindFault       Kind = "page-fault"
	KindRAS         Kind = "ras"       // uncorrectable errors
	KindVRAM        Kind = "vram-lost" // a reset cleared the GPU's memory
	KindSwitch      Kind = "switch"    // a fatal error of an NVSwitch, at PCI; Xid is its SXid
	KindUVM         Kind = "uvm"       // a fatal error of NVIDIA's memory manager: no CUDA starts before a reboot
	KindOverrun     Kind = "overrun"   // of signals.Kmsg: lines were overwritten unread
)

// Fact is what one line of the kernel's log reports about a GPU.
type Fact struct {
	Seq      uint64        // sequence number of the line; increases during one boot
	Up       time.Duration // since the boot; see signals.Kmsg
	Kind     Kind
	PCI      string // dddd:bb:dd.f; "" if the line does not name it
	Xid      int
	To       int    // Xid 154: the recovery action that the driver wants now; -1 if unreadable
	Severity string // NVLink 5: "Fatal", "Nonfatal"
	Text     string // the line, printable
}

// Parse parses one record of /dev/kmsg, "6,1234,5140900,-;NVRM: Xid …". It trusts only
// lines that the kernel itself wrote (facility 0): what root writes to /dev/kmsg has
// another facility. The patterns match only what the driver itself writes before or after
// the text of others: a process's name (15 bytes), the version that a client claims.
func Parse(record []byte) (Fact, bool) {
	// Nearly all lines end here, and must cost no more than this.
	head, body, ok := bytes.Cut(record, []byte(";"))
	if !ok || !bytes.HasPrefix(body, []byte("NVRM: ")) && !bytes.HasPrefix(body, []byte(oldUVM)) && !bytes.HasPrefix(body, []byte("amdgpu")) && !bytes.HasPrefix(body, []byte("[drm")) && !bytes.HasPrefix(body, []byte("nvidia-nvswitch")) {
		return Fact{}, false
	}
	fields := strings.SplitN(string(head), ",", 4)
	if len(fields) < 3 {
		return Fact{}, false
	}
	priority, err := strconv.ParseUint(fields[0], 10, 32)
	if err != nil || priority>>3 != 0 {
		return Fact{}, false
	}
	var f Fact
	if f.Seq, err = strconv.ParseUint(fields[1], 10, 64); err != nil {
		return Fact{}, false
	}
	usec, err := strconv.ParseInt(fields[2], 10, 53)
	if err != nil || usec < 0 {
		return Fact{}, false
	}
	f.Up = time.Duration(usec) * time.Microsecond
	// The kernel writes a line feed within a record as \x0a.
	line := text.Line(strings.ReplaceAll(string(body[:min(len(body), 4*maxText)]), `\x0a`, " "), 4*maxText)
	f.Text = text.Line(line, maxText)
	if rest, ok := strings.CutPrefix(line, "NVRM: "); ok {
		return f, nvidia(rest, &f)
	}
	if rest, ok := strings.CutPrefix(line, "NVRM "); ok {
		f.Kind = KindUVM
		return f, uvmFatal().MatchString(rest)
	}
	if rest, ok := strings.CutPrefix(line, "nvidia-nvswitch"); ok {
		return f, switchLine(rest, &f)
	}
	return f, amd(line, &f)
}

// switchLine parses what follows "nvidia-nvswitch": "3: SXid (PCI:0000:c1:00.0): 20034,
// Fatal, Link 30 LTSSM Fault Up". Nonfatal errors occur at every start of the driver, and
// lines of data follow both kinds.
func switchLine(line string, f *Fact) bool {
	_, line = leadingNumber(line)
	rest, ok := strings.CutPrefix(line, ": SXid (PCI:")
	if !ok {
		return false
	}
	address, rest, ok := strings.Cut(rest, "): ")
	f.PCI = normalPCI(address)
	if !ok || f.PCI == "" {
		return false
	}
	f.Kind = KindSwitch
	f.Xid, rest = leadingNumber(rest)
	return f.Xid > 0 && strings.HasPrefix(rest, ", Fatal")
}

func nvidia(line string, f *Fact) bool {
	if rest, ok := strings.CutPrefix(line, "Xid ("); ok {
		return xidLine(rest, f)
	}
	if strings.HasPrefix(line, "loading NVIDIA UNIX") {
		f.Kind = KindLoaded
		return true
	}
	if uvmFatal().MatchString(line) {
		f.Kind = KindUVM
		return true
	}
	// Only lines that begin with the driver's own words: a client of another version is
	// logged with the 63 bytes that it calls its version.
	if strings.Contains(line, "fallen off the bus") && (strings.HasPrefix(line, "The NVIDIA GPU ") || strings.HasPrefix(line, "GPU ")) {
		f.Kind, f.PCI = KindFallen, findPCI(line)
		return true
	}
	return false
}

// uvmFatal matches "nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to
// recover." Before r570 nothing else says so; since then, an Xid 154 of each GPU does.
var uvmFatal = lazy.Regexp(`^(GPU[0-9]+ )?([A-Za-z0-9_]+: )?uvm encountered global fatal error `)

// oldUVM begins such a line of the first open drivers, which wrote no colon.
const oldUVM = "NVRM nvGpuOpsReportFatalError: "

// process matches what the driver writes before the name of the process that an Xid is about.
var process = lazy.Regexp(`^,? ?pid='?[^,']{0,20}'?, name='?`)

// escape matches a byte that is not printable, as the kernel writes it; it also writes \ so.
var escape = lazy.Regexp(`\\x[0-9a-f]{2}`)

// maxName is how long a process's name is at most, in bytes: TASK_COMM_LEN without its end.
const maxName = 15

// ownWords returns what the driver says after an Xid's number, without the process that it names: the name is
// the process's own choice, so nothing of it may count. The driver writes ", " behind it.
func ownWords(rest string) string {
	head := process().FindString(rest)
	if head == "" {
		return rest
	}
	rest = escape().ReplaceAllLiteralString(rest[len(head):], "?") + " " // what ends the line was cut
	window := rest[:min(len(rest), maxName+len("', "))]
	if i := strings.LastIndex(window, ", "); i >= 0 {
		return rest[i+2:]
	}
	return ""
}

// severity matches the word that says whether an NVLink Xid is fatal: "RLW_SRC_TRACK Nonfatal XC0 i0 Link 08
// (0x…", before r575 "NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x…". Units and numbers have other forms, too, so
// only the word counts.
var severity = lazy.Regexp(`(?i)\b(non[- ]?)?fatal\b`)

// recoveryChange matches what an Xid 154 says, which is longer than a process's name, too.
var recoveryChange = lazy.Regexp(`GPU recovery action changed from 0x.*? to 0x([0-9a-fA-F]+)`)

// xidLine parses what follows "Xid (": "PCI:0000:1a:00): 31, pid=1234, name=python3, …".
// A MIG instance follows the address: "PCI:0000:1a:00 GPU-I:02".
func xidLine(line string, f *Fact) bool {
	where, rest, ok := strings.Cut(line, "): ")
	if !ok {
		return false
	}
	address, _, _ := strings.Cut(strings.TrimPrefix(where, "PCI:"), " ")
	f.PCI = normalPCI(address)
	if f.PCI == "" {
		return false
	}
	f.Kind = KindXid
	f.Xid, rest = leadingNumber(rest)
	if f.Xid <= 0 || f.Xid > 9999 {
		return false
	}
	switch {
	case f.Xid == 154:
		f.To = -1
		if m := recoveryChange().FindStringSubmatch(rest); m != nil {
			if n, err := strconv.ParseUint(m[1], 16, 8); err == nil {
				f.To = int(n)
			}
		}
	case LookupXid(f.Xid).Class == XidLink:
		switch m := severity().FindStringSubmatch(ownWords(rest)); {
		case m == nil:
		case m[1] != "":
			f.Severity = "Nonfatal"
		default:
			f.Severity = "Fatal"
		}
	}
	return true
}

// amd parses "amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!" and the like.
func amd(text string, f *Fact) bool {
	if rest, ok := strings.CutPrefix(text, "amdgpu "); ok {
		address, _, _ := strings.Cut(rest, ": ")
		f.PCI = normalPCI(address)
		if f.PCI != "" {
			text = strings.TrimPrefix(rest, address+": ")
		}
	}
	for {
		before := text
		for _, prefix := range []string{"amdgpu: ", "[drm] ", "[drm:amdgpu_job_timedout [amdgpu]] ", "[drm:amdgpu_job_timedout] ", "*ERROR* "} {
			text = strings.TrimPrefix(text, prefix)
		}
		if _, rest, ok := strings.Cut(text, "}"); ok && strings.HasPrefix(text, "{") {
			text = rest // {1}: number of the event
		}
		if text == before {
			break
		}
	}
	f.Kind = amdKind(text)
	return f.Kind != ""
}

// amdLines are the beginnings of lines, and what must follow soon.
var amdLines = []struct {
	begin, soon string
	kind        Kind
}{
	{"GPU reset begin!", "", KindResetBegin},
	{"GPU reset(", ") succeeded", KindResetDone},
	{"GPU reset(", ") failed", KindResetFailed},
	{"GPU Recovery Failed", "", KindResetFailed},
	{"device wedged, needs recovery", "", KindResetFailed},
	{"device lost from bus!", "", KindFallen},
	{"ring ", " timeout, signaled seq=", KindRing},
	{"VRAM is lost due to GPU reset!", "", KindVRAM},
	{"[gfxhub", "page fault (src_id:", KindFault},
	{"[mmhub", "page fault (src_id:", KindFault},
	{"uncorrectable hardware error", "", KindRAS},
	{"Uncorrectable hardware error", "", KindRAS},
}

func amdKind(text string) Kind {
	if result, ended := strings.CutPrefix(text, "GPU reset end with ret = "); ended && result != "0" {
		return KindResetFailed
	}
	for _, l := range amdLines {
		if strings.HasPrefix(text, l.begin) && strings.Contains(text[:min(len(text), 64)], l.soon) {
			return l.kind
		}
	}
	// "socket: 4, die: 0 1 new uncorrectable hardware errors detected in umc block"
	if before, _, ok := strings.Cut(text, " uncorrectable hardware errors detected in"); ok {
		words := strings.Fields(strings.TrimSuffix(before, " new"))
		if len(words) > 0 && strings.Trim(words[len(words)-1], "0") != "" {
			return KindRAS
		}
	}
	return ""
}

// leadingNumber returns the decimal number that text begins with, 0 if there is none.
func leadingNumber(text string) (n int, rest string) {
	end := 0
	for end < len(text) && end < 10 && text[end] >= '0' && text[end] <= '9' {
		end++
	}
	n, _ = strconv.Atoi(text[:end])
	return n, text[end:]
}

// findPCI returns the first address in a text, "" if there is none.
func findPCI(text string) string {
	for word := range strings.FieldsSeq(text) {
		if pci := normalPCI(strings.TrimPrefix(strings.TrimRight(word, ":.,"), "PCI:")); pci != "" {
			return pci
		}
	}
	return ""
}

// normalPCI formats an address as sysfs does, dddd:bb:dd.f in lower case, "" if it is
// invalid. The kernel's log may omit the function and the domain.
func normalPCI(s string) string {
	if strings.Count(s, ":") == 1 {
		s = "0000:" + s
	}
	pci, _ := inventory.PCIAddress(s)
	return pci
}
