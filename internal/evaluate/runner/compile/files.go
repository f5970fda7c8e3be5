package compile

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// files are those below the directories of programs as one compiler sees them: what was there when it looked first, and
// what it made itself.
type files struct {
	*names
	links *links
	roots []string
	dir   string // the compiler's directory
	umask uint32

	hidden string // a directory that is to it as if it were not there

	// scratch is the compiler's TMPDIR, which no program has: what the compiler leaves there is no product. listing is a
	// directory to list in its place: it was removed, so no one can write in it.
	scratch string
	listing *os.File

	sync.Mutex // for sizes, of another goroutine
	nodes      map[string]*node
	facts      []fact
	unsafe     error // why what it makes depends on more than the facts
}

type nodeKind int

const (
	isAbsent nodeKind = iota
	isDirectory
	isFile
)

// node is a file or a directory, or that there is none.
type node struct {
	kind nodeKind
	mode uint32
	hash [sha256.Size]byte // of a file that was there
	file *os.File          // in memory
	made bool              // by the compiler
	was  nodeKind          // before it was made
}

// fact is what a compiler found at a path, the name of which stands for others.
type fact struct {
	path string
	kind nodeKind
	mode uint32
	hash [sha256.Size]byte
}

var (
	errNotShared  = errors.New("depends on more than files")
	errTooMany    = errors.New("too many files, or too large ones")
	errUnreadable = errors.New("the compiler's memory cannot be read or written")
)

// observeOnce returns what is at a path below the directories of programs. The first look at one that the compiler did not make
// is a fact.
func (f *files) observeOnce(name string) (*node, unix.Errno) {
	if n := f.nodes[name]; n != nil {
		return n, 0
	}
	if len(f.nodes) >= maxFiles || len(name) > maxPath {
		return nil, f.refuse(errTooMany, unix.ENFILE)
	}
	if f.isScratch(name) {
		n := &node{made: true}
		f.put(name, n)
		return n, 0
	}
	content, err := newMemory(name)
	if err != nil {
		return nil, f.refuse(err, unix.ENFILE)
	}
	n, err := f.observe(name, content)
	if n == nil || n.kind != isFile {
		_ = content.Close()
	}
	if err != nil {
		return nil, f.refuse(err, unix.EACCES)
	}
	if n.kind == isFile {
		n.file = content
		if f.tellsTime(n) {
			_ = f.refuse(fmt.Errorf("%s shows the time: %w", name, errNotShared), 0)
		}
		f.describe(n)
		// The compiler reads what was hashed, whatever it opens through /proc.
		if _, err := unix.FcntlInt(content.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
			return nil, f.refuse(err, unix.EIO)
		}
	}
	f.put(name, n)
	f.facts = append(f.facts, fact{name, n.kind, n.mode, n.hash})
	return n, 0
}

// times are what a source asks for the time of the compilation, or of its own last change.
var times = []string{"__DATE__", "__TIME__", "__TIMESTAMP__"}

// tellsTime reports whether a product may depend on when its sources changed, which is no fact: by what one asks for, or
// because two have the same content. After #pragma once, gcc takes these for one file if they changed at the same time.
func (f *files) tellsTime(n *node) bool {
	same := func(other fact) bool {
		return other.kind == isFile && other.hash == n.hash && n.hash != sha256.Sum256(nil)
	}
	return slices.ContainsFunc(f.facts, same) || holdsAny(io.NewSectionReader(n.file, 0, maxFile), times...)
}

func (f *files) isScratch(name string) bool { return strings.HasPrefix(name, f.scratch+"/") }

// refuse notes why what the compiler makes cannot be given to others.
func (f *files) refuse(why error, errno unix.Errno) unix.Errno {
	if f.unsafe == nil {
		f.unsafe = why
	}
	return errno
}

// observe looks at a path, and copies a file's content to w, as it hashes it, with the names that stand for others.
func (n *names) observe(name string, w io.Writer) (*node, error) {
	name = n.realPath(name)
	// Links are refused: another look may find another file behind one.
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	at, err := unix.Openat2(unix.AT_FDCWD, name, &how)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENAMETOOLONG):
		return &node{}, nil
	case err != nil:
		return nil, fmt.Errorf("look at %s: %w", name, err)
	}
	defer unix.Close(at) //nolint:errcheck // nothing was written
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return nil, fmt.Errorf("look at %s: %w", name, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return &node{kind: isDirectory, mode: st.Mode & 0o777}, nil
	case unix.S_IFREG:
	default:
		return nil, fmt.Errorf("%s is a link, or no file: %w", name, errNotShared)
	}
	how.Flags = unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY
	fd, err := unix.Openat2(unix.AT_FDCWD, name, &how)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close() //nolint:errcheck // opened for reading
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%s was replaced: %w", name, errNotShared)
	}
	h := sha256.New()
	swap := &swapper{to: io.MultiWriter(h, w), names: n.stand}
	size, err := io.Copy(swap, io.LimitReader(file, maxFile+1))
	if err == nil {
		err = swap.flush()
	}
	if err == nil && size > maxFile {
		err = errTooMany
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return &node{kind: isFile, mode: st.Mode & 0o777, hash: [sha256.Size]byte(h.Sum(nil))}, nil
}

// newMemory makes a file in memory.
func newMemory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate("compiler", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// reopen opens a file in memory again, so that it has an offset of its own.
func reopen(file *os.File, flags int) (int, error) {
	return unix.Open("/proc/self/fd/"+strconv.Itoa(int(file.Fd())), flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
}

// make puts a new file or directory at a path. It copies the content of a file that was there if keep says so.
func (f *files) make(name string, kind nodeKind, mode uint32, keep bool) (*node, unix.Errno) {
	was, errno := f.observeOnce(name)
	if errno != 0 {
		return nil, errno
	}
	if up, errno := f.observeOnce(path.Dir(name)); errno != 0 || up.kind != isDirectory {
		return nil, unix.ENOENT
	}
	n := &node{kind: kind, mode: mode & 0o777, made: true, was: was.kind}
	if was.made {
		n.was = was.was
	}
	if kind == isFile {
		content, err := newMemory(name)
		if err != nil {
			return nil, f.refuse(err, unix.ENFILE)
		}
		n.file = content
		if was.kind == isFile {
			n.mode = was.mode
		}
		if keep && was.kind == isFile {
			if _, err := io.Copy(content, io.NewSectionReader(was.file, 0, maxFile)); err != nil {
				return nil, f.refuse(err, unix.EIO)
			}
		}
	}
	f.describe(n)
	f.put(name, n)
	return n, 0
}

// describe gives a file in memory its mode, and a time on which no product depends.
func (f *files) describe(n *node) {
	if n.file == nil {
		return
	}
	err := unix.Fchmod(int(n.file.Fd()), n.mode|0o600) // the runner opens it again
	if !n.made && err == nil {
		err = unix.Futimes(int(n.file.Fd()), []unix.Timeval{{Sec: 1}, {Sec: 1}})
	}
	if err != nil {
		_ = f.refuse(err, unix.EIO)
	}
}

// put replaces what is at a path. A file that is still open stays in memory until it is closed.
func (f *files) put(name string, n *node) {
	f.Lock()
	defer f.Unlock()
	if old := f.nodes[name]; old != nil && old.file != nil && old.file != n.file {
		_ = old.file.Close()
	}
	f.nodes[name] = n
}

// remove removes a file or directory that the compiler made. It cannot remove another's.
func (f *files) remove(name string, kind nodeKind) unix.Errno {
	n, errno := f.observeOnce(name)
	switch {
	case errno != 0:
		return errno
	case n.kind == isAbsent:
		return unix.ENOENT
	case n.kind != kind && kind == isFile:
		return unix.EISDIR
	case n.kind != kind:
		return unix.ENOTDIR
	}
	was := n.kind
	if n.made {
		was = n.was
	}
	f.put(name, &node{made: true, was: was})
	return 0
}

// products returns what the compiler made and did not remove, directories before what is in them.
func (f *files) products() ([]product, error) {
	var made []product
	var size int64
	for name, n := range f.nodes {
		switch {
		case !n.made, name == f.scratch, f.isScratch(name):
		case !utf8.ValidString(name):
			return nil, fmt.Errorf("make %q: %w", name, errNotShared)
		case n.kind == isAbsent && n.was != isAbsent:
			return nil, fmt.Errorf("%s was removed: %w", name, errNotShared)
		case n.kind == isDirectory && n.was == isAbsent:
			made = append(made, product{Path: name, Dir: true, Mode: n.mode})
		case n.kind == isFile:
			info, err := n.file.Stat()
			if err != nil {
				return nil, fmt.Errorf("look at %s: %w", name, err)
			}
			size += info.Size()
			if info.Size() > maxFile || size > maxStore { // of holes, too
				return nil, fmt.Errorf("make %s: %w", name, errTooMany)
			}
			made = append(made, product{Path: name, Mode: n.mode, Size: info.Size(), file: n.file})
		}
	}
	sort.Slice(made, func(i, j int) bool { return made[i].Path < made[j].Path })
	return made, nil
}

// memory returns how many bytes the files have.
func (f *files) memory() (size int64) {
	f.Lock()
	defer f.Unlock()
	for _, n := range f.nodes {
		var st unix.Stat_t
		if n.file != nil && unix.Fstat(int(n.file.Fd()), &st) == nil {
			size += 512 * st.Blocks
		}
	}
	return size
}

// close closes all files but those of products.
func (f *files) close(products []product) {
	keep := map[*os.File]bool{}
	for _, p := range products {
		keep[p.file] = true
	}
	for _, n := range f.nodes {
		if n.file != nil && !keep[n.file] {
			_ = n.file.Close()
		}
	}
}

func errnoOf(err error) unix.Errno {
	if errno := unix.Errno(0); errors.As(err, &errno) {
		return errno
	}
	if err != nil {
		return unix.EIO
	}
	return 0
}
