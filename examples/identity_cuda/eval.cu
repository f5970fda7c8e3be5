// The program of the example: it tests and times custom_kernel, called as
// `eval.out MODE CASES`. The submission is part of the same program, and whoever
// takes that apart from the inside can fool it.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#else
inline void nvtxRangePushA(const char *) {}
inline void nvtxRangePop() {}
#endif

#include "task.h"

namespace {

// The engine's exit codes.
enum { cuda_fail = 110, pipe_failed = 111, validate_fail = 112, test_spec = 113, usage = 2 };

constexpr std::size_t min_runs = 3, max_runs = 100;
constexpr double enough = 0.001; // of the mean: the error from which on more calls tell nothing
constexpr double max_seconds = 10;
constexpr std::size_t flush_bytes = std::size_t(256) << 20; // more than a level 2 cache

using Clock = std::chrono::steady_clock;
using Case = std::map<std::string, long long>;

std::FILE *report;

[[noreturn]] void end(int code) {
	if (report) std::fclose(report);
	std::fflush(nullptr);
	std::_Exit(code); // nothing of the submission's runs after the verdict
}

void check(cudaError_t err, const char *what) {
	if (err == cudaSuccess) return;
	std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(err));
	end(cuda_fail);
}

template <class... Args> void say(const char *format, Args... args) {
	std::fprintf(report, format, args...);
	std::fflush(report); // what is said stays said if the next call crashes
}

// read_case reads "size: 128; seed: 1".
Case read_case(const std::string &line) {
	Case values;
	for (std::size_t at = 0; at <= line.size();) {
		std::size_t stop = std::min(line.find(';', at), line.size());
		char name[64];
		long long value;
		int used = 0;
		std::string part = line.substr(at, stop - at);
		if (std::sscanf(part.c_str(), " %63[A-Za-z_]: %lld %n", name, &value, &used) != 2 || std::size_t(used) != part.size()) {
			std::fprintf(stderr, "cannot read \"%s\" of the test \"%s\"; write name: number\n", part.c_str(), line.c_str());
			end(test_spec);
		}
		values[name] = value;
		at = stop + 1;
	}
	if (values["size"] < 1 || values["size"] > 1 << 30) {
		std::fprintf(stderr, "size is %lld in the test \"%s\"; write 1 to %d\n", values["size"], line.c_str(), 1 << 30);
		end(test_spec);
	}
	return values;
}

// Random is splitmix64.
struct Random {
	std::uint64_t state;
	std::uint64_t next() {
		std::uint64_t z = state += 0x9e3779b97f4a7c15;
		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
		z = (z ^ z >> 27) * 0x94d049bb133111eb;
		return z ^ z >> 31;
	}
};

// Trial holds the vectors of a case.
class Trial {
public:
	Trial(const Case &c, const std::string &mode) : host(c.at("size")), back(host.size()) {
		const char *secret = std::getenv("POPCORN_SEED");
		Random mix{std::uint64_t(c.count("seed") ? c.at("seed") : 0)};
		base = mix.next() ^ Random{secret ? std::strtoull(secret, nullptr, 10) : 0}.next();
		for (unsigned char letter : mode) // what a submission remembers of one mode is wrong in another
			base = Random{base + letter}.next();
		check(cudaMalloc(&in, bytes()), "cudaMalloc");
		check(cudaMalloc(&out, bytes()), "cudaMalloc");
		check(cudaMalloc(&flush, flush_bytes), "cudaMalloc");
	}
	~Trial() {
		for (void *p : {static_cast<void *>(in), static_cast<void *>(out), flush}) check(cudaFree(p), "cudaFree");
	}
	Trial(const Trial &) = delete;
	Trial &operator=(const Trial &) = delete;

	// call puts new numbers where the old ones were, so that an answer that is
	// kept for an address is wrong, and takes what is in out away. It returns the
	// time in nanoseconds.
	double call(int number) {
		Random random{base + number};
		for (auto &v : host) v = ELEMENT(std::int64_t(random.next() >> 40) - (1 << 23));
		check(cudaMemcpy(in, host.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
		check(cudaMemset(out, 0xff, bytes()), "cudaMemset");
		check(cudaMemset(flush, 0, flush_bytes), "cudaMemset");
		check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
		nvtxRangePushA("custom_kernel");
		auto begin = Clock::now();
		custom_kernel(out, in, int(host.size()));
		check(cudaGetLastError(), "custom_kernel");
		check(cudaDeviceSynchronize(), "custom_kernel"); // of every stream
		double time = std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
		nvtxRangePop();
		return time;
	}

	// wrong says what is wrong after a call and where, or nothing.
	std::string wrong() {
		check(cudaMemcpy(back.data(), out, bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
		std::size_t count = 0, first = 0;
		for (std::size_t i = back.size(); i-- > 0;)
			if (std::memcmp(&back[i], &host[i], sizeof(ELEMENT)) != 0) count++, first = i;
		if (count == 0) return "";
		char text[200];
		std::snprintf(text, sizeof text, "%zu of %zu values are wrong; the first is out[%zu] = %g instead of %g",
			count, back.size(), first, double(back[first]), double(host[first]));
		return text;
	}

private:
	std::size_t bytes() const { return host.size() * sizeof(ELEMENT); }

	std::vector<ELEMENT> host, back;
	std::uint64_t base;
	ELEMENT *in, *out;
	void *flush;
};

// benchmark times a case until the mean is known well enough, and says so.
std::string benchmark(Trial &trial, std::size_t index) {
	std::vector<double> times;
	auto begin = Clock::now();
	for (int number = 0;; number++) {
		double time = trial.call(number);
		if (std::string error = trial.wrong(); !error.empty())
			return number == 0 ? error : "call " + std::to_string(number + 1) + " of the same case: " + error;
		if (number == 0) continue; // it warms up
		times.push_back(time);
		if (times.size() < min_runs) continue;
		double n = double(times.size()), sum = 0, squares = 0;
		for (double t : times) sum += t;
		double mean = sum / n;
		for (double t : times) squares += (t - mean) * (t - mean);
		double std = std::sqrt(squares / (n - 1)), err = std / std::sqrt(n);
		if (err >= enough * mean && times.size() < max_runs && std::chrono::duration<double>(Clock::now() - begin).count() < max_seconds) continue;
		say("benchmark.%zu.runs: %zu\n", index, times.size());
		auto [best, worst] = std::minmax_element(times.begin(), times.end());
		for (auto [key, value] : std::map<const char *, double>{{"mean", mean}, {"std", std}, {"err", err}, {"best", *best}, {"worst", *worst}})
			say("benchmark.%zu.%s: %.17g\n", index, key, value);
		return "";
	}
}

} // namespace

int main(int argc, char **argv) {
	const char *fd = std::getenv("POPCORN_FD");
	if (!fd || !(report = fdopen(std::atoi(fd), "w"))) return pipe_failed;
	std::string mode = argc == 3 ? argv[1] : "";
	if (mode != "test" && mode != "benchmark" && mode != "leaderboard" && mode != "profile") end(usage);

	std::vector<std::string> lines;
	std::vector<Case> cases;
	std::ifstream file(argv[2]);
	for (std::string line; std::getline(file, line);) {
		lines.push_back(line);
		cases.push_back(read_case(line));
	}
	const char *kind = mode == "test" ? "test" : "benchmark";
	say("%s-count: %zu\n", kind, cases.size());
	bool passed = true;
	for (std::size_t i = 0; i < cases.size(); i++) {
		say("%s.%zu.spec: %s\n", kind, i, lines[i].c_str());
		Trial trial(cases[i], mode);
		std::string error;
		if (mode == "profile") {
			trial.call(0);
			say("benchmark.%zu.report: \n", i);
		} else if (mode == "test") {
			trial.call(0);
			error = trial.wrong();
		} else {
			error = benchmark(trial, i);
		}
		if (!error.empty()) {
			passed = false;
			say("%s.%zu.status: fail\n%s.%zu.error: %s\n", kind, i, kind, i, error.c_str());
		} else if (mode == "test") {
			say("test.%zu.status: pass\n", i);
		}
	}
	say("check: %s\n", passed ? "pass" : "fail");
	end(passed ? 0 : validate_fail);
}
