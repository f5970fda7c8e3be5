package bktest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	storePath = "/store"
	linkTTL   = time.Minute // Buildkite's
)

// storeRoutes behave like the S3 bucket behind Buildkite: a signed form for uploads, signed
// links that expire, and no Authorization header beside a signature.
func (s *Server) storeRoutes() {
	s.mux.HandleFunc("POST "+storePath, s.put)
	s.mux.HandleFunc("GET "+storePath+"/{key}", s.get)
}

func (s *Server) sign(text string) string {
	m := hmac.New(sha256.New, s.secret)
	_, _ = io.WriteString(m, text) // a hash never fails
	return hex.EncodeToString(m.Sum(nil))
}

// signedURL returns a link that works for a short time without a token.
func (s *Server) signedURL(r *http.Request, key string) string {
	expires := strconv.FormatInt(s.opts.Now().Add(linkTTL).UnixMilli(), 10)
	q := url.Values{"X-Expires": {expires}, "X-Signature": {s.sign(expires + "\n" + key)}}
	// One path element, so that net/http does not clean ".." or "//" out of the key.
	return base(r) + storePath + "/" + url.PathEscape(key) + "?" + q.Encode()
}

func storeError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<?xml version=\"1.0\"?>\n<Error><Code>%s</Code><Message>%s</Message></Error>\n", code, message)
}

func (s *Server) put(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "" {
		storeError(w, http.StatusBadRequest, "InvalidArgument", "Only one auth mechanism is allowed")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxArtifact+1<<20)
	file, _, err := r.FormFile("file")
	if err != nil {
		storeError(w, http.StatusBadRequest, "MalformedPOSTRequest", "the form has no file, or is too large")
		return
	}
	data, err := io.ReadAll(file)
	if err != nil {
		storeError(w, http.StatusBadRequest, "IncompleteBody", err.Error())
		return
	}
	key, prefix := r.FormValue("key"), r.FormValue("prefix")
	if !same(s.sign(prefix), r.FormValue("signature")) || !strings.HasPrefix(key, prefix) {
		storeError(w, http.StatusForbidden, "AccessDenied", "the signature is not of this key")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blobs[key] = data
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	key, q := r.PathValue("key"), r.URL.Query()
	expires, err := strconv.ParseInt(q.Get("X-Expires"), 10, 64)
	switch {
	case r.Header.Get("Authorization") != "":
		storeError(w, http.StatusBadRequest, "InvalidArgument", "Only one auth mechanism is allowed")
		return
	case err != nil || !same(s.sign(q.Get("X-Expires")+"\n"+key), q.Get("X-Signature")):
		storeError(w, http.StatusForbidden, "SignatureDoesNotMatch", "the signature is not of this link")
		return
	case s.opts.Now().UnixMilli() > expires:
		storeError(w, http.StatusForbidden, "AccessDenied", "Request has expired")
		return
	}
	s.mu.Lock()
	data, ok := s.blobs[key]
	s.mu.Unlock()
	if !ok {
		storeError(w, http.StatusNotFound, "NoSuchKey", "The specified key does not exist.")
		return
	}
	w.Header().Set("Content-Type", "binary/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data) // if the client hung up, only its response is lost
}
