package slot

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/gpu-mode/kbnode/internal/text"
)

// RunPath is where a slot's service runs a job: the request is the job's spec, and the answer a
// stream of frames that ends with the outcome. A second request with the same job continues the
// stream, from the bytes of output that the query's StdoutParam and StderrParam have.
const (
	RunPath     = "/kbnode/run"
	StdoutParam = "stdout"
	StderrParam = "stderr"
	// CancelPath ends the job that the query's JobParam names. Its stream tells the outcome.
	CancelPath = "/kbnode/cancel"
	// CheckPath, the only one to GET, says whether a job could start now.
	CheckPath = "/kbnode/check"
	JobParam  = "job"
	// RefusedPath says that the agent had a job that does not come to the service.
	RefusedPath = "/kbnode/refused"
)

// FrameKind says what a frame has.
type FrameKind byte

// The kinds of frames.
const (
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
	mu    sync.Mutex
	out   io.Writer
	flush func() error
	err   error // the first, which every later write returns
}

// NewFrames returns a stream on out. flush sends what was written; nil does nothing.
func NewFrames(out io.Writer, flush func() error) *Frames { return &Frames{out: out, flush: flush} }

// Send writes frames of one kind: as many as data needs.
func (f *Frames) Send(kind FrameKind, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.err == nil && len(data) > 0 {
		n := min(len(data), maxFrame)
		head := binary.BigEndian.AppendUint32([]byte{byte(kind)}, uint32(n))
		if _, f.err = f.out.Write(append(head, data[:n]...)); f.err == nil && f.flush != nil {
			f.err = f.flush()
		}
		data = data[n:]
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

// Where a slot's agent reports its progress to the slot's service. The answer is 204, or 409 with the
// reason why the slot is parked.
const (
	ReadyPath      = "/kbnode/ready"      // the agent is about to start; only root may send this
	RegisteredPath = "/kbnode/registered" // Buildkite accepted the agent
)

// Client returns a client of the service that listens on a socket. It asks for any host.
func Client(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
}

// Message returns the sentence of a service's answer.
func Message(resp *http.Response) string {
	var answer struct {
		Message string `json:"message"`
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil || json.Unmarshal(body, &answer) != nil || answer.Message == "" {
		return "the slot's service says " + resp.Status
	}
	return strings.TrimPrefix(answer.Message, "kbnode: ")
}
