// Command registry is a fake image registry for machines without a network: it serves the
// distribution API over plain HTTP from memory. docker push fills it, and
// curl -d '{"cuts":1,"after":70000}' localhost:5000/faults breaks it.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"
)

func main() {
	_, _ = fmt.Fprintln(os.Stderr, "registry:", http.ListenAndServe("127.0.0.1:5000", newRegistry()))
	os.Exit(1)
}

// faults are failures of blob downloads.
type faults struct {
	Cuts  int           `json:"cuts"`  // number of the next downloads to cut off
	After int64         `json:"after"` // bytes of each that get through
	Pause time.Duration `json:"pause"` // nanoseconds between two pieces of a blob
}

// piece is how many bytes of a blob are sent at once.
const piece = 64 << 10

type registry struct {
	mu        sync.Mutex
	blobs     map[string][]byte   // by digest
	manifests map[string]manifest // by "name digest" and "name tag"
	uploads   map[string][]byte
	faults    faults
}

type manifest struct{ kind, digest string }

func newRegistry() *registry {
	return &registry{blobs: map[string][]byte{}, manifests: map[string]manifest{}, uploads: map[string][]byte{}}
}

var route = regexp.MustCompile(`^/v2/([a-z0-9][a-z0-9._/-]*)/(manifests|blobs/uploads|blobs)/([A-Za-z0-9._:-]*)$`)

func (g *registry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	if r.URL.Path == "/v2/" {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		refuse(w, http.StatusBadRequest, "SIZE_INVALID")
		return
	}
	m := route.FindStringSubmatch(r.URL.Path)
	switch {
	case r.URL.Path == "/faults":
		g.mu.Lock()
		defer g.mu.Unlock()
		g.faults = faults{}
		if err := json.Unmarshal(body, &g.faults); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	case m == nil:
		refuse(w, http.StatusNotFound, "NAME_UNKNOWN")
	case m[2] == "blobs":
		g.blob(w, r, m[3])
	case m[2] == "blobs/uploads":
		g.upload(w, r, m[1], m[3], body)
	case r.Method == http.MethodPut:
		g.putManifest(w, r, m[1], m[3], body)
	default:
		g.getManifest(w, r, m[1]+" "+m[3])
	}
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"errors":[{"code":%q}]}`, code)
}

func sum(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// upload accepts a blob, in one piece or several.
func (g *registry) upload(w http.ResponseWriter, r *http.Request, name, id string, body []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if id == "" {
		id = strconv.Itoa(len(g.uploads) + 1)
	}
	data := append(g.uploads[id], body...)
	g.uploads[id] = data
	digest := r.URL.Query().Get("digest")
	if digest == "" {
		w.Header().Set("Location", "/v2/"+name+"/blobs/uploads/"+id)
		w.Header().Set("Range", "0-"+strconv.Itoa(max(0, len(data)-1)))
		w.WriteHeader(http.StatusAccepted)
		return
	}
	g.uploads[id] = nil
	if sum(data) != digest {
		refuse(w, http.StatusBadRequest, "DIGEST_INVALID")
		return
	}
	g.blobs[digest] = data
	w.Header().Set("Location", "/v2/"+name+"/blobs/"+digest)
	w.Header().Set("Docker-Content-Digest", digest)
	w.WriteHeader(http.StatusCreated)
}

// blob sends a blob or a part of it, as far as the faults allow.
func (g *registry) blob(w http.ResponseWriter, r *http.Request, digest string) {
	g.mu.Lock()
	data, ok := g.blobs[digest]
	f := g.faults
	if ok && r.Method == http.MethodGet && f.Cuts > 0 {
		g.faults.Cuts--
	}
	g.mu.Unlock()
	if !ok {
		refuse(w, http.StatusNotFound, "BLOB_UNKNOWN")
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Docker-Content-Digest", digest)
	http.ServeContent(&faultyWriter{ResponseWriter: w, faults: f}, r, "", time.Time{}, bytes.NewReader(data))
}

// faultyWriter sends a body with pauses, or cuts it off.
type faultyWriter struct {
	http.ResponseWriter
	faults
	sent int64
}

func (w *faultyWriter) Write(p []byte) (int, error) {
	if left := w.After - w.sent; w.Cuts > 0 && left < int64(len(p)) {
		_, _ = w.ResponseWriter.Write(p[:max(0, left)])
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	n, err := w.ResponseWriter.Write(p)
	before := w.sent
	w.sent += int64(n)
	if w.Pause > 0 && w.sent/piece > before/piece {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		time.Sleep(w.Pause)
	}
	return n, err
}

// putManifest stores a manifest by tag and by digest.
func (g *registry) putManifest(w http.ResponseWriter, r *http.Request, name, ref string, body []byte) {
	m := manifest{r.Header.Get("Content-Type"), sum(body)}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.blobs[m.digest] = body
	g.manifests[name+" "+ref], g.manifests[name+" "+m.digest] = m, m
	w.Header().Set("Docker-Content-Digest", m.digest)
	w.WriteHeader(http.StatusCreated)
}

func (g *registry) getManifest(w http.ResponseWriter, r *http.Request, name string) {
	g.mu.Lock()
	m, ok := g.manifests[name]
	body := g.blobs[m.digest]
	g.mu.Unlock()
	if !ok {
		refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN")
		return
	}
	w.Header().Set("Content-Type", m.kind)
	w.Header().Set("Docker-Content-Digest", m.digest)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}
