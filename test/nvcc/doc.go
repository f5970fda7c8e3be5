// Package nvcc holds the runner to a real CUDA compiler: the kbnode binary
// evaluates a task in a Debian 13 with nvidia-cuda-toolkit 12.4, where no GPU is.
package nvcc
