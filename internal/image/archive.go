package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
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

// Directory returns an archive of a directory: its files, directories and links, except those of
// git.
func Directory(dir string) (io.ReadCloser, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("read the build's files: %w", err)
	}
	r, w := io.Pipe()
	go func() {
		defer func() { _ = root.Close() }()
		t := tar.NewWriter(w)
		left := int64(maxContext)
		err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == ".git":
				return fs.SkipDir
			case name == ".":
				return nil
			}
			return pack(root, t, name, d, &left)
		})
		if err = errors.Join(err, t.Close()); err != nil {
			err = fmt.Errorf("read the build's files: %w", err)
		}
		_ = w.CloseWithError(err)
	}()
	return r, nil
}

func pack(root *os.Root, t *tar.Writer, name string, d fs.DirEntry, left *int64) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	link := ""
	if info.Mode().Type() == fs.ModeSymlink {
		if link, err = root.Readlink(name); err != nil {
			return err
		}
	} else if !info.Mode().IsRegular() && !info.IsDir() {
		return nil
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname = name, 0, 0, "", ""
	if info.IsDir() {
		h.Name += "/"
	}
	if *left -= h.Size + 1024; *left < 0 {
		return fmt.Errorf("%s has more than 1 GiB; put the Dockerfile into its own directory", root.Name())
	}
	if err := t.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = io.Copy(t, io.LimitReader(f, h.Size))
	return err
}
