package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// Bounds on what artifacts are looked for in. Past one of them nothing is uploaded.
const (
	maxFiles     = 1 << 20
	maxDepth     = 100 // directories below each other
	artifactTime = time.Minute
)

// artifacts makes the checkout of slot k safe to upload these paths from, patterns
// with a semicolon between them. The upload runs on the host and follows links: one
// that a container left would deliver the upload's own environment, with the
// payload and the job's token, as result.json. And at a pipe it would wait for ever.
func artifacts(ctx context.Context, k int, checkout, paths string) (removed int, err error) {
	at, err := checkoutDir(k, checkout)
	if err == nil {
		removed, err = stay(ctx, at, paths)
	}
	if err != nil {
		return removed, fmt.Errorf("nothing is uploaded: %w", err)
	}
	return removed, nil
}

// checkoutDir is where a checkout of slot k is. Links on the way to it are followed
// here and nowhere below.
func checkoutDir(k int, checkout string) (string, error) {
	at, err := filepath.EvalSymlinks(checkout)
	if err == nil && !strings.HasPrefix(at, plan.BuildsDir(k)+"/") {
		err = fmt.Errorf("%s is not below %s", at, plan.BuildsDir(k))
	}
	return at, err
}

// stay removes what leads out of a directory and what is no file, links to
// elsewhere, pipes, sockets and devices, where the patterns may find it.
func stay(ctx context.Context, dir, patterns string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, artifactTime)
	defer cancel()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer func() { _ = root.Close() }()
	w := &walk{ctx: ctx, root: root}
	for p := range strings.SplitSeq(patterns, ";") {
		if p = strings.TrimSpace(p); p != "" && err == nil {
			err = w.pattern(path.Clean(p))
		}
	}
	return w.removed, err
}

type walk struct {
	ctx           context.Context
	root          *os.Root
	seen, removed int
	all           bool // the pattern reaches down to any depth
}

// pattern looks at the names that a pattern spells out, and then as deep as the
// rest of it reaches.
func (w *walk) pattern(p string) error {
	at, parts := ".", strings.Split(p, "/")
	for len(parts) > 0 && !strings.ContainsAny(parts[0], `*?[{\`) {
		info, err := w.root.Lstat(at + "/" + parts[0])
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if gone, err := w.entry(w.root, at, fs.FileInfoToDirEntry(info)); gone || err != nil {
			return err
		}
		at, parts = at+"/"+parts[0], parts[1:]
	}
	if len(parts) == 0 {
		return nil
	}
	below, err := w.root.OpenRoot(at)
	if err != nil {
		return ignoreShut(err)
	}
	defer func() { _ = below.Close() }()
	levels := len(parts) - 1
	if w.all = strings.Contains(p, "**") || strings.Contains(p, "{"); w.all {
		levels = maxDepth
	}
	return w.dir(below, at, levels)
}

// ignoreShut is for what is not there, is no directory, or is closed to the
// slot's user: the upload does not get there either.
func ignoreShut(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	return err
}

// dir looks at one directory, path of the root, and those so many levels below
// it. Each is opened from the one above: a long path is as good as a short one.
func (w *walk) dir(at *os.Root, path string, levels int) error {
	f, err := at.Open(".")
	if err != nil {
		return ignoreShut(err)
	}
	defer func() { _ = f.Close() }()
	for {
		entries, err := f.ReadDir(1024)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = w.ctx.Err()
		}
		for _, e := range entries {
			if err == nil {
				err = w.below(at, path, e, levels)
			}
		}
		if err != nil {
			return err
		}
	}
}

// below looks at an entry of a directory.
func (w *walk) below(at *os.Root, path string, e fs.DirEntry, levels int) error {
	if w.seen++; w.seen > maxFiles {
		return fmt.Errorf("the checkout has more than %d files", maxFiles)
	}
	if !e.IsDir() {
		_, err := w.entry(at, path, e)
		return err
	}
	if levels == 0 && w.all {
		return fmt.Errorf("the checkout is deeper than %d directories", maxDepth)
	}
	if levels == 0 {
		return nil
	}
	root, err := at.OpenRoot(e.Name())
	if err != nil {
		return ignoreShut(err)
	}
	defer func() { _ = root.Close() }()
	return w.dir(root, path+"/"+e.Name(), levels-1)
}

// entry removes an entry that must not be uploaded and tells whether it did.
func (w *walk) entry(at *os.Root, path string, e fs.DirEntry) (gone bool, err error) {
	name := e.Name()
	switch e.Type() {
	case 0, fs.ModeDir:
		return false, nil
	case fs.ModeSymlink:
		// A root resolves no link that leads out of it.
		if info, err := w.root.Stat(path + "/" + name); err == nil && (info.IsDir() || info.Mode().IsRegular()) {
			return false, nil
		}
	}
	if at == w.root {
		name = path + "/" + name
	}
	if err := at.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("%s/%s is no file of the checkout: %w", path, e.Name(), err)
	}
	w.removed++
	return true, nil
}
