package bktest

import (
	"io"
	"net/http"
	"net/url"
	"strconv"
)

const storePath = "/store"

// storeRoutes behave like the S3 bucket behind Buildkite: a form for uploads, and links that need no token
// and take none.
func (s *Server) storeRoutes() {
	s.mux.HandleFunc("POST "+storePath, s.put)
	s.mux.HandleFunc("GET "+storePath+"/{key}", s.get)
}

// storeURL returns the link to a file.
func storeURL(r *http.Request, key string) string {
	// One path element, so that net/http does not clean ".." or "//" out of the key.
	return base(r) + storePath + "/" + url.PathEscape(key)
}

// hasToken refuses a request with a token of Buildkite's, as S3 does.
func hasToken(w http.ResponseWriter, r *http.Request) bool {
	has := r.Header.Get("Authorization") != ""
	if has {
		http.Error(w, "Only one auth mechanism is allowed", http.StatusBadRequest)
	}
	return has
}

func (s *Server) put(w http.ResponseWriter, r *http.Request) {
	if hasToken(w, r) {
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxArtifact+1<<20)
	file, _, err := r.FormFile("file")
	var data []byte
	if err == nil {
		data, err = io.ReadAll(file)
	}
	if err != nil {
		http.Error(w, "the form has no file, or is too large", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blobs[r.FormValue("key")] = data
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	if hasToken(w, r) {
		return
	}
	s.mu.Lock()
	data, ok := s.blobs[r.PathValue("key")]
	s.mu.Unlock()
	if !ok {
		http.Error(w, "The specified key does not exist.", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "binary/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data) // if the client hung up, only its response is lost
}
