// Package registrytest is a fake image registry: it serves the distribution API over plain
// HTTP from memory, accepts pushes, and fails on request. An engine uses one on localhost
// without TLS.
package registrytest

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/lazy"
)

// maxUpload bounds a blob or manifest, in bytes.
const maxUpload = 4 << 30

// Faults configure failures of blob downloads and of requests.
type Faults struct {
	Cuts  int           `json:"cuts"`   // number of the next blob downloads to cut off
	After int64         `json:"after"`  // bytes of each that get through
	Pause time.Duration `json:"pause"`  // nanoseconds between two 64 KiB of a blob
	Deny  int           `json:"status"` // status of every response; 0 for none
}

// Registry is an http.Handler. Its zero value has no images.
type Registry struct {
	// User and Password are required of clients if set.
	User, Password string

	mu        sync.Mutex
	blobs     map[string][]byte   // by digest
	manifests map[string]manifest // by "name digest" and "name tag"
	uploads   map[string][]byte
	faults    Faults
	pulled    int // number of blobs whose last piece was sent
}

type manifest struct{ kind, digest string }

// SetFaults sets the faults from now on.
func (g *Registry) SetFaults(f Faults) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.faults = f
}

// Pulled returns how many blobs were sent in full.
func (g *Registry) Pulled() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pulled
}

// Digest returns the digest that a tag points to; "" if there is no such tag.
func (g *Registry) Digest(name, tag string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.manifests[name+" "+tag].digest
}

var route = lazy.Regexp(`^/v2/([a-z0-9][a-z0-9._/-]*)/(manifests|blobs/uploads|blobs)/([A-Za-z0-9._:-]*)$`)

// ServeHTTP serves the distribution API at /v2/, and POST /faults, whose body is Faults as
// JSON.
func (g *Registry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	if r.URL.Path == "/faults" && r.Method == http.MethodPost {
		var f Faults
		if err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&f); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		g.SetFaults(f)
		return
	}
	if user, password, _ := r.BasicAuth(); g.User != "" && subtle.ConstantTimeCompare([]byte(user+"\x00"+password), []byte(g.User+"\x00"+g.Password)) != 1 {
		w.Header().Set("Www-Authenticate", `Basic realm="registrytest"`)
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED")
		return
	}
	g.mu.Lock()
	deny := g.faults.Deny
	g.mu.Unlock()
	if deny != 0 {
		refuse(w, deny, "DENIED")
		return
	}
	if r.URL.Path == "/v2/" {
		return
	}
	m := route().FindStringSubmatch(r.URL.Path)
	if m == nil {
		refuse(w, http.StatusNotFound, "NAME_UNKNOWN")
		return
	}
	switch name, ref := m[1], m[3]; m[2] {
	case "blobs/uploads":
		g.upload(w, r, name, ref)
	case "blobs":
		g.blob(w, r, ref)
	default:
		g.manifest(w, r, name, ref)
	}
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"errors":[{"code":%q,"message":%q}]}`, code, strings.ToLower(code))
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(s[:])
}

// upload accepts a blob, in one piece or several.
func (g *Registry) upload(w http.ResponseWriter, r *http.Request, name, id string) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxUpload))
	if err != nil {
		refuse(w, http.StatusBadRequest, "BLOB_UPLOAD_INVALID")
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.uploads == nil {
		g.uploads, g.blobs = map[string][]byte{}, map[string][]byte{}
	}
	if r.Method == http.MethodPost && id == "" {
		id = strconv.Itoa(len(g.uploads) + 1)
	} else if _, ok := g.uploads[id]; !ok {
		refuse(w, http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN")
		return
	}
	data := append(g.uploads[id], body...)
	g.uploads[id] = data
	digest := r.URL.Query().Get("digest")
	if r.Method == http.MethodPatch || digest == "" {
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
func (g *Registry) blob(w http.ResponseWriter, r *http.Request, digest string) {
	g.mu.Lock()
	data, ok := g.blobs[digest]
	f := g.faults
	if ok && r.Method == http.MethodGet && g.faults.Cuts > 0 {
		g.faults.Cuts--
	}
	g.mu.Unlock()
	if !ok {
		refuse(w, http.StatusNotFound, "BLOB_UNKNOWN")
		return
	}
	status, whole := http.StatusOK, len(data)
	if from, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
		if n, err := strconv.Atoi(strings.TrimSuffix(from, "-")); err == nil && n >= 0 && n < len(data) {
			status = http.StatusPartialContent
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", n, whole-1, whole))
			data = data[n:]
		}
	}
	w.Header().Set("Accept-Ranges", "bytes")
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.Header().Set("Docker-Content-Digest", digest)
	w.WriteHeader(status)
	if r.Method != http.MethodGet {
		return
	}
	sent := int64(0)
	for len(data) > 0 {
		piece := data[:min(len(data), 64<<10)]
		if f.Cuts > 0 {
			if left := f.After - sent; left < int64(len(piece)) {
				_, _ = w.Write(piece[:max(0, left)])
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
		}
		if len(piece) == len(data) { // before the client has it all and asks for the number
			g.mu.Lock()
			g.pulled++
			g.mu.Unlock()
		}
		if _, err := w.Write(piece); err != nil {
			return
		}
		sent += int64(len(piece))
		if data = data[len(piece):]; f.Pause > 0 && len(data) > 0 {
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(f.Pause):
			}
		}
	}
}

// manifest accepts and sends manifests, by tag and by digest.
func (g *Registry) manifest(w http.ResponseWriter, r *http.Request, name, ref string) {
	if r.Method == http.MethodPut {
		body, err := io.ReadAll(io.LimitReader(r.Body, 4<<20))
		if err = errors.Join(err, valid(body)); err != nil {
			refuse(w, http.StatusBadRequest, "MANIFEST_INVALID")
			return
		}
		digest := sum(body)
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.manifests == nil {
			g.manifests = map[string]manifest{}
		}
		if g.blobs == nil {
			g.uploads, g.blobs = map[string][]byte{}, map[string][]byte{}
		}
		m := manifest{r.Header.Get("Content-Type"), digest}
		g.blobs[digest] = body
		g.manifests[name+" "+ref], g.manifests[name+" "+digest] = m, m
		w.Header().Set("Docker-Content-Digest", digest)
		w.WriteHeader(http.StatusCreated)
		return
	}
	g.mu.Lock()
	m, ok := g.manifests[name+" "+ref]
	body := g.blobs[m.digest]
	g.mu.Unlock()
	if !ok {
		refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN")
		return
	}
	w.Header().Set("Content-Type", m.kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("Docker-Content-Digest", m.digest)
	if r.Method == http.MethodGet {
		_, _ = w.Write(body)
	}
}

func valid(body []byte) error {
	if !json.Valid(body) {
		return errors.New("not JSON")
	}
	return nil
}
