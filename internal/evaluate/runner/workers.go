package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// workerVariable tells a program the number of a descriptor, on which it can ask for a worker: a process for the
// submission, which reaches nothing of the program's, so that the program can hold the clock and the expected results.
// Only a program whose text has the name gets one; nothing changes for others.
const workerVariable = "KBNODE_WORKER"

const workerDescriptor = 4 // POPCORN_FD is 3

// Bounds of what a program may ask.
const (
	maxOrder      = 128 << 10 // bytes
	maxOrderFiles = 8
	maxWorkers    = 4096 // of one program
)

// order is what a program asks for: to start a worker with these arguments, with /dev/null and the files that come along
// as its descriptors, or to end the one that runs.
type order struct {
	Argv  []string `json:"argv"`
	Cores []int    `json:"cores"` // that the worker may use; none: it may choose
	Do    string   `json:"do"`    // end
}

// reply answers an order. Ended is also said without one.
type reply struct {
	Pid   int    `json:"pid,omitempty"`
	Done  string `json:"done,omitempty"`
	Ended *int   `json:"ended,omitempty"` // the exit code, or a negative signal number
	Error string `json:"error,omitempty"`
}

// workers starts the workers of one program, one at a time. A worker and all that it starts are a group and a session,
// which none can leave.
type workers struct {
	*engine
	judge   program
	forks   forker
	started int
	now     *worker
	outputs map[identity]io.Writer // where the program's pipes for stdout and stderr lead
	exited  chan struct{}          // closed when the program has ended
	errs    []error                // why the program does not pass
}

type worker struct {
	home    space
	pid     int
	ended   chan syscall.WaitStatus
	code    *int // when it has ended
	offer   *offered
	outputs pipes     // in place of the program's
	proc    procState // of the program's processes
}

// asksForWorkers reports whether the task's program is a judge that asks for workers.
func (c *config) asksForWorkers() bool {
	return c.lang == "py" && strings.Contains(c.sources.Get(c.main), workerVariable)
}

// offerWorkers adds a descriptor to the pipes of a program that asks for workers.
func (p *program) offerWorkers(pipes *pipes, forks forker) *workers {
	if p.workers == nil {
		return nil
	}
	w := &workers{engine: p.workers, judge: *p, forks: forks, outputs: pipes.outputs(), exited: make(chan struct{})}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	pipes.use(fds, err, w.serve)
	p.env = setenv(p.env, workerVariable, strconv.Itoa(workerDescriptor))
	return w
}

// serve answers a program until it ends.
func (w *workers) serve(conn *os.File) {
	defer func() {
		if p := recover(); p != nil {
			w.errs = append(w.errs, fmt.Errorf("kbnode has a fault in its workers; report it: %v", p))
		}
		if w.now != nil {
			helpers.kill(w.now.pid)
		}
	}()
	orders := make(chan message)
	stop := make(chan struct{})
	defer close(stop)
	go receiveAll(conn, orders, stop)
	for {
		var ended chan syscall.WaitStatus
		if w.now != nil && w.now.code == nil {
			ended = w.now.ended
		}
		var answer *reply
		select {
		case status := <-ended:
			code := exitCode(status)
			w.now.code, answer = &code, &reply{Ended: &code}
		case m, ok := <-orders:
			if !ok {
				return
			}
			answer = w.answer(m)
			closeAll(m.files)
		}
		if answer != nil && send(conn, answer) != nil {
			return
		}
	}
}

func exitCode(s syscall.WaitStatus) int {
	if s.Signaled() {
		return -int(s.Signal())
	}
	return s.ExitStatus()
}

// answer does what a program asks for.
func (w *workers) answer(m message) *reply {
	var o order
	err := m.err
	if err == nil {
		err = json.Unmarshal(m.text, &o)
	}
	switch {
	case err != nil:
	case len(o.Argv) > 0:
		if err = w.start(o, m.files); err == nil {
			return &reply{Pid: w.now.pid}
		}
	case o.Do != "end":
		err = fmt.Errorf("%q is unknown; give the argv of a worker to start, or ask to end the one that runs", o.Do)
	case w.now == nil:
		err = errors.New("no worker runs")
	default:
		if err = w.end(); err == nil {
			return &reply{Done: o.Do}
		}
		w.errs = append(w.errs, err)
	}
	return &reply{Error: err.Error()}
}

// start starts a worker in a home of its own.
func (w *workers) start(o order, files []*os.File) (err error) {
	if w.now != nil {
		return errors.New("a worker runs already; end it first")
	}
	cores, err := coresOf(o.Cores)
	if err != nil {
		return err
	}
	w.started++
	if w.started > maxWorkers {
		return fmt.Errorf("a program may start %d workers", maxWorkers)
	}
	home, err := w.newSpace(w.spaceName)
	if err != nil {
		return err
	}
	now := &worker{home: home, ended: make(chan syscall.WaitStatus, 1), proc: recordProcState(descendants())}
	defer func() {
		if err != nil {
			now.outputs.close()
			err = errors.Join(err, now.offer.remove())
			w.drop(home)
		}
	}()
	env := slices.DeleteFunc(slices.Clone(w.judge.env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return strings.HasPrefix(name, "POPCORN_") || isCacheVar(name) // where it may not write: libraries use its home
	})
	p := w.inSpace(program{argv: o.Argv, env: env, cores: cores}, home)
	path, err := lookPath(p.env, o.Argv[0])
	if err != nil {
		return err
	}
	p.worker, p.hidden, p.writable = now.ended, resolved(w.judge.home), []string{string(home)}
	if w.clearsShared() {
		p.writable = append(p.writable, sharedMemory)
	}
	now.offer = p.offerCompilers(w.forks) // which read where it may write, with the runner's rights
	p.env, path = now.offer.lead(p.env, path)
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close() //nolint:errcheck // opened for reading
	fds := []uintptr{null.Fd()}
	for _, f := range files {
		fds = append(fds, w.own(now, f))
	}
	if err = now.outputs.err; err == nil {
		now.pid, err = w.forks.start(p, path, fds)
	}
	if err != nil {
		return fmt.Errorf("start worker: %w", err)
	}
	now.outputs.read()
	w.now = now
	return nil
}

// own returns what a worker gets for a file: in place of the program's stdout and stderr a pipe of its own. In the mode, times,
// flags, size or locks of one that all workers have, it could leave a message to the next.
func (w *workers) own(now *worker, f *os.File) uintptr {
	info, err := f.Stat()
	if err != nil || w.outputs[identityOf(info)] == nil {
		return f.Fd()
	}
	now.outputs.add(w.outputs[identityOf(info)])
	if now.outputs.err != nil {
		return f.Fd() // it is not started
	}
	ends := now.outputs.childEnds()
	return ends[len(ends)-1]
}

// coresOf returns a set of cores, nil if there are none.
func coresOf(cores []int) (*unix.CPUSet, error) {
	if len(cores) == 0 {
		return nil, nil
	}
	var set unix.CPUSet
	for _, n := range cores {
		if n < 0 || n >= 8*int(unsafe.Sizeof(set)) {
			return nil, fmt.Errorf("core %d cannot be: give some of those that sched_getaffinity returns, below %d", n, 8*unsafe.Sizeof(set))
		}
		set.Set(n)
	}
	return &set, nil
}

// end ends the worker, and puts back what it changed: the next one must find nothing of it.
func (w *workers) end() error {
	helpers.kill(w.now.pid)
	limit, poll := time.After(endLimit), time.NewTicker(time.Millisecond)
	defer poll.Stop()
	// All of its group, which was killed with it: none must work beside what the program measures next.
	for ended := w.now.ended; ended != nil && w.now.code == nil || unix.Kill(-w.now.pid, 0) != unix.ESRCH; {
		select {
		case <-ended:
			ended = nil
		case <-poll.C:
		case <-w.exited:
			return nil // close does the rest
		case <-limit:
			return fmt.Errorf("end worker: a process of group %d is alive %s after SIGKILL", w.now.pid, endLimit)
		}
	}
	w.now.proc.putBack()
	return errors.Join(w.remove(), w.putBackBetween(w.judge.home))
}

// remove removes what was made for a worker. Call it when it is dead.
func (w *workers) remove() error {
	if w.now == nil {
		return nil
	}
	err := w.now.outputs.drain(func() error { return nil })
	w.now.outputs.close()
	err = errors.Join(err, w.now.offer.remove())
	w.drop(w.now.home)
	w.now = nil
	return err
}

// programEnded says that the program has ended: no one reaps a worker anymore.
func (w *workers) programEnded() {
	if w != nil {
		close(w.exited)
	}
}

// close says why the program must not pass. Call it when all of its processes are dead. A program that has left a worker
// may have been taken over by what the worker changed.
func (w *workers) close() error {
	if w == nil {
		return nil
	}
	if w.now != nil {
		w.errs = append(w.errs, w.remove(), w.putBackBetween(w.judge.home))
	}
	return errors.Join(w.errs...)
}

// message is one that a program sent.
type message struct {
	text  []byte
	files []*os.File
	err   error
}

// receiveAll receives messages until the end of the program, or of its patience.
func receiveAll(conn *os.File, to chan<- message, stop <-chan struct{}) {
	defer close(to)
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	for {
		m, err := receiveMessage(raw)
		if err != nil {
			return
		}
		select {
		case to <- m:
		case <-stop:
			closeAll(m.files)
			return
		}
	}
}

func receiveMessage(raw syscall.RawConn) (m message, err error) {
	buf, control := make([]byte, maxOrder), make([]byte, unix.CmsgSpace(4*maxOrderFiles))
	var n, c, flags int
	var rerr error
	err = raw.Read(func(fd uintptr) bool {
		n, c, flags, _, rerr = unix.Recvmsg(int(fd), buf, control, unix.MSG_CMSG_CLOEXEC)
		return !errors.Is(rerr, unix.EAGAIN)
	})
	if err = errors.Join(err, rerr); err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return m, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:c])
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			for _, fd := range fds {
				m.files = append(m.files, os.NewFile(uintptr(fd), "worker's"))
			}
		}
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		m.err = fmt.Errorf("an order has more than %d bytes, or %d files", maxOrder, maxOrderFiles)
	}
	m.text = buf[:n]
	return m, err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // a worker has its own
	}
}

func send(conn *os.File, r *reply) error {
	text, err := json.Marshal(r)
	if err == nil {
		_, err = conn.Write(text)
	}
	return err
}
