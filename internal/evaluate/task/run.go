package task

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

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

// LangOf returns the language of a file by its name, Python or CUDA, or "".
func LangOf(name string) string {
	if lang := strings.TrimPrefix(filepath.Ext(name), "."); lang == Python || lang == CUDA {
		return lang
	}
	return ""
}

// Submits returns the language of the problem's submissions, which its judge need not share.
func (t *Task) Submits() string { return cmp.Or(LangOf(t.Submission), t.Lang) }

// IsArch reports whether a word is an architecture as a payload has it: 90a for nvcc's sm_90a.
func IsArch(arch string) bool { return archForm().MatchString(arch) }

// MeantArch returns the architecture that people write as 10.0, sm_100 or compute_90a, or an example.
func MeantArch(word string) string {
	word = strings.ReplaceAll(word[strings.IndexAny(word+"0", "0123456789"):], ".", "")
	if IsArch(word) {
		return word
	}
	return "the number alone, without sm_, such as 90a"
}

// ReadSubmissionFile reads a submission from a regular file of this machine.
func ReadSubmissionFile(name string) (string, error) {
	b, err := readFile(name, maxFile)
	if errors.Is(err, errAbsent) {
		return "", &text.Absent{Name: name, Instead: addFile}
	}
	if err != nil {
		return "", fmt.Errorf("%.300s %w", name, err)
	}
	return string(b), nil
}

// ReadSubmission reads a submission from the problem's directory.
func (t *Task) ReadSubmission(name string) (string, error) {
	b, err := t.readSource(name)
	if err != nil {
		return "", fmt.Errorf("%.300s %w", filepath.Join(t.Dir, name), err)
	}
	return string(b), nil
}
