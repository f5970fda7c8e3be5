package slot

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// A client of a slot's socket sends one request, and closes its end of the connection to cancel the job. The answer is a
// stream of frames that ends with the outcome.
const (
	// RequestRun has a job's spec: run it.
	RequestRun byte = 'r'
	// RequestCheck has nothing: could a job start now?
	RequestCheck byte = 'c'
	// RequestClear is only root's, and has one of the words below: clear the slot. Before an agent starts, the answer comes when
	// the slot takes jobs, or after a while with a Reason why it does not.
	RequestClear byte = 'k'
	// RequestReport has how far the slot's agent came, RegisteredName or WorkedName.
	RequestReport byte = 'p'
)

// When a slot is cleared.
const (
	ClearStart = "start" // its agent is about to start
	ClearAgain = "again" // the same agent: the slot was parked
	ClearEnded = "ended" // its agent has ended
)

// WriteRequest sends a request with its body.
func WriteRequest(w io.Writer, kind byte, body []byte) error {
	head := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)))
	if _, err := w.Write(append(head, body...)); err != nil {
		return fmt.Errorf("send the request: %w", err)
	}
	return nil
}

// ErrTooLong means that a request is longer than its reader takes.
var ErrTooLong = errors.New("the request is too long")

// ReadRequest reads a request of at most limit bytes, else ErrTooLong.
func ReadRequest(r io.Reader, limit int) (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, fmt.Errorf("read the request: %w", err)
	}
	n := binary.BigEndian.Uint32(head[1:])
	if int64(n) > int64(limit) {
		return head[0], nil, ErrTooLong
	}
	body = make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, nil, fmt.Errorf("read the request: %w", err)
	}
	return head[0], body, nil
}

// FrameKind says what a frame has.
type FrameKind byte

// The kinds of frames.
const (
	FrameTaken   FrameKind = 't' // the request was read; the first frame
	FrameStdout  FrameKind = 'o'
	FrameStderr  FrameKind = 'e'
	FrameNote    FrameKind = 'n' // a line of kbnode's for the job's log
	FrameOutcome FrameKind = 'x' // an Outcome as JSON, the last frame
)

// maxFrame bounds a frame, in bytes.
const maxFrame = 64 << 10

// Outcome is how a job ended.
type Outcome struct {
	ExitCode    int    `json:"exit_code"`     // of the container's command
	OutOfMemory bool   `json:"out_of_memory"` // the kernel ended a process of it for the slot's limit
	Canceled    bool   `json:"canceled"`
	Reason      string `json:"reason,omitempty"` // why the slot ended the job
	// Refused is why the job may not run: its author must change it.
	Refused string `json:"refused,omitempty"`
	// NodeFault is why the job has no exit code, which is not its own fault.
	NodeFault string `json:"node_fault,omitempty"`
	// Lost is why nothing of the job's files can be uploaded, which is not its own fault.
	Lost string `json:"lost,omitempty"`
	// Files is a directory with what the job's artifact paths may name; "" without one.
	Files string `json:"files,omitempty"`
	// Pipeline is the file of Files that is to be uploaded, for a job that does only that.
	Pipeline string `json:"pipeline,omitempty"`
}

// Frames writes a stream of frames. It is safe for concurrent use.
type Frames struct {
	mu  sync.Mutex
	out io.Writer
	err error // the first, which every later write returns
}

// NewFrames returns a stream on out.
func NewFrames(out io.Writer) *Frames { return &Frames{out: out} }

// Send writes frames of one kind: as many as data needs.
func (f *Frames) Send(kind FrameKind, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.err == nil && len(data) > 0 {
		n := min(len(data), maxFrame)
		head := binary.BigEndian.AppendUint32([]byte{byte(kind)}, uint32(n))
		_, f.err = f.out.Write(append(head, data[:n]...))
		data = data[n:]
	}
	return f.err
}

// Taken says that the request was read.
func (f *Frames) Taken() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		_, f.err = f.out.Write([]byte{byte(FrameTaken), 0, 0, 0, 0})
	}
	return f.err
}

// Note writes a line for the job's log.
func (f *Frames) Note(format string, args ...any) error {
	return f.Send(FrameNote, fmt.Appendf(nil, format, args...))
}

// maxSentence bounds each text of an outcome, in characters, so that the outcome fits into a frame.
const maxSentence = 1500

// End writes the outcome. Its texts become lines: an engine or a registry may have written them.
func (f *Frames) End(o Outcome) error {
	for _, s := range []*string{&o.Reason, &o.Refused, &o.NodeFault, &o.Lost} {
		*s = text.Line(*s, maxSentence)
	}
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return f.Send(FrameOutcome, data)
}

// Writer returns a writer of frames of one kind.
func (f *Frames) Writer(kind FrameKind) io.Writer { return frameWriter{f, kind} }

type frameWriter struct {
	f    *Frames
	kind FrameKind
}

func (w frameWriter) Write(p []byte) (int, error) {
	if err := w.f.Send(w.kind, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// ReadFrames calls each with the frames of a stream until the outcome, which it returns. The error wraps
// io.ErrUnexpectedEOF if the stream ended before.
func ReadFrames(r io.Reader, each func(kind FrameKind, data []byte)) (o Outcome, err error) {
	var head [5]byte
	buf := make([]byte, maxFrame)
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return o, broken(err)
		}
		n := binary.BigEndian.Uint32(head[1:])
		if n > maxFrame {
			return o, fmt.Errorf("read the job's stream: a frame of %d bytes", n)
		}
		data := buf[:n]
		if _, err := io.ReadFull(r, data); err != nil {
			return o, broken(err)
		}
		if kind := FrameKind(head[0]); kind != FrameOutcome {
			each(kind, data)
			continue
		}
		if err := json.Unmarshal(data, &o); err != nil {
			return o, fmt.Errorf("read the job's outcome: %w", err)
		}
		return o, nil
	}
}

func broken(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read the job's stream: %w", err)
}
