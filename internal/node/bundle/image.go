package bundle

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// ImageName is the only name that the image has in a bundle. Whatever the engine of a node is told to load moves no
// name of the node's images: that of its configuration goes to the image when a canary has passed.
const ImageName = "kbnode.invalid/image:bundle"

const (
	imageTag = "bundle" // the end of it

	maxEntries  = 10_000  // files and directories of an archive; Docker 20.10 writes five for each layer
	maxDocument = 1 << 20 // bytes of a document in it, as the engine may have
	maxLayers   = 127     // that an image can have with overlay2
)

// checkImage refuses an archive that docker save would not have written of an image for this architecture, or in which
// the image has another name than ImageName. It reads no layer.
func checkImage(archive *io.SectionReader, arch string) error {
	files, err := listImage(archive)
	if err != nil {
		return fmt.Errorf("read its %s: %w; make the bundle again", imageName, err)
	}
	var images []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := files.decode("manifest.json", &images); err != nil {
		return err
	}
	if len(images) != 1 {
		return fmt.Errorf("its %s has %s; make the bundle with kbnode bundle create, which takes one", imageName, text.Count(len(images), "image"))
	}
	if n := len(images[0].Layers); n > maxLayers {
		return fmt.Errorf("its image has %d layers; use an image with at most %d", n, maxLayers)
	}
	names := slices.Clone(images[0].RepoTags)
	if len(names) == 0 {
		return fmt.Errorf("its image has no name, not even %s; make the bundle again", ImageName)
	}
	// Each engine reads one of these.
	var index struct {
		Manifests []struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"manifests"`
	}
	if err := files.decode("index.json", &index); err != nil && !errors.Is(err, errMissing) {
		return err
	}
	for _, m := range index.Manifests {
		name, tag := m.Annotations["io.containerd.image.name"], m.Annotations["org.opencontainers.image.ref.name"]
		if name == ImageName && tag == imageTag {
			tag = ""
		}
		for _, n := range []string{name, tag} {
			if n != "" {
				names = append(names, n)
			}
		}
	}
	var repositories map[string]map[string]string
	if err := files.decode("repositories", &repositories); err != nil && !errors.Is(err, errMissing) {
		return err
	}
	for repository, tags := range repositories {
		for tag := range tags {
			names = append(names, repository+":"+tag)
		}
	}
	for _, name := range names {
		if name != ImageName {
			return fmt.Errorf("its image is named %.200q, which another image of a node may be; make the bundle with kbnode bundle create", name)
		}
	}
	var config struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	}
	if err := files.decode(path.Clean(images[0].Config), &config); err != nil {
		return err
	}
	if config.OS != "linux" || config.Architecture != arch {
		return fmt.Errorf("its image is for %.40q, and the bundle for linux/%s; pull the image for that, as with docker pull --platform linux/%[2]s, and make the bundle again",
			config.OS+"/"+config.Architecture, arch)
	}
	return nil
}

// archived are the files of an archive by their names.
type archived map[string]*io.SectionReader

var errMissing = errors.New("it is missing; make the bundle again")

// decode reads a document.
func (a archived) decode(name string, v any) error {
	file := a[name]
	switch {
	case file == nil:
		return fmt.Errorf("%s in its %s: %w", name, imageName, errMissing)
	case file.Size() > maxDocument:
		return fmt.Errorf("%s in its %s has %s; use an image with at most %s of history and labels", name, imageName, text.Bytes(file.Size()), text.Bytes(maxDocument))
	}
	doc, err := io.ReadAll(file)
	if err == nil {
		err = json.Unmarshal(doc, v)
	}
	if err != nil {
		return fmt.Errorf("%s in its %s: %w; make the bundle again", name, imageName, err)
	}
	return nil
}

// listImage lists an archive, whose reader seeks over the files' content. The engine unpacks it as root, so it must be
// what it seems: each name is there once, no device, and no link but one to another layer.
func listImage(archive *io.SectionReader) (archived, error) {
	files := archived{}
	folders, links := map[string]bool{}, map[string]bool{}
	in := tar.NewReader(archive)
	for range maxEntries {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		name := path.Clean(h.Name)
		if !filepath.IsLocal(h.Name) {
			return nil, fmt.Errorf("%.200q leads out of it", h.Name)
		}
		if files[name] != nil || links[name] || folders[name] && h.Typeflag != tar.TypeDir {
			return nil, fmt.Errorf("it has %.200q twice", h.Name)
		}
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if files[dir] != nil || links[dir] {
				return nil, fmt.Errorf("%.200q is in what is no directory", h.Name)
			}
			folders[dir] = true
		}
		at, err := archive.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			folders[name] = true
		case tar.TypeReg:
			if h.Size > archive.Size()-at {
				return nil, io.ErrUnexpectedEOF
			}
			files[name] = io.NewSectionReader(archive, at, h.Size)
		case tar.TypeSymlink: // of Docker before 25, to a layer that the image has twice
			if target := path.Join(path.Dir(name), h.Linkname); path.Base(name) != "layer.tar" || path.Base(target) != "layer.tar" || path.IsAbs(h.Linkname) || !filepath.IsLocal(target) { //nolint:gosec // nothing is extracted
				return nil, fmt.Errorf("%.200q is a link to %.200q", h.Name, h.Linkname)
			}
			links[name] = true
		default:
			return nil, fmt.Errorf("%.200q is neither a file nor a directory", h.Name)
		}
	}
	return nil, fmt.Errorf("it has more than %d files", maxEntries)
}
