package cli

import (
	"errors"
	"testing"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestTokenLater tests that a token that has not come yet is waited for, and that one that is none is not.
func TestTokenLater(t *testing.T) {
	t.Parallel()
	for text, code := range map[string]int{"": 1, "BUILDKITE_AGENT_TOKEN=\n": 1, "BUILDKITE_AGENT_TOKEN=xxx\n": 2, "BUILDKITE_AGENT_TOKEN=the-agent-token\n": 0} {
		root := t.TempDir()
		if text != "" {
			must.Write(t, root, plan.TokenPath, text)
		}
		f := &installFlags{}
		_, err := f.findToken(root, func(string) string { return "" })
		got := 0
		if exit := (*term.ExitError)(nil); errors.As(err, &exit) {
			got = exit.Code
		} else if err != nil {
			got = 1
		}
		must.Equal(t, code, got)
	}
}
