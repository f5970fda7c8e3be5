package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/build"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Errors of a registry or a pull that another try does not fix.
var (
	// ErrRefused means that the registry wants other credentials, as when it limits pulls without any, or does not have
	// the image.
	ErrRefused = errors.New("the registry refuses it")
	// ErrMissing is an ErrRefused of a registry that answers for the image, and does not have it. Docker Hub says of a
	// repository that it does not have what it says of a private one, which is no ErrMissing.
	ErrMissing = fmt.Errorf("%w, because it does not have it", ErrRefused)
	// ErrDiskFull means that the engine's disk has no room for it.
	ErrDiskFull = errors.New("the engine's disk is full")
)

const (
	resolveDeadline = 2 * time.Minute
	// beginDeadline ends a pull that has not begun. The engine keeps in memory what a registry sends until then.
	beginDeadline = 2 * time.Minute
	// quietDeadline ends a pull that reports nothing any more. The engine reports the unpacking
	// of a layer as it goes.
	quietDeadline = 10 * time.Minute
)

var errQuiet = errors.New("no progress for minutes")

// Progress is what the engine reports about a pull, a push or a build.
type Progress struct {
	Layer          string // 12 hexadecimal digits; "" if it is about the whole
	Status         string // "Downloading", "Pull complete", or a line of a build
	Current, Total int64  // bytes; Total is 0 if unknown
}

// ParseRef returns the whole name of an image: with its registry, and with the tag "latest" if
// it has no other. It refuses an ID.
func ParseRef(ref string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("%.120q is not the name of an image; write one such as ghcr.io/gpu-mode/kernelbot:latest", ref)
	}
	return reference.TagNameOnly(named).String(), nil
}

// WithDigest returns the reference of one image of the repository that ref names.
func WithDigest(ref, digest string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("%.120q is not the name of an image", ref)
	}
	if !digestForm().MatchString(digest) {
		return "", fmt.Errorf("%.120q is not a digest", digest)
	}
	return reference.FamiliarName(named) + "@" + digest, nil
}

// IsID reports whether a reference is the whole ID of an image.
func IsID(ref string) bool { return digestForm().MatchString(ref) }

var digestForm = lazy.Regexp(`^sha256:[0-9a-f]{64}$`)

// Resolve asks the registry which digest an image has there now. It uses the credentials of the
// user that runs kbnode.
func (e *Engine) Resolve(ctx context.Context, ref string) (digest string, err error) {
	ctx, cancel := context.WithTimeout(ctx, resolveDeadline)
	defer cancel()
	auth, err := registryAuth(ref)
	if err != nil {
		return "", err
	}
	res, err := e.api.DistributionInspect(ctx, ref, client.DistributionInspectOptions{EncodedRegistryAuth: auth})
	if err != nil {
		return "", e.wrapPull("ask the registry for "+ref, err)
	}
	digest = res.Descriptor.Digest.String()
	if !digestForm().MatchString(digest) {
		return "", fmt.Errorf("ask the registry for %s: it answers with %.80q, which is not a digest", ref, digest)
	}
	return digest, nil
}

// Pull fetches an image, with the credentials of the user that runs kbnode. With a reference by digest no
// tag moves.
func (e *Engine) Pull(ctx context.Context, ref string, report func(Progress)) error {
	auth, err := registryAuth(ref)
	if err != nil {
		return err
	}
	return e.pull(ctx, ref, auth, report)
}

// PullAnonymously is Pull without credentials, for whom the registry's words are not meant: what a registry, or a
// server that it leads to, answers is in a *PullError, which does not say it.
func (e *Engine) PullAnonymously(ctx context.Context, ref string, report func(Progress)) error {
	err := e.pull(ctx, ref, "", report)
	if err == nil || ctx.Err() != nil || errors.Is(err, ErrAbsent) || errors.Is(err, errQuiet) {
		return err
	}
	return &PullError{ref, err}
}

func (e *Engine) pull(ctx context.Context, ref, auth string, report func(Progress)) error {
	return e.stream(ctx, "pull "+ref, report, func(ctx context.Context) (messages, error) {
		return e.api.ImagePull(ctx, ref, client.ImagePullOptions{RegistryAuth: auth})
	})
}

// Build builds an image of this name from an archive with a Dockerfile and its arguments, with
// the engine's own builder.
func (e *Engine) Build(ctx context.Context, ref string, archive io.Reader, dockerfile string, args map[string]string, report func(Progress)) error {
	auths, err := allAuths(func(err error) { report(Progress{Status: fmt.Sprintf("building without some credentials: %v", err)}) })
	if err != nil {
		return err
	}
	values := map[string]*string{}
	for name, value := range args {
		values[name] = &value
	}
	// Without a deadline: a command of the Dockerfile may print nothing for as long as it takes.
	return e.wrapPull("build "+dockerfile, relay(ctx, report, func(ctx context.Context) (messages, error) {
		res, err := e.api.ImageBuild(ctx, archive, client.ImageBuildOptions{
			Tags: []string{ref}, Dockerfile: dockerfile, BuildArgs: values, Remove: true, ForceRemove: true, AuthConfigs: auths, Version: build.BuilderV1,
		})
		if err != nil {
			return nil, err
		}
		return decoded{res.Body}, nil
	}))
}

// messages is what the engine reports while it works.
type messages interface {
	io.Closer
	JSONMessages(ctx context.Context) iter.Seq2[jsonstream.Message, error]
}

// stream is relay, and gives up after beginDeadline without a first message, and quietDeadline without another.
func (e *Engine) stream(ctx context.Context, doing string, report func(Progress), begin func(context.Context) (messages, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(beginDeadline, func() { cancel(errQuiet) })
	defer quiet.Stop()
	return e.wrapPull(doing, relay(ctx, func(p Progress) {
		quiet.Reset(quietDeadline)
		report(p)
	}, begin))
}

// relay begins an operation and reports its progress until it is done.
func relay(ctx context.Context, report func(Progress), begin func(context.Context) (messages, error)) error {
	from, err := begin(ctx)
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	defer func() { _ = from.Close() }()
	for m, err := range from.JSONMessages(ctx) {
		if err == nil && m.Error != nil {
			err = m.Error
		}
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		p := Progress{Layer: text.Line(m.ID, maxText), Status: text.Line(m.Status+m.Stream, maxText)}
		if m.Progress != nil {
			p.Current, p.Total = max(0, m.Progress.Current), max(0, m.Progress.Total)
		}
		report(p)
	}
	return context.Cause(ctx)
}

// fullDisk is what the engine says when its disk is full.
var fullDisk = []string{"no space left on device", "disk quota exceeded"}

// maxText is how many bytes of a message of a registry or a build are shown.
const maxText = 2000

// wrapPull is wrap, and also recognizes what another try does not fix. Errors in the middle of a
// pull are sentences only.
func (e *Engine) wrapPull(doing string, err error) error {
	if err == nil {
		return nil
	}
	lower, shown := strings.ToLower(err.Error()), text.Line(err.Error(), maxText)
	// The engine's own words, of a file that it unpacks or a program such as unpigz: no registry says them.
	lower = strings.NewReplacer(": permission denied", "", "executable file not found", "").Replace(lower)
	says := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(lower, p) {
				return true
			}
		}
		return false
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	case says("returned a non-zero code", "dockerfile parse error", "copy failed:", "add failed:"):
		// The build's own error, whatever else it says: no registry refuses anything.
		return fmt.Errorf("%s: %s", doing, shown)
	case says(fullDisk...):
		return fmt.Errorf("%s: %w: %s", doing, ErrDiskFull, shown)
	case says("manifest unknown", "no matching manifest"):
		return fmt.Errorf("%s: %w: %s", doing, ErrMissing, shown)
	case errdefs.IsUnauthorized(err), errdefs.IsPermissionDenied(err), errdefs.IsInvalidArgument(err),
		says("unauthorized", "authentication required", "denied", "no basic auth", "403 forbidden", "toomanyrequests"):
		return fmt.Errorf("%s: %w: %s", doing, ErrRefused, shown)
	case errdefs.IsNotFound(err), says("not found", "name unknown", "blob unknown"):
		return fmt.Errorf("%s: %w: %s", doing, ErrMissing, shown)
	}
	return e.wrap(doing, err)
}

// Tag gives an image another name, and takes it from the image that has it.
func (e *Engine) Tag(ctx context.Context, source, name string) error {
	ctx, cancel := bounded(ctx, requestDeadline)
	defer cancel()
	_, err := e.api.ImageTag(ctx, client.ImageTagOptions{Source: source, Target: name})
	return e.wrap("tag image "+source+" as "+name, err)
}

// Untag removes a name or digest from its image, and the image with its last one, but never an
// image that a container uses. A missing name is not an error.
func (e *Engine) Untag(ctx context.Context, name string) error {
	ctx, cancel := bounded(ctx, untagDeadline)
	defer cancel()
	_, err := e.api.ImageRemove(ctx, name, client.ImageRemoveOptions{PruneChildren: true})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return e.wrap("remove image "+name, err)
}

// Names returns the names of images that begin with prefix, with the IDs of the images.
func (e *Engine) Names(ctx context.Context, prefix string) (map[string]string, error) {
	ctx, cancel := bounded(ctx, requestDeadline)
	defer cancel()
	list, err := e.api.ImageList(ctx, client.ImageListOptions{})
	if err != nil {
		return nil, e.wrap("list images", err)
	}
	names := map[string]string{}
	for _, i := range list.Items {
		for _, name := range i.RepoTags {
			if strings.HasPrefix(name, prefix) {
				names[name] = i.ID
			}
		}
	}
	return names, nil
}

// ImagesInUse returns the IDs of the images that containers are made of, running or not.
func (e *Engine) ImagesInUse(ctx context.Context) (map[string]bool, error) {
	ctx, cancel := bounded(ctx, requestDeadline)
	defer cancel()
	list, err := e.api.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, e.wrap("list containers", err)
	}
	used := map[string]bool{}
	for _, c := range list.Items {
		used[c.ImageID] = true
	}
	return used, nil
}

// RoomPoll is the time between two looks at the engine's disk during a pull.
const RoomPoll = time.Second

// Room returns the free space on the engine's disk and the size of the disk, in bytes: of the one with less room, if
// containerd has another. Both are zero if the disk is not on this machine.
func (e *Engine) Room(ctx context.Context) (free, total int64, err error) {
	info, err := e.Info(ctx)
	if err != nil {
		return 0, 0, err
	}
	free, total = leastRoom(info.RootDir, info.ContainerdDir())
	return free, total, nil
}

// leastRoom leaves out what is not on this machine.
func leastRoom(dirs ...string) (free, total int64) {
	least := int64(math.MaxInt64)
	for _, dir := range dirs {
		var st unix.Statfs_t
		if room, err := host.Room(dir); err == nil && room < least && unix.Statfs(dir, &st) == nil {
			least, free, total = room, int64(st.Bavail)*st.Frsize, int64(st.Blocks)*st.Frsize
		}
	}
	return free, total
}
