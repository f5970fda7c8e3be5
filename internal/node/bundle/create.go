package bundle

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/installer"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Engine is the part of Docker that a bundle is made with.
type Engine interface {
	Info(ctx context.Context) (docker.Info, error)
	Image(ctx context.Context, ref string) (docker.Image, error)
	Tag(ctx context.Context, source, name string) error
	Untag(ctx context.Context, name string) error
	Save(ctx context.Context, ref, arch string) (io.ReadCloser, error)
}

// Options are what to make a bundle of.
type Options struct {
	Path         string // of the bundle
	Arch         string // of the nodes, as in GOARCH
	Kbnode       string // the program for that; "" is the one that runs, with Version
	Version      string
	AgentBinary  string // "" fetches AgentVersion
	AgentVersion string // "" asks AgentBinary, or is plan.PinnedAgentVersion
	Agent        config.Agent
	Image        string // name of an image that the engine has

	Say      func(format string, args ...any)
	Progress func(written int64) // of the bundle, in bytes
}

// untagTime is how long the engine has to take back a name.
const untagTime = time.Minute

// Create makes a bundle, and reads it as a node will. It is closed. A file of its path is only there when it is complete.
func Create(ctx context.Context, e Engine, o Options) (*File, error) {
	m := Manifest{Schema: Schema, WrittenBy: "kbnode", Created: time.Now().UTC().Truncate(time.Second), Arch: o.Arch}
	var err error
	if m.Image, err = o.findImage(ctx, e); err != nil {
		return nil, err
	}
	kbnode, err := o.openKbnode()
	if err != nil {
		return nil, err
	}
	defer kbnode.Close() //nolint:errcheck // opened for reading
	if o.Kbnode == "" {
		m.Kbnode.Version = o.Version
	}
	agent, err := o.openAgent(ctx, &m.Agent.Version)
	if err != nil {
		return nil, err
	}
	defer agent.Close() //nolint:errcheck // opened for reading

	out, err := renameio.NewPendingFile(o.Path, renameio.WithTempDir(filepath.Dir(o.Path)), renameio.WithPermissions(0o644))
	if err != nil {
		return nil, fmt.Errorf("write bundle: %w", err)
	}
	defer func() { _ = out.Cleanup() }()
	w := writer{ctx: ctx, f: out.File, made: m.Created, report: o.Progress}
	m.Kbnode.Part = w.add(kbnodeName, 0o755, kbnode)
	m.Agent.Part = w.add(agentName, 0o755, agent)
	if err := o.saveImage(ctx, e, m.Image.ID, func(image io.Reader) { m.Image.Part = w.add(imageName, 0o644, image) }); err != nil {
		return nil, err
	}
	doc, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write manifest: %w", err)
	}
	w.add(manifestName, 0o644, bytes.NewReader(append(doc, '\n')))
	w.write(make([]byte, 2*block)) // the end of an archive
	if w.err != nil {
		return nil, fmt.Errorf("write bundle: %w", w.err)
	}
	b, err := read(out.File, o.Path)
	if err != nil {
		return nil, err
	}
	o.Say("computing the SHA-256 of %s", o.Path)
	sum := sha256.New()
	whole := metered{ctx: ctx, r: io.NewSectionReader(out.File, 0, w.at), read: func(int) {}}
	if _, err := io.CopyBuffer(struct{ io.Writer }{sum}, whole, make([]byte, 1<<20)); err != nil {
		return nil, fmt.Errorf("read bundle %s: %w", o.Path, err)
	}
	b.SHA256 = hex.EncodeToString(sum.Sum(nil))
	if err := out.CloseAtomicallyReplace(); err != nil {
		return nil, fmt.Errorf("write bundle: %w", err)
	}
	return b, nil
}

// findImage finds the image in the engine.
func (o Options) findImage(ctx context.Context, e Engine) (Image, error) {
	name, err := docker.ParseRef(o.Image)
	if docker.IsID(o.Image) { // which could be a name
		err = fmt.Errorf("%s is the ID of an image; give it a name with docker tag, and write that", o.Image)
	}
	if err != nil {
		return Image{}, &config.InputError{Err: err}
	}
	info, err := e.Info(ctx)
	if err != nil {
		return Image{}, fmt.Errorf("%w; a bundle takes the image from Docker: start it, or use sudo", err)
	}
	pull := "docker pull --platform linux/" + o.Arch + " " + name
	have, err := e.Image(ctx, name)
	if errors.Is(err, docker.ErrNotFound) {
		return Image{}, fmt.Errorf("%w; type %s first, or name another image with --image", err, pull)
	}
	if err != nil {
		return Image{}, err
	}
	// Only containerd's store has an image for several architectures; of one, it says what this machine would run.
	if have.Arch != "" && have.Arch != o.Arch && !info.Snapshotter {
		return Image{}, fmt.Errorf("%s is for %s here, and the bundle for %s; type %s first, or name another --arch", name, have.Arch, o.Arch, pull)
	}
	image := Image{Name: name, ID: have.ID}
	for _, d := range have.Digests {
		_, digest, _ := strings.Cut(d, "@")
		if own, err := docker.WithDigest(name, digest); err == nil && own == d {
			image.Digest = digest
		}
	}
	return image, nil
}

// module is the path of kbnode's program, which the compiler writes into it.
const module = "github.com/gpu-mode/kbnode/cmd/kbnode"

func (o Options) openKbnode() (*os.File, error) {
	name := cmp.Or(o.Kbnode, "/proc/self/exe")
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read kbnode: %w", err)
	}
	info, err := buildinfo.Read(f)
	if o.Kbnode != "" && (err != nil || info.Path != module) {
		return nil, errors.Join(config.BadInput("%s is not kbnode; name its program for %s, from the release's archive", name, o.Arch), f.Close())
	}
	if arch := archOf(f); arch != "" && arch != o.Arch {
		return nil, errors.Join(config.BadInput("%s is kbnode for %s; name the program for %s with --kbnode", name, arch, o.Arch), f.Close())
	}
	return f, nil
}

// openAgent returns the agent's program, and its version.
func (o Options) openAgent(ctx context.Context, version *string) (*os.File, error) {
	*version = o.AgentVersion
	if o.AgentBinary == "" {
		*version = cmp.Or(*version, plan.PinnedAgentVersion)
		return o.fetchAgent(ctx, *version)
	}
	name, err := filepath.Abs(o.AgentBinary)
	if err != nil {
		return nil, fmt.Errorf("read buildkite-agent: %w", err)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read buildkite-agent: %w", err)
	}
	if arch := archOf(f); arch != "" && arch != o.Arch {
		return nil, errors.Join(config.BadInput("--agent-binary %s is for %s, and the bundle for %s; name one for that, or leave it out", o.AgentBinary, arch, o.Arch), f.Close())
	}
	if o.Arch == runtime.GOARCH {
		asked, err := detect.AskAgent(ctx, name)
		if err != nil {
			return nil, errors.Join(config.BadInput("%s is not a buildkite-agent: %w", o.AgentBinary, err), f.Close())
		}
		if *version != "" && *version != asked.Version {
			return nil, errors.Join(config.BadInput("%s is buildkite-agent %s; leave out --agent-version %s", o.AgentBinary, asked.Version, *version), f.Close())
		}
		*version = asked.Version
	}
	if *version == "" {
		return nil, errors.Join(config.BadInput("this machine cannot ask an agent for %s for its version; add --agent-version", o.Arch), f.Close())
	}
	return f, nil
}

// fetchAgent fetches a release. The file has no name any more.
func (o Options) fetchAgent(ctx context.Context, version string) (*os.File, error) {
	dir, err := os.MkdirTemp("", "kbnode-bundle-*")
	if err != nil {
		return nil, fmt.Errorf("fetch buildkite-agent: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // nothing depends on it
	o.Say("fetching buildkite-agent %s for %s", version, o.Arch)
	file := filepath.Join(dir, agentName)
	if err := installer.Fetch(ctx, file, 0o755, installer.AgentRelease{
		Version: version, Arch: o.Arch, URL: o.Agent.DownloadURL, SHA256: o.Agent.DownloadSHA256,
	}); err != nil {
		return nil, err
	}
	return os.Open(file)
}

// saveImage passes the image's archive to write. Meanwhile the image has ImageName, which is then its only name in the archive.
func (o Options) saveImage(ctx context.Context, e Engine, id string, write func(io.Reader)) (err error) {
	if err := e.Tag(ctx, id, ImageName); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), untagTime)
		defer cancel()
		err = errors.Join(err, e.Untag(ctx, ImageName))
	}()
	o.Say("saving %s", o.Image)
	archive, err := e.Save(ctx, ImageName, o.Arch)
	if err != nil {
		return err
	}
	write(archive)
	if err := archive.Close(); err != nil {
		return err
	}
	// Nothing locks the name, which another kbnode may have given to another image meanwhile, or taken back.
	have, err := e.Image(ctx, ImageName)
	if err == nil && have.ID != id || errors.Is(err, docker.ErrNotFound) {
		return fmt.Errorf("another kbnode of this machine used %s meanwhile, so the bundle may have another image; make the bundle again when that has ended", ImageName)
	}
	return err
}

// block is what a tar archive consists of, in bytes.
const block = 512

// writer writes an archive. After an error it writes nothing.
type writer struct {
	ctx    context.Context
	f      *os.File
	made   time.Time
	report func(written int64)
	at     int64
	err    error
}

func (w *writer) write(p []byte) {
	if w.err != nil {
		return
	}
	var n int
	n, w.err = w.f.Write(p)
	w.at += int64(n)
}

// add adds a member. Its header is written last: how large an image is, no one knows before it is saved.
func (w *writer) add(name string, mode int64, from io.Reader) (p Part) {
	begin, sum := w.at, sha256.New()
	w.write(make([]byte, block))
	if w.err != nil {
		return p
	}
	in := metered{ctx: w.ctx, r: from, read: func(n int) {
		w.at += int64(n)
		w.report(w.at)
	}}
	var err error
	if p.Size, err = io.CopyBuffer(io.MultiWriter(w.f, sum), in, make([]byte, 1<<20)); err != nil {
		w.err = fmt.Errorf("%s: %w", name, err)
		return p
	}
	p.SHA256 = hex.EncodeToString(sum.Sum(nil))
	w.write(make([]byte, (block-p.Size%block)%block))
	var header bytes.Buffer
	err = tar.NewWriter(&header).WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: p.Size, ModTime: w.made, Format: tar.FormatGNU,
	})
	if err == nil && w.err == nil {
		_, w.err = w.f.WriteAt(header.Bytes(), begin)
	}
	w.err = cmp.Or(w.err, err)
	return p
}

// Text describes a bundle for people, a line each.
func (b *File) Text() []string {
	return []string{
		fmt.Sprintf("%s: a bundle for %s, made on %s", b.Path, b.Arch, b.Created.Local().Format(time.DateOnly)),
		"  kbnode           " + cmp.Or(b.Kbnode.Version, "of a version that is not known"),
		"  buildkite-agent  " + b.Agent.Version,
		fmt.Sprintf("  image            %s, %s", b.Image.Name, text.Bytes(b.Image.Size)),
		"  fingerprint      " + b.Fingerprint,
	}
}
