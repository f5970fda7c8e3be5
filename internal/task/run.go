package task

import (
	"fmt"
	"path/filepath"
	"time"
)

// Overhead is the time that a job needs besides its evaluations: a first pull of the image.
const Overhead = 10 * time.Minute

// Runs returns the evaluations that the result of a mode contains. It returns nil for mode
// profile, whose evaluations depend on the benchmarks.
func Runs(mode string) []string {
	switch mode {
	case "test", "benchmark":
		return []string{mode}
	case "leaderboard", "private":
		return []string{"test", "benchmark", "leaderboard"}
	}
	return nil
}

// maxRunTime is the longest time limit that a pipeline's step may have.
const maxRunTime = 7 * 24 * time.Hour

// RunTime returns how long a job of a mode may run, a week at most.
func (t *Task) RunTime(mode string) time.Duration {
	limits := map[string]time.Duration{"test": t.TestTimeout, "benchmark": t.BenchmarkTimeout, "leaderboard": t.RankedTimeout}
	limit := Overhead
	for _, run := range Runs(mode) {
		limit += limits[run]
	}
	if mode == "profile" {
		n := time.Duration(max(1, t.Benchmarks))
		limit += n * min(t.BenchmarkTimeout, maxRunTime/n) // more may overflow
	}
	if t.Lang == CUDA {
		limit += 6 * time.Minute // the compiler may run three times
	}
	return min(limit, maxRunTime)
}

// IsArch reports whether a word is an architecture as a payload has it: 90a for nvcc's sm_90a.
func IsArch(arch string) bool { return archForm().MatchString(arch) }

// ReadSubmissionFile reads a submission from a regular file of this machine.
func ReadSubmissionFile(name string) (string, error) {
	text, err := readFile(name, maxFile)
	if err != nil {
		return "", fmt.Errorf("%.300s %w", name, err)
	}
	return string(text), nil
}

// ReadSubmission reads a submission from the problem's directory.
func (t *Task) ReadSubmission(name string) (string, error) {
	text, err := t.readSource(name)
	if err != nil {
		return "", fmt.Errorf("%.300s %w", filepath.Join(t.Dir, name), err)
	}
	return string(text), nil
}
