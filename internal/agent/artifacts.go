package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/text"
	"github.com/gpu-mode/kbnode/internal/tree"
)

// Bounds on the search for artifacts. Beyond any of them nothing is uploaded.
const (
	maxFiles     = 1 << 20
	maxDepth     = 100 // directories below each other
	artifactTime = time.Minute
	maxFileSize  = 5 << 30  // bytes; Buildkite takes no larger file
	maxSize      = 20 << 30 // bytes of all files that a pattern may find. A sparse file takes no space of the slot
	maxUploads   = 10_000   // files that a pattern may find
)

// Prepare makes it safe to upload artifacts from a directory in which nothing runs any more: it
// removes what the patterns may find but must not be uploaded, a noise record that the job made
// up, and a result that was not finished. status is the exit status of the job's command, as
// Buildkite writes it. The upload runs on the host and follows links: one that a container left
// could deliver the upload's own environment, with the job's token, as result.json. And at a pipe
// the upload would wait forever.
func Prepare(ctx context.Context, dir string, patterns []string, status string, canceled bool) error {
	if err := stay(ctx, dir, patterns); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	if err := errors.Join(tree.Remove(root, recordName), root.Close()); err != nil {
		return fmt.Errorf("remove %s: %w", recordName, err)
	}
	return unfinished(dir, status, canceled)
}

// stay removes from a directory what the patterns may find but must not be uploaded:
// links to elsewhere, pipes, sockets and devices.
func stay(ctx context.Context, dir string, patterns []string) error {
	ctx, cancel := context.WithTimeout(ctx, artifactTime)
	defer cancel()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	w := &walk{ctx: ctx, root: root}
	for _, p := range patterns {
		if p = strings.TrimSpace(p); p != "" && err == nil {
			err = w.pattern(path.Clean(p))
		}
	}
	return err
}

type walk struct {
	ctx   context.Context
	root  *os.Root
	seen  int
	all   bool   // the pattern matches at any depth
	last  string // its last part
	size  int64  // bytes of the files that it may find
	files int
}

// pattern checks the names that a pattern spells out, and then as deep as the rest of it
// reaches.
func (w *walk) pattern(p string) error {
	w.size, w.files, w.last = 0, 0, path.Base(p)
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

// ignoreShut ignores errors for what does not exist, is not a directory, or is closed to
// the slot's user: the upload cannot get there either.
func ignoreShut(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	return err
}

// dir checks one directory, whose path in the root is path, and as many levels below it.
// Each is opened from the one above it, so the length of a path does not matter.
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

// below checks an entry of a directory.
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

// entry removes an entry that must not be uploaded and reports whether it did.
func (w *walk) entry(at *os.Root, path string, e fs.DirEntry) (gone bool, err error) {
	name := e.Name()
	if at == w.root {
		name = path + "/" + name
	}
	switch e.Type() {
	case fs.ModeDir:
		return false, nil
	case 0:
		info, err := at.Lstat(name)
		if err != nil {
			return false, fmt.Errorf("look at %.200q: %w", path+"/"+e.Name(), err)
		}
		return false, w.count(path, info)
	case fs.ModeSymlink:
		// An os.Root resolves no link that leads out of it.
		if info, err := w.root.Stat(path + "/" + e.Name()); err == nil && (info.IsDir() || info.Mode().IsRegular()) {
			return false, w.count(path, linked{info, e.Name()})
		}
	}
	if err := at.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("%s/%s is not a file in the checkout: %w", path, e.Name(), err)
	}
	return true, nil
}

// linked is the file behind a link, by the link's name.
type linked struct {
	fs.FileInfo
	name string
}

func (l linked) Name() string { return l.name }

// count adds a file to those that the pattern may find.
func (w *walk) count(dir string, file fs.FileInfo) error {
	// The agent's patterns have more than path.Match's.
	if found, err := path.Match(w.last, file.Name()); !file.Mode().IsRegular() || !found && err == nil && !strings.ContainsAny(w.last, `{[\`) {
		return nil
	}
	if w.files++; w.files > maxUploads {
		return fmt.Errorf("%.200q finds more than %d files; upload fewer, or an archive of them", w.last, maxUploads)
	}
	if file.Size() > maxFileSize {
		return fmt.Errorf("%.200q has %s; upload files of at most %s", path.Join(dir, file.Name()), text.Bytes(file.Size()), text.Bytes(maxFileSize))
	}
	if w.size += file.Size(); w.size > maxSize {
		return fmt.Errorf("the files have more than %s together; upload fewer", text.Bytes(maxSize))
	}
	return nil
}
