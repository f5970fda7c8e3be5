package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/moby/moby/api/types/mount"
	"golang.org/x/sys/unix"
)

// bind returns a mount of a host path. A Mount has no colons to misread, and the engine makes no
// directory if the source is missing.
func bind(source, target string, readOnly bool) mount.Mount {
	return mount.Mount{
		Type: mount.TypeBind, Source: source, Target: target, ReadOnly: readOnly,
		BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate},
	}
}

// nodeGroups returns the groups that own these device nodes, so that a container that does not
// run as root can open them.
func nodeGroups(nodes []string) []string {
	var gids []string
	for _, node := range nodes {
		info, err := os.Stat(node)
		if err != nil {
			continue // the engine says which node is missing
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Gid != 0 {
			gids = append(gids, strconv.FormatUint(uint64(st.Gid), 10))
		}
	}
	slices.Sort(gids)
	return slices.Compact(gids)
}

// numbers returns the IDs of those groups that the node has: pipelines name video and render by
// number, since not every image has them.
func numbers(groups ...string) (ids []string) {
	for _, name := range groups {
		if g, err := user.LookupGroup(name); err == nil {
			ids = append(ids, g.Gid)
		}
	}
	return ids
}

func nodesPresent(nodes []string) []string {
	return slices.DeleteFunc(slices.Clone(nodes), func(node string) bool {
		_, err := os.Stat(node)
		return err != nil
	})
}

// linkNodes makes the links that udev makes for what the kernel announces, and that no one makes
// for NVIDIA's nodes: if /dev/char/195:5 is missing, Debian 12's runc does not tell systemd
// about the device, and the next daemon-reload takes it from the container.
func linkNodes(dir string, nodes []string) error {
	var errs []error
	for _, node := range nodes {
		info, err := os.Stat(node)
		if err != nil {
			continue // no container gets it
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || info.Mode()&os.ModeCharDevice == 0 {
			continue
		}
		link := filepath.Join(dir, fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
		if _, err := os.Stat(link); err == nil {
			continue
		}
		if err := ignoreAbsent(os.Remove(link)); err != nil { // it leads nowhere
			errs = append(errs, err)
		} else if err := os.Symlink(node, link); err != nil && !errors.Is(err, fs.ErrExist) { // by another guard
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
