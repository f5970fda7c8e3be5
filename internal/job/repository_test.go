package job_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/job"
)

// TestAllows tests which addresses of a Spec a list allows.
func TestAllows(t *testing.T) {
	t.Parallel()
	both := config.DefaultRepositories
	for _, tt := range []struct {
		patterns []string
		address  string
		want     bool
	}{
		{both, "https://github.com/gpu-mode/kernelbot", true},
		{both, "https://github.com/gpu-mode/kernelbot.git", true},
		{[]string{`^git@github\.com:gpu-mode/x$`}, "https://github.com/gpu-mode/x", true},
		{[]string{`^ssh://git@github\.com/gpu-mode/x$`}, "https://github.com/gpu-mode/x", true},
		{[]string{`^git@github\.com:gpu-mode/x$`}, "https://gitlab.com/gpu-mode/x", false},
		{nil, "https://github.com/gpu-mode/x", false},
		{[]string{}, "https://github.com/gpu-mode/x", false},
		{[]string{"("}, "https://github.com/gpu-mode/x", false},
		{both, "https://github.com/other/x", false},
		{both, "https://GITHUB.com/gpu-mode/x", false},
		{both, "https://github.com./gpu-mode/x", false},
		{both, "https://github.com:443/gpu-mode/x", false},
		{both, "https://github.com/gpu-mode/x/y", false},
		{both, "https://github.com/gpu-mode/x\n", false},
		{both, "http://github.com/gpu-mode/x", false},
	} {
		if got := job.Allows(tt.patterns, tt.address); got != tt.want {
			t.Errorf("%q of %q: %v", tt.address, tt.patterns, got)
		}
	}
}

// TestAddresses refuses addresses that a pattern and git may read in two ways, whatever a node allows.
func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, repo := range []string{
		"https://github.com@evil.example/gpu-mode/x", "https://u:p@github.com/gpu-mode/x", `https://evil.example\@github.com/gpu-mode/x`,
		"https://github.com/gpu-mode/%2e%2e/evil", "https://github.com/gpu-mode/../evil/x", "https://github.com/gpu-mode/..", "https://github.com/gpu-mode/x?a=b",
		"https://github.com/gpu-mode/x#y", "https://github.com//gpu-mode/x", "https://github.com:/gpu-mode/x", "https://[::1]/gpu-mode/x",
		"https://gıthub.com/gpu-mode/x", "https://github.com\u3002evil.example/x", "https://github.com/gpu-mode/x\n", "https://github.com/gpu-mode/x\x00", "https://github.com/gpu-mode/-x",
		"http://github.com/gpu-mode/x", "HTTPS://github.com/gpu-mode/x", "ext::sh -c x", "file:///etc", "/etc", "-uhttps://github.com/gpu-mode/x", "git@evil.example:gpu-mode/x",
		"ssh://git@github.com:22/gpu-mode/x", "git@github.com:../../x", "git@github.com:/gpu-mode/x", "https://github.com/gpu-mode/.git", "https://github.com/gpu-mode/" + strings.Repeat("x", 2000),
	} {
		in := attack(map[string]string{"BUILDKITE_REPO": repo})
		in.Repositories = []string{".*"}
		s, err := job.Read(in)
		if _, ok := errors.AsType[*job.Refusal](err); !ok {
			t.Errorf("%q: %+v, %v", repo, s, err)
		}
	}
}
