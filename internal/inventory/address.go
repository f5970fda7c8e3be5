package inventory

import (
	"fmt"
	"path"
)

// AMDDevice returns the directory in /sys of the PCI device of an AMD GPU, or of a
// partition of one. It identifies the GPU by the render node among its device nodes.
func AMDDevice(nodes []string) (string, error) {
	t, err := openTree("/")
	if err != nil {
		return "", err
	}
	gpu, _, err := amdNode(t, nodes)
	if err != nil {
		return "", fmt.Errorf("find the GPU: %w", err)
	}
	return path.Join("/", pciDir, gpu.pci), nil
}
