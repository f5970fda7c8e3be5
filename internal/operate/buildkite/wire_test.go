package buildkite

import (
	"context"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

// server responds in a test's own time.
type server func(r *http.Request) (status int, header map[string]string, body string)

func (s server) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	status, header, body := s(r)
	if status == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	resp := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}
	for k, v := range header {
		resp.Header.Set(k, v)
	}
	return resp, nil
}

func patient(t *testing.T, s http.RoundTripper) *Client {
	t.Helper()
	c, err := New(Options{URL: "http://buildkite.test", Token: "secret-token", Network: s, Patient: true})
	must.Do(t, err)
	return c
}

// TestPace checks that no minute of Buildkite's exceeds the limit, wherever it
// begins, however requests arrive and whatever other clients do.
func TestPace(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			var mu sync.Mutex
			dice := func(n int) time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(random.IntN(n))
			}
			begun := time.Now().Add(-dice(60) * time.Second)
			used, others, over := 0, int(dice(30)), 0
			if seed == 0 {
				others = 0
			}
			c := patient(t, server(func(*http.Request) (int, map[string]string, string) {
				time.Sleep(dice(3000) * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				if now := time.Now(); now.Sub(begun) >= time.Minute {
					begun, used = now.Truncate(time.Second), 0
				}
				if used == 0 {
					used = others // they were faster
				}
				used++
				left := strconv.Itoa(max(0, 50-used))
				header := map[string]string{
					"RateLimit-Limit": "200", "RateLimit-Remaining": "170", "RateLimit-Reset": "9",
					"RateLimit-User-Limit": "50", "RateLimit-User-Remaining": left, "RateLimit-User-Reset": strconv.Itoa(60 - int(time.Since(begun).Seconds())),
				}
				if seed == 0 { // the API says nothing
					header = nil
				}
				if used > 50 {
					over++
					return http.StatusTooManyRequests, header, `{"message":"slow down"}`
				}
				return http.StatusOK, header, "[]"
			}))
			var group sync.WaitGroup
			for range 170 {
				group.Go(func() {
					time.Sleep(dice(20) * time.Second)
					if _, err := c.Agents(t.Context(), "o"); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
			// No one knows of the others before the first responses of a minute.
			if most := 6 * others / 2; over > most {
				t.Errorf("%d requests over the limit, %d are others'", over, others)
			}
			if others == 0 && over > 0 {
				t.Errorf("%d over the limit, alone", over)
			}
		})
	}
}

// TestWire checks that an impatient client fails at once, and that a patient one
// never accepts a response that was truncated or is from another server.
func TestWire(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]server{
		"502":     func(*http.Request) (int, map[string]string, string) { return 502, nil, "<html>bad gateway</html>" },
		"a page":  func(*http.Request) (int, map[string]string, string) { return 200, nil, "<html>log in</html>" },
		"dropped": func(*http.Request) (int, map[string]string, string) { return 0, nil, "" },
		"slow": func(*http.Request) (int, map[string]string, string) {
			time.Sleep(2 * time.Minute)
			return 200, nil, "[]"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for list, ask := range lists {
				synctest.Test(t, func(t *testing.T) {
					var n atomic.Int32
					c := patient(t, within{server(func(r *http.Request) (int, map[string]string, string) {
						if n.Add(1) <= 3 {
							return bad(r)
						}
						return 200, nil, "[]"
					})})
					if err := ask(t.Context(), c); err != nil || n.Load() != 4 {
						t.Errorf("%s: %v after %d", list, err, n.Load())
					}
					n.Store(-100)
					began := time.Now()
					if err := ask(t.Context(), c); err == nil || strings.Contains(err.Error(), "secret") || time.Since(began) > 10*time.Minute {
						t.Errorf("%s: %v after %s", list, err, time.Since(began))
					}
					if n.Load() != -94 {
						t.Errorf("%s: %d attempts", list, n.Load()+100)
					}
					time.Sleep(time.Hour) // slow requests must time out
				})
			}
		})
	}
}

// TestRedirected has an API that redirects, as http:// and portals of networks do. Their pages are not shown.
func TestRedirected(t *testing.T) {
	t.Parallel()
	for status := 300; status < 310; status++ {
		for to, want := range map[string]string{
			"https://portal.test/login?next=x": fmt.Sprintf("the API is redirected to https://portal.test (%d); set BUILDKITE_API_URL", status),
			"/login":                           fmt.Sprintf("the API is redirected to http://buildkite.test (%d)", status),
			"":                                 fmt.Sprintf("Buildkite returned %d", status),
		} {
			asked := 0
			c := patient(t, server(func(r *http.Request) (int, map[string]string, string) {
				asked++
				if r.URL.Host != "buildkite.test" || r.URL.Path == "/login" {
					t.Errorf("asked %s", r.URL)
				}
				return status, map[string]string{"Location": to}, "<html>\x1b]0;pwned\a" + strings.Repeat("x", 1<<20)
			}))
			_, listed := c.Agents(t.Context(), "o")
			_, created := c.Create(t.Context(), "o", "p", NewBuild{})
			for _, err := range []error{listed, created, c.Cancel(t.Context(), "o", "p", 1)} {
				if Refused(err) != status || !strings.Contains(err.Error(), want) || len(err.Error()) > 200 || strings.Contains(err.Error(), "pwned") {
					t.Errorf("%d to %q: %.300q", status, to, err)
				}
			}
			if asked != 3 {
				t.Errorf("%d requests", asked)
			}
		}
	}
}

// lists are the read-only calls.
var lists = map[string]func(context.Context, *Client) error{
	"agents": func(ctx context.Context, c *Client) error { _, err := c.Agents(ctx, "o"); return err },
	"builds": func(ctx context.Context, c *Client) error { _, err := c.Unfinished(ctx, "o"); return err },
}

// within fails a request whose context is done.
type within struct{ http.RoundTripper }

func (w within) RoundTrip(r *http.Request) (*http.Response, error) {
	type back struct {
		resp *http.Response
		err  error
	}
	answered := make(chan back, 1)
	go func() {
		resp, err := w.RoundTripper.RoundTrip(r.WithContext(context.WithoutCancel(r.Context())))
		answered <- back{resp, err}
	}()
	select {
	case b := <-answered:
		return b.resp, b.err
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// TestDownload checks that an artifact comes whole from the store, which never sees
// the token, and that the token is never sent to a host from a response.
func TestDownload(t *testing.T) {
	t.Parallel()
	const text = `{"success":true}`
	sum := sha1.Sum([]byte(text))
	good := Artifact{Path: "result.json", FileSize: int64(len(text)), SHA1: hex.EncodeToString(sum[:])}
	short, other := good, good
	short.FileSize++
	other.SHA1 = strings.Repeat("0", 40)
	for _, tt := range []struct {
		name   string
		a      Artifact
		url    string // "" is the API's
		status int
		most   int64
		err    string
	}{
		{name: "whole", a: good},
		{name: "too large", a: good, most: 3, err: "it has 16 bytes, and the limit is 3"},
		{name: "not whole", a: short, err: "it has 16 bytes, not 17"},
		{name: "another", a: other, err: "its checksum does not match"},
		{name: "elsewhere", a: good, url: "http://127.0.0.1:1/x", err: "its address does not belong to the API"},
		{name: "expired", a: good, status: http.StatusForbidden, err: "the artifact store returned 403 Forbidden"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				must.Equal(t, "", r.Header.Get("Authorization"))
				if tt.status != 0 {
					w.WriteHeader(tt.status)
				}
				_, _ = io.WriteString(w, text)
			}))
			t.Cleanup(store.Close)
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				must.Equal(t, "Bearer secret-token", r.Header.Get("Authorization"))
				w.Header().Set("Location", store.URL+"/signed?key=hidden")
				w.WriteHeader(http.StatusFound)
				_, _ = fmt.Fprintf(w, `{"url":%q}`, store.URL)
			}))
			t.Cleanup(api.Close)
			c, err := New(Options{URL: api.URL, Token: "secret-token"})
			must.Do(t, err)
			tt.a.DownloadURL = tt.url
			if tt.url == "" {
				tt.a.DownloadURL = api.URL + "/v2/download"
			}
			if tt.most == 0 {
				tt.most = 1 << 20
			}
			got, err := c.Download(t.Context(), tt.a, tt.most)
			if tt.err == "" && (err != nil || string(got) != text) {
				t.Errorf("%q, %v", got, err)
			}
			if tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "hidden")) {
				t.Error(err)
			}
		})
	}
}

func TestAddress(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"api.buildkite.com", "file:///etc/passwd", "http://", "://"} {
		if _, err := New(Options{URL: at, Token: "t"}); err == nil {
			t.Errorf("%s is an address", at)
		}
	}
	for at, want := range map[string]string{
		"": "https://api.buildkite.com", "https://api.buildkite.com": "https://api.buildkite.com", "https://api.buildkite.com/": "https://api.buildkite.com",
		"https://api.buildkite.com/v2": "https://api.buildkite.com", "https://api.buildkite.com/v2/": "https://api.buildkite.com", " https://api.buildkite.com//v2//": "https://api.buildkite.com",
		"http://127.0.0.1:8899/at/v2": "http://127.0.0.1:8899/at", "http://h/v22": "http://h/v22",
	} {
		if got := BaseURL(at); got != want {
			t.Errorf("%q is %q, want %q", at, got, want)
		}
	}
	var asked string
	network := server(func(r *http.Request) (int, map[string]string, string) {
		asked = r.URL.Path
		return 0, nil, ""
	})
	for _, at := range []string{"", "/", "/v2", "/v2/"} {
		c, err := New(Options{URL: "http://buildkite.test" + at, Token: "t", Network: network})
		must.Do(t, err)
		_ = c.EachAgent(t.Context(), "gpu-mode", func(Agent) bool { return true })
		if asked != "/v2/organizations/gpu-mode/agents" {
			t.Errorf("BUILDKITE_API_URL that ends in %q asks %s", at, asked)
		}
	}
	for slug, ok := range map[string]bool{"gpu-mode": true, "a_b": true, "": false, "a/b": false, "..": false, "a?b": false, "a b": false, strings.Repeat("a", 101): false} {
		if err := CheckSlug("an organization", slug); (err == nil) != ok {
			t.Errorf("%q: %v", slug, err)
		}
	}
}

// TestUnreached explains networks that lead nowhere. The cause stays known to those who look for it.
func TestUnreached(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: &os.SyscallError{Syscall: "connect", Err: syscall.ECONNREFUSED}}
	for _, c := range []struct {
		err  error
		want string
	}{
		{&net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "h", IsNotFound: true}}, "no address is known for h; check the network"},
		{refused, "nothing answers at h; check the network"},
		{&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, "set SSL_CERT_FILE"},
		{&net.OpError{Op: "proxyconnect", Net: "tcp", Err: &net.OpError{Op: "dial", Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}, Err: syscall.ECONNREFUSED}}, "nothing answers at the proxy 127.0.0.1:9; check"},
		{tls.RecordHeaderError{Msg: "x"}, "h does not speak https"},
		{context.DeadlineExceeded, "h did not answer in time"},
		{io.ErrUnexpectedEOF, "unexpected EOF"},
	} {
		err := unreached("h", c.err)
		must.Err(t, err, c.want)
		if !errors.Is(err, c.err) {
			t.Errorf("%v hides %v", err, c.err)
		}
	}
	must.Equal(t, "Validation failed: name is already exists, key is missing", message([]byte(`{"message": "Validation failed", "errors": [{"field": "name", "code": "already_exists"}, {"field": "key", "code": "missing"}]}`)))
}
