package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"github.com/gpu-mode/kbnode/internal/std/limit"
)

const (
	// maxDocument bounds what a registry sends of an image besides its layers: a manifest, or the configuration with
	// its history. Those of NVIDIA's largest images have 100 KiB.
	maxDocument = 1 << 20
	// maxLayers is how many layers an image can have with overlay2.
	maxLayers = 127
	// maxNested is how deep descriptors lead: from an index through one more and a manifest to the configuration.
	maxNested = 4
	// maxNames bounds the file with the names of all images, in bytes.
	maxNames = 64 << 20

	contentDir = "imagedb/content/sha256"
	blobDir    = "io.containerd.content.v1.content/blobs/sha256"
)

// Store is what an engine keeps of images on this machine, as files. The engine reads the whole configuration of an
// image whenever it lists, inspects or starts something of it, and that of every image when it starts: the size is
// known here without it. The zero Store knows nothing.
type Store struct {
	images string // Docker's own: /var/lib/docker/image/overlay2; "" with containerd's
	blobs  string // containerd's: what has a digest, in files with that name
}

// Store returns where the engine keeps its images.
func (i Info) Store() Store {
	if dir := i.ContainerdDir(); dir != "" {
		return Store{blobs: filepath.Join(dir, blobDir)}
	}
	return Store{images: filepath.Join(i.RootDir, "image", i.StorageDriver)}
}

// Check returns the ID of an image by its name or ID, "" if it is not known here. The error is ErrTooLarge if the
// engine should not be asked for it. containerd's names are in a database: Check knows its images by their IDs.
func (s Store) Check(ref string) (id string, err error) {
	switch {
	case s.images != "":
		if id, err = s.id(ref); err == nil && id != "" {
			err = checkDocument(filepath.Join(s.images, contentDir, strings.TrimPrefix(id, "sha256:")))
		}
	case s.blobs != "" && digestForm().MatchString(ref):
		id, err = ref, s.checkBlobs(ref, map[string]bool{}, maxNested)
	}
	if err != nil {
		err = fmt.Errorf("look up image %s: %w", ref, err)
	}
	return id, err
}

// id returns the ID that a name has in Docker's own file, "" if it has none.
func (s Store) id(ref string) (string, error) {
	if digestForm().MatchString(ref) {
		return ref, nil
	}
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", err
	}
	named = reference.TagNameOnly(named)
	names, err := s.names()
	id := names[reference.FamiliarName(named)][reference.FamiliarString(named)]
	if err == nil && id != "" && !digestForm().MatchString(id) {
		return "", fmt.Errorf("it has the ID %.80q", id)
	}
	return id, err
}

// names returns the IDs of all images, by repository and name.
func (s Store) names() (map[string]map[string]string, error) {
	var file struct{ Repositories map[string]map[string]string }
	text, err := limit.ReadFile(filepath.Join(s.images, "repositories.json"), maxNames)
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	return file.Repositories, ignoreAbsent(err)
}

// checkDocument refuses a file that is too large. One that is absent is the engine's to miss.
func checkDocument(path string) error {
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxDocument {
		err = tooLarge("its configuration has %d KiB, with history and labels; use an image with at most %d KiB", (info.Size()+1023)>>10, maxDocument>>10)
	}
	return ignoreAbsent(err)
}

// checkBlobs refuses an index, a manifest or a configuration that is too large, by the digest of any. It looks once
// at each that is here, which is no more than what was pulled.
func (s Store) checkBlobs(digest string, before map[string]bool, nested int) error {
	if before[digest] || !digestForm().MatchString(digest) {
		return nil
	}
	if nested == 0 {
		return tooLarge("its index has indexes in indexes; use an image with one")
	}
	before[digest] = true
	path := filepath.Join(s.blobs, strings.TrimPrefix(digest, "sha256:"))
	if err := checkDocument(path); err != nil {
		return err
	}
	text, err := limit.ReadFile(path, maxDocument)
	if err != nil {
		return ignoreAbsent(err)
	}
	type descriptor struct{ Digest string }
	var blob struct {
		Config    descriptor // of a configuration, which also has one, it has no digest
		Manifests []descriptor
		Layers    []json.RawMessage
	}
	_ = json.Unmarshal(text, &blob) // what has another type than here does not hide the rest
	if len(blob.Layers) > maxLayers {
		return tooLarge("it has %d layers; use an image with at most %d", len(blob.Layers), maxLayers)
	}
	for _, d := range append(blob.Manifests, blob.Config) {
		if err := s.checkBlobs(d.Digest, before, nested-1); err != nil {
			return err
		}
	}
	return nil
}

func tooLarge(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, slices.Concat([]any{ErrTooLarge}, args)...)
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
