package docker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/test/must"
)

// answering returns an engine with an answer for each request, by method and path.
func answering(t *testing.T, answers map[string]http.HandlerFunc) *Engine {
	t.Helper()
	return answeringAs(t, "1.45", answers)
}

// answeringAs is answering for an engine with an older or newer API.
func answeringAs(t *testing.T, version string, answers map[string]http.HandlerFunc) *Engine {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /_ping", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", version) })
	for pattern, answer := range answers {
		method, path, _ := strings.Cut(pattern, " ")
		mux.HandleFunc(method+" /v"+version+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			answer(w, r)
		})
	}
	return engineOf(t, mux)
}

func says(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

func TestRunning(t *testing.T) {
	t.Parallel()
	e := answering(t, map[string]http.HandlerFunc{"GET /containers/json": func(w http.ResponseWriter, r *http.Request) {
		must.Equal(t, "", r.URL.Query().Get("all"))
		says(http.StatusOK, `[{"Id":"1","Names":["/wt"],"Image":"containrrr/watchtower","Command":"/watchtower","State":"running","Labels":{"a":"b"}}, {"Id":"2"}]`)(w, r)
	}})
	got, err := e.Running(t.Context())
	want := []Container{{ID: "1", Name: "wt", Image: "containrrr/watchtower", Command: "/watchtower", Labels: map[string]string{"a": "b"}}, {ID: "2", Name: "2"}}
	must.Do(t, err)
	must.Equal(t, want, got)
}

// TestRoom looks at the fullest disk of those that are on this machine.
func TestRoom(t *testing.T) {
	t.Parallel()
	for config, want := range map[string]string{
		"": ContainerdRoot, "version = 3\n#root = '/x'\n[plugins]\n  root = '/y'\n": ContainerdRoot,
		"version = 2\n  root=\"/nvme/containerd\" # big\n[plugins]\n": "/nvme/containerd", "oom_score = 0\nroot = '/data/c d'": "/data/c d",
	} {
		must.Equal(t, want, containerdDir(config))
	}
	e := answering(t, map[string]http.HandlerFunc{"GET /info": says(200, `{"DockerRootDir":"/not/there"}`)})
	if free, total, err := e.Room(t.Context()); free != 0 || total != 0 || err != nil {
		t.Errorf("an engine elsewhere: %d of %d bytes, %v", free, total, err)
	}
	memory, disk := must.MemoryDir(t), t.TempDir()
	_, small := leastRoom(memory)
	_, large := leastRoom(disk)
	want := large
	if roomOf(t, memory) < roomOf(t, disk) {
		want = small
	}
	for _, dirs := range [][]string{{memory, disk, "", "/not/there"}, {"/not/there", disk, memory}} {
		if _, total := leastRoom(dirs...); total != want || total == 0 {
			t.Errorf("%q: a disk of %d bytes, want %d of %d and %d", dirs, total, want, small, large)
		}
	}
}

func roomOf(t *testing.T, dir string) int64 {
	t.Helper()
	room, err := host.Room(dir)
	must.Do(t, err)
	return room
}

const someDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestResolve(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		digest string
		err    error
		text   string
	}{
		{name: "there", answer: says(200, `{"Descriptor":{"digest":"`+someDigest+`"}}`), digest: someDigest},
		{name: "no digest", answer: says(200, `{"Descriptor":{"digest":"latest"}}`), text: `"latest", which is not a digest`},
		{name: "not there", answer: says(404, `{"message":"manifest unknown"}`), err: ErrMissing},
		{name: "not allowed", answer: says(401, `{"message":"unauthorized: authentication required"}`), err: ErrRefused},
		{name: "denied as a server's error", answer: says(500, `{"message":"Get https://r/v2/: denied: \u001b[31mno"}`), err: ErrRefused, text: "denied: no"},
		{name: "away", answer: says(500, `{"message":"dial tcp: i/o timeout"}`), text: "i/o timeout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("DOCKER_CONFIG", t.TempDir())
			e := answering(t, map[string]http.HandlerFunc{"GET /distribution/r.example/x:1/json": tt.answer})
			got, err := e.Resolve(t.Context(), "r.example/x:1")
			if got != tt.digest || tt.err != nil && !errors.Is(err, tt.err) || tt.text != "" && (err == nil || !strings.Contains(err.Error(), tt.text)) || err != nil && tt.digest != "" {
				t.Errorf("%q, %v; want %q, %v %q", got, err, tt.digest, tt.err, tt.text)
			}
			if tt.err == nil && errors.Is(err, ErrRefused) {
				t.Errorf("%v is no refusal", err)
			}
		})
	}
}

func TestPull(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer string
		status int
		want   []Progress
		err    error
		text   string
	}{
		{
			name: "whole", answer: `{"status":"Pulling from x","id":"1"}{"status":"Downloading","progressDetail":{"current":5,"total":9},"id":"abc"}` + "\r\n" + `{"status":"Pull complete","id":"abc\u001b[2J"}`,
			want: []Progress{{Layer: "1", Status: "Pulling from x"}, {Layer: "abc", Status: "Downloading", Current: 5, Total: 9}, {Layer: "abc", Status: "Pull complete"}},
		},
		{name: "no room", answer: `{"errorDetail":{"message":"write /x: no space left on device"},"error":"x"}`, err: ErrDiskFull},
		{name: "refused on the way", answer: `{"errorDetail":{"message":"unauthorized: log in"},"error":"x"}`, err: ErrRefused},
		{name: "cut off", answer: `{"status":"Downloading","id":"abc"}{"status":`, want: []Progress{{Layer: "abc", Status: "Downloading"}}, text: "unexpected EOF"},
		{name: "an error of the network", answer: `{"errorDetail":{"message":"read: connection reset by peer"}}`, text: "connection reset"},
		{name: "not there", status: 404, answer: `{"message":"no such manifest"}`, err: ErrMissing},
		{name: "not there, in the middle", answer: `{"errorDetail":{"message":"manifest for r.example/x:1 not found: manifest unknown: manifest unknown"}}`, err: ErrMissing},
		{name: "not for this machine", answer: `{"errorDetail":{"message":"no matching manifest for linux/amd64 in the manifest list entries"}}`, err: ErrMissing},
		{name: "not there or private", status: 404, answer: `{"message":"pull access denied for x, repository does not exist or may require 'docker login'"}`, err: ErrRefused},
		{name: "denied in the registry's words", answer: `{"errorDetail":{"message":"denied: Permission denied for \"x\""}}`, err: ErrRefused},
		{name: "no token without a login", answer: `{"errorDetail":{"message":"failed to authorize: failed to fetch anonymous token: unexpected status: 403 Forbidden"}}`, err: ErrRefused},
		{name: "too many pulls without a login", answer: `{"errorDetail":{"message":"toomanyrequests: You have reached your unauthenticated pull rate limit"}}`, err: ErrRefused},
		{name: "a layer that does not unpack", answer: `{"errorDetail":{"message":"failed to register layer: mkdir /x: permission denied"}}`, text: "permission denied"},
		{name: "a program that is missing", answer: `{"errorDetail":{"message":"exec: \"unpigz\": executable file not found in $PATH"}}`, text: "unpigz"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("DOCKER_CONFIG", t.TempDir())
			e := answering(t, map[string]http.HandlerFunc{"POST /images/create": says(max(tt.status, 200), tt.answer)})
			var got []Progress
			err := e.Pull(t.Context(), "r.example/x@"+someDigest, func(p Progress) { got = append(got, p) })
			if (err == nil) != (tt.err == nil && tt.text == "") || tt.err != nil && !errors.Is(err, tt.err) || tt.text != "" && !strings.Contains(err.Error(), tt.text) ||
				tt.err == nil && errors.Is(err, ErrRefused) || errors.Is(err, ErrMissing) != errors.Is(tt.err, ErrMissing) {
				t.Errorf("%v, want %v %q", err, tt.err, tt.text)
			}
			must.Equal(t, tt.want, got)
		})
	}
}

// TestPullBegins gives up a registry that has not begun after minutes, and one later that is quiet for longer.
func TestPullBegins(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		messages int
		least    time.Duration
	}{{0, beginDeadline}, {1, quietDeadline}} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			err := (&Engine{}).stream(t.Context(), "pull x", func(Progress) {}, func(ctx context.Context) (messages, error) {
				return silent{row.messages}, nil
			})
			if d := time.Since(began); err == nil || d != row.least {
				t.Errorf("%d messages: given up after %s: %v", row.messages, d, err)
			}
		})
	}
}

// silent says nothing after some messages.
type silent struct{ after int }

func (silent) Close() error { return nil }

func (s silent) JSONMessages(ctx context.Context) iter.Seq2[jsonstream.Message, error] {
	return func(yield func(jsonstream.Message, error) bool) {
		for range s.after {
			yield(jsonstream.Message{Status: "Pulling from x"}, nil)
		}
		<-ctx.Done()
		yield(jsonstream.Message{}, ctx.Err())
	}
}

// TestPullIsCutShort checks that a pull that was given up returns the reason.
func TestPullIsCutShort(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	e := answering(t, map[string]http.HandlerFunc{"POST /images/create": func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"status":"Downloading","id":"abc"}`)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}})
	why := errors.New("a job came")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	if err := e.Pull(ctx, "r.example/x@"+someDigest, func(Progress) { cancel(why) }); !errors.Is(err, why) {
		t.Errorf("%v, want the reason", err)
	}
}

func TestUntagAndNames(t *testing.T) {
	t.Parallel()
	var force string
	e := answering(t, map[string]http.HandlerFunc{
		"DELETE /images/there:1": func(w http.ResponseWriter, r *http.Request) {
			force = r.URL.Query().Get("force")
			_, _ = io.WriteString(w, "[]")
		},
		"DELETE /images/gone:1":   says(404, `{"message":"No such image"}`),
		"DELETE /images/used:1":   says(409, `{"message":"image is being used by running container"}`),
		"GET /images/json":        says(200, `[{"Id":"sha256:1","RepoTags":["own/x:1","other:1"]},{"Id":"sha256:2","RepoTags":null}]`),
		"GET /containers/json":    says(200, `[{"Id":"a","ImageID":"sha256:1"}]`),
		"POST /images/x/tag":      says(201, ""),
		"POST /images/nobody/tag": says(404, `{"message":"No such image"}`),
	})
	for ref, want := range map[string]bool{"there:1": true, "gone:1": true, "used:1": false} {
		if err := e.Untag(t.Context(), ref); (err == nil) != want {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if force != "" && force != "0" {
		t.Errorf("removed with force=%s", force)
	}
	names, err := e.Names(t.Context(), "own/")
	must.Do(t, err)
	must.Equal(t, map[string]string{"own/x:1": "sha256:1"}, names)
	used, err := e.ImagesInUse(t.Context())
	must.Do(t, err)
	must.Equal(t, map[string]bool{"sha256:1": true}, used)
	if err := e.Tag(t.Context(), "nobody", "a:b"); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v, want ErrNotFound", err)
	}
}

func TestBuild(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	var got string
	e := answering(t, map[string]http.HandlerFunc{"POST /build": func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = r.URL.Query().Get("t") + " " + r.URL.Query().Get("dockerfile") + " " + r.URL.Query().Get("version") + " " + r.URL.Query().Get("buildargs") + " " + string(body)
		_, _ = io.WriteString(w, `{"stream":"Step 1/2 : FROM x\n"}{"errorDetail":{"message":"RUN ended with 1"},"error":"x"}`)
	}})
	var lines []string
	err := e.Build(t.Context(), "x:building", strings.NewReader("tar"), "Dockerfile", map[string]string{"A": "1", "B": ""}, func(p Progress) { lines = append(lines, p.Status) })
	must.Err(t, err, "RUN ended with 1")
	if want := `x:building Dockerfile 1 {"A":"1","B":""} tar`; got != want || len(lines) != 1 || lines[0] != "Step 1/2 : FROM x" {
		t.Errorf("sent %q, told %q", got, lines)
	}
}

// TestBuildAuths sends the credentials of all registries, without those that a helper does not give.
func TestBuildAuths(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	must.Program(t, filepath.Join(bin, "docker-credential-good"), "#!/bin/sh\necho '{\"Username\":\"u\",\"Secret\":\"g00d\"}'\n")
	must.Program(t, filepath.Join(bin, "docker-credential-broken"), "#!/bin/sh\necho s3cret; exit 3\n")
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("DOCKER_CONFIG", dir)
	must.Write(t, dir, "config.json", `{"auths":{"ghcr.io":{"auth":"`+base64.StdEncoding.EncodeToString([]byte("u:p"))+`"},"b.example":{}},
		"credHelpers":{"a.example":"good","b.example":"broken","c.example":"missing"}}`)
	var sent map[string]registry.AuthConfig
	e := answering(t, map[string]http.HandlerFunc{"POST /build": func(_ http.ResponseWriter, r *http.Request) {
		text, err := base64.URLEncoding.DecodeString(r.Header.Get("X-Registry-Config"))
		must.Do(t, errors.Join(err, json.Unmarshal(text, &sent)))
	}})
	var lines []string
	must.Do(t, e.Build(t.Context(), "x:building", strings.NewReader("tar"), "Dockerfile", nil, func(p Progress) { lines = append(lines, p.Status) }))
	must.Equal(t, map[string]registry.AuthConfig{
		"a.example": {Username: "u", Password: "g00d", ServerAddress: "a.example"}, "ghcr.io": {Username: "u", Password: "p", ServerAddress: "ghcr.io"},
	}, sent)
	must.Equal(t, 2, len(lines))
	for i, host := range []string{"b.example", "c.example"} {
		must.Contain(t, lines[i], "building without some credentials: ", "the credential helper for "+host+" fails")
	}
}

// TestBuildIsQuiet waits for a build that begins late, and one whose command prints nothing for long.
func TestBuildIsQuiet(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		slow := roundTrip(func(r *http.Request) (*http.Response, error) {
			body, out := io.Pipe()
			if strings.HasSuffix(r.URL.Path, "/build") {
				time.Sleep(2 * quietDeadline)
			}
			go func() {
				_, _ = io.WriteString(out, `{"stream":"Step 1/1 : RUN make >/dev/null"}`)
				time.Sleep(2 * quietDeadline)
				_, _ = io.WriteString(out, `{"stream":"Successfully built"}`)
				_ = out.Close()
			}()
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Api-Version": {"1.45"}}, Body: body, Request: r}, nil
		})
		api, err := client.New(client.WithHost("tcp://engine.example:1"), client.WithHTTPClient(&http.Client{Transport: slow}))
		must.Do(t, err)
		var last string
		must.Do(t, (&Engine{api: api}).Build(t.Context(), "x:building", strings.NewReader("tar"), "Dockerfile", nil, func(p Progress) { last = p.Status }))
		must.Equal(t, "Successfully built", last)
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestBuildFailures distinguishes errors of the Dockerfile from those of a registry.
func TestBuildFailures(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	for text, want := range map[string]error{
		"The command '/bin/sh -c which nvcc # not found' returned a non-zero code: 1": nil,
		"COPY failed: file not found in build context":                                nil,
		"dockerfile parse error line 2: unknown instruction: FRMO":                    nil,
		"pull access denied for x, repository does not exist":                         ErrRefused,
		"write /var/lib/docker/tmp/x: no space left on device":                        ErrDiskFull,
	} {
		e := answering(t, map[string]http.HandlerFunc{"POST /build": func(w http.ResponseWriter, _ *http.Request) {
			if strings.HasPrefix(text, "dockerfile") {
				w.WriteHeader(http.StatusBadRequest)
				_ = json.NewEncoder(w).Encode(map[string]string{"message": text})
				return
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"errorDetail": map[string]string{"message": text}, "error": text})
		}})
		err := e.Build(t.Context(), "x:building", strings.NewReader("tar"), "Dockerfile", nil, func(Progress) {})
		if err == nil || !strings.Contains(err.Error(), text) || errors.Is(err, ErrRefused) != errors.Is(want, ErrRefused) || errors.Is(err, ErrDiskFull) != errors.Is(want, ErrDiskFull) {
			t.Errorf("%q becomes %v, want it to be %v", text, err, want)
		}
	}
}

func TestReferences(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"ubuntu": "docker.io/library/ubuntu:latest", "ghcr.io/a/b:c": "ghcr.io/a/b:c", "a/b@" + someDigest: "docker.io/a/b@" + someDigest,
		"": "", "a/UPPER": "", "a b": "", "../x": "", "-x": "",
	} {
		if got, err := ParseRef(in); got != want || (err == nil) != (want != "") {
			t.Errorf("ParseRef(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	if got, err := WithDigest("docker.io/library/x:1", someDigest); got != "x@"+someDigest || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := WithDigest("x:1", "sha256:zz"); err == nil {
		t.Error("what is no digest is taken for one")
	}
}
