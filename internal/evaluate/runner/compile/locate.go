package compile

import (
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// place is where a path leads.
type place struct {
	path   string // absolute, without links; below the directories of programs, with names that stand for others
	kind   placeKind
	direct bool // the kernel finds the same by the text that the compiler gave
}

type placeKind int

const (
	image    placeKind = iota // no program can write there
	inside                    // below the directories of programs
	volatile                  // the kernel's files and devices, which differ from one look to the next
)

// steady are the files of these that compilers read, and that do not change what they make.
var steady = []string{
	"/dev/null", "/dev/zero", "/dev/urandom", "/dev/random",
	"/proc/self/exe", "/proc/self/maps", "/proc/self/cgroup", "/proc/meminfo", "/proc/cpuinfo", "/proc/filesystems", "/proc/version",
	"/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/osrelease", "/proc/sys/kernel/ngroups_max", "/sys/fs/selinux",
	"/sys/devices/system/cpu", "/sys/devices/system/cpu/online", "/sys/devices/system/cpu/possible", "/sys/kernel/mm/transparent_hugepage/enabled",
}

// maxLinks bounds the links on the way to a file, as the kernel does (path_resolution(7)).
const maxLinks = 40

// locate says where a path leads that a compiler names, in a directory. follow says whether a link at its end counts.
// Below the directories of programs there are no links: observe refuses them.
func (f *files) locate(dir, text string, follow bool) (place, unix.Errno) {
	if text == "" {
		return place{}, unix.ENOENT
	}
	p := place{path: "/", direct: path.IsAbs(text)}
	if !p.direct {
		text = dir + "/" + text
	}
	todo := strings.Split(text, "/")
	for links := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if f.isInside(p.path) {
				if n, errno := f.observeOnce(p.path); errno != 0 || n.kind != isDirectory {
					return p, unix.ENOENT
				}
			}
			p.path = path.Dir(p.path)
			continue
		}
		if stand := f.stand[name]; stand != "" {
			name, p.direct = stand, false // by a way that prepare did not see, as ../tmpxxxxxxxx
		}
		next := path.Join(p.path, name)
		if f.isInside(next) {
			p.path, p.direct = next, false
			continue
		}
		if top := "/" + name; p.path == "/" && (top == "/proc" || top == "/sys" || top == "/dev") {
			rest := path.Join(append([]string{next}, todo...)...)
			if !f.isInside(rest) {
				return place{rest, volatile, p.direct}, 0
			}
			p.path = next // /dev/shm
			continue
		}
		to := ""
		if follow || len(todo) > 0 {
			to = f.links.target(next)
		}
		if to == "" {
			p.path = next
			continue
		}
		links++
		if links > maxLinks {
			return p, unix.ELOOP
		}
		if path.IsAbs(to) {
			p.path = "/"
		}
		todo = append(strings.Split(to, "/"), todo...)
	}
	if f.isInside(p.path) {
		p.kind = inside
	}
	if f.hidden != "" && isInside([]string{f.hidden}, f.realPath(p.path)) {
		return p, unix.ENOENT
	}
	return p, 0
}

// isInside reports whether a path is that of a directory of programs, or below one.
func (f *files) isInside(path string) bool { return isInside(f.roots, path) }

func isInside(roots []string, path string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		rest, ok := strings.CutPrefix(path, root)
		return ok && (rest == "" || rest[0] == '/')
	})
}

// links remembers where links of the image lead. No program can change them.
type links struct {
	sync.Mutex
	to map[string]string
}

// A compiler may ask for any number of paths that do not exist.
const (
	maxRemembered = 1 << 14
	maxLength     = 256 // bytes of a path that is remembered
)

// target returns where a link leads, "" if it is none.
func (l *links) target(name string) string {
	l.Lock()
	defer l.Unlock()
	to, known := l.to[name]
	if !known {
		to, _ = os.Readlink(name)
		if len(l.to) < maxRemembered && len(name)+len(to) <= maxLength {
			l.to[name] = to
		}
	}
	return to
}
