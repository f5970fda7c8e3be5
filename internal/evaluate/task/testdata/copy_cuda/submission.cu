#include "task.h"

__global__ void copy(ELEMENT *out, const ELEMENT *in, int n) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n) out[i] = in[i];
}

void custom_kernel(ELEMENT *out, const ELEMENT *in, int n) {
	copy<<<(n + 255) / 256, 256>>>(out, in, n);
}
