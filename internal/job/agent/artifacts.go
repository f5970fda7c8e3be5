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
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/std/text"
	"github.com/gpu-mode/kbnode/internal/std/tree"
)

// Bounds on a checkout and its artifacts. Beyond any of them nothing is uploaded.
const (
	maxFiles     = 1 << 20
	maxDepth     = 100 // directories below each other
	artifactTime = time.Minute
	maxFileSize  = 5 << 30  // bytes; Buildkite takes no larger file
	maxSize      = 20 << 30 // bytes of all files that the patterns may find. A sparse file takes no space of the slot
	maxUploads   = 10_000   // files that they may find
	// maxPath is the length of a path in the checkout, in bytes: with the checkout's own, Linux takes 4095, and the
	// upload fails as a whole at a longer one. maxLinks is that of all links' paths together, which are kept.
	maxPath  = 3 << 10
	maxLinks = 32 << 20
)

// LimitError says which of these bounds a job's files exceed, which is the job's own doing.
type LimitError string

func (e LimitError) Error() string { return string(e) }

func exceeds(format string, args ...any) error { return LimitError(fmt.Sprintf(format, args...)) }

// Sift makes it safe to upload artifacts from a directory in which nothing runs any more, and which no
// one needs afterward: it removes what is not a file, a noise record that the job made up, and a result
// that was not finished, and lets anyone read the rest. status is the exit status of the job's command, as
// Buildkite writes it. The upload runs on the host and follows links: one that a container left
// could deliver the upload's own environment, with the job's token, as result.json. And at a pipe
// the upload would wait forever. Only in the directory itself may a file have the name of one of the node's
// results, because a launcher takes the first or the last artifact with that name: Sift removes all others,
// and returns the first of them that would have been uploaded.
func Sift(ctx context.Context, dir string, patterns []string, status string, canceled bool) (forged []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, artifactTime)
	defer cancel()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	if err := tree.Remove(root, result.NodeFile); err != nil {
		return nil, fmt.Errorf("remove %s: %w", result.NodeFile, err)
	}
	w := &walk{ctx: ctx, root: root}
	if w.top, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	for _, p := range patterns {
		p = strings.TrimSpace(p)
		if p != "" {
			w.patterns = append(w.patterns, pattern(path.Clean(p)))
		}
	}
	err = dropACLs(w.top)
	if err == nil {
		err = w.dir(root, "", 0)
	}
	for i := 0; i < len(w.links) && err == nil; i++ {
		if !w.links[i].file {
			err = w.behind(w.links[i].path, w.links[i].path, 0)
		}
	}
	if err == nil {
		err = unfinished(root, status, canceled)
	}
	if err == nil {
		err = w.dropBroken() // last: nothing is removed after it
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = exceeds("the files take more than %s to look at; leave fewer", artifactTime)
	}
	if errors.Is(err, unix.ENOSPC) { // ext4 keeps equal attributes of files once: to remove some of one file's takes room
		err = exceeds("the job filled its disk; leave some space")
	}
	return w.forged, err
}

// maxForged bounds the names that Sift returns.
const maxForged = 3

type walk struct {
	top       string // the path of root, without links
	ctx       context.Context
	root      *os.Root
	entries   int
	patterns  []pattern
	files     int           // that the patterns may find
	bytes     int64         // of them
	ancestors []fs.FileInfo // the directory that is prepared, and those that led there
	links     []link        // that stay
	linkBytes int           // of their paths
	forged    []string
}

// link is a link to a file or directory.
type link struct {
	path string
	file bool
}

// wild are the characters of a pattern that mean more than themselves.
const wild = `*?{[\`

// pattern is a path in which some characters mean more than themselves.
type pattern string

// dir prepares one directory, whose path in the root is dir, and those below it. It reads a directory in
// parts, which may have any number of entries, and opens each from the one above it, so the length of a
// path does not matter.
func (w *walk) dir(at *os.Root, dir string, depth int) error {
	if depth > maxDepth {
		return exceeds("the checkout is deeper than %d directories", maxDepth)
	}
	f, err := at.Open(".")
	if err != nil {
		return ignoreAbsent(err)
	}
	defer func() { _ = f.Close() }()
	here, err := f.Stat()
	if err != nil {
		return err
	}
	w.ancestors = append(w.ancestors, here)
	defer func() { w.ancestors = w.ancestors[:len(w.ancestors)-1] }()
	return each(f, func(name string) error { return w.entry(at, f, path.Join(dir, name), depth) })
}

// dropACLs removes the lists by which a file or directory is closed to users whom its mode lets in. A directory has
// another for the files that are made in it.
func dropACLs(file string) error {
	for _, list := range []string{"system.posix_acl_access", "system.posix_acl_default"} {
		if err := unix.Lremovexattr(file, list); err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) {
			return ignoreAbsent(fmt.Errorf("remove %s: %w", list, err))
		}
	}
	return nil
}

// keep notes a link that stays.
func (w *walk) keep(l link) error {
	w.linkBytes += len(l.path)
	if w.linkBytes > maxLinks {
		return exceeds("the paths of the checkout's links have more than %s together", text.Bytes(maxLinks))
	}
	w.links = append(w.links, l)
	return nil
}

// dropBroken removes links that lead to or through something that was removed. The upload fails as a whole at one, or hangs.
func (w *walk) dropBroken() error {
	for _, l := range w.links {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if _, err := w.root.Stat(l.path); err == nil {
			continue
		}
		if err := w.root.Remove(l.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%.200s leads nowhere: %w", l.path, err)
		}
	}
	return nil
}

// each calls do with the name of each entry of a directory, until it returns an error. There may be any number.
func each(dir *os.File, do func(name string) error) error {
	for {
		entries, err := dir.ReadDir(1024)
		if errors.Is(err, io.EOF) {
			return nil
		}
		for _, e := range entries {
			if err == nil {
				err = do(e.Name())
			}
		}
		if err != nil {
			return err
		}
	}
}

// ignoreAbsent ignores errors for what is not there: the walk removes files that links lead through.
func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// entry prepares an entry of a directory, which is open as at and dir. Its path in the root is whole.
func (w *walk) entry(at *os.Root, dir *os.File, whole string, depth int) error {
	w.entries++
	if w.entries > maxFiles {
		return exceeds("the checkout has more than %d files", maxFiles)
	}
	if err := w.bounded(whole); err != nil {
		return err
	}
	name := path.Base(whole)
	info, err := at.Lstat(name)
	if err != nil {
		return ignoreAbsent(err)
	}
	if info.IsDir() || info.Mode().IsRegular() {
		if err := dropACLs(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)); err != nil {
			return err
		}
	}
	switch mode := info.Mode(); {
	case !mode.IsDir() && result.IsOwnName(name) && whole != result.File && whole != result.NodeFile:
		if len(w.forged) < maxForged && w.mayFind(whole) {
			w.forged = append(w.forged, whole)
		}
	case mode.IsDir():
		if err := ignoreAbsent(at.Chmod(name, mode.Perm()|0o555)); err != nil {
			return err
		}
		below, err := at.OpenRoot(name)
		if err != nil {
			return ignoreAbsent(err)
		}
		defer func() { _ = below.Close() }()
		return w.dir(below, whole, depth+1)
	case mode.IsRegular():
		if err := ignoreAbsent(at.Chmod(name, mode.Perm()|0o444)); err != nil {
			return err
		}
		return w.count(whole, info)
	case mode.Type() == fs.ModeSymlink:
		// An os.Root resolves no link that leads out of it.
		switch target, err := w.root.Stat(whole); {
		case err != nil:
		case target.Mode().IsRegular():
			if err := w.keep(link{whole, true}); err != nil {
				return err
			}
			return w.count(whole, target)
		// The upload follows this one, too. One that leads up would have it go around in circles.
		case target.IsDir() && !w.isAncestor(target):
			return w.keep(link{whole, false})
		}
	}
	if err := at.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%.200s is not a file in the checkout: %w", whole, err)
	}
	return nil
}

// bounded returns why the walk ends at a path.
func (w *walk) bounded(whole string) error {
	if len(whole) > maxPath {
		return exceeds("%.200q has a path of %d bytes; use at most %d", whole, len(whole), maxPath)
	}
	return w.ctx.Err()
}

func (w *walk) isAncestor(target fs.FileInfo) bool {
	return slices.ContainsFunc(w.ancestors, func(dir fs.FileInfo) bool { return os.SameFile(dir, target) })
}

// behind counts what a pattern may find in a directory, which is at in the root, and which the upload finds as
// whole, through links. What is there was prepared already.
func (w *walk) behind(whole, at string, depth int) error {
	if !slices.ContainsFunc(w.patterns, func(p pattern) bool { return p.mayReach(whole) }) {
		return nil
	}
	if depth > maxDepth {
		return exceeds("the checkout is deeper than %d directories, with those behind links", maxDepth)
	}
	real, err := filepath.EvalSymlinks(filepath.Join(w.top, at)) // an os.Root follows only some links after each other
	if err == nil {
		real, err = filepath.Rel(w.top, real)
	}
	if err != nil || !filepath.IsLocal(real) {
		return ignoreAbsent(err)
	}
	f, err := w.root.Open(real)
	if err != nil {
		return ignoreAbsent(err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if w.isAncestor(info) { // links that lead to each other
		return ignoreAbsent(w.root.Remove(at))
	}
	w.ancestors = append(w.ancestors, info)
	defer func() { w.ancestors = w.ancestors[:len(w.ancestors)-1] }()
	return each(f, func(name string) error { return w.found(path.Join(whole, name), path.Join(real, name), depth) })
}

// found counts an entry of a directory behind a link.
func (w *walk) found(whole, at string, depth int) error {
	w.entries++
	if w.entries > maxFiles {
		return exceeds("the checkout has more than %d files, with those behind links", maxFiles)
	}
	if err := w.bounded(whole); err != nil {
		return err
	}
	target, err := w.root.Stat(at)
	if err != nil {
		return ignoreAbsent(err)
	}
	if target.IsDir() {
		return w.behind(whole, at, depth+1)
	}
	return w.count(whole, target)
}

// count adds a file to those that the patterns may find.
func (w *walk) count(name string, file fs.FileInfo) error {
	if !file.Mode().IsRegular() || !w.mayFind(name) {
		return nil
	}
	w.files++
	if w.files > maxUploads {
		return exceeds("the artifact paths find more than %d files; upload fewer, or an archive of them", maxUploads)
	}
	if file.Size() > maxFileSize {
		return exceeds("%.200q has %s; upload files of at most %s", name, text.Bytes(file.Size()), text.Bytes(maxFileSize))
	}
	w.bytes += file.Size()
	if w.bytes > maxSize {
		return exceeds("the files have more than %s together; upload fewer", text.Bytes(maxSize))
	}
	return nil
}

// mayFind reports whether one of the patterns finds a file, or may.
func (w *walk) mayFind(name string) bool {
	return slices.ContainsFunc(w.patterns, func(p pattern) bool { return p.mayFind(name) })
}

// mayFind reports whether the pattern finds a file, or may: the agent's patterns have more than path.Match's.
func (p pattern) mayFind(name string) bool {
	pattern := string(p)
	if strings.Contains(pattern, "**") || strings.ContainsAny(pattern, `{[\`) {
		if plain := strings.IndexAny(pattern, wild); !strings.HasPrefix(name, pattern[:plain]) {
			return false
		}
		if odd(pattern) {
			return true
		}
		pattern, name = path.Base(pattern), path.Base(name)
	}
	found, err := path.Match(pattern, name)
	return found || err != nil || strings.ContainsAny(pattern, `{[\`)
}

// odd reports whether a pattern has alternatives of several directories, or ** beside other characters, which
// agents read differently.
func odd(pattern string) bool {
	for element := range strings.SplitSeq(pattern, "/") {
		if element != "**" && strings.Contains(element, "**") || strings.Count(element, "{") != strings.Count(element, "}") {
			return true
		}
	}
	return false
}

// mayReach reports whether the pattern may find something below a directory.
func (p pattern) mayReach(dir string) bool {
	if odd(string(p)) || strings.ContainsAny(string(p), `{[\`) {
		plain := string(p[:strings.IndexAny(string(p), wild)])
		return strings.HasPrefix(dir+"/", plain) || strings.HasPrefix(plain, dir+"/")
	}
	pattern := strings.Split(string(p), "/")
	for i, name := range strings.Split(dir, "/") {
		if i+1 == len(pattern) {
			return pattern[i] == "**"
		}
		if pattern[i] == "**" {
			return true
		}
		if ok, _ := path.Match(pattern[i], name); !ok { // an error is of [ and \
			return false
		}
	}
	return true
}
