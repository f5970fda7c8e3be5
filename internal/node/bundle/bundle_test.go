package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/node/bundle"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/bundletest"
	"github.com/gpu-mode/kbnode/test/must"
)

func other() string {
	if runtime.GOARCH == "arm64" {
		return "amd64"
	}
	return "arm64"
}

// elf is the head of a program.
func elf(arch string) string {
	machine := map[string]string{"amd64": "\x3e\x00", "arm64": "\xb7\x00", "mips": "\x08\x00"}[arch]
	return "\x7fELF\x02\x01" + strings.Repeat("\x00", 12) + machine + "..."
}

// refused opens a file that is no good bundle, and checks what is said of it.
func refused(t *testing.T, path, says string) {
	t.Helper()
	b, err := bundle.Open(path)
	if err == nil {
		err = b.Check(t.Context(), true, func(done, total int64) {})
		_ = b.Close()
	}
	must.Err(t, err, says)
	if _, input := errors.AsType[*config.InputError](err); !input {
		t.Errorf("waiting changes it: %v", err)
	}
}

// TestBroken refuses what is no bundle, or no whole one.
func TestBroken(t *testing.T) {
	t.Parallel()
	good := bundletest.Good().Members()
	replaced := func(i int, m bundletest.Member) []bundletest.Member {
		all := slices.Clone(good)
		all[i] = m
		return all
	}
	kind := func(i int, change func(*tar.Header)) []bundletest.Member {
		m := good[i]
		m.Header = change
		return replaced(i, m)
	}
	for _, tt := range []struct {
		name    string
		members []bundletest.Member
		says    string
	}{
		{"no archive", nil, "it is not a bundle"},
		{"an image", bundletest.Saved("amd64", "x"), "it is not a bundle"},
		{"a member is missing", slices.Delete(slices.Clone(good), 1, 2), `it has "image.tar" where a bundle has buildkite-agent`},
		{"two are swapped", []bundletest.Member{good[1], good[0], good[2], good[3]}, "it is not a bundle"},
		{"the last two are swapped", []bundletest.Member{good[0], good[1], good[3], good[2]}, `it has "manifest.json" where a bundle has image.tar`},
		{"the manifest is missing", good[:3], "it ends too early; copy it again"},
		{"the manifest is there twice", append(slices.Clone(good), good[3]), "it has more than a bundle"},
		{"a member outside", replaced(1, bundletest.Member{Name: "../buildkite-agent", Text: good[1].Text}), `it has "../buildkite-agent" where`},
		{"a link", kind(1, func(h *tar.Header) { h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, "/bin/sh", 0 }), "its buildkite-agent is not a plain file"},
		{"a hard link", kind(1, func(h *tar.Header) { h.Typeflag, h.Linkname, h.Size = tar.TypeLink, "kbnode", 0 }), "its buildkite-agent is not a plain file"},
		{"a device", kind(0, func(h *tar.Header) { h.Typeflag, h.Size = tar.TypeBlock, 0 }), "its kbnode is not a plain file"},
		{"a sparse file", kind(0, func(h *tar.Header) {
			h.Format, h.PAXRecords = tar.FormatPAX, map[string]string{"comment": "x"}
		}), "its kbnode is not a plain file"},
		{"a huge program", kind(1, func(h *tar.Header) { h.Size = 1 << 40 }), "its buildkite-agent has 1024 GiB, more than the 256 MiB"},
		{"a huge image", kind(2, func(h *tar.Header) { h.Size = 1 << 62 }), "it ends too early; copy it again"},
		{"a huge manifest", replaced(3, bundletest.Member{Name: "manifest.json", Text: strings.Repeat(" ", 64<<10+1)}), "its manifest.json has 64 KiB, more than the 64 KiB"},
		{"a manifest that is no JSON", replaced(3, bundletest.Member{Name: "manifest.json", Text: "{"}), "read manifest: unexpected end of JSON input"},
		{"another agent", replaced(1, bundletest.Member{Name: "buildkite-agent", Text: "no agent"}), "its buildkite-agent has SHA-256 "},
		{"a longer agent", replaced(1, bundletest.Member{Name: "buildkite-agent", Text: "another agent"}), "its buildkite-agent is not what its manifest says"},
		{"another kbnode", replaced(0, bundletest.Member{Name: "kbnode", Text: "b kbnode"}), "its kbnode has SHA-256 "},
		{"another image", replaced(2, bundletest.Member{Name: "image.tar", Text: strings.Replace(good[2].Text, "a layer", "b layer", 1)}), "its image.tar has SHA-256 "},
	} {
		path := must.Write(t, t.TempDir(), "b.tar", bundletest.Pack(tt.members...))
		t.Run(tt.name, func(t *testing.T) { refused(t, path, tt.says) })
	}
}

// TestManifest refuses a manifest that lies, or that no one should print.
func TestManifest(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*bundle.Manifest)
		says   string
	}{
		"newer":                {func(m *bundle.Manifest) { m.Schema++ }, "it was made by a newer kbnode"},
		"without a schema":     {func(m *bundle.Manifest) { m.Schema = 0 }, "it is not a bundle"},
		"of someone else":      {func(m *bundle.Manifest) { m.WrittenBy = "x" }, "it is not a bundle"},
		"no architecture":      {func(m *bundle.Manifest) { m.Arch = "" }, `the architecture ""`},
		"a version of a path":  {func(m *bundle.Manifest) { m.Agent.Version = "../../../bin" }, "is not a version of buildkite-agent"},
		"a version with color": {func(m *bundle.Manifest) { m.Kbnode.Version = "\x1b[31m1" }, `the version "\x1b[31m1"`},
		"a long version":       {func(m *bundle.Manifest) { m.Kbnode.Version = strings.Repeat("1", 101) }, "the version"},
		"no name of an image":  {func(m *bundle.Manifest) { m.Image.Name = "-x" }, `the image "-x"`},
		"half a name":          {func(m *bundle.Manifest) { m.Image.Name = "python:3" }, `the image "python:3"`},
		"no ID":                {func(m *bundle.Manifest) { m.Image.ID = "sha256:x" }, "no ID of the image"},
		"no digest":            {func(m *bundle.Manifest) { m.Image.Digest = "x" }, "no ID of the image"},
		"another size":         {func(m *bundle.Manifest) { m.Image.Size-- }, "its image.tar is not what its manifest says"},
		"a negative size":      {func(m *bundle.Manifest) { m.Agent.Size = -1 }, "its buildkite-agent is not what its manifest says"},
		"no checksum":          {func(m *bundle.Manifest) { m.Kbnode.SHA256 = "" }, "its kbnode is not what its manifest says"},
		"another checksum":     {func(m *bundle.Manifest) { m.Kbnode.SHA256 = strings.Repeat("0", 64) }, "its kbnode has SHA-256 "},
	} {
		b := bundletest.Good()
		b.Manifest = tt.change
		path := b.Write(t)
		t.Run(name, func(t *testing.T) { refused(t, path, tt.says) })
	}
	for name, tt := range map[string]struct {
		kbnode, agent, says string
	}{
		"an agent for another machine":            {"", elf(other()), "its buildkite-agent is for " + other()},
		"an agent for a machine without kbnode":   {"", elf("mips"), "its buildkite-agent is for another machine"},
		"kbnode for another machine":              {elf(other()), elf(runtime.GOARCH), "its kbnode is for " + other()},
		"a program that is shorter than its head": {"\x7fELF", "", ""},
	} {
		b := bundletest.Good()
		b.Kbnode, b.Agent = tt.kbnode, tt.agent
		path := b.Write(t)
		t.Run(name, func(t *testing.T) {
			if tt.says != "" {
				refused(t, path, tt.says)
				return
			}
			good, err := bundle.Open(path)
			must.Do(t, err)
			must.Do(t, good.Close())
		})
	}
}

// TestImages refuses an image that would move names of the node's, or whose files an engine should not unpack.
func TestImages(t *testing.T) {
	t.Parallel()
	const doc = "manifest.json"
	with := func(more ...bundletest.Member) []bundletest.Member {
		return append(bundletest.Saved(runtime.GOARCH, bundle.ImageName), more...)
	}
	text := func(name, text string) bundletest.Member { return bundletest.Member{Name: name, Text: text} }
	kind := func(name, link string, flag byte) bundletest.Member {
		return bundletest.Member{Name: name, Header: func(h *tar.Header) { h.Typeflag, h.Linkname = flag, link }}
	}
	index := func(annotations string) bundletest.Member {
		return text("index.json", `{"manifests":[{"annotations":{`+annotations+`}}]}`)
	}
	config := func(text string) []bundletest.Member {
		all := with()
		all[2].Text = text
		return all
	}
	const own = `"io.containerd.image.name":"kbnode.invalid/image:bundle","org.opencontainers.image.ref.name":"bundle"`
	for _, tt := range []struct {
		name  string
		files []bundletest.Member
		says  string // "" is good
	}{
		{"of Docker 29", with(index(own), text("oci-layout", "{}")), ""},
		{"of Docker 25", with(index(own), text("repositories", `{"kbnode.invalid/image":{"bundle":"1a"}}`)), ""},
		{"of Docker 20.10, with a layer twice", with(kind("aa/", "", tar.TypeDir), text("aa/layer.tar", ""), kind("bb/layer.tar", "../aa/layer.tar", tar.TypeSymlink)), ""},
		{"empty", nil, "manifest.json in its image.tar: it is missing"},
		{"another name", bundletest.Saved(runtime.GOARCH, "ghcr.io/gpu-mode/kernelbot:latest"), `its image is named "ghcr.io/gpu-mode/kernelbot:latest"`},
		{"a second name", bundletest.Saved(runtime.GOARCH, bundle.ImageName, "python:3"), `its image is named "python:3"`},
		{"no name", bundletest.Saved(runtime.GOARCH), "its image has no name"},
		{"another name for containerd", with(index(`"io.containerd.image.name":"docker.io/library/python:3"`)), `its image is named "docker.io/library/python:3"`},
		{"another tag for containerd", with(index(`"org.opencontainers.image.ref.name":"bundle"`)), `its image is named "bundle"`},
		{"another name beside it", with(index(`"io.containerd.image.name":"kbnode.invalid/image:bundle","org.opencontainers.image.ref.name":"python:3"`)), `its image is named "python:3"`},
		{"another name for old engines", with(text("repositories", `{"python":{"3":"1a"}}`)), `its image is named "python:3"`},
		{"two images", append(with()[:4], text(doc, `[{},{}]`)), "its image.tar has 2 images"},
		{"many layers", append(with()[:4], text(doc, `[{"RepoTags":["kbnode.invalid/image:bundle"],"Layers":[""`+strings.Repeat(`,""`, 127)+`]}]`)), "its image has 128 layers"},
		{"no configuration", append(with()[:2], with()[4]), "blobs/sha256/c0 in its image.tar: it is missing"},
		{"a large configuration", config(strings.Repeat(" ", 1<<20+1)), "blobs/sha256/c0 in its image.tar has 1 MiB"},
		{"a configuration that is none", config("x"), "blobs/sha256/c0 in its image.tar: invalid character"},
		{"for another machine", bundletest.Saved(other(), bundle.ImageName), `its image is for "linux/` + other() + `", and the bundle for linux/` + runtime.GOARCH},
		{"for Windows", config(`{"os":"windows","architecture":"` + runtime.GOARCH + `"}`), `its image is for "windows/`},
		{"a second manifest", with(text(doc, "[]")), `it has "manifest.json" twice`},
		{"a second manifest by another name", with(text("./blobs/../manifest.json", "[]")), `twice`},
		{"a path outside", with(text("blobs/../../x", "")), `leads out of it`},
		{"an absolute path", with(text("/etc/passwd", "")), `leads out of it`},
		{"a device", with(kind("null", "", tar.TypeChar)), "is neither a file nor a directory"},
		{"a hard link", with(kind("x", "manifest.json", tar.TypeLink)), "is neither a file nor a directory"},
		{"a link to a document", with(kind("index.json", "manifest.json", tar.TypeSymlink)), "is a link to"},
		{"a link outside", with(kind("aa/layer.tar", "../../layer.tar", tar.TypeSymlink)), "is a link to"},
		{"an absolute link", with(kind("aa/layer.tar", "/etc/layer.tar", tar.TypeSymlink)), "is a link to"},
		{"a file below a link", with(kind("aa/layer.tar", "../bb/layer.tar", tar.TypeSymlink), text("aa/layer.tar/x", "")), "is in what is no directory"},
		{"a link that was a directory", with(text("aa/layer.tar/x", ""), kind("aa/layer.tar", "../bb/layer.tar", tar.TypeSymlink)), "twice"},
		{"a size that is not there", with(bundletest.Member{Name: "x", Header: func(h *tar.Header) { h.Size = 1 << 62 }}), "unexpected EOF"},
	} {
		b := bundletest.Good()
		b.Image = bundletest.Image(tt.files...)
		path := b.Write(t)
		t.Run(tt.name, func(t *testing.T) {
			if tt.says != "" {
				refused(t, path, tt.says)
				return
			}
			good, err := bundle.Open(path)
			must.Do(t, err)
			must.Do(t, good.Close())
		})
	}
}

// TestCutOff refuses a bundle wherever it ends too early. After its manifest, only the end of an archive is missing.
func TestCutOff(t *testing.T) {
	t.Parallel()
	whole := bundletest.Pack(bundletest.Good().Members()...)
	dir := t.TempDir()
	end := strings.LastIndex(whole, "}") + 1 // of the manifest
	for n := 0; n < end; n += 97 {
		path := must.Write(t, dir, "b.tar", whole[:n])
		b, err := bundle.Open(path)
		if err == nil {
			_ = b.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "it ends too early") && !strings.Contains(err.Error(), "it is not a bundle") {
			t.Errorf("the first %d of %d bytes: %v", n, len(whole), err)
		}
	}
}

// TestOtherFiles says what files are that people mistake for bundles.
func TestOtherFiles(t *testing.T) {
	t.Parallel()
	zipped := func(text string) string {
		var b bytes.Buffer
		zip := gzip.NewWriter(&b)
		_, err := zip.Write([]byte(text))
		must.Do(t, errors.Join(err, zip.Close()))
		return b.String()
	}
	dir := t.TempDir()
	for name, tt := range map[string]struct{ text, says string }{
		"support.tar.gz": {zipped(bundletest.Pack(bundletest.Member{Name: "kbnode-doctor/doctor.json"})), "it is an archive of kbnode doctor --bundle, for support"},
		"bundle.tar.gz":  {zipped(bundletest.Pack(bundletest.Good().Members()...)), "it is compressed; unpack it with gunzip"},
		"text":           {strings.Repeat("text ", 1000), "it is not a bundle"},
		"empty":          {"", "it is not a bundle"},
	} {
		refused(t, must.Write(t, dir, name, tt.text), tt.says)
	}
	refused(t, dir, "is not a file")
	refused(t, filepath.Join(dir, "none"), "name a file that kbnode bundle create wrote")
}

// TestCheck reads each member once, and stops when it is told to.
func TestCheck(t *testing.T) {
	t.Parallel()
	made := bundletest.Good()
	b, err := bundle.Open(made.Write(t))
	must.Do(t, err)
	defer b.Close() //nolint:errcheck // opened for reading
	stopped, stop := context.WithCancel(t.Context())
	stop()
	must.Err(t, b.Check(stopped, true, func(int64, int64) {}), "interrupted: context canceled")
	var last string
	see := func(done, total int64) { last = fmt.Sprintf("%d of %d", done, total) }
	must.Do(t, b.Check(t.Context(), false, see))
	programs := len(made.Kbnode) + len(made.Agent)
	must.Equal(t, fmt.Sprintf("%d of %[1]d", programs), last)
	must.Do(t, b.Check(t.Context(), true, see))
	must.Equal(t, fmt.Sprintf("%d of %[1]d", len(made.Image)), last)
	last = ""
	must.Do(t, b.Check(t.Context(), true, see))
	must.Equal(t, "", last)
}

// TestImageOfAnotherFile notices that the file became another one after it was checked, as scp writes into it.
func TestImageOfAnotherFile(t *testing.T) {
	t.Parallel()
	made := bundletest.Good()
	path := made.Write(t)
	b, err := bundle.Open(path)
	must.Do(t, err)
	defer b.Close() //nolint:errcheck // opened for reading
	must.Do(t, b.Check(t.Context(), true, func(int64, int64) {}))
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must.Do(t, err)
	_, err = f.WriteAt([]byte("x"), int64(strings.Index(must.Read(t, path), made.Image)))
	must.Do(t, errors.Join(err, f.Close()))
	_, err = io.Copy(io.Discard, b.OpenImage())
	must.Err(t, err, "its image.tar has SHA-256 ")
}

// FuzzOpen reads any file to its end, or refuses it.
func FuzzOpen(f *testing.F) {
	for _, made := range []bundletest.Bundle{bundletest.Good(), {AgentVersion: "1.2.3", Image: bundletest.Image()}} {
		f.Add([]byte(bundletest.Pack(made.Members()...)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := bundle.Open(must.Write(t, t.TempDir(), "b.tar", string(data)))
		if err != nil {
			return
		}
		total := int64(0)
		if err := b.Check(t.Context(), true, func(done, all int64) { total = all }); err == nil && total > int64(len(data)) {
			t.Errorf("%d bytes of %d", total, len(data))
		}
		must.Do(t, b.Close())
	})
}
