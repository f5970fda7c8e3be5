package guard

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
)

const (
	// maxAccounts bounds an image's /etc/passwd and /etc/group, in bytes. To read a line, the
	// engine needs several times its length in memory.
	maxAccounts = 1 << 20
	// maxJudged bounds the number of images whose verdict is remembered.
	maxJudged = 256
	// lookTime bounds the check of one image.
	lookTime = 30 * time.Second
)

// accounts holds verdicts on images by ID: why an image cannot run, or "" if it can. When a
// container starts, the engine reads the image's /etc/passwd and /etc/group as root, whatever
// user was requested: forever if one is a pipe, with the container locked, and a line of any
// length into memory.
type accounts struct {
	mu     sync.Mutex
	judged map[string]string
}

// judge refuses an image whose account files could harm the engine. It looks at them in a
// container that never starts: in the job's own, mounts could hide what the engine reads.
func (g *guard) judge(c *call, image string) error {
	if image == "" {
		return errors.New("the Docker engine does not report the container's image")
	}
	a := &g.accounts
	a.mu.Lock()
	defer a.mu.Unlock()
	why, known := a.judged[image]
	if !known {
		var err error
		if why, err = g.lookInto(c, image); err != nil {
			return fmt.Errorf("check the image's accounts: %w", err)
		}
		if a.judged == nil || len(a.judged) >= maxJudged {
			a.judged = map[string]string{}
		}
		a.judged[image] = why
	}
	if why != "" {
		return forbid("%s, and Docker reads it as root; use an image where it is a regular file of at most 1 MiB", why)
	}
	return nil
}

func (g *guard) lookInto(c *call, image string) (why string, err error) {
	of, err := g.configOf(c, image)
	if err != nil {
		return "", err
	}
	wanted := container.CreateRequest{
		Config:     &container.Config{Image: image, Entrypoint: []string{}, Cmd: []string{"-"}},
		HostConfig: &container.HostConfig{NetworkMode: networkNone, ReadonlyRootfs: true, CapDrop: []string{"ALL"}},
	}
	wanted.HostConfig.CgroupParent = g.policy.Slice
	for path := range of.Volumes { // otherwise the engine would copy their contents
		wanted.HostConfig.Mounts = append(wanted.HostConfig.Mounts, mount.Mount{Type: mount.TypeTmpfs, Target: path})
	}
	body, err := json.Marshal(wanted)
	if err != nil {
		return "", fmt.Errorf("write the request: %w", err)
	}
	name := "kbnode-" + g.policy.Name + ".image" // no job's container name has this prefix
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.r.Context()), lookTime)
	defer cancel()
	at := *c
	at.r = c.r.WithContext(ctx)
	send := func(method, path string, query url.Values, body []byte) (*http.Response, []byte, error) {
		req := at
		req.method, req.path, req.query = method, path, query
		resp, err := g.up.ask(&req, bytes.NewReader(body))
		if err != nil {
			return nil, nil, err
		}
		defer hangUp(resp.Body)
		answer, err := readAll(resp)
		return resp, answer, err
	}
	remove := func(container string) error {
		_, _, err := send(http.MethodDelete, "containers/"+container, url.Values{"v": {"1"}, "force": {"1"}}, nil)
		return err
	}
	if err := remove(name); err != nil { // left by a guard that was killed
		return "", err
	}
	resp, answer, err := send(http.MethodPost, "containers/create", url.Values{"name": {name}}, body)
	if err != nil {
		return "", err
	}
	var made struct {
		ID string `json:"Id"`
	}
	if err := json.Unmarshal(answer, &made); err != nil || resp.StatusCode != http.StatusCreated || made.ID == "" {
		return "", fmt.Errorf("the Docker engine does not create a container from it: %.200q", answer)
	}
	defer func() { err = errors.Join(err, remove(made.ID)) }()
	stat := func(path string) (file, error) {
		resp, _, err := send(http.MethodHead, "containers/"+made.ID+"/archive", url.Values{"path": {path}}, nil)
		if err != nil {
			return file{}, err
		}
		return readStat(path, resp)
	}
	for _, path := range []string{"/etc/passwd", "/etc/group"} {
		f, err := stat(path)
		if err == nil && f.Mode&fs.ModeSymlink != 0 {
			f, err = stat(f.LinkTarget)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return "", err
		case !f.Mode.IsRegular():
			return fmt.Sprintf("the image's %s is not a regular file", path), nil
		case f.Size > maxAccounts:
			return fmt.Sprintf("the image's %s has %d bytes", path, f.Size), nil
		}
	}
	_, err = stat("/") // a container that someone removed has no files either
	return "", err
}

// file is what the engine reports about a path in a container. LinkTarget is the final target of
// a link.
type file struct {
	Size       int64
	Mode       fs.FileMode
	LinkTarget string
}

func readStat(path string, resp *http.Response) (f file, err error) {
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return f, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	default:
		return f, fmt.Errorf("%s: the Docker engine says %s", path, resp.Status)
	}
	text, err := base64.StdEncoding.DecodeString(resp.Header.Get("X-Docker-Container-Path-Stat"))
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		return f, fmt.Errorf("%s: read Docker's answer: %w", path, err)
	}
	return f, nil
}
