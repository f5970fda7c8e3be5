package inventory

import (
	"fmt"
	"path"
)

// AMDDevice is the directory in /sys of the PCI device that one of AMD's GPUs, or the
// partition of one, is on. The GPU is told by the render node among its device nodes.
func AMDDevice(nodes []string) (string, error) {
	t, err := openTree("/")
	if err != nil {
		return "", err
	}
	gpu, err := amdNode(t, nodes)
	if err != nil {
		return "", fmt.Errorf("find the GPU: %w", err)
	}
	return path.Join("/", pciDir, gpu.pci), nil
}
