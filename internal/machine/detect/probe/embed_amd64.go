package probe

import "embed"

// embedded holds kbnode-nvml.gz where the build put it; see bin/amd64/README.
//
//go:embed all:bin/amd64
var embedded embed.FS
