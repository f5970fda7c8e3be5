package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestFrames(t *testing.T) {
	t.Parallel()
	big := bytes.Repeat([]byte("0123456789abcdef"), MaxPayload/8)
	tests := map[string]struct {
		before string
		send   func(*Writer) error
		want   []Frame
	}{
		"one frame": {
			send: func(w *Writer) error { return w.Frame(Stdout, 7, []byte("hi")) },
			want: []Frame{{Stdout, 7, []byte("hi")}},
		},
		"an empty payload": {
			send: func(w *Writer) error { return w.Frame(Stdin, 1, nil) },
			want: []Frame{{Stdin, 1, []byte{}}},
		},
		"long data is split": {
			send: func(w *Writer) error { return w.Data(Stdout, 2, big) },
			want: []Frame{{Stdout, 2, big[:MaxPayload]}, {Stdout, 2, big[MaxPayload:]}},
		},
		"rubbish before a frame is skipped": {
			before: "kbv kb\x00kbv",
			send:   func(w *Writer) error { return w.JSON(Hello, 0, Greeting{Nonce: "n"}) },
			want:   []Frame{{Hello, 0, []byte(`{"nonce":"n"}`)}},
		},
		"a header with a wild length is skipped": {
			before: "kbv\xb5\x02\x00\x00\x00\x01\xff\xff\xff\xff",
			send:   func(w *Writer) error { return w.Frame(Signal, 3, []byte{9}) },
			want:   []Frame{{Signal, 3, []byte{9}}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			buf := bytes.NewBufferString(tt.before)
			must.Do(t, tt.send(NewWriter(buf)))
			r := NewReader(buf)
			var got []Frame
			for {
				f, err := r.Frame()
				if errors.Is(err, io.EOF) {
					break
				}
				must.Do(t, err)
				got = append(got, f)
			}
			must.Equal(t, tt.want, got)
		})
	}
}

func TestFrameTooLong(t *testing.T) {
	t.Parallel()
	if err := NewWriter(io.Discard).Frame(Stdout, 1, make([]byte, MaxPayload+1)); err == nil {
		t.Error("a frame over MaxPayload was sent")
	}
}
