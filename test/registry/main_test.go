package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// client speaks to a registry like an engine.
type client struct {
	t   *testing.T
	url string
}

func (c client) do(method, path, body string, want int, header ...string) *http.Response {
	c.t.Helper()
	if !strings.HasPrefix(path, "http") {
		path = c.url + path
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, path, strings.NewReader(body))
	must.Do(c.t, err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	must.Do(c.t, err)
	c.t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != want {
		c.t.Fatalf("%s %s: %s, want %d", method, path, resp.Status, want)
	}
	return resp
}

func serve(t *testing.T, g http.Handler) client {
	s := httptest.NewServer(g)
	t.Cleanup(s.Close)
	return client{t, s.URL}
}

// TestPushAndPull pushes an image like docker push and pulls it back, also after an
// interruption.
func TestPushAndPull(t *testing.T) {
	t.Parallel()
	c := serve(t, newRegistry())
	layer := strings.Repeat("layer", 40000)
	digest := sum([]byte(layer))
	c.do("GET", "/v2/", "", 200)
	c.do("HEAD", "/v2/a/b/blobs/"+digest, "", 404)
	at := c.do("POST", "/v2/a/b/blobs/uploads/", "", 202).Header.Get("Location")
	c.do("PATCH", at, layer[:1000], 202)
	c.do("PATCH", at, layer[1000:], 202)
	c.do("PUT", at+"?digest="+sum([]byte("other")), "", 400)
	at = c.do("POST", "/v2/a/b/blobs/uploads/", "", 202).Header.Get("Location")
	c.do("PATCH", at, layer, 202)
	c.do("PUT", at+"?digest="+digest, "", 201)
	const kind = "application/vnd.docker.distribution.manifest.v2+json"
	m := `{"schemaVersion":2}`
	c.do("PUT", "/v2/a/b/manifests/latest", m, 201, "Content-Type", kind)
	for _, ref := range []string{"latest", sum([]byte(m))} {
		got := c.do("GET", "/v2/a/b/manifests/"+ref, "", 200)
		text, err := io.ReadAll(got.Body)
		if err != nil || string(text) != m || got.Header.Get("Content-Type") != kind || got.Header.Get("Docker-Content-Digest") != sum([]byte(m)) {
			t.Errorf("%s: %q %v %v", ref, text, got.Header, err)
		}
	}
	c.do("GET", "/v2/a/b/manifests/other", "", 404)

	c.do("POST", "/faults", `{"cuts":1,"after":70000}`, 200)
	half, err := io.ReadAll(c.do("GET", "/v2/a/b/blobs/"+digest, "", 200).Body)
	if err == nil || len(half) != 70000 {
		t.Errorf("%d bytes got through (%v)", len(half), err)
	}
	rest, err := io.ReadAll(c.do("GET", "/v2/a/b/blobs/"+digest, "", 206, "Range", "bytes=70000-").Body)
	if err != nil || string(append(bytes.Clone(half), rest...)) != layer {
		t.Errorf("the rest has %d bytes (%v)", len(rest), err)
	}
	c.do("POST", "/faults", `{"pause":1000}`, 200)
	whole, err := io.ReadAll(c.do("GET", "/v2/a/b/blobs/"+digest, "", 200).Body)
	if err != nil || string(whole) != layer {
		t.Errorf("%d bytes got through with pauses (%v)", len(whole), err)
	}
}
