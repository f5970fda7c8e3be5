// Package probe is what kbnode selftest runs in place of a job: a process that tries to
// break out and reports what it saw. It judges nothing, and does no harm where it succeeds.
package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Ask is what to try. Empty fields are not tried.
type Ask struct {
	Numbers []Number `json:"numbers,omitempty"` // devices to create nodes for and open
	Open    []string `json:"open,omitempty"`    // files, directories and devices to open for reading
	Write   []string `json:"write,omitempty"`   // files to open for writing, and directories to check for write access
	Windows []string `json:"windows,omitempty"` // files that give access to a device's memory and configuration
	Proc    bool     `json:"proc,omitempty"`    // open for writing every file of /proc that belongs to no process
	Unix    []string `json:"unix,omitempty"`    // sockets to connect to
	TCP     []string `json:"tcp,omitempty"`     // addresses to connect to
	Disks   []string `json:"disks,omitempty"`   // directories whose file systems to measure
	Calls   bool     `json:"calls,omitempty"`   // system calls that need privileges that no job has
	Daemon  bool     `json:"daemon,omitempty"`  // leave an orphaned process behind
	// Allocate is memory to allocate before everything else, in bytes.
	Allocate int64 `json:"allocate,omitempty"`
	// Listen makes the probe write its address, and then only accept connections on this port until
	// it is ended.
	Listen int `json:"listen,omitempty"`
}

// Number is a device by its numbers.
type Number struct {
	Name  string `json:"name"`
	Block bool   `json:"block,omitempty"`
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
}

// Facts are what the probe saw. The result of an attempt is "ok" or the name of an error,
// such as EPERM.
type Facts struct {
	UID int `json:"uid"`
	// Status are lines of /proc/self/status: CapEff, CapBnd, NoNewPrivs, Seccomp.
	Status map[string]string `json:"status"`
	// CPUs are those that the process may run on after it asked for all.
	CPUs string `json:"cpus"`
	// Cgroup holds files of the process's own cgroup, if it sees one.
	Cgroup     map[string]string `json:"cgroup"`
	Interfaces []string          `json:"interfaces"`
	Processes  int               `json:"processes"` // visible to the probe
	Nodes      []string          `json:"nodes"`     // of GPUs and disks, in /dev
	// Compute holds the render nodes of GPUs that AMD's compute driver reports. It hides
	// those that the process may not open.
	Compute    []string         `json:"compute,omitempty"`
	RootWrites string           `json:"root_writes"`
	Disks      map[string]int64 `json:"disks"` // sizes of the file systems of Ask.Disks, in bytes
	Env        []string         `json:"env"`   // names
	Tries      []Try            `json:"tries"`
	Writable   []string         `json:"writable"` // of Ask.Proc
}

// Try is one attempt.
type Try struct {
	Kind string `json:"kind"` // "number", "open", "write", "window", "unix", "tcp", "call"
	What string `json:"what"`
	Saw  string `json:"saw"`
}

// Saw returns the result of one attempt, or "" if it was not made.
func (f *Facts) Saw(kind, what string) string {
	for _, t := range f.Tries {
		if t.Kind == kind && t.What == what {
			return t.Saw
		}
	}
	return ""
}

// Run does what request asks, an Ask as JSON, and writes the Facts as JSON.
func Run(ctx context.Context, request string, out io.Writer) error {
	var a Ask
	if err := json.Unmarshal([]byte(request), &a); err != nil {
		return fmt.Errorf("the argument is not a request of selftest: %w", err)
	}
	if a.Listen > 0 {
		return listen(ctx, a.Listen, out)
	}
	if a.Allocate > 0 {
		if err := allocate(a.Allocate); err != nil {
			return err
		}
	}
	return json.NewEncoder(out).Encode(collect(ctx, a))
}

func collect(ctx context.Context, a Ask) *Facts {
	f := &Facts{UID: os.Getuid(), Tries: []Try{}, Disks: map[string]int64{}}
	for _, dir := range a.Disks {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err == nil {
			f.Disks[dir] = int64(st.Blocks) * st.Bsize
		}
	}
	f.Status = status("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")
	f.CPUs = widest()
	f.Interfaces, f.Nodes, f.Env = interfaces(), nodes(), environment()
	f.Compute = compute("/sys/class/kfd/kfd/topology/nodes")
	f.Processes = processes()
	f.RootWrites = result(touch("/.kbnode-probe"))
	for _, n := range a.Numbers {
		f.add("number", n.Name, openNumber(n))
	}
	for _, path := range a.Open {
		f.add("open", path, open(path, unix.O_RDONLY))
	}
	for _, path := range a.Write {
		f.add("write", path, openForWriting(path))
	}
	for _, path := range a.Windows {
		f.add("window", path, window(path))
	}
	if a.Proc {
		f.Writable = writable("/proc")
	}
	for _, path := range a.Unix {
		f.add("unix", path, connectUnix(path))
	}
	f.Tries = append(f.Tries, connectAll(ctx, a.TCP)...)
	if a.Calls {
		for _, c := range calls {
			f.add("call", c.name, c.try())
		}
	}
	if a.Daemon {
		daemon()
	}
	f.Cgroup = cgroup()
	return f
}

func (f *Facts) add(kind, what string, err error) {
	f.Tries = append(f.Tries, Try{kind, what, result(err)})
}

// result returns the name of an error.
func result(err error) string {
	if err == nil {
		return "ok"
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		if name := unix.ErrnoName(errno); name != "" {
			return name
		}
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return "ETIMEDOUT"
	}
	return err.Error()
}

// open opens a file or device and closes it again. With O_NONBLOCK, a pipe or device does
// not block it.
func open(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// openForWriting changes nothing: it opens and closes a file, and asks the kernel about a
// directory.
func openForWriting(path string) error {
	err := open(path, unix.O_WRONLY)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ETXTBSY) { // for this program, ETXTBSY precedes all other checks
		return unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS)
	}
	return err
}

// Covered is the result for a file that another one is mounted on.
const Covered = "covered"

// window opens a file of a device. A covered one is /dev/null.
func window(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.New(Covered)
	}
	return nil
}

// maxWalk limits how many files of /proc are checked.
const maxWalk = 50_000

// writable lists the files below a /proc that can be opened for writing and belong to no
// process. It writes nothing to them.
func writable(proc string) []string {
	list, count := []string{}, 0
	_ = filepath.WalkDir(proc, func(path string, e fs.DirEntry, err error) error {
		count++
		if count > maxWalk {
			return filepath.SkipAll
		}
		if err != nil {
			return nil //nolint:nilerr // a file that cannot be read cannot be written to either
		}
		if e.IsDir() && filepath.Dir(path) == proc && strings.Trim(e.Name(), "0123456789") == "" {
			return filepath.SkipDir // a process
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.Mode()&0o222 != 0 && open(path, unix.O_WRONLY) == nil {
			list = append(list, path)
		}
		return nil
	})
	return list
}

// openNumber creates a node for a device and opens it. A node that cannot be created is as
// good as one that cannot be opened.
func openNumber(n Number) error {
	mode := uint32(unix.S_IFCHR)
	if n.Block {
		mode = unix.S_IFBLK
	}
	var err error
	for _, dir := range []string{"/dev", "/tmp", "/run", "."} {
		path := dir + "/kbnode-probe-" + strings.ReplaceAll(n.Name, "/", "-")
		if err = unix.Mknod(path, mode|0o600, int(unix.Mkdev(n.Major, n.Minor))); err == nil {
			err = open(path, unix.O_RDONLY)
			_ = os.Remove(path)
			return err
		}
	}
	return err
}

func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(path))
}

// connectTime limits a connection attempt: blocked ones get no answer.
const connectTime = 3 * time.Second

func connectUnix(path string) error {
	conn, err := net.DialTimeout("unix", path, connectTime)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	// systemd accepts every connection, and closes those that are too many at once.
	_ = conn.SetDeadline(time.Now().Add(connectTime))
	if _, err := io.WriteString(conn, "GET /_ping HTTP/1.0\r\n\r\n"); err != nil {
		return unix.ECONNRESET
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return unix.ECONNRESET
	}
	return nil
}

func connectAll(ctx context.Context, addresses []string) []Try {
	tries := make([]Try, len(addresses))
	var group sync.WaitGroup
	for i, address := range addresses {
		group.Go(func() {
			dialer := net.Dialer{Timeout: connectTime}
			conn, err := dialer.DialContext(ctx, "tcp", address)
			if err == nil {
				_ = conn.Close()
			}
			tries[i] = Try{"tcp", address, result(err)}
		})
	}
	group.Wait()
	return tries
}

// listenTime limits a listener that no one ends because its tester was killed.
const listenTime = 10 * time.Minute

func listen(ctx context.Context, port int, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, listenTime)
	defer cancel()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	if _, err := fmt.Fprintln(out, net.JoinHostPort(address(), strconv.Itoa(port))); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return ctx.Err()
		}
		_ = conn.Close()
	}
}

// allocate allocates memory page by page and frees none.
func allocate(size int64) error {
	data, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fmt.Errorf("allocate: %w", err)
	}
	for i := 0; i < len(data); i += os.Getpagesize() {
		data[i] = 1
	}
	return unix.Munmap(data)
}
