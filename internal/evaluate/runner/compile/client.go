package compile

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// isClient says that this program does what a client does.
var isClient bool

// Invoked reports whether this process was started by a compiler's name: it must call Client and end. A program that does
// not ask is no client, and offers no compilers.
func Invoked() bool {
	isClient = true
	return len(os.Args) > 0 && os.Getenv(Variable) != "" && invokedName() != ""
}

// invokedName returns the compiler's name by which this process was started, or to which a link of another name leads, ""
// if there is none.
func invokedName() string {
	dir := os.Getenv(Variable)
	isCompiler := func(name string) bool {
		_, err := os.Readlink(filepath.Join(dir, realName, name))
		return err == nil
	}
	if name := filepath.Base(os.Args[0]); isCompiler(name) {
		return name
	}
	at, err := exec.LookPath(os.Args[0])
	for range maxLinks {
		if err != nil {
			break
		}
		if filepath.Dir(at) == dir && isCompiler(filepath.Base(at)) {
			return filepath.Base(at)
		}
		to := ""
		if to, err = os.Readlink(at); !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(at), to)
		}
		at = to
	}
	return ""
}

// Client does what the compiler does by whose name it was started, and returns the exit code. If the runner has no product
// to give, the compiler runs in place of this process, as it would have run without it.
func Client() int {
	name := invokedName()
	if code, done := ask(name); done {
		return code
	}
	dir := os.Getenv(Variable)
	path, err := os.Readlink(filepath.Join(dir, realName, name))
	if err == nil {
		dirs := slices.DeleteFunc(filepath.SplitList(os.Getenv("PATH")), func(d string) bool { return d == dir })
		_ = os.Setenv("PATH", strings.Join(dirs, string(filepath.ListSeparator)))
		argv := slices.Clone(os.Args)
		if strings.Contains(argv[0], "/") {
			argv[0] = path
		}
		err = syscall.Exec(path, argv, os.Environ()) //nolint:gosec // in the place of the compiler, as the program asked
	}
	fmt.Fprintf(os.Stderr, "kbnode: run %s: %v\n", name, err)
	return 127
}

// ask asks the runner. done is false if nothing came of it.
func ask(name string) (code int, done bool) {
	// What a compiler reads from a pipe, the runner does not see.
	var in, null unix.Stat_t
	if unix.Fstat(0, &in) == nil && (unix.Stat(os.DevNull, &null) != nil || in.Mode&unix.S_IFMT != unix.S_IFCHR || in.Rdev != null.Rdev) {
		return 0, false
	}
	dir, err := os.Getwd()
	if err != nil || !utf8.ValidString(dir+strings.Join(os.Args, "")+strings.Join(os.Environ(), "")) {
		return 0, false
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	conn := os.NewFile(uintptr(fd), "runner")
	defer conn.Close() //nolint:errcheck // read to its end
	if inDir(os.Getenv(Variable), func(address unix.Sockaddr) error { return unix.Connect(fd, address) }) != nil {
		return 0, false
	}
	umask := unix.Umask(0)
	unix.Umask(umask)
	var out, errs unix.Stat_t
	merged := unix.Fstat(1, &out) == nil && unix.Fstat(2, &errs) == nil && out.Dev == errs.Dev && out.Ino == errs.Ino
	text, err := json.Marshal(request{name, os.Args, os.Environ(), dir, uint32(umask), merged})
	if err == nil {
		_, err = conn.Write(text)
	}
	if err != nil {
		return 0, false
	}
	var stdout, stderr []byte
	answer := bufio.NewReaderSize(conn, 1<<16)
	for {
		var head [frameHead]byte
		if _, err := io.ReadFull(answer, head[:]); err != nil {
			return 0, false
		}
		data := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(answer, data); err != nil {
			return 0, false
		}
		switch head[0] {
		case outFrame:
			stdout = data
		case errFrame:
			stderr = data
		case lastFrame:
			var r result
			if json.Unmarshal(data, &r) != nil {
				return 0, false
			}
			for _, p := range r.Products {
				if p.put(answer) != nil {
					return 0, false
				}
			}
			_, _ = os.Stderr.Write(stderr) // who closed it wants none
			if _, err := os.Stdout.Write(stdout); err != nil && len(stdout) > 0 {
				fmt.Fprintf(os.Stderr, "kbnode: %v\n", err)
				return 1, true
			}
			return 0, true
		}
	}
}

// put makes a product in its place.
func (p *product) put(content io.Reader) error {
	mode := os.FileMode(p.Mode)
	if p.Dir {
		if err := os.Mkdir(p.Path, mode); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		return nil
	}
	// Not in the one that is there, which a program may have loaded, and none that is cut short if this process is killed.
	f, err := os.CreateTemp(filepath.Dir(p.Path), ".kbnode-")
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, content, p.Size)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err == nil {
		err = os.Rename(f.Name(), p.Path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
