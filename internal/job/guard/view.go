package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

const (
	// maxAccounts bounds an image's /etc/passwd and /etc/group, in bytes. To read a line, the
	// engine needs several times its length in memory.
	maxAccounts = 1 << 20
	// maxAccount bounds a line of them, in bytes: the engine does not start a container with a longer one.
	maxAccount = 60 << 10
	// imageTime bounds the look into one image, which may be many requests.
	imageTime = 2 * time.Minute
	// maxSteps is how many paths of an image are looked at, and maxLinks how many links one path may go through.
	maxSteps, maxLinks = 1024, 40
)

// imageSuffix ends the names of containers that are made only to look at their image.
const imageSuffix = ".image"

// view is what an image has at some paths. The engine and runc follow its links, as root, when a container starts.
type view struct {
	Steps    map[string]step `json:"steps"` // by path without links
	Passwd   []byte          `json:"passwd"`
	Group    []byte          `json:"group"`
	Accounts []string        `json:"accounts"` // the paths on the way to both
}

// step is what is at one path.
type step struct {
	Absent  bool   `json:"absent,omitempty"`
	Dir     bool   `json:"dir,omitempty"`
	Regular bool   `json:"regular,omitempty"`
	Size    int64  `json:"size,omitempty"`
	Link    string `json:"link,omitempty"` // what a link says
}

// viewer looks into an image through a container that never starts: in the job's own, mounts could hide what the
// engine reads. It makes the container when it has to.
type viewer struct {
	view
	ctx   context.Context
	g     *guard
	image docker.ImageConfig
	id    string // of the container; "" if there is none
	looks int
}

// viewImage looks into an image, and remembers what it saw.
func (g *guard) viewImage(ctx context.Context, image docker.ImageConfig, use func(*viewer) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, imageTime)
	defer cancel()
	v := &viewer{view: view{Steps: map[string]step{}}, ctx: ctx, g: g, image: image}
	if before, ok := g.views.load(image.ID); ok {
		v.view = before
	}
	defer func() {
		if v.id != "" {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(g.engineTime, g.handover)) // the next job waits no longer
			defer cancel()
			err = errors.Join(err, g.api.Discard(ctx, v.id))
		}
	}()
	if v.Accounts == nil {
		err = v.readAccounts()
	}
	if err == nil {
		err = use(v)
	}
	if err != nil || v.id == "" {
		return err
	}
	if _, err := g.api.StatPath(ctx, v.id, "/"); err != nil { // a container that someone removed has no files either
		return fmt.Errorf("check the image's accounts: %w", err)
	}
	if err := g.views.store(image.ID, v.view); err != nil {
		g.log.Warn("the image's view is not kept", "err", err)
	}
	return nil
}

func (v *viewer) open() error {
	if v.id != "" {
		return nil
	}
	wanted := &container.CreateRequest{
		Config:     &container.Config{Image: v.image.ID, Entrypoint: []string{}, Cmd: []string{"-"}},
		HostConfig: &container.HostConfig{NetworkMode: job.NetworkNone, ReadonlyRootfs: true, CapDrop: []string{"ALL"}},
	}
	wanted.HostConfig.CgroupParent = v.g.policy.Slice
	for path := range v.image.Volumes { // otherwise the engine would copy their contents
		wanted.HostConfig.Mounts = append(wanted.HostConfig.Mounts, mount.Mount{Type: mount.TypeTmpfs, Target: path})
	}
	id, err := v.g.api.CreateContainer(v.ctx, v.g.newName()+imageSuffix, wanted)
	v.id = id
	return err
}

// at returns what is at a path, of which no part but the last is a link.
func (v *viewer) at(p string) (step, error) {
	if s, ok := v.Steps[p]; ok {
		return s, nil
	}
	v.looks++
	if v.looks > maxSteps {
		return step{}, forbid("the mounts are below too many directories of the image; choose shorter paths")
	}
	if err := v.open(); err != nil {
		return step{}, err
	}
	f, err := v.g.api.StatPath(v.ctx, v.id, p)
	s := step{Absent: errors.Is(err, fs.ErrNotExist), Dir: f.Mode.IsDir(), Regular: err == nil && f.Mode.IsRegular(), Size: f.Size}
	if err != nil && !s.Absent {
		// The engine follows a link to its end first. Only this request's answer has a text.
		if _, _, why := v.g.api.ReadPath(v.ctx, v.id, p, 0); why != nil {
			if mistake := noPath().FindString(why.Error()); mistake != "" {
				err = forbid("%.80q cannot be followed in the image (%s); choose another path", p, mistake)
			}
		}
		return step{}, err
	}
	if f.Mode&fs.ModeSymlink != 0 {
		if s.Link, _, err = v.g.api.ReadPath(v.ctx, v.id, p, 0); err != nil {
			return step{}, err
		}
	}
	v.Steps[p] = s
	return s, nil
}

// follow returns the forms that a path has on its way through the image's links, from itself to where it leads, and
// what is there. What is absent has no links. A mount can hide what a form goes through, so each counts.
func (v *viewer) follow(p string) (forms []string, last step, err error) {
	forms = []string{p}
	at, rest, links := "/", strings.Split(strings.Trim(p, "/"), "/"), 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		if last, err = v.at(next); err != nil {
			return nil, last, err
		}
		switch {
		case last.Absent:
			return append(forms, path.Join(append([]string{next}, rest...)...)), last, nil
		case last.Link != "":
			links++
			if links > maxLinks {
				return nil, last, tooManyLinks(p)
			}
			if path.IsAbs(last.Link) {
				at = "/"
			}
			if upLater(last.Link) { // it may be from a link that a mount brings
				return nil, last, forbid("%.80q goes through the image's link %.80q with .. in its middle; choose another path", p, next)
			}
			rest = append(strings.Split(last.Link, "/"), rest...)
			forms = append(forms, path.Join(append([]string{"/", at}, rest...)...))
			last = step{Dir: true}
		case !last.Dir && len(rest) > 0:
			return nil, last, forbid("%.80q goes through %.80q, which is no directory in the image; choose another path", p, next)
		default:
			at = next
		}
	}
	return append(forms, at), last, nil
}

// upLater reports whether a path has .. after a name.
func upLater(p string) bool {
	named := false
	for part := range strings.SplitSeq(p, "/") {
		if named && part == ".." {
			return true
		}
		named = named || part != "" && part != "." && part != ".."
	}
	return false
}

// noPath finds why no path leads to a file, whatever is mounted.
var noPath = lazy.Regexp(badPath)

func tooManyLinks(p string) error {
	return forbid("%.80q goes through too many links of the image; choose another path", p)
}

// readAccounts refuses an image whose account files could harm the engine. When a container starts, the engine
// reads the image's /etc/passwd and /etc/group as root, whatever user was requested: forever if one is a pipe,
// with the container locked, and a line of any length into memory. A link to nothing, or to a file in /dev, may
// lead to a device when a container runs.
func (v *viewer) readAccounts() error {
	for file, text := range map[string]*[]byte{"/etc/passwd": &v.Passwd, "/etc/group": &v.Group} {
		forms, s, err := v.follow(file)
		_, refused := errors.AsType[*refusedError](err)
		real := ""
		if err == nil {
			real = forms[len(forms)-1]
		}
		switch {
		case err != nil && !refused:
			return fmt.Errorf("check the image's accounts: %w", err)
		case err == nil && s.Absent && real == file:
		case refused, s.Absent, job.KernelDir(real) != "", !s.Regular, s.Size > maxAccounts:
			return forbid("the image's %s is not a regular file of at most 1 MiB, and Docker reads it as root; use an image where it is", file)
		default:
			if err := v.open(); err != nil {
				return err
			}
			if _, *text, err = v.g.api.ReadPath(v.ctx, v.id, real, maxAccounts); err != nil {
				return fmt.Errorf("check the image's accounts: %w", err)
			}
			for line := range bytes.Lines(*text) {
				if len(line) > maxAccount {
					return forbid("the image's %s has a line of more than %d KiB, which Docker does not read; shorten it", file, maxAccount>>10)
				}
			}
		}
		v.Accounts = append(v.Accounts, forms...)
	}
	return nil
}
