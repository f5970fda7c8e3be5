// Package wire is the protocol between the rig and the server inside its
// virtual machine: frames over one virtio-serial port, many sessions at once.
// It moves bytes and knows nothing of machines.
package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// PortName is the virtio-serial port that the server in the guest listens on.
const PortName = "kbnode.ctl"

// MaxPayload bounds one frame. Longer data is split by Writer.Data.
const MaxPayload = 32 << 10

// Type says what a frame carries.
type Type byte

// Frames from the host to the guest, then from the guest to the host.
const (
	Hello  Type = iota + 1 // both ways: Greeting as JSON; the guest answers with the same nonce
	Exec                   // Command as JSON; opens the session
	Stdin                  // bytes for the process; none closes its standard input
	Signal                 // one byte: the signal's number, sent to the process group
	Resize                 // two uint16: rows, columns of the session's terminal
	Stdout                 // bytes
	Stderr                 // bytes
	Exit                   // Status as JSON; closes the session
)

// Greeting opens a connection and sets the guest's clock, which stood still
// while the template lay on disk.
type Greeting struct {
	Nonce    string `json:"nonce"`
	UnixNano int64  `json:"unix_nano,omitempty"` // host to guest
	BootID   string `json:"boot_id,omitempty"`   // guest to host
}

// Command is one process to start in the guest, as root.
type Command struct {
	Argv []string `json:"argv"`
	Env  []string `json:"env,omitempty"` // added to a small default environment
	TTY  bool     `json:"tty,omitempty"`
	Rows uint16   `json:"rows,omitempty"`
	Cols uint16   `json:"cols,omitempty"`
}

// Status is how a process ended.
type Status struct {
	Code  int    `json:"code"`            // exit status; 128+n for signal n; -1 if it did not start
	Error string `json:"error,omitempty"` // why it did not start
}

// Frame is one message of a session. Session 0 is the connection itself.
type Frame struct {
	Type    Type
	Session uint32
	Payload []byte
}

// magic opens every frame, so that a reader finds its feet again after half a
// frame was lost to a reboot or a reconnect.
var magic = [4]byte{'k', 'b', 'v', 0xb5}

const headerLen = 4 + 1 + 4 + 4

// Writer sends frames; it may be used by several goroutines.
type Writer struct {
	mu sync.Mutex
	w  io.Writer
}

// NewWriter returns a Writer on w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Frame sends one frame in one write.
func (w *Writer) Frame(t Type, session uint32, payload []byte) error {
	if len(payload) > MaxPayload {
		return fmt.Errorf("frame of %d bytes is over %d", len(payload), MaxPayload)
	}
	b := make([]byte, headerLen, headerLen+len(payload))
	copy(b, magic[:])
	b[4] = byte(t)
	binary.BigEndian.PutUint32(b[5:], session)
	binary.BigEndian.PutUint32(b[9:], uint32(len(payload)))
	b = append(b, payload...)
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.w.Write(b)
	return err
}

// Data sends p in as many frames as it takes; none for an empty p.
func (w *Writer) Data(t Type, session uint32, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), MaxPayload)
		if err := w.Frame(t, session, p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// JSON sends v as one frame.
func (w *Writer) JSON(t Type, session uint32, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.Frame(t, session, b)
}

// Reader receives frames.
type Reader struct{ r *bufio.Reader }

// NewReader returns a Reader on r.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, 64<<10)} }

// Frame returns the next whole frame. Bytes that are no frame are skipped.
func (r *Reader) Frame() (Frame, error) {
	for {
		h, err := r.r.Peek(headerLen)
		if err != nil {
			return Frame{}, err
		}
		n := binary.BigEndian.Uint32(h[9:])
		t := Type(h[4])
		if !bytes.Equal(h[:4], magic[:]) || n > MaxPayload || t < Hello || t > Exit {
			if _, err := r.r.Discard(1); err != nil {
				return Frame{}, err
			}
			continue
		}
		f := Frame{Type: t, Session: binary.BigEndian.Uint32(h[5:]), Payload: make([]byte, n)}
		if _, err := r.r.Discard(headerLen); err != nil {
			return Frame{}, err
		}
		_, err = io.ReadFull(r.r, f.Payload)
		return f, err
	}
}
