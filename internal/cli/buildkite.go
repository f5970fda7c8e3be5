package cli

import (
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/text"
)

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
			s.progress("%s; retrying in %s", text.Line(why, 300), max(pause, time.Second).Round(time.Second))
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
		secret, err := buildkite.ReadSecret(a.tokenFile)
		if err != nil {
			return "", err
		}
		from, text = a.tokenFile, secret
	} else if text == "" {
		return "", errors.New("no API token is given; create one in Buildkite (Personal Settings, API Access Tokens) with the scopes read_agents and read_builds, " +
			"for kbnode submit also write_builds and read_artifacts, and set BUILDKITE_API_TOKEN, or write it to a file with mode 0600 and add --token-file FILE")
	}
	return buildkite.ParseToken(from, text)
}
