// Wrong: it copies whole blocks only, and leaves what is over.
#include "task.h"

__global__ void copy(ELEMENT *out, const ELEMENT *in) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	out[i] = in[i];
}

void custom_kernel(ELEMENT *out, const ELEMENT *in, int n) {
	if (n >= 256) copy<<<n / 256, 256>>>(out, in);
}
