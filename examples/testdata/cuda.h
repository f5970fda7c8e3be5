#pragma once

// As much of CUDA as the example needs, on the CPU.
#include <cstddef>
#include <cstdlib>
#include <cstring>

#define __global__ static

struct Index {
	unsigned x;
};
inline Index blockIdx, threadIdx, blockDim, gridDim;

template <class Kernel> auto launch(Kernel kernel, unsigned blocks, unsigned threads) {
	return [=](auto... args) {
		gridDim.x = blocks, blockDim.x = threads;
		for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
			for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) kernel(args...);
	};
}

enum cudaError_t { cudaSuccess, cudaErrorMemoryAllocation };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };

template <class T> cudaError_t cudaMalloc(T **p, std::size_t bytes) {
	*p = static_cast<T *>(std::malloc(bytes));
	return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFree(void *p) { return std::free(p), cudaSuccess; }
inline cudaError_t cudaMemcpy(void *to, const void *from, std::size_t bytes, cudaMemcpyKind) { return std::memcpy(to, from, bytes), cudaSuccess; }
// What is zeroed is to flush the device's cache, and there is none.
inline cudaError_t cudaMemset(void *p, int value, std::size_t bytes) { return value ? std::memset(p, value, bytes) : p, cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char *cudaGetErrorString(cudaError_t err) { return err == cudaSuccess ? "no error" : "out of memory"; }
