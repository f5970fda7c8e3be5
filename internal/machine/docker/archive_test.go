package docker

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestSave(t *testing.T) {
	t.Parallel()
	for version, platform := range map[string]string{"1.40": "", "1.47": "", "1.48": `{"architecture":"arm64","os":"linux"}`, "1.51": `{"architecture":"arm64","os":"linux"}`} {
		e := answeringAs(t, version, map[string]http.HandlerFunc{"GET /images/get": func(w http.ResponseWriter, r *http.Request) {
			must.Equal(t, platform, r.URL.Query().Get("platform"))
			if r.URL.Query().Get("names") == "none" {
				says(http.StatusNotFound, `{"message":"No such image"}`)(w, r)
				return
			}
			says(http.StatusOK, "an archive of "+r.URL.Query().Get("names"))(w, r)
		}})
		archive, err := e.Save(t.Context(), "a:b", "arm64")
		must.Do(t, err)
		text, err := io.ReadAll(archive)
		if string(text) != "an archive of a:b" || errors.Join(err, archive.Close()) != nil {
			t.Errorf("%q, %v", text, err)
		}
		if _, err := e.Save(t.Context(), "none", "arm64"); !errors.Is(err, ErrNotFound) {
			t.Errorf("%v, want ErrNotFound", err)
		}
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	const text = "an archive"
	for _, tt := range []struct {
		name   string
		from   io.Reader
		answer http.HandlerFunc
		err    error
		says   string
	}{
		{name: "whole", answer: says(200, `{"status":"Loading layer","progressDetail":{"current":5,"total":9},"id":"abc"}{"stream":"Loaded image: x:y\n"}`)},
		{name: "no room", answer: says(200, `{"errorDetail":{"message":"Error processing tar file(exit status 1): write /x: no space left on device"}}`), err: ErrDiskFull},
		{name: "no room at once", answer: says(500, `{"message":"mkdir /x: no space left on device"}`), err: ErrDiskFull},
		{name: "no image", answer: says(400, `{"message":"invalid archive: denied"}`), says: "load image: "},
		{name: "cut off", answer: says(200, `{"status":"Loading layer"}{"sta`), says: "load image: unexpected EOF"},
		{name: "a file that cannot be read", from: iotest.ErrReader(errors.New("input/output error")), answer: says(200, ""), says: "load image: input/output error"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := answering(t, map[string]http.HandlerFunc{"POST /images/load": func(w http.ResponseWriter, r *http.Request) {
				got, err := io.ReadAll(r.Body)
				if string(got) != text && tt.from == nil || r.ContentLength > 0 {
					t.Errorf("got %q of %d bytes, %v", got, r.ContentLength, err)
				}
				tt.answer(w, r)
			}})
			if tt.from == nil {
				tt.from = strings.NewReader(text)
			}
			var last []Progress
			err := e.Load(t.Context(), tt.from, int64(len(text)), func(p Progress) { last = append(last, p) })
			if tt.err == nil && tt.says == "" {
				must.Do(t, err)
				must.Equal(t, []Progress{{Layer: "abc", Status: "Loading layer", Current: 5, Total: 9}, {Status: "Loaded image: x:y"}}, last[len(last)-2:])
				must.Equal(t, Progress{Layer: "image", Status: "sent to Docker:", Current: int64(len(text)), Total: int64(len(text))}, last[len(last)-3])
				return
			}
			if err == nil || tt.err != nil && !errors.Is(err, tt.err) || !strings.Contains(err.Error(), tt.says) || errors.Is(err, ErrRefused) {
				t.Errorf("%v; want %v %q", err, tt.err, tt.says)
			}
		})
	}
}

// TestLoadToTheEnd reads an archive to its end, also if the engine answers before that.
func TestLoadToTheEnd(t *testing.T) {
	t.Parallel()
	for _, end := range []error{io.EOF, errors.New("it is another one")} {
		const text = "an archive"
		e := answering(t, map[string]http.HandlerFunc{"POST /images/load": func(w http.ResponseWriter, r *http.Request) {
			_, err := io.ReadFull(r.Body, make([]byte, len(text)))
			must.Do(t, errors.Join(err, http.NewResponseController(w).EnableFullDuplex()))
			says(200, `{"stream":"Loaded image: x:y\n"}`)(w, r)
		}})
		answered := make(chan struct{})
		rest := readFunc(func([]byte) (int, error) {
			<-answered
			time.Sleep(100 * time.Millisecond) // the answer is read to its end
			return 0, end
		})
		var once sync.Once
		err := e.Load(t.Context(), io.MultiReader(strings.NewReader(text), rest), int64(len(text)), func(p Progress) {
			if p.Layer == "" {
				once.Do(func() { close(answered) })
			}
		})
		if errors.Is(end, io.EOF) {
			must.Do(t, err)
		} else {
			must.Err(t, err, "load image: it is another one")
		}
	}
}
