//go:build !cgo || !linux

// Command kbnode-nvml prints what NVML says of this machine's GPUs. This is
// what is left of it without cgo: it says that it cannot.
package main

import (
	"fmt"
	"os"

	"github.com/gpu-mode/kbnode/internal/inventory/probe"
)

func main() {
	fmt.Printf(`{"schema":%d,"ok":false,"error":"built without cgo","code":12,"gpus":[]}`+"\n", probe.Schema)
	os.Exit(3)
}
