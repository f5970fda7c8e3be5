package doctor

import (
	"context"
	"path"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan"
)

func systemReadOnly(_ context.Context, m *Machine) Answer {
	var all []Finding
	for _, name := range []string{"/etc", "/usr/local", "/var/lib", "/run"} {
		if v, err := m.Volume(name); err != nil {
			all = append(all, fail("%s: %s", name, err).Advise("see sudo dmesg"))
		} else if f := readOnly(name, v.Statfs_t); f.Status > OK {
			all = append(all, f)
		}
	}
	return otherwise(all, ok("/etc, /usr/local, /var/lib and /run"))
}

func readOnly(name string, v unix.Statfs_t) Finding {
	if v.Flags&unix.ST_RDONLY == 0 {
		return Finding{}
	}
	return fail("%s is mounted read-only", name).
		Advise("see sudo dmesg: the kernel does that when a disk fails. If no disk failed, run sudo mount -o remount,rw $(findmnt -no TARGET -T %s), and correct /etc/fstab", name)
}

func systemSpace(_ context.Context, m *Machine) Answer {
	seen := map[uint64]bool{}
	var all []Finding
	for _, name := range []string{path.Dir(plan.WorkDir(0)), m.Inventory.Software.Docker.RootDir, containerdRoot, "/", "/var"} {
		if name == "" {
			continue
		}
		switch v, err := m.Volume(name); {
		case err != nil:
			all = append(all, warn("%s: %s", name, err).Advise("see sudo dmesg"))
		case !seen[v.Dev]:
			seen[v.Dev] = true
			if f := full(name, v.Statfs_t); f.Status > OK {
				all = append(all, f)
			}
		}
	}
	return otherwise(all, ok("file systems with free space: %d", len(seen)))
}

// full keeps numbers that change all the time out of the finding.
func full(name string, v unix.Statfs_t) Finding {
	size := uint64(v.Frsize)
	total, free := v.Blocks*size, v.Bavail*size
	none, low := min(total/50, 1<<30), min(total/10, 20<<30)
	const look = "see what uses the space: sudo docker system df; sudo du -xh -d2 / | sort -h | tail -30"
	const count = "see what uses them: sudo du --inodes -x -d2 / | sort -n | tail -30"
	switch {
	case v.Flags&unix.ST_RDONLY != 0: // as a system image is
	case v.Files > 0 && v.Ffree < v.Files/100:
		return fail("%s has no room for more files: less than 1%% of its inodes are free", name).Advise(count)
	case free < none:
		return fail("%s is full: less than %d MiB are free", name, none>>20).Advise(look)
	case v.Files > 0 && v.Ffree < v.Files/20:
		return warn("%s has little room for more files: less than 5%% of its inodes are free", name).Advise(count)
	case free < low:
		return warn("%s is nearly full: less than %d MiB are free", name, low>>20).Advise(look)
	}
	return Finding{}
}
