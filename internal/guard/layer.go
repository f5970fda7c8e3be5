package guard

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/moby/moby/api/types/container"
)

// onDisk makes a container write only to a job's directory on the slot's disk. It is called before the start.
func (g *guard) onDisk(in container.InspectResponse, top string) error {
	if g.disk.dir == "" {
		return nil
	}
	for _, m := range in.Mounts {
		if m.Type == "volume" {
			return forbid("the image declares a volume at %.80q that was not there when the container was created; create the container again", m.Destination)
		}
	}
	if in.HostConfig.ReadonlyRootfs {
		return nil // nothing to write to
	}
	if in.GraphDriver == nil || in.GraphDriver.Name != "overlay2" {
		return nil // kbnode plan warns
	}
	layer, isDiff := strings.CutSuffix(in.GraphDriver.Data["UpperDir"], "/diff")
	if !isDiff || !filepath.IsAbs(layer) {
		return fmt.Errorf("find the container's layer: the engine says it is %.200q", in.GraphDriver.Data["UpperDir"])
	}
	return g.disk.cover(layer, filepath.Join(top, "layer"))
}

// cover mounts a directory of the slot's disk over the one in which the overlay2
// driver keeps a container's layer. The engine then mounts the container's root
// from there, and unmounts it when it removes the container.
func (d *slotDisk) cover(layer, own string) error {
	if err := os.Mkdir(own, 0o700); err != nil {
		return fmt.Errorf("prepare the slot's disk: %w", err)
	}
	if err := copyLayer(layer, own); err != nil {
		return fmt.Errorf("copy the container's layer: %w", err)
	}
	if err := d.bind(own, layer); err != nil {
		return fmt.Errorf("mount the container's layer: %w", err)
	}
	return nil
}

// copyLayer copies what a layer holds before its container runs: the engine's own few files, and the
// directories on the way to the working directory.
func copyLayer(from, to string) error {
	src, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer hangUp(src)
	dst, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer hangUp(dst)
	return fs.WalkDir(src.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		switch mode := info.Mode(); {
		case name == ".":
		case mode.IsDir():
			err = dst.Mkdir(name, 0o700)
		case mode.IsRegular():
			var data []byte
			if data, err = src.ReadFile(name); err == nil {
				err = dst.WriteFile(name, data, 0o600)
			}
		default:
			err = fmt.Errorf("%s is neither a directory nor a file", name)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); err == nil && ok && os.Geteuid() == 0 {
			err = dst.Lchown(name, int(st.Uid), int(st.Gid))
		}
		if err == nil {
			err = dst.Chmod(name, info.Mode()&(fs.ModePerm|fs.ModeSetgid|fs.ModeSticky))
		}
		return err
	})
}
