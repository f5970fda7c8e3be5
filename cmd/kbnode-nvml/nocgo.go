//go:build !cgo || !linux

// Command kbnode-nvml prints NVML's report about this machine's GPUs. Without cgo it only
// reports that it cannot.
package main

import (
	"fmt"
	"os"

	report "github.com/gpu-mode/kbnode/internal/plan/nvml"
)

func main() {
	fmt.Printf(`{"schema":%d,"ok":false,"error":"built without cgo","code":12,"gpus":[]}`+"\n", report.Schema)
	os.Exit(3)
}
