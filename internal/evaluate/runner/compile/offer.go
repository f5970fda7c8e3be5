package compile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/std/tree"
)

// Variable is the environment variable that names the directory of the links to the client.
const Variable = "KBNODE_COMPILERS"

// The names in the directory: the socket of the runner, and links to the compilers themselves.
const (
	socketName = ".socket"
	realName   = ".real"
)

// Offer offers one program the Service.
type Offer struct {
	*Service
	start     Starter
	compilers map[string]string // of the Service's, those that no program can change
	dir       string            // has the links
	roots     []string
	hidden    string
	scratch   string // TMPDIR of compilers; there is no such directory
	temporary temporary
	socket    *os.File
	listing   *os.File        // an empty directory
	ctx       context.Context //nolint:containedctx // of the program, whose clients come at any time
	stop      context.CancelFunc
	asking    chan struct{}
	handlers  sync.WaitGroup

	unfinished [2][]byte // what compilers had written when the program ended

	running sync.Mutex
	ids     map[int]*files // of compilers, by process ID
}

// Offer makes the links and the socket in a new directory beside the home of the program that is to start, and returns
// the program's environment. roots are the directories in which it may write. There are no others. It may not read in hidden,
// if that is not empty: compilers read with the runner's rights.
func (s *Service) Offer(start Starter, home, hidden string, roots, env []string) (*Offer, []string, error) {
	dir, err := os.MkdirTemp(filepath.Dir(home), "tmp")
	if err != nil {
		return nil, nil, fmt.Errorf("offer compilers: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	o := &Offer{
		Service: s, start: start, compilers: map[string]string{}, dir: dir, roots: roots, hidden: hidden,
		scratch: filepath.Dir(home) + "/tmp" + s.random + "-t", temporary: temporaryDirs(home),
		ctx: ctx, stop: stop, asking: make(chan struct{}, maxAsking), ids: map[int]*files{},
	}
	for name, path := range s.compilers {
		if real, err := filepath.EvalSymlinks(path); err == nil && !isInside(roots, real) && !isInside(roots, path) {
			o.compilers[name] = path
		}
	}
	if err := o.listen(); err != nil {
		stop()
		return nil, nil, errors.Join(fmt.Errorf("offer compilers: %w", err), tree.RemoveAll(dir))
	}
	o.handlers.Go(o.accept)
	o.handlers.Go(o.watch)
	env = set(env, Variable, o.dir)
	if path := lookup(env, "PATH"); path != "" { // an empty entry would be the job's directory
		env = set(env, "PATH", o.dir+":"+path)
	}
	for name, compiler := range s.leads {
		if o.compilers[compiler] != "" {
			env = set(env, name, filepath.Join(o.dir, compiler))
		}
	}
	// Some find the toolkit by the place of nvcc.
	if nvcc := o.compilers["nvcc"]; nvcc != "" && lookup(env, "CUDA_HOME") == "" && lookup(env, "CUDA_PATH") == "" {
		env = set(env, "CUDA_HOME", filepath.Dir(filepath.Dir(nvcc)))
	}
	return o, env, nil
}

// Lead returns the path of the client in place of that of a compiler.
func (o *Offer) Lead(path string) string {
	for name, compiler := range o.compilers {
		if compiler == path && name == filepath.Base(path) {
			return filepath.Join(o.dir, name)
		}
	}
	return path
}

// Leads reports whether a path is that of the client.
func (o *Offer) Leads(path string) bool { return filepath.Dir(path) == o.dir }

func (o *Offer) listen() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	empty := filepath.Join(o.dir, realName)
	if err := os.Mkdir(empty, 0o700); err != nil {
		return err
	}
	if o.listing, err = os.Open(empty); err != nil {
		return err
	}
	if err := errors.Join(os.Remove(empty), os.Mkdir(empty, 0o700)); err != nil {
		return errors.Join(err, o.listing.Close())
	}
	for name, path := range o.compilers {
		err = errors.Join(err, os.Symlink(self, filepath.Join(o.dir, name)), os.Symlink(path, filepath.Join(o.dir, realName, name)))
	}
	if err != nil {
		return errors.Join(err, o.listing.Close())
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	o.socket = os.NewFile(uintptr(fd), "compilers")
	err = inDir(o.dir, func(address unix.Sockaddr) error { return unix.Bind(fd, address) })
	if err == nil {
		err = unix.Listen(fd, maxAsking)
	}
	if err != nil {
		_ = o.socket.Close()
		_ = o.listing.Close()
	}
	return err
}

// inDir calls f with the address of the socket in a directory, the path of which may be longer than an address.
func inDir(dir string, f func(unix.Sockaddr) error) error {
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(at) //nolint:errcheck // nothing was written
	return f(&unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(at) + "/" + socketName})
}

// End ends all compilers, and returns when nothing is done for the program anymore.
func (o *Offer) End() {
	o.stop()
	_ = o.socket.Close()
	o.running.Lock()
	for pid := range o.ids {
		o.start.Kill(pid)
	}
	o.running.Unlock()
	o.handlers.Wait()
	_ = o.listing.Close()
}

// Remove removes the links. Call it after End.
func (o *Offer) Remove() error { return tree.RemoveAll(o.dir) }

// leave keeps what a compiler had written when the program ended.
func (o *Offer) leave(texts [2][]byte) {
	o.running.Lock()
	defer o.running.Unlock()
	for i, text := range texts {
		if len(o.unfinished[i])+len(text) <= maxMessages {
			o.unfinished[i] = append(o.unfinished[i], text...)
		}
	}
}

// Unfinished returns what compilers had written to their outputs and errors when the program ended. Call it after End.
func (o *Offer) Unfinished() (stdout, stderr []byte) { return o.unfinished[0], o.unfinished[1] }

func (o *Offer) accept() {
	conn, err := o.socket.SyscallConn()
	for err == nil {
		fd := -1
		err = conn.Read(func(socket uintptr) bool {
			var errno error
			fd, _, errno = unix.Accept4(int(socket), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return !errors.Is(errno, unix.EAGAIN)
		})
		if err != nil {
			return // closed
		}
		if fd < 0 { // too many files are open
			time.Sleep(lookAgain)
			continue
		}
		client := os.NewFile(uintptr(fd), "client")
		select {
		case o.asking <- struct{}{}:
			o.handlers.Go(func() {
				o.serve(client)
				<-o.asking
			})
		default:
			_ = client.Close() // it compiles by itself
		}
	}
}

// watch ends all compilers of the program if they write too much.
func (o *Offer) watch() {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		select {
		case <-o.ctx.Done():
			return
		case <-tick.C:
		}
		o.running.Lock()
		var size int64
		for _, f := range o.ids {
			size += f.memory()
		}
		if size > maxMemory {
			for pid := range o.ids {
				o.start.Kill(pid)
			}
		}
		o.running.Unlock()
	}
}
