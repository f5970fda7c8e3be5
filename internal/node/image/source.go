package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
	evaluation "github.com/gpu-mode/kbnode/packaging/image"
)

// maxDockerfile bounds a Dockerfile, in bytes.
const maxDockerfile = 1 << 20

// Source is what an image is built from.
type Source struct {
	Name       string            // description, for messages
	Dockerfile string            // its path in Files
	Text       string            // of the Dockerfile
	Args       map[string]string // build arguments that the Dockerfile declares
	Files      fs.FS             // that it can copy, with the Dockerfile; nil for the Dockerfile alone
}

// archive returns a tar archive of the files.
func (s Source) archive() io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		var err error
		if s.Files != nil {
			err = t.AddFS(buildFiles{s.Files})
		} else if err = t.WriteHeader(&tar.Header{Name: s.Dockerfile, Mode: 0o644, Size: int64(len(s.Text))}); err == nil {
			_, err = io.WriteString(t, s.Text)
		}
		if err == nil {
			err = t.Close()
		}
		if err != nil {
			err = fmt.Errorf("read the build's files: %w", err)
		}
		_ = w.CloseWithError(err)
	}()
	return r
}

// buildFiles leaves out sockets, pipes and devices, which no Dockerfile can copy: an archive of them fails.
type buildFiles struct{ fs.FS }

// ReadDir implements fs.ReadDirFS.
func (f buildFiles) ReadDir(name string) ([]fs.DirEntry, error) {
	list, err := fs.ReadDir(f.FS, name)
	return slices.DeleteFunc(list, func(d fs.DirEntry) bool { return d.Type()&^(fs.ModeDir|fs.ModeSymlink) != 0 }), err
}

// ReadLink implements fs.ReadLinkFS.
func (f buildFiles) ReadLink(name string) (string, error) { return fs.ReadLink(f.FS, name) }

// Lstat implements fs.ReadLinkFS.
func (f buildFiles) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(f.FS, name) }

// OwnSource returns kbnode's own Dockerfile of a variant; "" is the one for the node's GPUs.
func OwnSource(variant string, args []string) (Source, error) {
	names := strings.Join(evaluation.Variants, ", ")
	if variant == "" {
		node, err := OpenMachine()
		if err == nil {
			variant, err = Variant(node.Policies)
		}
		if err != nil {
			return Source{}, fmt.Errorf("choose an image: %w; or choose one with --variant %s", err, names)
		}
	}
	body := evaluation.Dockerfile(variant)
	if body == "" {
		return Source{}, config.BadInput("--variant %q: write one of %s", variant, names)
	}
	return Source{
		Name: "kbnode's " + variant + ".Dockerfile", Dockerfile: variant + ".Dockerfile", Text: body,
	}.with(args)
}

// FileSource returns a Dockerfile with its directory.
func FileSource(name string, args []string) (Source, error) {
	info, err := os.Lstat(name)
	switch {
	case err != nil:
		return Source{}, config.BadInput("--dockerfile: %w", text.FileError(name, err, "name the Dockerfile itself"))
	case info.Mode().Type() == fs.ModeSymlink:
		return Source{}, config.BadInput("--dockerfile %s is a symlink; name its target, whose directory the build uses", name)
	case !info.Mode().IsRegular():
		return Source{}, config.BadInput("--dockerfile %s is not a file; name the Dockerfile itself", name)
	case info.Size() > maxDockerfile:
		return Source{}, config.BadInput("--dockerfile %s has %s, too much for a Dockerfile; name the Dockerfile itself", name, text.Bytes(info.Size()))
	}
	path, err := filepath.Abs(name)
	if err != nil {
		return Source{}, fmt.Errorf("read Dockerfile: %w", err)
	}
	body, err := os.ReadFile(path)
	if err != nil {
		return Source{}, fmt.Errorf("read Dockerfile: %w", err)
	}
	root, err := os.OpenRoot(filepath.Dir(path)) // its owner may replace a file by a link meanwhile; it stays open until the program ends
	if err != nil {
		return Source{}, fmt.Errorf("read the directory of the Dockerfile: %w", err)
	}
	return Source{Name: name, Dockerfile: filepath.Base(path), Text: string(body), Files: root.FS()}.with(args)
}

var (
	comment  = lazy.Regexp(`(?m)^[ \t]*#.*\n?`)
	goesOn   = lazy.Regexp(`\\[ \t]*\r?\n`)
	fromLine = lazy.Regexp(`(?im)^[ \t]*FROM[ \t]+\S`)
	argLine  = lazy.Regexp(`(?im)^[ \t]*ARG[ \t]+(.+)$`)
	argName  = lazy.Regexp(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// proxies are the arguments that every build accepts, also in lower case.
var proxies = []string{"ALL_PROXY", "FTP_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"}

// with adds build arguments. It refuses one that the Dockerfile does not know: Docker only warns,
// and builds something else.
func (s Source) with(args []string) (Source, error) {
	s.Text = strings.TrimPrefix(s.Text, "\ufeff") // as the builder does
	if !fromLine().MatchString(s.Text) {
		return s, config.BadInput("read %s: it has no FROM, so it is not a Dockerfile", s.Name)
	}
	known := map[string]bool{}
	for _, line := range argLine().FindAllStringSubmatch(goesOn().ReplaceAllString(comment().ReplaceAllString(s.Text, ""), " "), -1) {
		// A default with blanks yields names that no one declared, which does no harm: the
		// builder reports them if it gets them.
		for word := range strings.FieldsSeq(line[1]) {
			if name, _, _ := strings.Cut(word, "="); argName().MatchString(name) {
				known[name] = true
			}
		}
	}
	has := "it has none"
	if len(known) > 0 {
		has = "it has " + strings.Join(slices.Sorted(maps.Keys(known)), ", ")
	}
	s.Args = map[string]string{}
	var errs []error
	for _, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		upper := strings.ToUpper(key)
		proxy := slices.Contains(proxies, upper) && (key == upper || key == strings.ToLower(key))
		switch old, twice := s.Args[key]; {
		case !ok:
			errs = append(errs, config.BadInput("--build-arg %q: write NAME=VALUE", arg))
		case twice && old != value:
			errs = append(errs, config.BadInput("--build-arg %s is both %q and %q; give one of them", key, old, value))
		case !known[key] && !proxy:
			errs = append(errs, config.BadInput("--build-arg %q: %s has no ARG of that name; %s", key, s.Name, has))
		}
		s.Args[key] = value
	}
	return s, errors.Join(errs...)
}
