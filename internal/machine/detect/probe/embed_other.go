//go:build !amd64 && !arm64

package probe

import "embed"

// embedded is empty: as far as kbnode knows, NVIDIA has no driver for this architecture.
var embedded embed.FS
