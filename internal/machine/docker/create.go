package docker

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

const (
	// maxImageConfig bounds what the engine tells of an image, in bytes: its names, and twice what containers get.
	maxImageConfig = 8 << 20
	// maxForContainers bounds what of that containers get, in bytes of JSON, and how many labels, ports, variables and
	// volumes. The engine copies it into each container, and the labels into each event, of which it keeps 256.
	maxForContainers = 256 << 10
	maxEntries       = 1024
)

// ErrInvalid means that the engine does not take what it was asked for.
var ErrInvalid = errors.New("the Docker engine does not take it")

// ErrFault means that the engine could not do what it was asked for, for whatever reason.
var ErrFault = errors.New("the Docker engine cannot do it")

// ErrTooLarge means that an image would take too much of the engine's memory and time.
var ErrTooLarge = errors.New("the image is too large for the Docker engine")

// ImageConfig is what an image sets for its containers.
type ImageConfig struct {
	ID               string `json:"-"` // of the image
	Architecture     string `json:"-"` // "amd64", "arm64"; "" if it is not known
	Names            int    `json:"-"` // how many the image has, with its digests
	User, WorkingDir string
	Volumes          map[string]struct{}
	ExposedPorts     map[string]struct{}
	Env              []string
}

// ImageConfig returns what an image sets for its containers. The error is ErrNotFound if the engine
// does not have the image. The client would read an image's configuration of any size.
func (e *Engine) ImageConfig(ctx context.Context, ref string) (ImageConfig, error) {
	doing := "look up image " + ref
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/images/"+ref+"/json", nil)
	if err != nil {
		return ImageConfig{}, fmt.Errorf("%s: %w", doing, err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return e.api.Dialer()(ctx) }}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return ImageConfig{}, fmt.Errorf("%s: %w on %s: %w", doing, ErrAbsent, e.socket, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxImageConfig+1))
	var in struct {
		ID, Message, Architecture string
		RepoTags, RepoDigests     []string

		Config json.RawMessage
	}
	var config ImageConfig
	switch {
	case err != nil:
	case len(text) > maxImageConfig:
		err = tooLarge("the engine says more than %d MiB about it", maxImageConfig>>20)
		if id := firstID().FindSubmatch(text); id != nil {
			in.ID = string(id[1])
		}
	default:
		err = json.Unmarshal(text, &in)
	}
	if err == nil && resp.StatusCode == http.StatusOK && in.Config != nil {
		if err = checkForContainers(in.Config); err == nil {
			err = json.Unmarshal(in.Config, &config)
		}
	}
	switch {
	case err == nil && resp.StatusCode == http.StatusNotFound:
		err = fmt.Errorf("%w: %s", ErrNotFound, in.Message)
	case err == nil && resp.StatusCode != http.StatusOK:
		err = fmt.Errorf("%s: %s", resp.Status, in.Message)
	}
	if err != nil {
		return ImageConfig{ID: in.ID}, fmt.Errorf("%s: %w", doing, err)
	}
	config.ID, config.Architecture, config.Names = in.ID, in.Architecture, len(in.RepoTags)+len(in.RepoDigests)
	return config, nil
}

// firstID matches the beginning of what an engine says of an image.
var firstID = lazy.Regexp(`^\{"Id":"(sha256:[0-9a-f]{64})"`)

// checkForContainers refuses an image whose containers and events would take too much of the engine's memory.
func checkForContainers(config json.RawMessage) error {
	if len(config) > maxForContainers {
		return tooLarge("its labels, ports, variables, volumes and commands have %d KiB; use an image with at most %d KiB", len(config)>>10, maxForContainers>>10)
	}
	var has struct {
		Labels, ExposedPorts, Volumes map[string]json.RawMessage
		Env, OnBuild                  []json.RawMessage
	}
	if err := json.Unmarshal(config, &has); err != nil {
		return err
	}
	if n := max(len(has.Labels), len(has.ExposedPorts), len(has.Volumes), len(has.Env), len(has.OnBuild)); n > maxEntries {
		return tooLarge("it has %d labels, ports, volumes or variables; use an image with at most %d of each", n, maxEntries)
	}
	return nil
}

// maxEvents is how many of its last events an engine keeps.
const maxEvents = 256

// ForgetEvents makes the engine forget its last events, each of which has all labels of its image.
func (e *Engine) ForgetEvents(ctx context.Context) error {
	ctx, cancel := bounded(ctx, requestDeadline)
	defer cancel()
	for range maxEvents / 2 {
		v, err := e.api.VolumeCreate(ctx, client.VolumeCreateOptions{})
		if err == nil {
			_, err = e.api.VolumeRemove(ctx, v.Volume.Name, client.VolumeRemoveOptions{Force: true})
		}
		if err != nil {
			return e.wrap("make the engine forget its events", err)
		}
	}
	return nil
}

// CreateContainer makes a container, but does not start it. The error is ErrInvalid if the engine does not
// take the request, ErrNotFound if it does not have the image, and ErrFault if it fails.
func (e *Engine) CreateContainer(ctx context.Context, name string, wanted *container.CreateRequest) (id string, err error) {
	made, err := e.api.ContainerCreate(ctx, client.ContainerCreateOptions{Config: wanted.Config, HostConfig: wanted.HostConfig, Name: name})
	return made.ID, e.answer("create container", err)
}

// StartContainer starts a container. The error is ErrInvalid if the engine cannot start it as it was
// asked for, as without the program that it names, and ErrFault if it fails, which may have such a cause, too.
func (e *Engine) StartContainer(ctx context.Context, id string) error {
	_, err := e.api.ContainerStart(ctx, id, client.ContainerStartOptions{})
	return e.answer("start container", err)
}

func (e *Engine) answer(doing string, err error) error {
	switch {
	case errdefs.IsInvalidArgument(err):
		return fmt.Errorf("%s: %w: %w", doing, ErrInvalid, err)
	case errdefs.IsInternal(err), errdefs.IsConflict(err), errdefs.IsPermissionDenied(err):
		return fmt.Errorf("%s: %w: %w", doing, ErrFault, err)
	}
	return e.wrap(doing, err)
}

// StatPath returns what a container has at a path. The error is fs.ErrNotExist if it has nothing there.
func (e *Engine) StatPath(ctx context.Context, id, path string) (container.PathStat, error) {
	res, err := e.api.ContainerStatPath(ctx, id, client.ContainerStatPathOptions{Path: path})
	if errdefs.IsNotFound(err) {
		return container.PathStat{}, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	if err != nil {
		return container.PathStat{}, e.wrap("look at "+path, err)
	}
	return res.Stat, nil
}

// ReadPath returns what a link of a container says, or the first bytes of a regular file, at most that many. path goes
// through no link.
func (e *Engine) ReadPath(ctx context.Context, id, path string, most int64) (link string, text []byte, err error) {
	doing := "read " + path
	res, err := e.api.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: path})
	if err != nil {
		return "", nil, e.wrap(doing, err)
	}
	defer func() { _ = res.Content.Close() }()
	archive := tar.NewReader(res.Content)
	head, err := archive.Next()
	switch {
	case err != nil:
	case head.Typeflag == tar.TypeSymlink:
		return head.Linkname, nil, nil
	case head.Typeflag == tar.TypeReg:
		text, err = io.ReadAll(io.LimitReader(archive, most))
	default:
		err = errors.New("it is neither a link nor a file")
	}
	return "", text, e.wrap(doing, err)
}
