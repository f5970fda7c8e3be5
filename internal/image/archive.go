package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

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
		err := errors.Join(t.AddFS(root.FS()), t.Close(), root.Close())
		if err != nil {
			err = fmt.Errorf("read the build's files: %w", err)
		}
		_ = w.CloseWithError(err)
	}()
	return r, nil
}
