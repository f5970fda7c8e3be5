package installer

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
)

const binary = "\x7fELF a buildkite-agent"

// entry is a file of an archive.
type entry struct {
	name, text string
	link       string // of a symbolic link
	size       int64  // that the header claims; 0 for the text's
}

// archive returns a release as tar.gz.
func archive(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	tw := tar.NewWriter(gz)
	lies := false
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: 0o777, Size: int64(len(e.text)), Typeflag: tar.TypeReg, Linkname: e.link}
		if e.link != "" {
			h.Typeflag = tar.TypeSymlink
		}
		if e.size > 0 {
			h.Size, lies = e.size, true
		}
		must.Do(t, tw.WriteHeader(h))
		if _, err := tw.Write([]byte(e.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil && !lies {
		t.Fatal(err)
	}
	must.Do(t, gz.Close())
	return b.Bytes()
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// mirror serves files by path and records which were requested.
func mirror(t *testing.T, files map[string][]byte) (url string, asked *[]string) {
	t.Helper()
	asked = &[]string{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, r.URL.Path)
		data, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data)
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

// left returns the files below a root with their modes.
func left(t *testing.T, root string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			found[strings.TrimPrefix(name, root)] = info.Mode().String()
		}
		return err
	})
	must.Do(t, err)
	return found
}

func TestAgentFromTheReleaseArchive(t *testing.T) {
	t.Parallel()
	good := archive(t, entry{name: "README.md", text: "x"}, entry{name: "./buildkite-agent", text: binary})
	const (
		name = "buildkite-agent-linux-amd64-3.76.2.tar.gz"
		dir  = "/v3.76.2/"
	)
	for _, tt := range []struct {
		name string
		sums string
		err  string
	}{
		{name: "right sum", sums: sumOf([]byte("other")) + "  buildkite-agent-linux-arm64-3.76.2.tar.gz\n" + sumOf(good) + "  " + name + "\n"},
		{name: "sum of a binary file, in capitals", sums: strings.ToUpper(sumOf(good)) + " *" + name + "\n"},
		{name: "wrong sum", sums: sumOf([]byte("other")) + "  " + name + "\n", err: "has SHA-256 " + sumOf(good) + ", not " + sumOf([]byte("other")) + "; nothing was installed"},
		{name: "no sum of this archive", sums: sumOf(good) + "  x" + name + "\n", err: "has no checksum for " + name},
		{name: "no list", err: "404 Not Found; on a machine without Internet access, pass a binary with --agent-binary PATH"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			files := map[string][]byte{dir + name: good}
			if tt.sums != "" {
				files[dir+"buildkite-agent-3.76.2.SHA256SUMS"] = []byte(tt.sums)
			}
			base, _ := mirror(t, files)
			root := t.TempDir()
			err := Fetch(t.Context(), filepath.Join(root, AgentPath), 0o755, AgentRelease{Version: "3.76.2", Arch: "amd64", Base: base})
			want := map[string]string{AgentPath: "-rwxr-xr-x"}
			if tt.err != "" {
				want = map[string]string{}
				must.Err(t, err, tt.err)
			} else if err != nil {
				t.Fatal(err)
			}
			must.Equal(t, want, left(t, root))
		})
	}
}

func TestAgentFromAMirror(t *testing.T) {
	t.Parallel()
	good := archive(t, entry{name: "buildkite-agent", text: binary})
	base, asked := mirror(t, map[string][]byte{"/bk/3.76.2/arm64.tgz": good})
	root := t.TempDir()
	release := AgentRelease{Version: "3.76.2", Arch: "arm64", URL: base + "/bk/{version}/{arch}.tgz", SHA256: sumOf(good), Base: "http://127.0.0.1:1"}
	to := filepath.Join(root, AgentPath)
	must.Do(t, Fetch(t.Context(), to, 0o711, release))
	text, err := os.ReadFile(to)
	if string(text) != binary || err != nil {
		t.Errorf("installed %q, %v", text, err)
	}
	must.Equal(t, []string{"/bk/3.76.2/arm64.tgz"}, *asked)
	// A second release that is wrong, or another than the checksum's, leaves the first.
	release.SHA256 = sumOf(nil)
	must.Err(t, Fetch(t.Context(), to, 0o755, release), "nothing was installed; set agent.download_sha256 to the checksum of buildkite-agent 3.76.2 for arm64, or download it by hand")
	must.Equal(t, map[string]string{AgentPath: "-rwx--x--x"}, left(t, root))
}

func TestFetchHidesSecrets(t *testing.T) {
	t.Parallel()
	const login, query, host = "ci:hunter2", "?sig=hunter2", "http://xxxxx@"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/sent":
			http.Redirect(w, r, "http://"+login+"@127.0.0.1:1/signed"+query, http.StatusFound)
		case "/there":
			_, _ = w.Write([]byte("x"))
		case "/cut":
			w.Header().Set("Content-Length", "2")
			_, _ = w.Write([]byte("x"))
		default:
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	t.Cleanup(server.Close)
	at := strings.TrimPrefix(server.URL, "http://")
	for _, tt := range []struct{ name, from, err string }{
		{"refused", "@" + at + "/gone", "fetch " + host + at + "/gone?xxxxx: 403 Forbidden; on a machine without Internet access"},
		{"out of reach", "@127.0.0.1:1/a", "fetch " + host + "127.0.0.1:1/a?xxxxx: dial tcp 127.0.0.1:1: "},
		{"sent to an address out of reach", "@" + at + "/sent", "fetch " + host + at + "/sent?xxxxx: dial tcp 127.0.0.1:1: "},
		{"cut off", "@" + at + "/cut", "fetch " + host + at + "/cut?xxxxx: unexpected EOF"},
		{"another archive", "@" + at + "/there", "the archive " + host + at + "/there?xxxxx has SHA-256 "},
		{"not an address", "/@" + at, "fetch " + host + at + "?xxxxx: it is not a valid address"},
	} {
		release := AgentRelease{Version: "3.76.2", Arch: "amd64", URL: "http://" + login + tt.from + query, SHA256: sumOf(nil)}
		err := Fetch(t.Context(), filepath.Join(t.TempDir(), "agent"), 0o755, release)
		if err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.err)
		}
	}
}

// TestFetchFinally tests which answers of a server trying again does not change.
func TestFetchFinally(t *testing.T) {
	t.Parallel()
	for status, final := range map[int]bool{401: false, 403: false, 404: true, 410: true, 408: false, 429: false, 500: false, 503: false, 200: true /* another checksum */} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		err := Fetch(t.Context(), filepath.Join(t.TempDir(), "agent"), 0o755, AgentRelease{Version: "3.76.2", Arch: "amd64", URL: server.URL, SHA256: strings.Repeat("0", 64)})
		server.Close()
		if _, input := errors.AsType[*config.InputError](err); err == nil || input != final {
			t.Errorf("%d: %v, final %v", status, err, input)
		}
	}
	if err := Fetch(t.Context(), filepath.Join(t.TempDir(), "agent"), 0o755, AgentRelease{URL: "http://127.0.0.1:1", SHA256: "0"}); errors.As(err, new(*config.InputError)) {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestFetchIsBounded(t *testing.T) {
	t.Parallel()
	base, _ := mirror(t, map[string][]byte{"/a": bytes.Repeat([]byte("x"), 1001)})
	var b bytes.Buffer
	must.Err(t, fetch(t.Context(), base+"/a", 1000, &b), "larger than 1000 bytes")
	b.Reset()
	if err := fetch(t.Context(), base+"/a", 1001, &b); err != nil || b.Len() != 1001 {
		t.Errorf("%d bytes, %v", b.Len(), err)
	}
}

func TestUnpackAgent(t *testing.T) {
	t.Parallel()
	good := entry{name: "buildkite-agent", text: binary}
	for _, tt := range []struct {
		name string
		data []byte
		err  string
	}{
		{name: "among others", data: archive(t, entry{name: "a/b", text: "x"}, good, entry{name: "c", text: "y"})},
		{name: "a path that leads out", data: archive(t, entry{name: "../../../../etc/passwd", text: "x"}, entry{name: "../../bin/buildkite-agent", text: binary})},
		{name: "a link of its name", data: archive(t, entry{name: "buildkite-agent", link: "/bin/sh"}, good)},
		{name: "nothing but a link", data: archive(t, entry{name: "buildkite-agent", link: "/bin/sh"}), err: "it contains no file named buildkite-agent"},
		{name: "another program", data: archive(t, entry{name: "buildkite-agent.sh", text: binary}), err: "it contains no file named buildkite-agent"},
		{name: "too large", data: archive(t, entry{name: "buildkite-agent", text: "x", size: maxArchive + 1}), err: "is larger than"},
		{name: "cut off", data: archive(t, entry{name: "buildkite-agent", text: "x", size: 100}), err: "unexpected EOF"},
		{name: "not compressed", data: []byte("<html>"), err: "unpack agent archive"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			err := unpackAgent(bytes.NewReader(tt.data), filepath.Join(root, AgentPath), 0o755)
			want := map[string]string{AgentPath: "-rwxr-xr-x"}
			if tt.err != "" {
				want = map[string]string{}
			}
			must.Err(t, err, tt.err)
			must.Equal(t, want, left(t, root))
			if text, err := os.ReadFile(filepath.Join(root, AgentPath)); tt.err == "" && (err != nil || string(text) != binary) {
				t.Errorf("installed %q, %v", text, err)
			}
		})
	}
}

func TestCopy(t *testing.T) {
	t.Parallel()
	dir, root := t.TempDir(), t.TempDir()
	to := filepath.Join(root, AgentPath)
	from := filepath.Join(dir, "agent")
	for _, tt := range []struct {
		name string
		mode os.FileMode
		ok   bool
	}{{"a text file", 0o644, false}, {"a program", 0o755, true}} {
		must.Do(t, os.WriteFile(from, []byte(binary), 0o600))
		must.Do(t, os.Chmod(from, tt.mode))
		err := Copy(to, 0o755, from)
		if (err == nil) != tt.ok || err != nil && !strings.Contains(err.Error(), "is not an executable file; pass the buildkite-agent binary itself") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	must.Equal(t, map[string]string{AgentPath: "-rwxr-xr-x"}, left(t, root))
	must.Err(t, Copy(to, 0o755, dir), "not an executable file")
	must.Err(t, Copy(to, 0o755, from+"-gone"), "no such file")
	// The installed agent may be given as its own replacement.
	must.Do(t, Copy(to, 0o755, to))
	if text, err := os.ReadFile(to); err != nil || string(text) != binary {
		t.Errorf("installed %q, %v", text, err)
	}
}
