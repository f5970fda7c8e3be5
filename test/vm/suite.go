package vm

import (
	"crypto/sha256"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Debian 13 and 12, by name.
const (
	Trixie   = "trixie"   // 13, what Fork starts
	Bookworm = "bookworm" // 12: Linux 6.1, systemd 252, Docker 20.10 without CDI
)

//go:embed all:image
var imageFS embed.FS

//go:embed all:bookworm
var bookwormFS embed.FS

// suite says how a Debian is made. image/ makes Trixie; for another one the text of its
// scripts differs, and files of its own lie over those of image/.
type suite struct {
	name    string
	instead []string // text in image/'s scripts and in warmUp, and its replacement
	own     fs.FS
}

var suites = []suite{
	{name: Trixie},
	{name: Bookworm, own: bookwormFS, instead: []string{
		"suite=trixie", "suite=bookworm",
		",docker-cli", ",apparmor,bpftool", // docker.io has the one, and starts nothing without the other where the kernel has it; the last for its GPU hook
		"python3.13", "python3.11",
		`xz -dc "$root$module"`, `cat "$root$module"`, // its modules are not compressed
		"--show-depends virtio_blk", "--show-depends -a virtio_pci virtio_blk", // which has Trixie's kernel built in
		"for m in /*.ko;", "for m in /*.ko /*.ko;", // what one needs may come after it
		"--device nvidia.com/gpu=0", "--gpus device=0",
	}},
}

func suiteOf(name string) (suite, error) {
	i := slices.IndexFunc(suites, func(s suite) bool { return s.name == name })
	if i < 0 {
		return suite{}, fmt.Errorf("the rig has no Debian %q; write %s or %s", name, Trixie, Bookworm)
	}
	return suites[i], nil
}

// scripts are those of image/ that suites change.
var scripts = []string{"rootfs.sh", "disk.sh", "initramfs/init"}

// text is a script of image/'s as this suite has it.
func (s suite) text(script []byte) []byte {
	return []byte(strings.NewReplacer(s.instead...).Replace(string(script)))
}

// script is one of image/'s.
func (s suite) script(name string) ([]byte, error) {
	text, err := imageFS.ReadFile("image/" + name)
	return s.text(text), err
}

// unpack writes the source of the image to a directory.
func (s suite) unpack(dir string) error {
	sub, err := fs.Sub(imageFS, "image")
	if err != nil {
		return err
	}
	if err := os.CopyFS(dir, sub); err != nil {
		return err
	}
	for _, name := range scripts {
		text, err := s.script(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return s.eachOwn(func(path string, text []byte) error {
		to := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		return os.WriteFile(to, text, 0o644)
	})
}

// eachOwn calls do with the suite's own files, by their path in image/.
func (s suite) eachOwn(do func(path string, text []byte) error) error {
	if s.own == nil {
		return nil
	}
	return fs.WalkDir(s.own, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(s.own, path)
		if err != nil {
			return err
		}
		_, inside, _ := strings.Cut(path, "/")
		return do(inside, text)
	})
}

// sum adds to a hash what a suite has else than image/.
func (s suite) sum(h io.Writer) error {
	if len(s.instead) > 0 {
		if _, err := fmt.Fprintf(h, "%q\n", s.instead); err != nil {
			return err
		}
	}
	return s.eachOwn(func(path string, text []byte) error {
		_, err := fmt.Fprintf(h, "%s %x\n", path, sha256.Sum256(text))
		return err
	})
}
