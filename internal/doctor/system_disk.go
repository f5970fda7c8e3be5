package doctor

import (
	"errors"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// volume is a file system as statfs(2) and stat(2) tell of it.
type volume struct {
	path string
	dev  uint64
	unix.Statfs_t
	watched bool // the daemon judges how much is free
}

// volume looks at the file system of a path, or of what is above it.
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
		advise("see sudo dmesg: the kernel does that when a disk fails. If it does not, type mount -o remount,rw $(findmnt -no TARGET -T %s), and correct /etc/fstab", name), true
}

func (m *Machine) space() []Finding {
	names := []string{path.Dir(plan.WorkDir(0)), m.Inventory.Software.Docker.RootDir, "/", "/var"}
	installed := m.wasInstalled()
	seen := map[uint64]bool{}
	var all []Finding
	for i, name := range names {
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
		v.path, v.watched = name, installed && i < 2
		if f := v.judge(); f.Status > OK {
			all = append(all, f)
		}
	}
	if len(all) == 0 {
		all = []Finding{ok("%d file systems", len(seen))}
	}
	return all
}

func (v volume) judge() Finding {
	size := uint64(v.Frsize)
	total, free := v.Blocks*size, v.Bavail*size
	const look = "see what takes it: docker system df; sudo du -xh -d2 / | sort -h | tail -30"
	switch {
	case v.Flags&unix.ST_RDONLY != 0: // as a system image is
	case v.Files > 0 && v.Ffree < v.Files/100:
		return fail("%s has no room for files: %d of %d inodes are free", v.path, v.Ffree, v.Files).advise("see what takes them: sudo du --inodes -x -d2 / | sort -n | tail -30")
	case !v.watched && free < min(total/50, 1<<30):
		return fail("%s is full: %s are free", v.path, mib(free)).advise(look)
	case v.Files > 0 && v.Ffree < v.Files/20:
		return warn("%s has little room for files: %d of %d inodes are free", v.path, v.Ffree, v.Files).advise("see what takes them: sudo du --inodes -x -d2 / | sort -n | tail -30")
	case !v.watched && free < min(total/10, 20<<30):
		return warn("%s is nearly full: %s are free", v.path, mib(free)).advise(look)
	}
	return ok("%s", v.path)
}

// mib is a size without what nobody reads.
func mib(n uint64) config.Size { return config.Size(int64(n>>20) << 20) }
