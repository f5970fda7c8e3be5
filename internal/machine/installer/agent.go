// Package installer installs the software that kbnode depends on: the
// buildkite-agent from its release archive, and distribution packages. It runs
// only if the operator asks for it or nothing is installed.
package installer

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gpu-mode/kbnode/internal/plan/config"
)

// AgentPath is where the binary of kbnode install is: in kbnode's own directory, so that
// no file of a package manager is changed.
const AgentPath = "/usr/local/libexec/kbnode/dist/buildkite-agent"

// Bounds of a download, in bytes and time. A release archive is about 20 MB.
const (
	maxArchive = 256 << 20
	maxSums    = 1 << 20
	fetchLimit = 10 * time.Minute
)

// AgentRelease specifies which agent to fetch and from where.
type AgentRelease struct {
	Version string // "3.76.2"
	Arch    string // as in GOARCH
	URL     string // of the archive; "" is Buildkite's release archive
	SHA256  string // of the archive; "" reads it from the release's list of checksums
	Base    string // of the release archive; "" is Buildkite's
}

const releases = "https://github.com/buildkite/agent/releases/download"

// release returns the URL of a version's archives.
func (r AgentRelease) release() string { return cmp.Or(r.Base, releases) + "/v" + r.Version }

func (r AgentRelease) archiveURL() string {
	if r.URL != "" {
		return strings.NewReplacer("{version}", r.Version, "{arch}", r.Arch).Replace(r.URL)
	}
	return fmt.Sprintf("%s/buildkite-agent-linux-%s-%s.tar.gz", r.release(), r.Arch, r.Version)
}

// Fetch downloads a release, checks its SHA-256 before unpacking anything, and atomically puts
// the binary at a path.
func Fetch(ctx context.Context, dest string, mode fs.FileMode, r AgentRelease) error {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	from, want := r.archiveURL(), r.SHA256
	if want == "" {
		var err error
		sums := fmt.Sprintf("%s/buildkite-agent-%s.SHA256SUMS", r.release(), r.Version)
		if want, err = fetchSum(ctx, sums, path.Base(from)); err != nil {
			return offline(err)
		}
	}
	archive, err := os.CreateTemp("", "kbnode-agent-*.tar.gz")
	if err != nil {
		return fmt.Errorf("create download file: %w", err)
	}
	defer func() { _ = archive.Close(); _ = os.Remove(archive.Name()) }()
	sum := sha256.New()
	if err := fetch(ctx, from, maxArchive, io.MultiWriter(archive, sum)); err != nil {
		return offline(err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		const byHand = "download it by hand and pass the binary with --agent-binary"
		err := fmt.Errorf("the archive %s has SHA-256 %s, not %s; nothing was installed", config.HideURL(from), got, want)
		if r.SHA256 != "" { // of one version
			return config.BadInput("%w; set agent.download_sha256 to the checksum of buildkite-agent %s for %s, or %s", err, r.Version, r.Arch, byHand)
		}
		return fmt.Errorf("%w; %s", err, byHand) // a mirror may be half filled
	}
	if _, err := archive.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read download: %w", err)
	}
	return unpackAgent(archive, dest, mode)
}

// offline adds to err what to do on a machine that cannot reach the release archive.
func offline(err error) error {
	return fmt.Errorf("install buildkite-agent: %w; on a machine without Internet access, pass a binary with --agent-binary PATH, or set a mirror with agent.download_url and agent.download_sha256", err)
}

func fetchSum(ctx context.Context, list, name string) (string, error) {
	var b strings.Builder
	if err := fetch(ctx, list, maxSums, &b); err != nil {
		return "", err
	}
	for line := range strings.Lines(b.String()) {
		if f := strings.Fields(line); len(f) == 2 && strings.TrimPrefix(f[1], "*") == name && len(f[0]) == 64 {
			return strings.ToLower(f[0]), nil
		}
	}
	return "", config.BadInput("%s has no checksum for %s", list, name)
}

// fetch writes what is at an address to w. Its errors do not show the address's login and query.
func fetch(ctx context.Context, from string, limit int64, w io.Writer) error {
	shown := config.HideURL(from)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return config.BadInput("fetch %s: it is not a valid address", shown) // err has parts of it
	}
	resp, err := http.DefaultClient.Do(req)
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // it repeats the address, or that of a redirection
	}
	if err != nil {
		return fmt.Errorf("fetch %s: %w", shown, err)
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone: // waiting changes nothing, unlike 403 of a proxy, or of GitHub for too many requests
		return config.BadInput("fetch %s: %s", shown, resp.Status)
	default:
		return fmt.Errorf("fetch %s: %s", shown, resp.Status)
	}
	n, err := io.Copy(w, io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return fmt.Errorf("fetch %s: %w", shown, err)
	}
	if n > limit {
		return fmt.Errorf("fetch %s: larger than %d bytes", shown, limit)
	}
	return nil
}

// unpackAgent extracts the one file named buildkite-agent from a release archive.
func unpackAgent(r io.Reader, dest string, mode fs.FileMode) error {
	gz, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("unpack agent archive: %w", err)
	}
	tr := tar.NewReader(gz)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return config.BadInput("unpack agent archive: it contains no file named buildkite-agent")
		}
		if err != nil {
			return fmt.Errorf("unpack agent archive: %w", err)
		}
		if h.Typeflag == tar.TypeReg && path.Base(h.Name) == "buildkite-agent" {
			if h.Size > maxArchive {
				return fmt.Errorf("unpack agent archive: %s is larger than %d bytes", h.Name, maxArchive)
			}
			return Write(dest, mode, tr)
		}
	}
}

// Write atomically puts a program at a path.
func Write(dest string, mode fs.FileMode, r io.Reader) error {
	err := os.MkdirAll(filepath.Dir(dest), 0o755) //nolint:gosec // programs are world-readable
	if err != nil {
		return fmt.Errorf("install agent: %w", err)
	}
	f, err := renameio.NewPendingFile(dest, renameio.WithPermissions(mode))
	if err != nil {
		return fmt.Errorf("install agent: %w", err)
	}
	defer func() { _ = f.Cleanup() }()
	if _, err = io.Copy(f, r); err == nil {
		err = f.CloseAtomicallyReplace()
	}
	if err != nil {
		return fmt.Errorf("install agent: %w", err)
	}
	return nil
}

// Copy atomically puts a given binary of the agent at a path.
func Copy(dest string, mode fs.FileMode, from string) error {
	src, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("install agent: %w", err)
	}
	defer func() { _ = src.Close() }()
	if fi, err := src.Stat(); err != nil || !fi.Mode().IsRegular() || fi.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s is not an executable file; pass the buildkite-agent binary itself with --agent-binary", from)
	}
	return Write(dest, mode, src)
}
