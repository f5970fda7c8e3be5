package probe

import "embed"

// embedded holds kbnode-nvml.gz where the build put it; see bin/arm64/README.
//
//go:embed all:bin/arm64
var embedded embed.FS
