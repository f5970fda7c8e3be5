// Package examples holds the example problems, so that kbnode carries them along.
package examples

import "embed"

// Files are the problems, each in its directory, and what they share beside them.
//
//go:embed eval.py gpu.py identity_cuda prefix_python vectoradd_cuda_inline vectoradd_triton
var Files embed.FS
