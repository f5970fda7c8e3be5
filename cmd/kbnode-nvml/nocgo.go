//go:build !cgo || !linux

// Command kbnode-nvml prints NVML's report about this machine's GPUs. Without cgo it only
// reports that it cannot.
package main

import (
	"fmt"
	"os"

	"github.com/gpu-mode/kbnode/internal/detect/probe"
)

func main() {
	fmt.Printf(`{"schema":%d,"ok":false,"error":"built without cgo","code":12,"gpus":[]}`+"\n", probe.Schema)
	os.Exit(3)
}
