package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// platformVersion is the API from which on the engine can save one platform of an image that has several.
const platformVersion = "1.48"

// Save returns an image as an archive, in which it has no name but ref. Of an image for several architectures it has
// the one for arch, as in GOARCH, if the engine distinguishes them.
func (e *Engine) Save(ctx context.Context, ref, arch string) (io.ReadCloser, error) {
	if _, err := e.api.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return nil, e.wrap("save image "+ref, err)
	}
	var options []client.ImageSaveOption
	if versions.GreaterThanOrEqualTo(e.api.ClientVersion(), platformVersion) {
		options = append(options, client.ImageSaveWithPlatforms(ocispec.Platform{OS: "linux", Architecture: arch}))
	}
	archive, err := e.api.ImageSave(ctx, []string{ref}, options...)
	if err != nil {
		return nil, e.wrap("save image "+ref, err)
	}
	return archive, nil
}

// Load loads the image of an archive of this many bytes, with the names that it has there. Without a deadline: the
// engine says nothing until it has all of it.
func (e *Engine) Load(ctx context.Context, archive io.Reader, size int64, report func(Progress)) error {
	// The client may still read the archive when the engine has answered, or the load was given up.
	var reading, mu sync.Mutex
	ended, cause := false, error(nil)
	forward := func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		if !ended {
			report(p)
		}
	}
	sent := int64(0)
	body := readFunc(func(p []byte) (int, error) {
		reading.Lock()
		defer reading.Unlock()
		n, err := archive.Read(p)
		sent += int64(n)
		if err != nil && !errors.Is(err, io.EOF) {
			mu.Lock()
			cause = err
			mu.Unlock()
			return n, err
		}
		forward(Progress{Layer: "image", Status: "sent to Docker:", Current: sent, Total: size})
		return n, err
	})
	err := relay(ctx, forward, func(ctx context.Context) (messages, error) {
		res, err := e.api.ImageLoad(ctx, body)
		if err != nil {
			return nil, err
		}
		return decoded{res}, nil
	})
	mu.Lock()
	ended = true
	mu.Unlock()
	if err == nil { // the engine needs no more of it, but at its end the archive may say that it is not the one that was checked
		_, err = io.Copy(io.Discard, body)
	}
	mu.Lock()
	defer mu.Unlock()
	switch {
	case cause != nil:
		return fmt.Errorf("load image: %w", cause)
	case err == nil:
		return nil
	case slices.ContainsFunc(fullDisk, func(says string) bool { return strings.Contains(strings.ToLower(err.Error()), says) }):
		return fmt.Errorf("load image: %w: %s", ErrDiskFull, text.Line(err.Error(), maxText))
	}
	return e.wrap("load image", err)
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }
