package runner

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pipes copy a child's output while it runs.
type pipes struct {
	ends  []*os.File // ours
	child []int      // the child's, open until read
	copy  []func(from *os.File)
	to    map[int]io.Writer // of those that are only copied, by their index in ends
	done  chan struct{}     // one value for each pipe that has ended
	err   error
}

func newPipes(writers ...io.Writer) *pipes {
	p := &pipes{}
	for _, w := range writers {
		p.add(w)
	}
	return p
}

func (p *pipes) add(w io.Writer) {
	var fds [2]int
	err := unix.Pipe2(fds[:], unix.O_CLOEXEC)
	w = &guarded{to: w}
	if p.to == nil {
		p.to = map[int]io.Writer{}
	}
	p.to[len(p.ends)] = w
	p.use(fds, err, func(from *os.File) {
		// The copy ends at end of file or at a deadline. Neither is an error here.
		_, _ = io.CopyBuffer(w, onlyReader{from}, make([]byte, 32<<10))
	})
}

// guarded takes what several pipes have.
type guarded struct {
	sync.Mutex
	to io.Writer
}

func (g *guarded) Write(b []byte) (int, error) {
	g.Lock()
	defer g.Unlock()
	return g.to.Write(b)
}

// outputs returns where pipes lead that are only copied.
func (p *pipes) outputs() map[identity]io.Writer {
	outputs := map[identity]io.Writer{}
	for i, end := range p.ends {
		if info, err := end.Stat(); err == nil && p.to[i] != nil {
			outputs[identityOf(info)] = p.to[i]
		}
	}
	return outputs
}

// addReports adds a socket instead of a pipe. No other process can open it through /proc, and the
// kernel names the writer of every byte (SO_PASSCRED, unix(7)).
func (p *pipes) addReports(r *reports) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	}
	p.use(fds, err, r.read)
}

func (p *pipes) use(fds [2]int, err error, read func(from *os.File)) {
	if err == nil {
		// Only our end: with a deadline, it can give up a pipe that someone keeps open.
		err = unix.SetNonblock(fds[0], true)
		p.ends = append(p.ends, os.NewFile(uintptr(fds[0]), "pipe"))
		p.child = append(p.child, fds[1])
		p.copy = append(p.copy, read)
	}
	p.err = errors.Join(p.err, err)
}

func (p *pipes) childEnds() []uintptr {
	var fds []uintptr
	for _, fd := range p.child {
		fds = append(fds, uintptr(fd))
	}
	return fds
}

// read closes the child's ends and starts to read ours.
func (p *pipes) read() {
	for _, fd := range p.child {
		_ = unix.Close(fd)
	}
	p.child = nil
	p.done = make(chan struct{}, len(p.ends))
	for i, end := range p.ends {
		go func() {
			p.copy[i](end)
			p.done <- struct{}{}
		}()
	}
}

// onlyReader hides os.File's WriteTo, which would allocate its own buffer.
type onlyReader struct{ io.Reader }

// drain waits for the end of all pipes, calls end, which kills what is left of the program, and
// gives up on pipes that a process out of its reach keeps open.
func (p *pipes) drain(end func() error) error {
	open := p.await(len(p.ends), drainLimit)
	err := end()
	open = p.await(open, drainLimit)
	if open > 0 {
		for _, end := range p.ends {
			err = errors.Join(err, end.SetDeadline(time.Now())) // a worker's socket is written to, too
		}
		for range open {
			<-p.done
		}
	}
	return err
}

// await waits for n pipes to end and returns how many have not ended after atMost.
func (p *pipes) await(n int, atMost time.Duration) int {
	t := time.NewTimer(atMost)
	defer t.Stop()
	for ; n > 0; n-- {
		select {
		case <-p.done:
		case <-t.C:
			return n
		}
	}
	return 0
}

func (p *pipes) close() {
	for _, end := range p.ends {
		_ = end.Close()
	}
	for _, fd := range p.child {
		_ = unix.Close(fd)
	}
}

// reports keeps what the judge itself wrote to POPCORN_FD. A process of the submission may have
// inherited that descriptor.
type reports struct {
	bounded
	judge   int // process ID; 0 until the first process has written
	foreign int // bytes that other processes wrote
	session int // of the program
	sight   sight
}

// read reads a socket until its end or a deadline.
func (r *reports) read(from *os.File) {
	conn, err := from.SyscallConn()
	if err != nil {
		return
	}
	// No room for descriptors that the other end sends along.
	buf, control := make([]byte, 32<<10), make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	for {
		var n, c int
		var rerr error
		err := conn.Read(func(fd uintptr) bool {
			n, c, _, _, rerr = unix.Recvmsg(int(fd), buf, control, unix.MSG_CMSG_CLOEXEC)
			return !errors.Is(rerr, unix.EAGAIN)
		})
		if err != nil || rerr != nil || n <= 0 {
			return
		}
		r.take(writer(control[:c]), buf[:n])
	}
}

func (r *reports) take(pid int, b []byte) {
	if r.judge == 0 {
		r.judge = pid
	}
	if pid == 0 || pid != r.judge {
		r.foreign += len(b)
		return
	}
	_, _ = r.Write(b)
	r.sight.mark(len(r.buf), r.session)
}

// writer returns the process that sent a message, 0 if the kernel does not say.
func writer(control []byte) int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0
	}
	for i := range messages {
		if cred, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
			return int(cred.Pid)
		}
	}
	return 0
}
