package doctor

import (
	"errors"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// volume is a file system as described by statfs(2) and stat(2).
type volume struct {
	path string
	dev  uint64
	unix.Statfs_t
}

// volume returns the file system of a path, or of its nearest existing parent.
func (m *Machine) volume(name string) (volume, error) {
	for at := name; ; at = path.Dir(at) {
		v := volume{path: at}
		var st unix.Stat_t
		err := errors.Join(unix.Stat(m.path(at), &st), unix.Statfs(m.path(at), &v.Statfs_t))
		if err == nil || at == "/" || !errors.Is(err, fs.ErrNotExist) {
			v.dev = uint64(st.Dev) //nolint:unconvert // another type on other machines
			return v, err
		}
	}
}

func (m *Machine) writable() []Finding {
	var all []Finding
	for _, name := range []string{"/etc", "/usr/local", "/var/lib", "/run"} {
		v, err := m.volume(name)
		if err != nil {
			all = append(all, fail("%s: %s", name, err).advise("see sudo dmesg"))
		} else if f, bad := v.readOnly(name); bad {
			all = append(all, f)
		}
	}
	if len(all) == 0 {
		all = []Finding{ok("/etc, /usr/local, /var/lib and /run")}
	}
	return all
}

func (v volume) readOnly(name string) (Finding, bool) {
	if v.Flags&unix.ST_RDONLY == 0 {
		return Finding{}, false
	}
	return fail("%s is mounted read-only", name).
		advise("see sudo dmesg: the kernel does that when a disk fails. If no disk failed, run mount -o remount,rw $(findmnt -no TARGET -T %s), and correct /etc/fstab", name), true
}

func (m *Machine) space() []Finding {
	names := []string{path.Dir(plan.WorkDir(0)), m.Inventory.Software.Docker.RootDir, containerdRoot, "/", "/var"}
	seen := map[uint64]bool{}
	var all []Finding
	for _, name := range names {
		if name == "" {
			continue
		}
		v, err := m.volume(name)
		if err != nil {
			all = append(all, warn("%s: %s", name, err).advise("see sudo dmesg"))
			continue
		}
		if seen[v.dev] {
			continue
		}
		seen[v.dev] = true
		v.path = name
		if f := v.judge(); f.Status > OK {
			all = append(all, f)
		}
	}
	if len(all) == 0 {
		all = []Finding{ok("file systems with free space: %d", len(seen))}
	}
	return all
}

// judge keeps numbers that change all the time out of the finding.
func (v volume) judge() Finding {
	size := uint64(v.Frsize)
	total, free := v.Blocks*size, v.Bavail*size
	none, low := min(total/50, 1<<30), min(total/10, 20<<30)
	const look = "see what uses the space: docker system df; sudo du -xh -d2 / | sort -h | tail -30"
	const count = "see what uses them: sudo du --inodes -x -d2 / | sort -n | tail -30"
	switch {
	case v.Flags&unix.ST_RDONLY != 0: // as a system image is
	case v.Files > 0 && v.Ffree < v.Files/100:
		return fail("%s has no room for more files: less than 1%% of its inodes are free", v.path).advise(count)
	case free < none:
		return fail("%s is full: less than %d MiB are free", v.path, none>>20).advise(look)
	case v.Files > 0 && v.Ffree < v.Files/20:
		return warn("%s has little room for more files: less than 5%% of its inodes are free", v.path).advise(count)
	case free < low:
		return warn("%s is nearly full: less than %d MiB are free", v.path, low>>20).advise(look)
	}
	return ok("%s", v.path)
}
