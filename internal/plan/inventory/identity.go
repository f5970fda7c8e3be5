package inventory

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// uuidForm matches a valid UUID. The driver writes question marks until a GPU has been
// started; MIG-GPU-…/1/0 is the form before 470.
var uuidForm = lazy.Regexp(`^(GPU|MIG)-[0-9A-Za-z/-]{1,90}$`)

// ValidUUID reports whether a text has the form of a UUID of a GPU or a MIG instance.
func ValidUUID(s string) bool { return uuidForm().MatchString(s) }

// pciForm matches an address as sysfs, NVML (eight digits, upper case) and the kernel's log
// (no function) write it.
var pciForm = lazy.Regexp(`^([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?$`)

// PCIAddress formats an address as sysfs does: dddd:bb:dd.f in lower case.
func PCIAddress(s string) (string, bool) {
	m := pciForm().FindStringSubmatch(s)
	if m == nil {
		return "", false
	}
	domain, err := strconv.ParseUint(m[1], 16, 32)
	if err != nil {
		return "", false
	}
	return fmt.Sprintf("%04x:%s:%s.%s", domain, strings.ToLower(m[2]), strings.ToLower(m[3]), cmp.Or(m[4], "0")), true
}
