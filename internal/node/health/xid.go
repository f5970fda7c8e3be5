package health

import (
	"fmt"
	"slices"

	"github.com/gpu-mode/kbnode/internal/plan/config"
)

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

// The edition of NVIDIA's catalog that the tables have:
// https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, as read on 2026-11-25.
const (
	XidBranch = 580 // of the driver
	XidLast   = 172 // the largest number in it
)

// xids, applicationXids and ignoredXids are the errors that the catalog has for GPUs since
// A100; all others up to XidLast are unused there. So are the classes, with these exceptions: errors that jobs
// provoke (13, 31, 32, 43, 45, 69, 109, …) are attributed to the jobs, although catalogs
// disagree (DCGM, gpud and the NVIDIA device plugin each have their own list), contained
// memory errors (94) drain nothing, and for 162 to 172, for which the catalog has no
// action, the classes follow from its words: 169 is to SEC2 what 62 is to the PMU, and 171
// and 172 say where the error of a 48 is.
var xids = []Xid{
	{46, XidReset, "GPU stopped processing"},
	{48, XidMemory, "double bit ECC error"},
	{54, XidPower, "auxiliary power is not connected to the GPU board"},
	{62, XidReset, "internal micro-controller halt"},
	{63, XidDegraded, "GPU memory remapping event"},
	{64, XidMemory, "GPU memory remapping failure"},
	{74, XidReset, "NVLink error"},
	{79, XidLost, "GPU has fallen off the bus"},
	{92, XidDegraded, "high single-bit ECC error rate"},
	{94, XidDegraded, "contained memory error"},
	{95, XidMemory, "uncontained memory error"},
	{108, XidDegraded, "NVLink remote translation error"},
	{109, XidApplication, "context switch timeout"}, // XidReset if no job can have caused it
	{110, XidReset, "security fault"},
	{119, XidReset, "GSP RPC timeout"},
	{120, XidReset, "GSP error"},
	{121, XidDegraded, "C2C error"},
	{136, XidReset, "link training failed"},
	{137, XidDegraded, "NVLink privilege error"},
	{140, XidMemory, "unrecovered ECC error"},
	{143, XidReset, "GPU initialization error"},
	{144, XidLink, "NVLink SAW error"},
	{145, XidLink, "NVLink RLW error"},
	{146, XidLink, "NVLink TLW error"},
	{147, XidLink, "NVLink TREX error"},
	{148, XidLink, "NVLink NVLPW_CTRL error"},
	{149, XidLink, "NVLink NETIR error"},
	{150, XidLink, "NVLink MSE error"},
	{151, XidReset, "key rotation error"},
	{154, XidRecovery, "GPU recovery action changed"},
	{155, XidReset, "NVLink error that software defines"},
	{156, XidReset, "resource retirement event"},
	{157, XidDegraded, "resource retirement failure"},
	{158, XidReset, "GPU fatal timeout"},
	{159, XidReset, "CHI non-data error"}, // fatal with unified memory, which CUDA uses
	{160, XidDegraded, "channel retirement event"},
	{161, XidDegraded, "channel retirement failure"},
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

var applicationXids = config.XidsOfJobs

var ignoredXids = []int{14, 37, 38, 44, 66, 67, 78, 93, 106, 107, 141, 152, 153, 162}

// LookupXid returns the entry of an Xid. If there is none, the class is XidUnknown, and the
// words tell an Xid of a newer driver from an undefined one.
func LookupXid(number int) Xid {
	for _, x := range xids {
		if x.Number == number {
			return x
		}
	}
	switch {
	case slices.Contains(applicationXids, number):
		return Xid{number, XidApplication, "an error that jobs cause"}
	case slices.Contains(ignoredXids, number):
		return Xid{number, XidIgnored, "not an error of the GPU"}
	case number > XidLast:
		return Xid{number, XidUnknown, fmt.Sprintf("newer than the catalog of r%d, which ends at %d", XidBranch, XidLast)}
	}
	return Xid{number, XidUnknown, fmt.Sprintf("undefined in the catalog of r%d", XidBranch)}
}
