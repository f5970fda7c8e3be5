package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// nvidiaCDI is what the CDI names of NVIDIA's GPUs and MIG instances begin with.
const nvidiaCDI = "nvidia.com/gpu="

// specFile is where people write NVIDIA's specification.
const specFile = "/etc/cdi/nvidia.yaml"

// renewCDI returns how to describe the NVIDIA GPUs to Docker again. The toolkit has a unit for it since 1.18.
func renewCDI(file string) string {
	return "run sudo systemctl restart nvidia-cdi-refresh, or without that unit sudo nvidia-ctk cdi generate --output=" + file
}

// Driverless returns why CUDA would not start in a slot's containers: they would get its NVIDIA GPUs without
// the driver's libraries, or with device nodes that are not the driver's; "" if it starts. Jobs would run, and
// fail as if the submission were wrong. An engine that never answered starts none.
func Driverless(inv *inventory.Inventory, s Slot) string {
	d := inv.Software.Docker
	if s.Vendor() != "nvidia" || d.Version == "" {
		return ""
	}
	var missing []string
	fault, unnamed, both := "", "", ""
	for _, g := range s.GPUs {
		f := d.CDIFaults[cdiName(g)]
		switch {
		case g.Name() == "" || g.Part != "" && g.Instance == "":
			unnamed = fmt.Sprintf("the UUID of the GPU at %s is unknown, and Docker gives containers the driver's files by UUID; sudo nvidia-smi -L must list it", g.PCI)
		case !d.CDI || !slices.Contains(d.CDIDevices, cdiName(g)):
			missing = append(missing, g.Name())
			if f.Spec == "" && f.Detail != "" {
				both = f.Detail + ", and jobs would have no libcuda; move one of the files away"
			}
		case f.Node:
			fault = fmt.Sprintf("CUDA does not start: %s; run sudo nvidia-modprobe -c=0 -u -m, and then %s", f.Detail, renewCDI(f.Spec))
		case f.Detail != "":
			fault = fmt.Sprintf("CUDA does not start: %s; %s", f.Detail, renewCDI(f.Spec))
		}
	}
	why, list := inv.WhyUnread(inventory.SubjectCDI), strings.Join(missing, ", ")
	switch described := func(prefix string) bool {
		return slices.ContainsFunc(d.CDIDevices, func(n string) bool { return strings.HasPrefix(n, nvidiaCDI+prefix) })
	}; {
	case unnamed == "" && len(missing) == 0:
		return fault
	case slices.Contains(d.Runtimes, "nvidia"):
		return ""
	case unnamed != "":
		return unnamed
	case both != "":
		return both
	case why != "":
		return fmt.Sprintf("whether Docker has a CDI device for %s is unknown (%s), and without one jobs have no libcuda", list, why)
	case !d.CDI:
		return "CDI is off and Docker has no NVIDIA runtime, so jobs would have no libcuda; sudo kbnode doctor --only docker-cdi says what to type"
	case !described(""):
		dirs := cmp.Or(strings.Join(d.CDIDirs, " or "), strings.Join(inventory.DefaultCDIDirs(), " or "))
		return fmt.Sprintf("no CDI specification in %s describes NVIDIA GPUs, so jobs would have no libcuda; %s", dirs, renewCDI(specFile))
	case !described("GPU-") && !described("MIG-"): // toolkits before 1.16 name UUIDs only if asked
		return fmt.Sprintf("no CDI specification names %s, only numbers, so jobs would have no libcuda; run sudo nvidia-ctk cdi generate --output=%s --device-name-strategy=uuid", list, specFile)
	}
	return fmt.Sprintf("no CDI specification names %s, so jobs would have no libcuda; %s", list, renewCDI(specFile))
}
