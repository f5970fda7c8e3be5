// Package docker is kbnode's only access to the Docker engine: what it is, which containers and
// images it has, and the removal of a slot's containers. Package guard decides what a job may
// do.
package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"golang.org/x/net/http/httpproxy"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

const (
	// infoDeadline bounds Info: a working engine needs milliseconds, or seconds under heavy load, and one that
	// hangs must not hang an inventory or a reconcile.
	infoDeadline = 20 * time.Second
	// requestDeadline bounds other requests, so that an engine that hangs does not hang an update.
	requestDeadline = 2 * time.Minute
	// untagDeadline bounds Untag, which may remove the many files of an image.
	untagDeadline = 10 * time.Minute
)

// bounded returns ctx with a limit, unless the caller has set one.
func bounded(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, most)
}

// ErrAbsent means that no engine answers on the socket: there is no such file, or no one listens
// on it.
var ErrAbsent = errors.New("no Docker engine answers")

// RoomAdvice says how to free space on the engine's disk. docker image prune leaves what jobs pulled, and with
// --all it also removes the images that kbnode keeps.
const RoomAdvice = "sudo docker rmi removes what jobs pulled; keep image.name and kbnode.invalid/image"

// ErrNotFound means that the engine has no such image or container.
var ErrNotFound = errors.New("not found")

// Engine is a Docker engine behind a unix socket. It speaks every API version from 1.40 on
// (Docker 19.03), agreed on with the first request. It is safe for concurrent use.
type Engine struct {
	socket string
	api    *client.Client
}

// Ping returns why the engine does not answer, or nil if it does.
func (e *Engine) Ping(ctx context.Context) error {
	_, err := e.api.Ping(ctx, client.PingOptions{})
	return e.wrap("ask the engine", err)
}

// Runc returns the version of runc that the engine reports, such as "1.1.5+ds1", or "" if it
// reports none. The engine starts runc to find out, so this is not part of Info.
func (e *Engine) Runc(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, infoDeadline)
	defer cancel()
	if versions, err := e.api.ServerVersion(ctx, client.ServerVersionOptions{}); err == nil {
		for _, c := range versions.Components {
			if c.Name == "runc" {
				return c.Version
			}
		}
	}
	return ""
}

// Info is what the engine reports about itself.
type Info struct {
	Version        string   // "26.1.5"
	Runc           string   // the result of Engine.Runc; "" if it was not called
	APIVersion     string   // the newest that both the engine and the client speak: "1.45"
	CgroupDriver   string   // "systemd" or "cgroupfs"
	CgroupVersion  string   // "2"
	StorageDriver  string   // "overlay2"
	RootDir        string   // "/var/lib/docker"
	Runtimes       []string // names, sorted
	DefaultRuntime string   // "runc"
	CDISpecDirs    []string // nil before Docker 25, and if CDI is switched off
	CDIDevices     []string // "nvidia.com/gpu=GPU-…", sorted; nil before Docker 28.2
	Snapshotter    bool     // containerd stores images and layers
	Security       []string // "name=seccomp,profile=builtin", "name=userns", …
	Insecure       []string // registries used without verifying certificates, sorted
	Warnings       []string // for people: "API is accessible on http://…", …

	LiveRestoreEnabled bool // containers go on while dockerd restarts

	HTTPProxy, HTTPSProxy, NoProxy string // for pulls; without credentials
}

// Proxies reports whether the engine asks a proxy for all that it wants of a registry, a host or host:port.
func (i Info) Proxies(registry string) bool {
	proxy := (&httpproxy.Config{HTTPProxy: i.HTTPProxy, HTTPSProxy: i.HTTPSProxy, NoProxy: i.NoProxy}).ProxyFunc()
	for _, scheme := range []string{"http", "https"} { // the first for one that it takes for insecure, by DNS
		if via, err := proxy(&url.URL{Scheme: scheme, Host: registry}); via == nil || err != nil {
			return false
		}
	}
	return true
}

// New returns the engine behind the unix socket at this path. It sends nothing yet.
func New(socket string) (*Engine, error) {
	api, err := client.New(client.WithHost("unix://"+socket), client.WithUserAgent("kbnode"))
	if err != nil {
		return nil, fmt.Errorf("connect to Docker at %s: %w", socket, err)
	}
	return &Engine{socket: socket, api: api}, nil
}

// Close drops the idle connections.
func (e *Engine) Close() error { return e.api.Close() }

// Info asks the engine about itself, for at most twenty seconds unless the caller has another limit.
func (e *Engine) Info(ctx context.Context) (Info, error) {
	ctx, cancel := bounded(ctx, infoDeadline)
	defer cancel()
	res, err := e.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return Info{}, e.wrap("ask Docker for its info", err)
	}
	in := res.Info
	info := Info{
		Version:        in.ServerVersion,
		APIVersion:     e.api.ClientVersion(),
		CgroupDriver:   in.CgroupDriver,
		CgroupVersion:  in.CgroupVersion,
		StorageDriver:  in.Driver,
		RootDir:        in.DockerRootDir,
		Runtimes:       slices.Sorted(maps.Keys(in.Runtimes)),
		DefaultRuntime: in.DefaultRuntime,
		CDISpecDirs:    in.CDISpecDirs,
		Security:       in.SecurityOptions,
		Warnings:       in.Warnings,
		Snapshotter: slices.ContainsFunc(in.DriverStatus, func(s [2]string) bool {
			return s[0] == "driver-type" && strings.HasPrefix(s[1], "io.containerd.snapshotter")
		}),
		LiveRestoreEnabled: in.LiveRestoreEnabled,
		HTTPProxy:          in.HTTPProxy, HTTPSProxy: in.HTTPSProxy, NoProxy: in.NoProxy,
	}
	for _, d := range in.DiscoveredDevices {
		if d.Source == "cdi" {
			info.CDIDevices = append(info.CDIDevices, d.ID)
		}
	}
	slices.Sort(info.CDIDevices)
	if in.RegistryConfig != nil {
		for name, index := range in.RegistryConfig.IndexConfigs {
			if index != nil && !index.Secure {
				info.Insecure = append(info.Insecure, name)
			}
		}
		slices.Sort(info.Insecure)
	}
	return info, nil
}

// ContainerdRoot is where containerd keeps its data, unless its configuration says otherwise. Docker's data-root does
// not move it.
const ContainerdRoot = "/var/lib/containerd"

// ContainerdDir returns where containerd keeps images and layers on this machine; "" if Docker keeps them below RootDir.
func (i Info) ContainerdDir() string {
	if !i.Snapshotter {
		return ""
	}
	text, _ := limit.ReadFile("/etc/containerd/config.toml", maxConfig)
	return containerdDir(string(text))
}

// maxConfig is how many bytes of containerd's configuration are read: its own keys come before all tables.
const maxConfig = 1 << 20

func containerdDir(config string) string {
	config, _, _ = strings.Cut("\n"+config, "\n[")
	if root := containerdKey().FindStringSubmatch(config); root != nil {
		return root[1]
	}
	return ContainerdRoot
}

var containerdKey = lazy.Regexp(`(?m)^[ \t]*root[ \t]*=[ \t]*["']([^"'\n]+)["']`)

// Image is an image that the engine has.
type Image struct {
	ID      string   // "sha256:…", of the configuration
	Digests []string // "name@sha256:…"; empty for an image that was built here
	Names   []string // "name:tag"
	Size    int64    // bytes
	Created time.Time
	Arch    string // "amd64", "arm64"; "" if unknown
}

// Image returns the engine's image with this name, digest or ID. The error is ErrNotFound if it
// has none.
func (e *Engine) Image(ctx context.Context, ref string) (Image, error) {
	ctx, cancel := bounded(ctx, requestDeadline)
	defer cancel()
	res, err := e.api.ImageInspect(ctx, ref)
	if err != nil {
		return Image{}, e.wrap("look up image "+ref, err)
	}
	created, _ := time.Parse(time.RFC3339Nano, res.Created) // not every image has it
	return Image{ID: res.ID, Digests: res.RepoDigests, Names: res.RepoTags, Size: res.Size, Created: created, Arch: res.Architecture}, nil
}

// wrap adds what was being done and turns the client's errors into ErrAbsent and ErrNotFound.
func (e *Engine) wrap(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case client.IsErrConnectionFailed(err):
		return fmt.Errorf("%s: %w on %s: %w", doing, ErrAbsent, e.socket, err)
	case errdefs.IsNotFound(err):
		return fmt.Errorf("%s: %w: %w", doing, ErrNotFound, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}
