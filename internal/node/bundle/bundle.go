// Package bundle packs kbnode, buildkite-agent and the jobs' image into one file, from which a machine without internet
// becomes a node. Doctor's archives for support are of package support.
//
// A bundle is a plain tar archive of kbnode, buildkite-agent, image.tar and manifest.json, in this order. The manifest has
// the sizes and checksums of the others, and comes last: a bundle that was cut off has none.
package bundle

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// The members of a bundle.
const (
	kbnodeName   = "kbnode"
	agentName    = "buildkite-agent"
	imageName    = "image.tar"
	manifestName = "manifest.json"
)

// members are all, in their order, with the largest size that each may have, in bytes; 0 is any.
var members = []struct {
	name string
	most int64
}{{kbnodeName, maxProgram}, {agentName, maxProgram}, {imageName, 0}, {manifestName, 64 << 10}}

const (
	maxProgram = 256 << 20
	maxVersion = 100 // characters
)

// Schema is the version of Manifest.
const Schema = 1

// Manifest says what a bundle has. It is its last member.
type Manifest struct {
	Schema    int       `json:"schema"`
	WrittenBy string    `json:"written_by"` // "kbnode"
	Created   time.Time `json:"created"`
	Arch      string    `json:"arch"` // "amd64", "arm64"
	Kbnode    Program   `json:"kbnode"`
	Agent     Program   `json:"agent"`
	Image     Image     `json:"image"`
}

// Program is a program in a bundle.
type Program struct {
	Version string `json:"version"` // "" if it is not known, as of a kbnode for another architecture
	Part
}

// Image is the jobs' image in a bundle.
type Image struct {
	Name   string `json:"name"`             // by which the bundle was made
	ID     string `json:"id"`               // in the engine that the bundle was made with
	Digest string `json:"digest,omitempty"` // in the registry of the name; "" if it was built
	Part
}

// Part is a member of a bundle.
type Part struct {
	Size   int64  `json:"size_bytes"`
	SHA256 string `json:"sha256"`
}

// File is a bundle that is open.
type File struct {
	Manifest
	Path string
	// Fingerprint is the SHA-256 of the manifest, which has those of all else.
	Fingerprint string
	// SHA256 is that of the whole file, in hexadecimal, which other programs than kbnode can compare; "" if it was not made
	// just now.
	SHA256 string

	f       *os.File
	parts   map[string]*io.SectionReader
	checked map[string]bool // those whose checksums are right
}

// Open opens a bundle, and reads all of it but the content of its members. The error is a *config.InputError
// if it is none, or is broken.
func Open(path string) (*File, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, config.BadInput("open bundle: %w; name a file that kbnode bundle create wrote", err)
	}
	if err != nil {
		return nil, fmt.Errorf("open bundle: %w", err)
	}
	if !info.Mode().IsRegular() { // reading a pipe would wait for who writes to it
		return nil, config.BadInput("open bundle: %s is not a file; name one that kbnode bundle create wrote", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open bundle: %w", err)
	}
	b, err := read(f, path)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return b, nil
}

// Close closes the file.
func (b *File) Close() error { return b.f.Close() }

// What is wrong with a file.
var (
	errOther = errors.New("it is not a bundle; name a file that kbnode bundle create wrote")
	errCut   = errors.New("it ends too early; copy it again")
)

// read reads an open bundle.
func read(f *os.File, path string) (*File, error) {
	b := &File{Path: path, f: f, parts: map[string]*io.SectionReader{}, checked: map[string]bool{}}
	err := b.findParts()
	if err == nil {
		err = b.readManifest()
	}
	if err == nil {
		err = b.checkPrograms()
	}
	if err == nil {
		err = checkImage(b.parts[imageName], b.Arch)
	}
	if err != nil {
		return nil, config.BadInput("read bundle %s: %w", path, err)
	}
	return b, nil
}

// findParts finds the members, and refuses all that a bundle does not have.
func (b *File) findParts() error {
	info, err := b.f.Stat()
	if err != nil {
		return err
	}
	if _, err := b.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	archive := tar.NewReader(b.f)
	for i, want := range members {
		h, err := archive.Next()
		switch {
		case err != nil && i == 0:
			return cmp.Or(compressed(b.f), errOther)
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return errCut
		case err != nil:
			return fmt.Errorf("%w; copy it again", err)
		case h.Name != want.name && i == 0:
			return errOther
		case h.Name != want.name:
			return fmt.Errorf("it has %.60q where a bundle has %s; name a file as kbnode bundle create wrote it", h.Name, want.name)
		case h.Typeflag != tar.TypeReg || len(h.PAXRecords) > 0:
			return fmt.Errorf("its %s is not a plain file; name a bundle as kbnode bundle create wrote it", want.name)
		case h.Size > want.most && want.most > 0:
			return fmt.Errorf("its %s has %s, more than the %s that it may have", want.name, text.Bytes(h.Size), text.Bytes(want.most))
		}
		at, err := b.f.Seek(0, io.SeekCurrent) // the reader reads no further than it must
		if err != nil {
			return err
		}
		if h.Size > info.Size()-at {
			return errCut
		}
		b.parts[want.name] = io.NewSectionReader(b.f, at, h.Size)
	}
	switch _, err := archive.Next(); {
	case errors.Is(err, io.EOF):
		return nil
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errCut
	}
	return errors.New("it has more than a bundle; name a file as kbnode bundle create wrote it")
}

// compressed explains a file that is compressed, or is nil.
func compressed(f *os.File) error {
	zip, err := gzip.NewReader(io.NewSectionReader(f, 0, 1<<62))
	if err != nil {
		return nil
	}
	if h, err := tar.NewReader(zip).Next(); err == nil && strings.HasPrefix(h.Name, "kbnode-doctor/") {
		return errors.New("it is an archive of kbnode doctor --bundle, for support; name a file that kbnode bundle create wrote")
	}
	return errors.New("it is compressed; unpack it with gunzip, and name what that leaves")
}

var sumForm = lazy.Regexp(`^[0-9a-f]{64}$`)

func (b *File) readManifest() error {
	doc, err := io.ReadAll(b.parts[manifestName])
	if err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	var version struct {
		Schema int `json:"schema"`
	}
	if err := json.Unmarshal(doc, &version); err != nil {
		return fmt.Errorf("read manifest: %w; copy the bundle again", err)
	}
	if version.Schema > Schema {
		return errors.New("it was made by a newer kbnode; install the one in it, as kbnode bundle create --help says")
	}
	if err := json.Unmarshal(doc, &b.Manifest); err != nil {
		return fmt.Errorf("read manifest: %w; copy the bundle again", err)
	}
	sum := sha256.Sum256(doc)
	b.Fingerprint = hex.EncodeToString(sum[:])
	m := &b.Manifest
	name, named := docker.ParseRef(m.Image.Name)
	switch {
	case m.Schema != Schema || m.WrittenBy != "kbnode":
		return errOther
	case m.Arch != "amd64" && m.Arch != "arm64":
		return fmt.Errorf("its manifest names the architecture %.20q; make it again", m.Arch)
	case plan.CheckAgentVersion(m.Agent.Version) != nil:
		return plan.CheckAgentVersion(m.Agent.Version)
	case !text.Plain(m.Kbnode.Version) || len(m.Kbnode.Version) > maxVersion:
		return fmt.Errorf("its manifest names the version %.40q of kbnode; make it again", m.Kbnode.Version)
	case named != nil || name != m.Image.Name:
		return fmt.Errorf("its manifest names the image %.120q; make it again", m.Image.Name)
	case !docker.IsID(m.Image.ID) || m.Image.Digest != "" && !docker.IsID(m.Image.Digest):
		return errors.New("its manifest has no ID of the image; make it again")
	}
	for member, p := range b.sums() {
		if p.Size != b.parts[member].Size() || !sumForm().MatchString(p.SHA256) {
			return fmt.Errorf("its %s is not what its manifest says; copy it again", member)
		}
	}
	return nil
}

// sums returns what the manifest says of the other members.
func (b *File) sums() map[string]Part {
	return map[string]Part{kbnodeName: b.Kbnode.Part, agentName: b.Agent.Part, imageName: b.Image.Part}
}

// checkPrograms refuses programs for another architecture than the bundle's.
func (b *File) checkPrograms() error {
	for _, member := range []string{kbnodeName, agentName} {
		if arch := archOf(b.parts[member]); arch != "" && arch != b.Arch {
			return fmt.Errorf("its %s is for %s, and the bundle for %s; make it again", member, arch, b.Arch)
		}
	}
	return nil
}

// archOf returns the architecture of a Linux program, "another machine" if kbnode does not run on it, and "" if it is no
// such program.
func archOf(program io.ReaderAt) string {
	head := make([]byte, 20)
	if _, err := program.ReadAt(head, 0); err != nil || !bytes.HasPrefix(head, []byte("\x7fELF")) {
		return ""
	}
	machines := map[string]string{"\x02\x01\x3e\x00": "amd64", "\x02\x01\xb7\x00": "arm64"} // class, byte order, and e_machine
	return cmp.Or(machines[string(head[4:6])+string(head[18:20])], "another machine")
}
