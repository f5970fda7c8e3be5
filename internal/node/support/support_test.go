package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/node/doctor"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

func unpacked(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	must.Do(t, err)
	files := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		must.Do(t, err)
		text, err := io.ReadAll(r)
		must.Do(t, err)
		files[h.Name] = string(text)
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	m := &doctor.Machine{Tree: host.Tree{Root: t.TempDir()}}
	for name, text := range map[string]string{
		plan.TokenPath:               "BUILDKITE_AGENT_TOKEN=plain-looking-words\n",
		plan.ConfigPath:              "queue: b200\n# it was plain-looking-words once\n# and a-persons-own\nnotify: {url: https://hooks.example/T0/xyz}\nqueues: typo\n",
		"/etc/docker/daemon.json":    `{"proxies": {"http-proxy": "http://me:pa55@proxy:3128"}}`,
		"/proc/cmdline":              "quiet",
		"/var/lib/kbnode/slots.json": "{}",
	} {
		must.Do(t, os.MkdirAll(filepath.Dir(m.Path(name)), 0o755))
		must.Do(t, os.WriteFile(m.Path(name), []byte(text), 0o600))
	}
	m.API.Token = "a-persons-own"
	var out bytes.Buffer
	err := Write(t.Context(), &out, m, &doctor.Report{Schema: 1, Checks: []doctor.Result{{ID: "a", Findings: []doctor.Finding{{Detail: "token=abcdefgh was refused"}}}}},
		Part{"broken.txt", func(context.Context) ([]byte, error) { return []byte("half"), errors.New("no more") }},
		Part{"long.txt", func(context.Context) ([]byte, error) { return bytes.Repeat([]byte("x\n"), maxPart), nil }})
	must.Do(t, err)
	files := unpacked(t, out.Bytes())
	for name, want := range map[string]string{
		"files/etc/kbnode/config.yaml": "queue: b200\n# it was (hidden) once\n# and (hidden)\nnotify: {url: (hidden)\nqueues: typo\n",
		"files/etc/docker/daemon.json": `{"proxies": {"http-proxy": "http://(hidden)proxy:3128"}}`,
		"files/proc/cmdline":           "quiet",
		"broken.txt":                   "half\nincomplete: no more\n",
	} {
		if diff := cmp.Diff(want, files["kbnode-doctor/"+name]); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if got := files["kbnode-doctor/doctor.json"]; !strings.Contains(got, "token=(hidden) was refused") {
		t.Errorf("doctor.json: %s", got)
	}
	must.Equal(t, maxPart, len(files["kbnode-doctor/long.txt"]))
	if strings.Contains(out.String(), "plain-looking-words") {
		t.Error("the token is in it")
	}
}

func TestScrubber(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"bkua_0123456789abcdef0123456789abcdef01234567 ":                                   "(hidden) ",
		"bkct_ABCDEFGHabcdefgh1234":                                                        "(hidden)",
		"ghp_ABCDEFGHIJKLMNOPQRSTuvwx":                                                     "(hidden)",
		"BUILDKITE_AGENT_TOKEN=abcd1234efgh next":                                          "BUILDKITE_AGENT_TOKEN=(hidden) next",
		`"BUILDKITE_API_TOKEN": "abcd1234",`:                                               `"BUILDKITE_API_TOKEN": "(hidden)",`,
		"Authorization: Bearer abcdefgh":                                                   "Authorization: Bearer (hidden)",
		"Authorization: Token token=abcdefgh":                                              "Authorization: Token (hidden)",
		`{"auths":{"ghcr.io":{"auth":"dXNlcjpwYXNz"}}}`:                                    `{"auths":{"ghcr.io":{"auth":"(hidden)"}}}`,
		"https://user:pass@github.com/x":                                                   "https://(hidden)github.com/x",
		"git clone https://github.com/gpu-mode/kbnode":                                     "git clone https://github.com/gpu-mode/kbnode",
		"eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.abc-def_x":                                      "(hidden)",
		"-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nrest":        "(hidden)\nrest",
		"AWS_SECRET_ACCESS_KEY=abcdEFGH":                                                   "AWS_SECRET_ACCESS_KEY=(hidden)",
		`err="no: token=\"0123abcd\" refused"`:                                             `err="no: token=\"(hidden)\" refused"`,
		`"content": "token=\"0123abcd\"\n"`:                                                `"content": "token=\"(hidden)\"\n"`,
		"start --token 0123abcd --spawn 1":                                                 "start --token (hidden) --spawn 1",
		"private_key: 0123abcd":                                                            "private_key: (hidden)",
		"http://user:p@ss@host/x":                                                          "http://(hidden)host/x",
		"https://b.s3.example/a.tgz?X=2023&sig=AbCd%3D next":                               "https://b.s3.example/a.tgz?(hidden) next",
		`{"url": "https://b.example/a?x=1\u0026sig=AbCd", "say": "\"https://b?s=AbCd\""}`:  `{"url": "https://b.example/a?(hidden)", "say": "\"https://b?(hidden)\""}`,
		"HTTPS://user:pass@host/":                                                          "HTTPS://(hidden)host/",
		"curl -H 'X-Api-Key: abcdef01' --private-key=abcdef01 --api-key abcdef01":          "curl -H 'X-Api-Key: (hidden)' --private-key=(hidden) --api-key (hidden)",
		"password=ab,cdefgh;ijkl next":                                                     "password=(hidden) next",
		`DB_PASSWORD="p;w'x yz\"12" next`:                                                  `DB_PASSWORD="(hidden)" next`,
		`password: 'p;w"x yz' next`:                                                        `password: '(hidden)' next`,
		"job token bkaj_eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiIwMTlhIn0.MEUCIQD-signature_x here": "job token (hidden) here",
		"bkct_AbCdEfGhIjKlMnOpQr-0123_4567 next":                                           "(hidden) next",
		"ghs_1234_eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJnaXRodWIifQ.c2lnbmF0dXJl next":           "(hidden) next",
		"session_eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.abc-def_x":                              "session_(hidden)",
		"eyJhbGciOiJkaXIiLCJl..aXYtaXY.Y2lwaGVy.dGFn, encrypted":                           "(hidden), encrypted",
		"glpat-abcdefghijklmnop1234 dckr_pat_abcdefghijklmnop-_1 hvs.CAESIJabcdefghijk":    "(hidden) (hidden) (hidden)",
		"hf_abcdefghijklmnopqrstuvwxyzABCDEFGH or hf_transfer_is_not_installed_here":       "(hidden) or hf_transfer_is_not_installed_here",
		"> bearer abcdefgh01234567":                                                        "> bearer (hidden)",
		`Www-Authenticate: Bearer realm="https://ghcr.io/token"`:                           `Www-Authenticate: Bearer realm="https://ghcr.io/token"`,
		`{"proxies": {"http-proxy": "me:pa55@proxy:3128", "no-proxy": "a.example"}}`:       `{"proxies": {"http-proxy": "(hidden)proxy:3128", "no-proxy": "a.example"}}`,
		"HTTPS_PROXY=me:p@5/5@proxy:3128 NO_PROXY=::1":                                     "HTTPS_PROXY=(hidden)proxy:3128 NO_PROXY=::1",
		"http_proxy=https://me:p/5@proxy/ ALL_PROXY=0123abcd@proxy":                        "http_proxy=(hidden)proxy/ ALL_PROXY=(hidden)proxy",
		`"env": "https_proxy=\"me:pa55@proxy:3128\""`:                                      `"env": "https_proxy=\"(hidden)proxy:3128\""`,
		"curl --proxy me:pa55@proxy:3128 -I x":                                             "curl --proxy (hidden)proxy:3128 -I x",
		"through proxy 192.168.0.1:3128: connection refused":                               "through proxy 192.168.0.1:3128: connection refused",
		"image ghcr.io/gpu-mode/kbnode:1.2@sha256:0123456789abcdef":                        "image ghcr.io/gpu-mode/kbnode:1.2@sha256:0123456789abcdef",
		"bkuab_0123456789abcdef0123":                                                       "(hidden)",
		"token-file: /etc/buildkite-agent/token":                                           "token-file: /etc/buildkite-agent/token",
		"GPU-11111111-2222-3333-4444-555555555555":                                         "GPU-11111111-2222-3333-4444-555555555555",
	} {
		if diff := cmp.Diff(want, string(scrubber{}.clean([]byte(text)))); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}

func TestCreate(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "b.tar.gz")
	f, err := Create(name)
	must.Do(t, err)
	if fi, err := f.Stat(); err != nil || fi.Mode() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	_ = f.Close()
	if _, err := Create(name); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("%v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	must.Do(t, os.Symlink("/nowhere", link))
	if _, err := Create(link); err == nil {
		t.Error("a link was followed")
	}
}

// TestOwnUnits keeps what the site's hooks print out of the archive.
func TestOwnUnits(t *testing.T) {
	t.Parallel()
	for unit, want := range map[string]bool{
		plan.NodeService: true, plan.JobSocket(3): true, "kbnode-job-gpu3@7-1-0.service": true, "kbnode-image.service": true, plan.InstallService: true,
		plan.HookUnit("prolog", 3): false, plan.HookUnit("epilog", 3): false,
	} {
		got := slices.ContainsFunc(ownUnits[:], func(pattern string) bool {
			matched, err := path.Match(pattern, unit)
			must.Do(t, err)
			return matched
		})
		if got != want {
			t.Errorf("%s: %t", unit, got)
		}
	}
}
