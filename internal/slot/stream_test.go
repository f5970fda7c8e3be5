package slot

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestFrames reads what was written, however the stream is cut.
func TestFrames(t *testing.T) {
	t.Parallel()
	var stream bytes.Buffer
	flushed := 0
	f := NewFrames(&stream, func() error { flushed++; return nil })
	long := strings.Repeat("0123456789", 20_000) // more than a frame has room for
	want := Outcome{ExitCode: 3, OutOfMemory: true, Reason: "it took too long", Files: "/x"}
	_, err1 := f.Writer(FrameStdout).Write([]byte(long))
	_, err2 := f.Writer(FrameStderr).Write([]byte("bad"))
	if err := errors.Join(err1, err2, f.Note("pulls %s", "x"), f.Send(FrameStdout, nil), f.End(want)); err != nil || flushed != 7 {
		t.Fatal(err, flushed)
	}
	read := func(text string) (map[FrameKind]string, Outcome, error) {
		got := map[FrameKind]string{}
		o, err := ReadFrames(strings.NewReader(text), func(kind FrameKind, data []byte) error {
			got[kind] += string(data)
			return nil
		})
		return got, o, err
	}
	all := stream.String()
	got, o, err := read(all)
	if diff := cmp.Diff(map[FrameKind]string{FrameStdout: long, FrameStderr: "bad", FrameNote: "pulls x"}, got); diff != "" || err != nil || o != want {
		t.Errorf("%v, %+v\n%s", err, o, diff)
	}
	for _, cut := range []int{0, 3, 5, 100, len(all) - 1} {
		if _, _, err := read(all[:cut]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut at %d: %v", cut, err)
		}
	}
	for _, bad := range []string{"o\xff\xff\xff\xff", "x\x00\x00\x00\x01{"} {
		if _, _, err := read(bad); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	stop := errors.New("stop")
	if _, err := ReadFrames(strings.NewReader(all), func(FrameKind, []byte) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
	lost := NewFrames(failing{}, nil)
	if err := lost.Note("x"); err == nil || !errors.Is(lost.End(want), err) {
		t.Errorf("a reader that is gone: %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("gone") }
