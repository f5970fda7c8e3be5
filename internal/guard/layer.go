package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/moby/moby/api/types/container"
)

// onDisk makes a container write only to the slot's disk. It is called before the start.
func (g *guard) onDisk(in container.InspectResponse) error {
	if g.disk.dir == "" {
		return nil
	}
	for _, m := range in.Mounts {
		if m.Type == "volume" {
			return forbid("the image declares a volume at %.80q that was not there when the container was created; create the container again", m.Destination)
		}
	}
	scratch := in.Config.Labels[diskLabel]
	if in.HostConfig.ReadonlyRootfs || !scratchForm.MatchString(scratch) {
		return nil // nothing to write to, or made before the slot had a disk
	}
	top := g.disk.path(scratch)
	if err := writeEtc(top, in); err != nil {
		return fmt.Errorf("write the container's files: %w", err)
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
	covered, err := sameDevice(layer, d.dir)
	if err != nil {
		return fmt.Errorf("find the container's layer: %w", err)
	}
	if covered {
		return nil // it was started before
	}
	if err := errors.Join(os.RemoveAll(own), os.Mkdir(own, 0o700)); err != nil {
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

// maxLayer bounds what a layer holds before its container runs: the engine's own
// few files, and the directories on the way to the working directory.
const maxLayer = 4096 // entries

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
	seen := 0
	return fs.WalkDir(src.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if seen++; seen > maxLayer {
			return fmt.Errorf("more than %d files", maxLayer)
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		switch mode := info.Mode(); {
		case name == ".":
		case mode.IsDir():
			err = dst.Mkdir(name, 0o700)
		case mode.IsRegular() && info.Size() <= maxString:
			var data []byte
			if data, err = src.ReadFile(name); err == nil {
				err = dst.WriteFile(name, data, 0o600)
			}
		case mode.Type() == fs.ModeSymlink:
			var target string
			if target, err = src.Readlink(name); err == nil {
				err = dst.Symlink(target, name)
			}
		default:
			err = fmt.Errorf("%s is neither a directory nor a small file", name)
		}
		if err != nil {
			return err
		}
		return own(dst, name, info)
	})
}

// own gives a copy the owner and mode of its original.
func own(root *os.Root, name string, original fs.FileInfo) error {
	if st, ok := original.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		if err := root.Lchown(name, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if original.Mode().Type() == fs.ModeSymlink {
		return nil
	}
	return root.Chmod(name, original.Mode()&(fs.ModePerm|fs.ModeSetgid|fs.ModeSticky))
}

// etcFiles are the files that Docker makes for a container and mounts writable.
var etcFiles = []string{"hosts", "hostname", "resolv.conf"}

// writeEtc writes etcFiles as Docker does. The container's own name leads to the loopback
// interface, as its address is not known yet.
func writeEtc(dir string, in container.InspectResponse) error {
	host := in.Config.Hostname
	names := host
	if in.Config.Domainname != "" {
		names = host + "." + in.Config.Domainname + " " + host
	}
	resolv, err := resolvConf(string(in.HostConfig.NetworkMode))
	for name, text := range map[string]string{
		"hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"ff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n127.0.1.1\t" + names + "\n",
		"hostname":    host + "\n",
		"resolv.conf": resolv,
	} {
		path := filepath.Join(dir, name)
		if _, gone := os.Lstat(path); errors.Is(gone, fs.ErrNotExist) {
			continue // the job mounts its own
		}
		err = errors.Join(err, os.WriteFile(path, []byte(text), 0o644)) //nolint:gosec // for all in the container to read
	}
	return err
}

// resolvConf names Docker's own resolver, which serves every network except the default one, and
// the host's search domains.
func resolvConf(network string) (string, error) {
	data, err := os.ReadFile("/etc/resolv.conf")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if network == "none" {
		return "", nil
	}
	var search string
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "search" && fields[1] != "." {
			search = "search " + strings.Join(fields[1:], " ") + "\n"
		}
	}
	return "nameserver 127.0.0.11\n" + search + "options ndots:0\n", nil
}
