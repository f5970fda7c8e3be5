package bktest

import (
	"fmt"
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

func storeError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<?xml version=\"1.0\"?>\n<Error><Code>%s</Code><Message>%s</Message></Error>\n", code, message)
}

// hasToken refuses a request with a token of Buildkite's, as S3 does.
func hasToken(w http.ResponseWriter, r *http.Request) bool {
	has := r.Header.Get("Authorization") != ""
	if has {
		storeError(w, http.StatusBadRequest, "InvalidArgument", "Only one auth mechanism is allowed")
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
		storeError(w, http.StatusBadRequest, "MalformedPOSTRequest", "the form has no file, or is too large")
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
		storeError(w, http.StatusNotFound, "NoSuchKey", "The specified key does not exist.")
		return
	}
	w.Header().Set("Content-Type", "binary/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data) // if the client hung up, only its response is lost
}
