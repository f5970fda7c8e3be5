// Package bundletest makes bundles, good and bad, without an engine.
package bundletest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/bundle"
	"github.com/gpu-mode/kbnode/test/must"
)

// ID is the ID of the image in a bundle.
const ID = "sha256:000000000000000000000000000000000000000000000000000000000000d00d"

// Member is a file of an archive.
type Member struct {
	Name   string
	Text   string
	Header func(*tar.Header) // changes the header; nil for none
}

// Bundle is what to make a bundle of.
type Bundle struct {
	Kbnode, Agent, AgentVersion string
	Image                       string
	Manifest                    func(*bundle.Manifest) // changes it; nil for none
}

// Good returns a bundle for this machine.
func Good() Bundle {
	return Bundle{Kbnode: "a kbnode", Agent: "an agent", AgentVersion: "3.138.3", Image: Image(Saved(runtime.GOARCH, bundle.ImageName)...)}
}

// Members returns the members of the bundle, in their order.
func (b Bundle) Members() []Member {
	part := func(text string) bundle.Part {
		sum := sha256.Sum256([]byte(text))
		return bundle.Part{Size: int64(len(text)), SHA256: hex.EncodeToString(sum[:])}
	}
	m := bundle.Manifest{
		Schema: bundle.Schema, WrittenBy: "kbnode", Created: time.Date(2026, time.November, 30, 12, 0, 0, 0, time.UTC), Arch: runtime.GOARCH,
		Kbnode: bundle.Program{Version: "1.2.3", Part: part(b.Kbnode)}, Agent: bundle.Program{Version: b.AgentVersion, Part: part(b.Agent)},
		Image: bundle.Image{Name: "ghcr.io/gpu-mode/kernelbot:latest", ID: ID, Part: part(b.Image)},
	}
	if b.Manifest != nil {
		b.Manifest(&m)
	}
	doc, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		panic(err)
	}
	return []Member{{Name: "kbnode", Text: b.Kbnode}, {Name: "buildkite-agent", Text: b.Agent}, {Name: "image.tar", Text: b.Image}, {Name: "manifest.json", Text: string(doc)}}
}

// Write writes the bundle, and returns its path.
func (b Bundle) Write(tb testing.TB) string {
	tb.Helper()
	return must.Write(tb, tb.TempDir(), "kbnode-bundle.tar", Pack(b.Members()...))
}

// Saved are the files that docker save writes of an image with one layer and these names.
func Saved(arch string, names ...string) []Member {
	tags, err := json.Marshal(names)
	if err != nil {
		panic(err)
	}
	return []Member{
		{Name: "blobs/", Header: func(h *tar.Header) { h.Typeflag = tar.TypeDir }},
		{Name: "blobs/sha256/", Header: func(h *tar.Header) { h.Typeflag = tar.TypeDir }},
		{Name: "blobs/sha256/c0", Text: `{"os":"linux","architecture":"` + arch + `"}`},
		{Name: "blobs/sha256/1a", Text: "a layer"},
		{Name: "manifest.json", Text: fmt.Sprintf(`[{"Config":"blobs/sha256/c0","RepoTags":%s,"Layers":["blobs/sha256/1a"]}]`, tags)},
	}
}

// Image packs the files of an image.
func Image(files ...Member) string { return Pack(files...) }

// Pack returns an archive. A header may claim another size than its text has.
func Pack(members ...Member) string {
	var all bytes.Buffer
	for _, m := range members {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: m.Name, Mode: 0o644, Size: int64(len(m.Text)), Format: tar.FormatGNU}
		if m.Header != nil {
			m.Header(h)
		}
		if err := tar.NewWriter(&all).WriteHeader(h); err != nil {
			panic(err)
		}
		all.WriteString(m.Text)
		all.Write(make([]byte, (512-len(m.Text)%512)%512))
	}
	all.Write(make([]byte, 1024))
	return all.String()
}
