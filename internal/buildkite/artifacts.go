package buildkite

import (
	"bytes"
	"context"
	"crypto/sha1" //nolint:gosec // the checksum that Buildkite uses
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/buildkite/go-buildkite/v4"

	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/text"
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
	return list[Artifact](ctx, c, fmt.Sprintf("artifacts of build %d", number), "read_artifacts", fmt.Sprintf("%s/%d/artifacts", buildsPath(org, pipeline), number), query)
}

// Download fetches a file of at most that many bytes and checks its size and checksum.
// A link into the store is valid for a minute, so each attempt gets a new one.
func (c *Client) Download(ctx context.Context, a Artifact, most int64) ([]byte, error) {
	if a.FileSize > most {
		return nil, fmt.Errorf("download %s: it has %d bytes, and the limit is %d", text.Line(a.Path, 100), a.FileSize, most)
	}
	name := text.Line(a.Path, 100)
	for attempt := 1; ; attempt++ {
		link, err := c.link(ctx, a)
		if err != nil { // already retried
			return nil, fmt.Errorf("download %s: %w", name, plain(err, "read_artifacts"))
		}
		data, err := c.fetch(ctx, link, a, most)
		if err == nil {
			return data, nil
		}
		if inner, is := errors.AsType[*url.Error](err); is {
			err = inner.Err // the link is a secret
		}
		if ctx.Err() != nil || attempt >= c.tries {
			return nil, fmt.Errorf("download %s: %w", name, err)
		}
		pause := backOff(attempt)
		if c.log != nil {
			c.log(err.Error(), pause)
		}
		if limit.Sleep(ctx, pause) != nil {
			return nil, fmt.Errorf("download %s: %w", name, err)
		}
	}
}

func (c *Client) fetch(ctx context.Context, link string, a Artifact, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime+time.Duration(a.FileSize>>20)*time.Second) // at least 1 MiB/s
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, link, nil)
	if err != nil {
		return nil, errors.New("the artifact's link is invalid")
	}
	resp, err := c.store.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the artifact store returned %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	var data bytes.Buffer
	if _, err := io.Copy(&data, io.LimitReader(resp.Body, most+1)); err != nil {
		return nil, fmt.Errorf("read the artifact: %w", err)
	}
	sum := sha1.Sum(data.Bytes()) //nolint:gosec // as above
	switch {
	case int64(data.Len()) > most:
		return nil, fmt.Errorf("it has more than %d bytes", most)
	case int64(data.Len()) != a.FileSize:
		return nil, fmt.Errorf("it has %d bytes, not %d", data.Len(), a.FileSize)
	case a.SHA1 != "" && !strings.EqualFold(hex.EncodeToString(sum[:]), a.SHA1):
		return nil, errors.New("its checksum does not match")
	}
	return data.Bytes(), nil
}

// link asks the API where the file is. The URL comes from a response, so link sends
// the token only to the API's host.
func (c *Client) link(ctx context.Context, a Artifact) (string, error) {
	at, err := url.Parse(a.DownloadURL)
	if base := c.api.BaseURL; err != nil || at.Scheme != base.Scheme || at.Host != base.Host {
		return "", &Refusal{Status: http.StatusBadRequest, Message: "its address does not belong to the API"}
	}
	req, err := c.api.NewRequest(ctx, http.MethodGet, a.DownloadURL, nil)
	if err != nil {
		return "", err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // read already
	to, err := resp.Location()
	if err != nil {
		return "", &Refusal{Status: http.StatusBadGateway, Message: "it has no link to the artifact"}
	}
	if to.Scheme != "https" && to.Scheme != at.Scheme {
		return "", &Refusal{Status: http.StatusBadRequest, Message: "the artifact's link is not https"}
	}
	return to.String(), nil
}
