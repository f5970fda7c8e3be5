// A task's program in CUDA. It speaks the engine's protocol and leaves with the
// engine's codes: 110 CUDA failed, 111 no pipe, 112 wrong results, 113 a test
// line that it cannot read, 2 wrong arguments.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "scale.h" // from an include directory
#include "task.h"  // from the payload's headers

#ifndef CHECKED
#error the define without a value did not arrive
#endif
static_assert(FACTOR == 3, "the define with a value did not arrive");

namespace {

std::FILE *report;

[[noreturn]] void end(int code) {
	if (report) std::fclose(report);
	std::exit(code);
}

void check(cudaError_t err, const char *what) {
	if (err == cudaSuccess) return;
	std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(err));
	end(110);
}

// size_of reads a line of the form "size: 128".
int size_of(const std::string &line) {
	int size, end_at = 0;
	if (std::sscanf(line.c_str(), " size: %d %n", &size, &end_at) != 1 || line[end_at] != '\0') {
		std::fprintf(stderr, "not a test: %s\n", line.c_str());
		end(113);
	}
	return size;
}

bool right(int size) {
	std::vector<float> host(size, 1.0f);
	float *device;
	check(cudaMalloc(&device, size * sizeof(float)), "cudaMalloc");
	check(cudaMemcpy(device, host.data(), size * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
	scale(device, size);
	check(cudaDeviceSynchronize(), "scale");
	check(cudaMemcpy(host.data(), device, size * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
	check(cudaFree(device), "cudaFree");
	for (float v : host)
		if (v != FACTOR) return false;
	return true;
}

} // namespace

int main(int argc, char **argv) {
	const char *fd = std::getenv("POPCORN_FD");
	if (!fd || !(report = fdopen(std::atoi(fd), "w"))) return 111;
	if (argc != 3) end(2);
	std::string line;
	const char *seed = std::getenv("POPCORN_SEED");
	std::printf("mode %s, seed %s, %s\n", argv[1], seed ? seed : "none", HEADER_SAYS);

	std::vector<int> sizes;
	for (std::ifstream cases(argv[2]); std::getline(cases, line);) sizes.push_back(size_of(line));
	std::fprintf(report, "%s-count: %zu\n", argv[1], sizes.size());
	std::fflush(report);
	bool passed = true;
	for (std::size_t i = 0; i < sizes.size(); i++) {
		std::fprintf(report, "%s.%zu.spec: size: %d\n", argv[1], i, sizes[i]);
		std::fflush(report);
		bool ok = right(sizes[i]);
		std::fprintf(report, "%s.%zu.status: %s\n", argv[1], i, ok ? "pass" : "fail");
		passed = passed && ok;
	}
	std::fprintf(report, "check: %s\n", passed ? "pass" : "fail");
	end(passed ? 0 : 112);
}
