package docker

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// LargeImage is an image that is too large for the engine, as Store.Check has it.
type LargeImage struct {
	ID   string // "sha256:…"
	Name string // one of its names; "" if it has none, or containerd knows it
	Path string // the file that is too large
	Size int64  // bytes of it
}

// LargeImages finds the images that are too large below Docker's and containerd's directories. No engine needs to
// answer: it may not start any more because of them.
func LargeImages(docker, containerd string) ([]LargeImage, error) {
	var list []LargeImage
	own, _ := filepath.Glob(filepath.Join(docker, "image", "*", contentDir)) // the pattern is well formed
	for _, dir := range own {
		large, err := largeFiles(dir)
		if err != nil {
			return nil, err
		}
		if len(large) == 0 {
			continue
		}
		names, err := Store{images: strings.TrimSuffix(dir, "/"+contentDir)}.names()
		if err != nil {
			return nil, err
		}
		for _, i := range large {
			for _, repository := range names {
				for name, id := range repository {
					if id == i.ID && (i.Name == "" || name < i.Name) {
						i.Name = name
					}
				}
			}
			list = append(list, i)
		}
	}
	blobs := filepath.Join(containerd, blobDir)
	large, err := largeFiles(blobs)
	if err != nil {
		return nil, err
	}
	for _, i := range large {
		if layer, err := isLayer(i.Path); err != nil || layer {
			continue
		}
		i.ID = topOf(blobs, i.ID)
		list = append(list, i)
	}
	return list, nil
}

// largeFiles returns the files of a directory that are larger than a document of an image may be.
func largeFiles(dir string) (list []LargeImage, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.Size() > maxDocument {
			list = append(list, LargeImage{ID: "sha256:" + e.Name(), Path: filepath.Join(dir, e.Name()), Size: info.Size()})
		}
	}
	if err = ignoreAbsent(err); err != nil {
		err = fmt.Errorf("look for large images: %w", err)
	}
	return list, err
}

// isLayer reports whether a blob is no JSON, by its first byte.
func isLayer(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	first := make([]byte, 1)
	_, err = io.ReadFull(f, first)
	return !slices.Contains([]byte("{ \t\r\n"), first[0]), err
}

// topOf returns the digest of the index or manifest that leads to a blob, which is the image's ID with containerd.
func topOf(dir, digest string) string {
	entries, _ := os.ReadDir(dir)
	for range 2 { // a configuration is in a manifest, and that may be in an index
		for _, e := range entries {
			if info, err := e.Info(); err != nil || info.Size() > maxDocument || "sha256:"+e.Name() == digest {
				continue
			}
			if text, err := limit.ReadFile(filepath.Join(dir, e.Name()), maxDocument); err == nil && bytes.HasPrefix(text, []byte("{")) && bytes.Contains(text, []byte(digest)) {
				digest = "sha256:" + e.Name()
				break
			}
		}
	}
	return digest
}
