package bundle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/gpu-mode/kbnode/internal/plan/config"
)

// Check compares the programs, and if asked the image, with their checksums, and reports how many bytes it has read of
// how many. What it has compared before it does not read again.
func (b *File) Check(ctx context.Context, image bool, report func(done, total int64)) error {
	names := []string{kbnodeName, agentName}
	if image {
		names = append(names, imageName)
	}
	done, total := int64(0), int64(0)
	for _, name := range names {
		if !b.checked[name] {
			total += b.parts[name].Size()
		}
	}
	for _, name := range names {
		if b.checked[name] {
			continue
		}
		part := metered{ctx: ctx, r: b.open(name), read: func(n int) {
			done += int64(n)
			report(done, total)
		}}
		// Discard alone would read in small pieces.
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, part, make([]byte, 1<<20)); err != nil {
			return err
		}
		b.checked[name] = true
	}
	return nil
}

// OpenAgent returns the program of buildkite-agent. Reading its end fails if it is not what the manifest says.
func (b *File) OpenAgent() io.Reader { return b.open(agentName) }

// OpenImage returns the image, as docker save writes it, in which its name is ImageName. Reading its end fails if it is not
// what the manifest says, also if it was when Check compared it.
func (b *File) OpenImage() io.Reader { return b.open(imageName) }

// open returns a member. Reading its end fails if it is not what the manifest says.
func (b *File) open(name string) io.Reader {
	part := b.parts[name]
	return &verified{
		r: io.NewSectionReader(part, 0, part.Size()), sum: sha256.New(), want: b.sums()[name].SHA256,
		name: name, path: b.Path,
	}
}

// verified reads a member and compares its checksum at its end.
type verified struct {
	r                io.Reader
	sum              hash.Hash
	want, name, path string
}

func (v *verified) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	v.sum.Write(p[:n])
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	if got := hex.EncodeToString(v.sum.Sum(nil)); got != v.want {
		err = config.BadInput("read bundle %s: its %s has SHA-256 %s, not %s; copy it again", v.path, v.name, got, v.want)
	}
	return n, err
}

// metered reads until a context ends, and reports how much.
type metered struct {
	ctx  context.Context
	r    io.Reader
	read func(n int)
}

func (m metered) Read(p []byte) (int, error) {
	if m.ctx.Err() != nil {
		return 0, fmt.Errorf("interrupted: %w", context.Cause(m.ctx))
	}
	n, err := m.r.Read(p)
	m.read(n)
	return n, err
}
