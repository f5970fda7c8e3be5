package program

import "embed"

// embedded holds kbnode-runner.gz where the build put it; see bin/amd64/README.
//
//go:embed all:bin/amd64
var embedded embed.FS
