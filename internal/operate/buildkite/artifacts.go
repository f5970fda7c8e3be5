package buildkite

import (
	"context"
	"crypto/sha1" //nolint:gosec // the checksum that Buildkite uses
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/buildkite/go-buildkite/v4"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Artifact is a file that a job uploaded.
type Artifact = buildkite.Artifact

// Artifacts lists the completely uploaded files of a build, only those with this path
// if it is not "". The token needs the scope read_artifacts.
func (c *Client) Artifacts(ctx context.Context, org, pipeline string, number int, path string) ([]Artifact, error) {
	query := url.Values{"state": {"finished"}, "per_page": {"100"}}
	if path != "" {
		query.Set("path", path)
	}
	return list[Artifact](ctx, c, fmt.Sprintf("artifacts of build %d", number), "read_artifacts", fmt.Sprintf("%s/%d/artifacts", buildsPath(org, pipeline), number), query, func(a Artifact) string { return a.ID })
}

// Download fetches a file of at most that many bytes and checks its size and checksum.
func (c *Client) Download(ctx context.Context, a Artifact, most int64) ([]byte, error) {
	for try := 1; ; try++ {
		data, err := c.fetch(ctx, a, most)
		if err != nil && (try == 3 || !errors.Is(err, errStore)) {
			return nil, fmt.Errorf("download %s: %w", text.Line(a.Path, 100), plain(err, "read_artifacts"))
		}
		if err == nil {
			return data, nil
		}
	}
}

// errStore is of a link that may have expired: it is valid for a minute.
var errStore = errors.New("the artifact store returned")

// fetch asks the API where the file is, and gets it there. URLs come from responses: the token goes only to
// the API's host.
func (c *Client) fetch(ctx context.Context, a Artifact, most int64) ([]byte, error) {
	if a.FileSize > most {
		return nil, fmt.Errorf("it has %d bytes, and the limit is %d", a.FileSize, most)
	}
	at, err := url.Parse(a.DownloadURL)
	if base := c.api.BaseURL; err != nil || at.Scheme != base.Scheme || at.Host != base.Host {
		return nil, errors.New("its address does not belong to the API")
	}
	req, err := c.api.NewRequest(ctx, http.MethodGet, a.DownloadURL, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	redirect, is := errors.AsType[*Refusal](err)
	switch {
	case err == nil:
		_ = resp.Body.Close() // read already
		return nil, errors.New("there is no link to it")
	case !is || redirect.location == nil:
		return nil, err
	}
	to := redirect.location
	if to.Scheme != "https" && to.Scheme != at.Scheme {
		return nil, errors.New("there is no https link to it")
	}
	if req, err = http.NewRequestWithContext(ctx, http.MethodGet, to.String(), nil); err != nil {
		return nil, errors.New("its link is invalid")
	}
	if resp, err = c.store.Do(req); Refused(err) > 0 {
		err = fmt.Errorf("%w %d %s", errStore, Refused(err), http.StatusText(Refused(err)))
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(resp.Body) // of memory
	_ = resp.Body.Close()
	sum := sha1.Sum(data) //nolint:gosec // as above
	switch {
	case err != nil:
		return nil, err
	case int64(len(data)) != a.FileSize:
		return nil, fmt.Errorf("it has %d bytes, not %d", len(data), a.FileSize)
	case a.SHA1 != "" && !strings.EqualFold(hex.EncodeToString(sum[:]), a.SHA1):
		return nil, errors.New("its checksum does not match")
	}
	return data, nil
}
