package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpu-mode/kbnode/internal/buildkite"
)

// maxArtifact bounds what is downloaded, in bytes.
const maxArtifact = 128 << 20

// org is the organization that bktest serves by default.
const org = "kbnode"

// client is Buildkite's REST API, for one pipeline.
type client struct {
	*buildkite.Client
	url, token, pipeline string
}

// connect prepares the client; no request is sent.
func (cl *client) connect() (err error) {
	cl.Client, err = buildkite.New(buildkite.Options{URL: cl.url, Token: cl.token})
	return err
}

func (cl *client) build(ctx context.Context, number int) (buildkite.Build, error) {
	return cl.Build(ctx, org, cl.pipeline, number)
}

// errNoArtifact means that a build has no such file, or not yet.
var errNoArtifact = errors.New("no such artifact")

// artifact downloads the newest file that a build has under path.
func (cl *client) artifact(ctx context.Context, number int, path string) ([]byte, error) {
	found, err := cl.Artifacts(ctx, org, cl.pipeline, number, path)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("build %d: %s: %w", number, path, errNoArtifact)
	}
	return cl.Download(ctx, found[len(found)-1], maxArtifact)
}
