package runner

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/runner/compile"
	"github.com/gpu-mode/kbnode/internal/machine/host"
)

// findCompilers prepares to compile each source once. Without Landlock, programs could change what a compiler reads
// from the image, or look into it, so each of them compiles by itself.
func (e *engine) findCompilers() {
	if e.landlock == 0 || !canFilter() || !canAnswer() {
		return
	}
	for _, s := range e.submissions {
		s.compilers = compile.New(e.env, func(name string) (string, error) { return lookPath(e.env, name) }, strings.ToLower(rand.Text()[:6]))
	}
}

// canAnswer reports whether this kernel can leave it to a process to answer system calls.
var canAnswer = sync.OnceValue(func() bool {
	action := uint32(unix.SECCOMP_RET_USER_NOTIF)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action))) //nolint:gosec // an argument of the kernel
	return errno == 0
})

// offered is what a program is offered; nil is nothing.
type offered struct {
	*compile.Offer
	environment []string
	reopen      func()
	ended       sync.Once
	removed     sync.Once
}

func (p program) offerCompilers(forks forker) *offered {
	if p.compilers == nil {
		return nil
	}
	mounts, ok := host.Tree{Root: "/"}.Mounts("self")
	if !ok {
		p.note("each program compiles by itself: /proc/self/mountinfo cannot be read")
		return nil
	}
	writable := everywhere(mounts, p.writable)
	o, env, err := p.compilers.Offer(starter{forks, p.landlock, p.cores, append([]string{p.hidden}, writable...)}, p.home, p.hidden, writable, p.env)
	if err != nil {
		p.note("each program compiles by itself: %v", err)
		return nil
	}
	return &offered{Offer: o, environment: env, reopen: p.reopen}
}

// everywhere returns directories, and where else they or parts of them are mounted: what a program writes is there, too, and is no
// file of the image.
func everywhere(mounts []host.Mount, dirs []string) []string {
	all := slices.Clone(dirs)
	for _, dir := range dirs {
		dir = resolved(dir)
		on := host.MountOf(mounts, dir)
		inside := filepath.Join(on.Root, strings.TrimPrefix(dir, on.Point)) // of the file system
		for _, m := range mounts {
			switch rest, err := filepath.Rel(m.Root, inside); {
			case m.Device != on.Device || m == on || err != nil:
			case within(inside, m.Root):
				all = append(all, m.Point)
			case filepath.IsLocal(rest):
				all = append(all, filepath.Join(m.Point, rest))
			}
		}
	}
	return all
}

// lead returns the environment of a program, and the path to execute: if it is a compiler, that of the client.
func (o *offered) lead(env []string, path string) ([]string, string) {
	if o == nil {
		return env, path
	}
	return o.environment, o.Lead(path)
}

// unfinished returns what a compiler had written at its end, if it was the program itself.
func (o *offered) unfinished(path string) (stdout, stderr []byte) {
	if o == nil || !o.Leads(path) {
		return nil, nil
	}
	return o.Unfinished()
}

// end ends compilers. Call it when the program has ended, before its children are reaped.
func (o *offered) end() {
	if o != nil {
		o.ended.Do(o.End)
	}
}

// remove removes what was offered. Call it when all processes of the program are dead.
func (o *offered) remove() (err error) {
	if o != nil {
		o.end()
		o.removed.Do(func() {
			o.reopen()
			err = o.Remove()
		})
	}
	return err
}

// starter starts compilers for a program.
type starter struct {
	forks    forker
	landlock int
	cores    *unix.CPUSet
	programs []string // directories of programs' files
}

// Kill implements compile.Starter.
func (starter) Kill(pid int) { helpers.kill(pid) }

// Start implements compile.Starter.
func (s starter) Start(cp compile.Process) (int, *os.File, <-chan syscall.WaitStatus, error) {
	rules, err := s.rules()
	if err != nil {
		return 0, nil, nil, err
	}
	defer rules.Close() //nolint:errcheck // the compiler has them
	p := program{exec: cp.Argv, env: cp.Env, dir: "/", landlock: s.landlock, cores: s.cores}
	c, err := p.child(cp.Path, int(rules.Fd()))
	if err != nil {
		return 0, nil, nil, err
	}
	sockets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, nil, nil, err
	}
	defer unix.Close(sockets[0]) //nolint:errcheck // used up
	defer unix.Close(sockets[1]) //nolint:errcheck // likewise
	c.hand, c.umask = newHandOver(sockets[1]), cp.Umask
	var files []uintptr
	for _, f := range cp.Files {
		files = append(files, f.Fd())
	}
	var pid int
	ended := make(chan syscall.WaitStatus, 1)
	done := make(chan struct{})
	s.forks <- func() {
		defer close(done)
		judge, terr := threads(false)
		if err = terr; err != nil {
			return
		}
		c.setFilter(programFilter(judge, s.landlock, s.cores, c.compilerCalls))
		pid, err = helpers.start(ended, func() (int, error) { return c.run(files) })
	}
	<-done
	if err != nil {
		return 0, nil, nil, fmt.Errorf("start compiler: %w", err)
	}
	calls, err := receive(sockets[0])
	if err != nil {
		helpers.kill(pid)
		return 0, nil, nil, fmt.Errorf("start compiler: %w", err)
	}
	return pid, calls, ended, nil
}

// rules returns those of a compiler. It writes to /dev/null only, and executes nothing of a program's: a plugin changes a path
// after the runner has looked at it, and what the kernel then executes would be known to no one.
func (s starter) rules() (*os.File, error) {
	rules, handled, err := newRules(s.landlock, unix.LANDLOCK_ACCESS_FS_EXECUTE)
	if err != nil {
		return nil, err
	}
	var programs []string
	for _, dir := range s.programs {
		programs = append(programs, resolved(dir))
	}
	access := map[string]uint64{os.DevNull: handled & (unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE)}
	allowBeside(access, programs, unix.LANDLOCK_ACCESS_FS_EXECUTE)
	if err := allowAll(rules, access); err != nil {
		return nil, errors.Join(err, rules.Close())
	}
	return rules, nil
}

// handOver is a message with a file, which a child sends between fork and exec.
type handOver struct {
	socket  int
	message unix.Msghdr
	data    [1]byte
	vector  unix.Iovec
	control struct {
		unix.Cmsghdr
		file int32
		_    int32
	}
}

func newHandOver(socket int) *handOver {
	h := &handOver{socket: socket}
	h.vector = unix.Iovec{Base: &h.data[0]}
	h.vector.SetLen(1)
	h.control.Level, h.control.Type = unix.SOL_SOCKET, unix.SCM_RIGHTS
	h.control.SetLen(unix.CmsgLen(4))
	h.message = unix.Msghdr{Iov: &h.vector, Control: (*byte)(unsafe.Pointer(&h.control))} //nolint:gosec // as the kernel reads it
	h.message.SetIovlen(1)
	h.message.SetControllen(unix.CmsgSpace(4))
	return h
}

// receive receives the file of a handOver.
func receive(socket int) (*os.File, error) {
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, make([]byte, 1), control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(errors.New("receive its calls: none came"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(errors.New("receive its calls: none came"), err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "calls"), nil
}

// compilerCalls adds which calls of a compiler the runner answers. The first, to become the compiler, is told by the
// address of its path, which is the runner's.
func (c *child) compilerCalls(f *filter) {
	path := uint64(uintptr(unsafe.Pointer(c.file))) //nolint:gosec // a number for the kernel
	f.onCall(unix.SYS_EXECVE, func(f *filter) {
		f.loadArg(0)
		f.skipIfNot(uint32(path), 3)
		f.load(atArgs + 4)
		f.skipIfNot(uint32(path>>32), 1)
		f.allow()
		f.ask()
	})
	f.onAny(func(f *filter) { f.ask() }, compile.Calls()...)
	f.onAny(func(f *filter) {
		f.loadArg(0)
		f.add(unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K, 1<<31, 1, 0)
		f.allow()
		f.ask()
	}, compile.Clocks()...)
	f.onCall(unix.SYS_FCNTL, func(f *filter) {
		f.loadArg(1)
		f.oneOf(compile.Fcntls(), 1)
		f.ask()
		decideFcntl(f)
	})
	f.onAny(func(f *filter) { f.fail(unix.ENOSYS) }, compile.Missing()...)
}

// ask lets the runner answer.
func (f *filter) ask() { f.add(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_USER_NOTIF, 0, 0) }
