package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/buildkite"
)

// maxAPIToken is the maximum size of a token in bytes; Buildkite's have 45.
const maxAPIToken = 4 << 10

// apiFlags say which organization of Buildkite's REST API to ask, and with which token.
type apiFlags struct{ org, tokenFile string }

func (a *apiFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.org, "org", "", "organization, as in its URL (default: BUILDKITE_ORG)")
	cmd.Flags().StringVar(&a.tokenFile, "token-file", "", "file with the API token, readable only by you (default: BUILDKITE_API_TOKEN)")
}

// client fills in what the environment says, and connects. Failed requests are retried: log is
// told, or standard error if log is nil.
func (a *apiFlags) client(s Streams, log func(string, time.Duration)) (*buildkite.Client, error) {
	if a.org == "" {
		a.org = os.Getenv("BUILDKITE_ORG")
	}
	var orgErr error
	if a.org == "" {
		orgErr = errors.New("no organization is given; add --org NAME, such as --org gpu-mode, or set BUILDKITE_ORG")
	} else {
		orgErr = buildkite.CheckSlug("an organization", a.org)
	}
	token, tokenErr := a.token()
	if err := errors.Join(orgErr, tokenErr); err != nil {
		return nil, usage(err)
	}
	if log == nil {
		log = func(why string, pause time.Duration) {
			s.progress("%s; retrying in %s", why, pause.Round(time.Second))
		}
	}
	client, err := buildkite.New(buildkite.Options{URL: os.Getenv("BUILDKITE_API_URL"), Token: token, Patient: true, Log: log})
	if err != nil {
		return nil, usagef("BUILDKITE_API_URL: %w", err)
	}
	return client, nil
}

// token returns the token of --token-file, or else of the environment.
func (a *apiFlags) token() (string, error) {
	from, text := "BUILDKITE_API_TOKEN", os.Getenv("BUILDKITE_API_TOKEN")
	if a.tokenFile != "" {
		secret, err := readSecret(a.tokenFile)
		if err != nil {
			return "", err
		}
		from, text = a.tokenFile, secret
	} else if text == "" {
		return "", errors.New("no API token is given; create one in Buildkite (Personal Settings, API Access Tokens) with the scopes read_agents and read_builds, " +
			"for kbnode submit also write_builds and read_artifacts, and set BUILDKITE_API_TOKEN, or write it to a file with mode 0600 and add --token-file FILE")
	}
	token := strings.TrimSpace(text)
	switch {
	case token == "" || len(token) > maxAPIToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("%s contains no API token; a token is one word, such as bkua_…", from)
	case strings.HasPrefix(token, "bkct_"):
		return "", fmt.Errorf("%s contains an agent token; use an API token (Personal Settings, API Access Tokens)", from)
	}
	return token, nil
}

// readSecret reads a file that no one else may read.
func readSecret(name string) (string, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a named pipe is not waited for
	if err != nil {
		return "", fmt.Errorf("read API token: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("read API token: %w", err)
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("read API token: %s is not a regular file", name)
	case info.Mode().Perm()&0o077 != 0:
		return "", fmt.Errorf("other users can read %s (mode %04o); type chmod 600 %[1]s, and replace the token if someone has read it", name, info.Mode().Perm())
	case !known || int(owner.Uid) != os.Geteuid():
		return "", fmt.Errorf("read API token: %s belongs to another user; make your own copy with mode 0600", name)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxAPIToken+2))
	if err != nil {
		return "", fmt.Errorf("read API token: %w", err)
	}
	return string(text), nil
}
