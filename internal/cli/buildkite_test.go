package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestAPIFlags checks the message for each missing or bad value, and that none contains the
// token.
func TestAPIFlags(t *testing.T) {
	const token = "bkua_0123456789abcdef"
	dir := t.TempDir()
	good := put(t, dir, "good", token+"\n")
	wide := put(t, dir, "wide", token)
	if err := os.Chmod(wide, 0o640); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, org, env, url string
		flags               apiFlags
		err                 string // "" means none
	}{
		{name: "environment", org: "gpu-mode", env: token},
		{name: "file", flags: apiFlags{"gpu-mode", good}},
		{name: "the file beats the environment", flags: apiFlags{"gpu-mode", good}, env: "two words"},
		{name: "no token", org: "gpu-mode", err: "with the scopes read_agents and read_builds"},
		{name: "no organization", env: token, err: "add --org NAME, such as --org gpu-mode, or set BUILDKITE_ORG"},
		{name: "organization that is none", flags: apiFlags{org: "gpu/mode"}, env: token, err: `"gpu/mode" is not the name of an organization`},
		{name: "both missing", err: "set BUILDKITE_ORG\nno API token is given"},
		{name: "others may read it", flags: apiFlags{"o", wide}, err: "other users can read " + wide + " (mode 0640); type chmod 600 " + wide},
		{name: "no such file", flags: apiFlags{"o", filepath.Join(dir, "none")}, err: "no such file"},
		{name: "a directory", flags: apiFlags{"o", dir}, err: "is not a regular file"},
		{name: "a pipe", flags: apiFlags{"o", pipe}, err: "is not a regular file"},
		{name: "empty", flags: apiFlags{"o", put(t, dir, "empty", "\n")}, err: "contains no API token"},
		{name: "two words", org: "o", env: token + " x", err: "BUILDKITE_API_TOKEN contains no API token"},
		{name: "too long", flags: apiFlags{"o", put(t, dir, "long", strings.Repeat("x", 1<<20))}, err: "contains no API token"},
		{name: "an agent's", org: "o", env: "bkct_0123456789abcdef", err: "contains an agent token"},
		{name: "address that is none", org: "o", env: token, url: "here", err: "BUILDKITE_API_URL: the address of Buildkite's API is not a URL"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("BUILDKITE_ORG", tt.org)
			t.Setenv("BUILDKITE_API_TOKEN", tt.env)
			t.Setenv("BUILDKITE_API_URL", tt.url)
			_, err := tt.flags.client(Streams{Err: t.Output()}, nil)
			if err == nil {
				if tt.err != "" {
					t.Errorf("no error; want %s", tt.err)
				} else if tt.flags.org != "gpu-mode" {
					t.Errorf("organization %q", tt.flags.org)
				}
				return
			}
			if tt.err == "" || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), token) || strings.Contains(err.Error(), "bkct_0") {
				t.Errorf("%v; want %s", err, tt.err)
			}
			exit, is := errors.AsType[*exitError](err)
			if !is || exit.code != exitUsage {
				t.Errorf("%v is no error of usage", err)
			}
		})
	}
}
