//go:build !amd64 && !arm64

package probe

import "embed"

// embedded is empty: NVIDIA has no driver for this architecture that kbnode
// knows of.
var embedded embed.FS
