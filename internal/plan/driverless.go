package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/inventory"
)

// nvidiaCDI is what the CDI names of NVIDIA's GPUs and MIG instances begin with.
const nvidiaCDI = "nvidia.com/gpu="

// renewCDI is how to describe the NVIDIA GPUs to Docker again. The toolkit has a unit for it since 1.18.
const renewCDI = "run sudo systemctl restart nvidia-cdi-refresh, or without that unit sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"

// Driverless returns why a slot's containers would get its NVIDIA GPUs without the driver's libraries, "" if
// they get them. Jobs would run, and fail as if the submission were wrong. An engine that never answered
// starts none.
func Driverless(inv *inventory.Inventory, s Slot) string {
	d := inv.Software.Docker
	if s.Vendor() != "nvidia" || d.Version == "" || slices.Contains(d.Runtimes, "nvidia") {
		return ""
	}
	var missing []string
	for _, g := range s.GPUs {
		switch {
		case g.Name() == "" || g.Part != "" && g.Instance == "":
			return fmt.Sprintf("the UUID of the GPU at %s is unknown, and Docker gives containers the driver's files by UUID; sudo nvidia-smi -L must list it", g.PCI)
		case !d.CDI || !slices.Contains(d.CDIDevices, cdiName(g)):
			missing = append(missing, g.Name())
		}
	}
	why, list := inv.WhyUnread(inventory.SubjectCDI), strings.Join(missing, ", ")
	switch described := func(prefix string) bool {
		return slices.ContainsFunc(d.CDIDevices, func(n string) bool { return strings.HasPrefix(n, nvidiaCDI+prefix) })
	}; {
	case len(missing) == 0:
		return ""
	case why != "":
		return fmt.Sprintf("whether Docker has a CDI device for %s is unknown (%s), and without one jobs have no libcuda", list, why)
	case !d.CDI:
		return "CDI is off and Docker has no NVIDIA runtime, so jobs would have no libcuda; sudo kbnode doctor --only docker-cdi says what to type"
	case !described(""):
		dirs := cmp.Or(strings.Join(d.CDIDirs, " or "), strings.Join(inventory.DefaultCDIDirs(), " or "))
		return fmt.Sprintf("no CDI specification in %s describes NVIDIA GPUs, so jobs would have no libcuda; %s", dirs, renewCDI)
	case !described("GPU-") && !described("MIG-"): // toolkits before 1.16 name UUIDs only if asked
		return fmt.Sprintf("no CDI specification names %s, only numbers, so jobs would have no libcuda; run sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml --device-name-strategy=uuid", list)
	}
	return fmt.Sprintf("no CDI specification names %s, so jobs would have no libcuda; %s", list, renewCDI)
}
