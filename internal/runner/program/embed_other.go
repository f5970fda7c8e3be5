//go:build !amd64 && !arm64

package program

import "embed"

// embedded is empty: there are no releases for this architecture.
var embedded embed.FS
