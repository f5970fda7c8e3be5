package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"time"

	"github.com/gpu-mode/kbnode/test/bktest"
)

// maxAnswer bounds what is read of one answer, in bytes.
const maxAnswer = 128 << 20

// client speaks REST version 2 to a server.
type client struct{ url, token, org string }

// do sends a request below /v2 and decodes the answer into out, unless it is
// nil; the header is the answer's.
func (cl *client) do(ctx context.Context, method, path string, in, out any) (http.Header, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, cl.url+"/v2"+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+cl.token)
	resp, text, err := fetch(req)
	if err != nil {
		return nil, err
	}
	switch {
	case resp.StatusCode == http.StatusFound: // an artifact, which is in the store
	case resp.StatusCode/100 != 2:
		var why struct{ Message string }
		_ = json.Unmarshal(text, &why) // without a message the status has to do
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, why.Message)
	case out != nil:
		if err := json.Unmarshal(text, out); err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
	}
	return resp.Header, nil
}

// fetch follows no redirect: the token must not travel to the store.
func fetch(req *http.Request) (*http.Response, []byte, error) {
	hc := http.Client{Timeout: 2 * time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := hc.Do(req)
	if err != nil {
		return nil, nil, err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return resp, text, errors.Join(err, resp.Body.Close())
}

func (cl *client) buildPath(pipeline, number string) string {
	return fmt.Sprintf("/organizations/%s/pipelines/%s/builds/%s", url.PathEscape(cl.org), url.PathEscape(pipeline), url.PathEscape(number))
}

func (cl *client) build(ctx context.Context, pipeline, number string) (b bktest.Build, err error) {
	_, err = cl.do(ctx, http.MethodGet, cl.buildPath(pipeline, number), nil, &b)
	return b, err
}

func (cl *client) log(ctx context.Context, pipeline, number, job string) (string, error) {
	var log struct{ Content string }
	_, err := cl.do(ctx, http.MethodGet, cl.buildPath(pipeline, number)+"/jobs/"+url.PathEscape(job)+"/log", nil, &log)
	return bktest.Plain(log.Content), err
}

// errNoArtifact says that a build has none of that name (yet).
var errNoArtifact = errors.New("no such artifact")

// artifact downloads the newest file that a build has under path.
func (cl *client) artifact(ctx context.Context, pipeline, number, path string) ([]byte, error) {
	var found []bktest.Artifact
	q := url.Values{"path": {path}, "state": {"finished"}, "per_page": {"100"}}
	if _, err := cl.do(ctx, http.MethodGet, cl.buildPath(pipeline, number)+"/artifacts?"+q.Encode(), nil, &found); err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("build %s: %s: %w", number, path, errNoArtifact)
	}
	last := found[len(found)-1]
	header, err := cl.do(ctx, http.MethodGet, cl.buildPath(pipeline, number)+"/jobs/"+last.JobID+"/artifacts/"+last.ID+"/download", nil, nil)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, header.Get("Location"), nil)
	if err != nil {
		return nil, err
	}
	resp, data, err := fetch(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("download %s: %s: %.200s", path, resp.Status, data)
	}
	return data, err
}

var nextLink = regexp.MustCompile(`<[^>]*[?&]page=([0-9]+)[^>]*>; rel="next"`)

func (cl *client) agents(ctx context.Context) ([]bktest.Agent, error) {
	var all []bktest.Agent
	for page := "1"; ; {
		var some []bktest.Agent
		header, err := cl.do(ctx, http.MethodGet, "/organizations/"+url.PathEscape(cl.org)+"/agents?per_page=100&page="+page, nil, &some)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
		m := nextLink.FindStringSubmatch(header.Get("Link"))
		if m == nil {
			return all, nil
		}
		page = m[1]
	}
}
