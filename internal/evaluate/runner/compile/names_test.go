package compile

import (
	"bytes"
	"io"
	"testing"
	"testing/iotest"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestNames replaces names of temporary directories in arguments, and leaves alone what only looks like them.
func TestNames(t *testing.T) {
	t.Parallel()
	dirs := temporaryDirs("/tmp/tmphome1234")
	for text, want := range map[string]string{
		"-I/tmp/tmpab12cd3_":                       "-I/tmp/tmprandom00",
		"/tmp/tmpab12cd3_/tmpxxxxxxxx/x.c":         "/tmp/tmprandom00/tmprandom01/x.c",
		"/tmp/tmpab12cd3_:/tmp/tmpxxxxxxxx":        "/tmp/tmprandom00:/tmp/tmprandom01",
		"/tmp/tmphome1234/tmpab12cd3_/x":           "/tmp/tmphome1234/tmprandom00/x",
		"/tmp/tmphome1234/x":                       "/tmp/tmphome1234/x",
		"-Dtmpab12cd3_=1":                          "-Dtmpab12cd3_=1",
		"/tmp/tmpab12cd3_4/x":                      "/tmp/tmpab12cd3_4/x",
		"/usr/tmp/tmpab12cd3_":                     "/usr/tmp/tmpab12cd3_",
		"-L/usr/tmp/tmpab12cd3_":                   "-L/usr/tmp/tmpab12cd3_",
		"/tmp/sub/tmpab12cd3_ /tmp/TMPAB12CD3_/x":  "/tmp/sub/tmpab12cd3_ /tmp/TMPAB12CD3_/x",
		"-Wl,-rpath,/tmp/tmpab12cd3_,-rpath=/tmp/": "-Wl,-rpath,/tmp/tmprandom00,-rpath=/tmp/",
	} {
		n := newNames("random")
		got := n.replace(text, dirs)
		must.Equal(t, want, got)
		must.Equal(t, text, n.realPath(got))
	}
	n := newNames("random")
	for i := range maxNames + 1 {
		n.standFor(string(rune('a'+i%26)) + string(rune('a'+i/26)))
	}
	if !n.full {
		t.Error("more names than have a number")
	}
}

// FuzzSwapper writes a text in pieces: names are replaced wherever it is cut, and put back.
func FuzzSwapper(f *testing.F) {
	f.Add([]byte("a/tmpab12cd3_/x/tmp/tmpab12cd3_/tm/tmpab12cd3"), uint8(3))
	f.Add([]byte("/tmp/tmp/tmpab12cd3_/tmprandom00"), uint8(1))
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		to := map[string]string{"tmpab12cd3_": "tmprandom00"}
		want := bytes.ReplaceAll(text, []byte("/tmpab12cd3_"), []byte("/tmprandom00"))
		got := swapped(t, text, to, int(size)+1)
		if !bytes.Equal(want, got) || len(got) != len(text) {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
		if bytes.Contains(text, []byte("/tmprandom00")) {
			return
		}
		if back := swapped(t, got, map[string]string{"tmprandom00": "tmpab12cd3_"}, 7); !bytes.Equal(text, back) {
			t.Errorf("%q came back as %q", text, back)
		}
	})
}

func swapped(t *testing.T, text []byte, names map[string]string, size int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := &swapper{to: &b, names: names}
	for len(text) > 0 {
		n := min(size, len(text))
		if _, err := w.Write(text[:n]); err != nil {
			t.Fatal(err)
		}
		text = text[n:]
	}
	must.Do(t, w.flush())
	return b.Bytes()
}

// TestIsIn finds a name at each place of a text, also where it is read in two pieces.
func TestIsIn(t *testing.T) {
	t.Parallel()
	n := newNames("random")
	text := make([]byte, 1<<17)
	must.Equal(t, false, n.isIn(bytes.NewReader(text)))
	n.standFor("tmpab12cd3_")
	must.Equal(t, false, n.isIn(bytes.NewReader(text)))
	for at := 1<<16 - 10; at <= 1<<16; at++ {
		found := bytes.Clone(text)
		copy(found[at:], "tmprandom00")
		must.Equal(t, true, n.isIn(bytes.NewReader(found)))
	}
	must.Equal(t, true, n.isIn(iotest.ErrReader(io.ErrUnexpectedEOF)))
}
