package health

import "fmt"

// XidClass is what an Xid means for a slot.
type XidClass string

// The classes. A recovery action from the driver overrides them.
const (
	XidLost        XidClass = "lost"        // fatal: the GPU is gone until the node is rebooted
	XidMemory      XidClass = "memory"      // fatal: its memory; reset, and replace it if that recurs
	XidReset       XidClass = "reset"       // fatal until the GPU is reset
	XidLink        XidClass = "link"        // NVLink 5: the line says whether it is fatal
	XidDegraded    XidClass = "degraded"    // still works; reset it at the next opportunity
	XidPower       XidClass = "power"       // still works, but its power is low or no longer smoothed
	XidApplication XidClass = "application" // jobs can cause it at will: not the GPU's fault
	XidRecovery    XidClass = "recovery"    // the driver reports which action it wants
	XidIgnored     XidClass = "ignored"     // recorded, without any effect
	XidUnknown     XidClass = "unknown"     // not in the table
)

// Xid is an error number of NVIDIA's driver.
type Xid struct {
	Number int
	Class  XidClass
	Words  string
}

// The edition of NVIDIA's catalog that Xids has:
// https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, as read on 2026-11-25.
const (
	XidBranch = 580 // of the driver
	XidLast   = 172 // the largest number in it
)

// Xids are the errors that the catalog has for GPUs since A100, by number; all others up to
// XidLast are unused there. So are the classes, with these exceptions: errors that jobs
// provoke (13, 31, 32, 43, 45, 69, 109, …) are attributed to the jobs, although catalogs
// disagree (DCGM, gpud and the NVIDIA device plugin each have their own list), contained
// memory errors (94) drain nothing, and for 162 to 172, for which the catalog has no
// action, the classes follow from its words: 169 is to SEC2 what 62 is to the PMU, and 171
// and 172 say where the error of a 48 is.
var Xids = []Xid{
	{8, XidApplication, "GPU stopped processing"},
	{11, XidApplication, "invalid or corrupted push buffer stream"},
	{13, XidApplication, "graphics engine exception"},
	{14, XidIgnored, "fake error, injected by a program"},
	{25, XidApplication, "invalid or illegal push buffer stream"},
	{31, XidApplication, "GPU memory page fault"},
	{32, XidApplication, "invalid or corrupted push buffer stream"},
	{37, XidIgnored, "driver firmware error"},
	{38, XidIgnored, "driver firmware error"},
	{39, XidApplication, "copy engine exception"},
	{40, XidApplication, "copy engine exception"},
	{41, XidApplication, "copy engine exception"},
	{43, XidApplication, "GPU stopped processing"},
	{44, XidIgnored, "graphics engine fault during context switch"},
	{45, XidApplication, "preemptive cleanup, due to previous errors"},
	{46, XidReset, "GPU stopped processing"},
	{48, XidMemory, "double bit ECC error"},
	{54, XidPower, "auxiliary power is not connected to the GPU board"},
	{60, XidApplication, "video processor exception"},
	{62, XidReset, "internal micro-controller halt"},
	{63, XidDegraded, "GPU memory remapping event"},
	{64, XidMemory, "GPU memory remapping failure"},
	{66, XidIgnored, "illegal access by driver"},
	{67, XidIgnored, "illegal access by driver"},
	{68, XidApplication, "video decoder exception"},
	{69, XidApplication, "graphics engine class error"},
	{70, XidApplication, "copy engine exception"},
	{71, XidApplication, "copy engine exception"},
	{72, XidApplication, "copy engine exception"},
	{74, XidReset, "NVLink error"},
	{75, XidApplication, "copy engine exception"},
	{76, XidApplication, "copy engine exception"},
	{77, XidApplication, "copy engine exception"},
	{78, XidIgnored, "vGPU start error"},
	{79, XidLost, "GPU has fallen off the bus"},
	{80, XidApplication, "corrupted data sent to GPU"},
	{82, XidApplication, "JPEG engine error"},
	{83, XidApplication, "video decoder error"},
	{84, XidApplication, "video decoder error"},
	{85, XidApplication, "copy engine exception"},
	{86, XidApplication, "optical flow accelerator exception"},
	{88, XidApplication, "video decoder error"},
	{89, XidApplication, "video decoder error"},
	{92, XidDegraded, "high single-bit ECC error rate"},
	{93, XidIgnored, "non-fatal violation of provisioned InfoROM wear limit"},
	{94, XidDegraded, "contained memory error"},
	{95, XidMemory, "uncontained memory error"},
	{96, XidApplication, "video decoder error"},
	{97, XidApplication, "video decoder error"},
	{98, XidApplication, "video decoder error"},
	{99, XidApplication, "JPEG engine error"},
	{100, XidApplication, "JPEG engine error"},
	{101, XidApplication, "JPEG engine error"},
	{102, XidApplication, "JPEG engine error"},
	{103, XidApplication, "JPEG engine error"},
	{104, XidApplication, "JPEG engine error"},
	{105, XidApplication, "JPEG engine error"},
	{106, XidIgnored, "SMBPBI test message"},
	{107, XidIgnored, "SMBPBI test message"},
	{108, XidDegraded, "NVLink remote translation error"},
	{109, XidApplication, "context switch timeout"}, // XidReset if no job can have caused it
	{110, XidReset, "security fault"},
	{119, XidReset, "GSP RPC timeout"},
	{120, XidReset, "GSP error"},
	{121, XidDegraded, "C2C error"},
	{126, XidApplication, "copy engine exception"},
	{127, XidApplication, "copy engine exception"},
	{128, XidApplication, "copy engine exception"},
	{129, XidApplication, "copy engine exception"},
	{130, XidApplication, "copy engine exception"},
	{131, XidApplication, "copy engine exception"},
	{132, XidApplication, "copy engine exception"},
	{133, XidApplication, "copy engine exception"},
	{134, XidApplication, "copy engine exception"},
	{135, XidApplication, "copy engine exception"},
	{136, XidReset, "link training failed"},
	{137, XidDegraded, "NVLink privilege error"},
	{139, XidApplication, "optical flow accelerator error"},
	{140, XidMemory, "unrecovered ECC error"},
	{141, XidIgnored, "CUDA fast path error"},
	{142, XidApplication, "video encoder error"},
	{143, XidReset, "GPU initialization error"},
	{144, XidLink, "NVLink SAW error"},
	{145, XidLink, "NVLink RLW error"},
	{146, XidLink, "NVLink TLW error"},
	{147, XidLink, "NVLink TREX error"},
	{148, XidLink, "NVLink NVLPW_CTRL error"},
	{149, XidLink, "NVLink NETIR error"},
	{150, XidLink, "NVLink MSE error"},
	{151, XidReset, "key rotation error"},
	{152, XidIgnored, "DLA SMMU error"},
	{153, XidIgnored, "DLA timeout error"},
	{154, XidRecovery, "GPU recovery action changed"},
	{155, XidReset, "NVLink error that software defines"},
	{156, XidReset, "resource retirement event"},
	{157, XidDegraded, "resource retirement failure"},
	{158, XidReset, "GPU fatal timeout"},
	{159, XidReset, "CHI non-data error"}, // fatal with unified memory, which CUDA uses
	{160, XidDegraded, "channel retirement event"},
	{161, XidDegraded, "channel retirement failure"},
	{162, XidIgnored, "power smoothing is active again"},
	{163, XidPower, "power smoothing is off"},
	{164, XidPower, "power smoothing is nearly worn out"},
	{165, XidPower, "power smoothing is worn out"},
	{166, XidDegraded, "NVLink traffic before its encryption was configured"},
	{167, XidReset, "PCIe fatal timeout"},
	{168, XidDegraded, "reduced GPU memory capacity"},
	{169, XidReset, "SEC2 micro-controller halt"},
	{170, XidDegraded, "NVLink interrupt in confidential computing mode"},
	{171, XidMemory, "uncorrectable DRAM error"},
	{172, XidMemory, "uncorrectable SRAM error"},
}

// LookupXid returns the entry of an Xid. If there is none, the class is XidUnknown, and the
// words tell an Xid of a newer driver from an undefined one.
func LookupXid(number int) Xid {
	for _, x := range Xids {
		if x.Number == number {
			return x
		}
	}
	if number > XidLast {
		return Xid{number, XidUnknown, fmt.Sprintf("newer than the catalog of r%d, which ends at %d", XidBranch, XidLast)}
	}
	return Xid{number, XidUnknown, fmt.Sprintf("undefined in the catalog of r%d", XidBranch)}
}
