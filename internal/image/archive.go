package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
)

// maxContext bounds the files that a build can copy from, in bytes.
const maxContext = 1 << 30

// OneFile returns an archive of one file.
func OneFile(name, content string) (io.ReadCloser, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))})
	_, writeErr := io.WriteString(t, content)
	return io.NopCloser(&b), errors.Join(err, writeErr, t.Close())
}

// Directory returns an archive of a directory.
func Directory(dir string) (io.ReadCloser, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("read the build's files: %w", err)
	}
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		files := &buildFiles{FS: root.FS(), dir: dir, left: maxContext}
		err := errors.Join(t.AddFS(files), t.Close(), root.Close())
		if err != nil {
			err = fmt.Errorf("read the build's files: %w", err)
		}
		_ = w.CloseWithError(err)
	}()
	return r, nil
}

// buildFiles are the files, directories and links below a directory, except git's.
type buildFiles struct {
	fs.FS
	dir  string
	left int64 // bytes that they may still have
}

// ReadDir implements fs.ReadDirFS.
func (b *buildFiles) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(b.FS, name)
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool {
		return e.IsDir() && e.Name() == ".git" || e.Type()&^(fs.ModeDir|fs.ModeSymlink) != 0
	})
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			b.left -= info.Size() + 1024
		}
	}
	if b.left < 0 {
		err = fmt.Errorf("%s has more than 1 GiB; put the Dockerfile into its own directory", b.dir)
	}
	return entries, err
}

// ReadLink and Lstat implement fs.ReadLinkFS.
func (b *buildFiles) ReadLink(name string) (string, error) { return fs.ReadLink(b.FS, name) }

// Lstat implements fs.ReadLinkFS.
func (b *buildFiles) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(b.FS, name) }
