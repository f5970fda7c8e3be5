// Package buildkite is the only client of Buildkite's REST API in kbnode.
package buildkite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/buildkite/go-buildkite/v4"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// maxPages bounds a list to ten thousand agents, or three thousand builds.
const maxPages = 100

// Options configures a Client.
type Options struct {
	URL     string            // base URL of the API; "" is Buildkite's own
	Token   string            // a person's token, with the scopes that the calls need
	Network http.RoundTripper // nil is http.DefaultTransport
	// Patient keeps requests below the rate limit, waits when it is used up, and
	// retries after errors. Otherwise each request has one try.
	Patient bool
	// Log, if not nil, is called before each retry with the reason and the pause.
	Log func(why string, pause time.Duration)
}

// Client makes requests with one token. Its methods are safe for concurrent use.
type Client struct {
	api   *buildkite.Client
	http  *http.Client // with the token; the API only
	store *http.Client // without the token; the artifact store
}

// New returns a Client.
func New(o Options) (*Client, error) {
	if o.Network == nil {
		o.Network = http.DefaultTransport
	}
	w := &wire{network: o.Network, attempts: 1, each: requestTime, json: true, log: o.Log}
	if o.Patient {
		w.pace, w.attempts = &pace{}, 6
	}
	c := &Client{
		http:  &http.Client{Transport: w},
		store: &http.Client{Transport: &wire{network: o.Network, attempts: w.attempts, each: storeTime, log: o.Log}},
	}
	options := []buildkite.ClientOpt{buildkite.WithTokenAuth(o.Token), buildkite.WithUserAgent("kbnode"), buildkite.WithHTTPClient(c.http)}
	if o.URL != "" {
		at, err := url.Parse(o.URL)
		if err != nil || at.Host == "" || at.Scheme != "https" && at.Scheme != "http" {
			return nil, errors.New("the address of Buildkite's API is not a URL; write it as https://api.buildkite.com")
		}
		if strings.HasSuffix(BaseURL(o.URL), "/v3") {
			return nil, errors.New("the address ends in /v3, as the one that agents connect to; write that of the REST API, https://api.buildkite.com")
		}
		options = append(options, buildkite.WithBaseURL(BaseURL(o.URL)+"/"))
	}
	var err error
	if c.api, err = buildkite.NewClient(options...); err != nil {
		return nil, fmt.Errorf("connect to Buildkite: %w", err)
	}
	return c, nil
}

// BaseURL returns the address of an API without a trailing slash and without the
// version that ends it in Buildkite's own documents. For "", it returns Buildkite's.
func BaseURL(address string) string {
	address = strings.TrimRight(strings.TrimSpace(address), "/")
	address = strings.TrimRight(strings.TrimSuffix(address, "/v2"), "/")
	if address == "" {
		return "https://api.buildkite.com"
	}
	return address
}

var slugRule = lazy.Regexp(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$`)

// address matches what people copy from a browser in place of the name of an organization or of its pipeline.
var address = lazy.Regexp(`^(?:https?://)?(?:(?:www\.|api\.)?buildkite\.com/)?(?:v2/)?(?:organizations/)?([A-Za-z0-9][A-Za-z0-9_-]{0,99})(?:/(?:pipelines/)?([A-Za-z0-9][A-Za-z0-9_-]{0,99}))?(?:[/?#].*)?$`)

// CheckSlug returns an error if slug cannot be the name of an organization or
// pipeline in a URL. what says which of them it is, for the error.
func CheckSlug(what, slug string) error {
	if slugRule().MatchString(slug) {
		return nil
	}
	says := fmt.Sprintf("%q is not the name of %s", slug, what)
	switch in := address().FindStringSubmatch(slug); {
	case in != nil && what == "an organization":
		return fmt.Errorf("%s; write --org %s", says, in[1])
	case in != nil && in[2] != "":
		return fmt.Errorf("%s; write --pipeline %s", says, in[2])
	}
	meant := strings.Join(strings.FieldsFunc(strings.ToLower(slug), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }), "-")
	if strings.Contains(slug, "/") || !slugRule().MatchString(meant) {
		meant = map[bool]string{true: "gpu-mode", false: "kernelbot"}[what == "an organization"]
	}
	return fmt.Errorf("%s; write it as in its URL, such as %s", says, meant)
}

// do makes an API request that the library has no method for. next is the
// number of the next page; 0 is none.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, body, into any) (next int, err error) {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	req, err := c.api.NewRequest(ctx, method, path, body)
	if err != nil {
		return 0, err
	}
	resp, err := c.api.Do(req, into)
	if err != nil {
		return 0, err
	}
	return resp.NextPage, nil
}

// each calls fn with what a list has until fn returns false, once with each id: what is new moves the rest
// to pages that are not read yet. what and scope are for errors: what the list has, and the scope that the
// token needs. An endless list is an error: what is missing from it would be taken for gone.
func each[T any](ctx context.Context, c *Client, what, scope, path string, query url.Values, id func(T) string, fn func(T) bool) error {
	query = maps.Clone(query)
	if query == nil {
		query = url.Values{"per_page": {"100"}}
	}
	known := map[string]bool{}
	for page, read := 1, 0; read < maxPages; read++ {
		query.Set("page", strconv.Itoa(page))
		var some []T
		next, err := c.do(ctx, http.MethodGet, path, query, nil, &some)
		if err != nil {
			return fmt.Errorf("list %s: %w", what, plain(err, scope))
		}
		for _, t := range some {
			before := known[id(t)]
			known[id(t)] = id(t) != ""
			if !before && !fn(t) {
				return nil
			}
		}
		if next == 0 {
			return nil
		}
		page = next
	}
	return fmt.Errorf("list %s: there are more than %d pages", what, maxPages)
}

func list[T any](ctx context.Context, c *Client, what, scope, path string, query url.Values, id func(T) string) (all []T, err error) {
	err = each(ctx, c, what, scope, path, query, id, func(t T) bool {
		all = append(all, t)
		return true
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// plain makes a refusal say what to do about it. scope is what the token needs.
func plain(err error, scope string) error {
	if inner, is := errors.AsType[*url.Error](err); is {
		err = inner.Err // without the address
	}
	refused, is := errors.AsType[*Refusal](err)
	if !is {
		return err
	}
	explained := *refused
	if to := refused.location; to != nil {
		at := text.Line(to.Scheme+"://"+to.Host, 100)
		explained.advice = fmt.Sprintf("the API is redirected to %s (%d); set BUILDKITE_API_URL to its own address, or ask who runs the network", at, refused.Status)
	}
	switch refused.Status {
	case http.StatusUnauthorized:
		explained.advice = "Buildkite refuses the API token; create one in Personal Settings, API Access Tokens (an agent token is no API token)"
	case http.StatusForbidden:
		explained.advice = "the API token may not do this; give it the scope " + scope
	case http.StatusNotFound:
		explained.advice = notFoundAdvice(refused.path)
	case http.StatusRequestEntityTooLarge:
		explained.advice = "the request is too large for Buildkite; send a smaller payload"
	}
	return &explained
}

// notFoundAdvice says what the path of a request names that Buildkite does not find. It does not find what a token may not see.
func notFoundAdvice(path string) string {
	_, names, _ := strings.Cut(path, "/organizations/")
	name := strings.Split(names, "/")
	for i := range name {
		name[i] = text.Line(name[i], maxText)
	}
	switch {
	case len(name) > 4 && name[1] == "pipelines":
		return fmt.Sprintf("the API token sees no pipeline %q of organization %q, or no such build; check --pipeline, --org and the token's settings", name[2], name[0])
	case len(name) > 2 && name[1] == "pipelines":
		return fmt.Sprintf("the API token sees no pipeline %q of organization %q; check --pipeline, --org and the token's settings", name[2], name[0])
	}
	return fmt.Sprintf("the API token sees no organization %q; check --org, and whose token it is", name[0])
}

// Refused returns the HTTP status of the response that err is about; 0 if it is
// about none.
func Refused(err error) int {
	if refused, is := errors.AsType[*Refusal](err); is {
		return refused.Status
	}
	return 0
}

// maxToken is the maximum size of a token in bytes; Buildkite's have 45.
const maxToken = 4 << 10

// assignment matches a line for a shell, such as export NAME=token.
var assignment = lazy.Regexp(`^(?:\w+ )?\w+ ?= ?\S+$`)

// ParseToken checks an API token; from names where it is from.
func ParseToken(from, text string) (string, error) {
	token := strings.TrimSpace(text)
	_, absent := os.Lstat(token)
	switch {
	case strings.HasPrefix(token, "/") || strings.HasPrefix(token, "~/") || token != "" && absent == nil:
		return "", fmt.Errorf("%s contains the path of a file, and no API token; write --token-file with that path", from)
	case strings.HasPrefix(token, "$"):
		return "", fmt.Errorf("%s contains the name of a variable, and no API token; write double quotes in place of single ones, or the token itself", from)
	case assignment().MatchString(token):
		return "", moreThanToken(from)
	case token == "" || len(token) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("%s contains no API token; a token is one word, such as bkua_…", from)
	case strings.ContainsAny(token, "\"'`=<>$"):
		return "", moreThanToken(from)
	case strings.HasPrefix(token, "bkct_"):
		return "", fmt.Errorf("%s contains an agent token; use an API token (Personal Settings, API Access Tokens)", from)
	}
	return token, nil
}

func moreThanToken(from string) error {
	return fmt.Errorf("%s contains more than an API token; leave out quotes, brackets, export and NAME=", from)
}

// ReadSecret reads a file that no one else may read.
func ReadSecret(name string) (string, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a named pipe is not waited for
	if err != nil {
		return "", fmt.Errorf("read API token: %w", text.FileError(name, err, "write the token to a file with mode 0600, and name it"))
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("read API token: %w", err)
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("read API token: %s is not a regular file; name the file with the token", name)
	case info.Mode().Perm()&0o077 != 0:
		text, _ := io.ReadAll(io.LimitReader(f, maxToken+2))
		if _, err := ParseToken(name, string(text)); err != nil && len(text) > 0 { // another file, whose mode is right
			return "", err
		}
		return "", fmt.Errorf("other users can read %s (mode %04o); type chmod 600 %[1]s, and replace the token if someone has read it", name, info.Mode().Perm())
	case !known || int(owner.Uid) != os.Geteuid():
		return "", fmt.Errorf("read API token: %s belongs to another user; make your own copy with mode 0600", name)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxToken+2))
	if err != nil {
		return "", fmt.Errorf("read API token: %w", err)
	}
	return string(text), nil
}
