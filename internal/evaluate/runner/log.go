package runner

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// maxError bounds an error, in characters, also in result.json: a payload may have thousands of
// faults.
const maxError = 8192

// buildLog is the log of a job, with what goes wrong in err.
type buildLog struct {
	result.Log
	err io.Writer
}

// note writes a line about a problem.
func (l *buildLog) note(format string, args ...any) {
	_, _ = fmt.Fprintf(l.err, "kbnode runner: %s\n", text.Line(fmt.Sprintf(format, args...), maxError))
}

// begin opens the group of a step: what is "compile" or "run", name is the
// evaluation's.
func (l *buildLog) begin(what, name string) {
	kind, _, _ := strings.Cut(name, ".")
	if what == "compile" {
		kind = what
	}
	icon := map[string]string{"compile": ":compile:", "benchmark": ":stopwatch:", "leaderboard": ":trophy:", "profile": ":mag:", "test": ":test_tube:"}[kind]
	l.Group("---", icon, name+": "+what)
}
