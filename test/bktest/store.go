package bktest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const storePath = "/store"

// storeRoutes behave like the S3 bucket behind Buildkite: a signed form for uploads, signed
// links that expire, and no Authorization header beside a signature.
func (s *Server) storeRoutes() {
	s.mux.HandleFunc("POST "+storePath, s.put)
	s.mux.HandleFunc("GET "+storePath+"/{key}", s.get)
	s.mux.HandleFunc("GET /git/{repo}/{path...}", s.git)
}

// storeBase returns the store's address for the client of r.
func (s *Server) storeBase(r *http.Request) string {
	host := r.Host
	if s.storePort != "" {
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		host = net.JoinHostPort(host, s.storePort)
	}
	return "http://" + host
}

func (s *Server) sign(text string) string {
	m := hmac.New(sha256.New, s.secret)
	_, _ = io.WriteString(m, text) // a hash never fails
	return hex.EncodeToString(m.Sum(nil))
}

type policy struct {
	Expires int64  `json:"expires"`
	Prefix  string `json:"prefix"`
}

// uploadPolicy allows uploads below prefix for an hour.
func (s *Server) uploadPolicy(prefix string) (encoded, signature string) {
	p, _ := json.Marshal(policy{s.opts.Now().Add(time.Hour).Unix(), prefix}) // two plain fields
	encoded = base64.StdEncoding.EncodeToString(p)
	return encoded, s.sign(encoded)
}

// signedURL returns a link that works for a short time without a token.
func (s *Server) signedURL(r *http.Request, key string) string {
	expires := strconv.FormatInt(s.opts.Now().Add(s.opts.LinkTTL).UnixMilli(), 10)
	q := url.Values{"X-Expires": {expires}, "X-Signature": {s.sign(expires + "\n" + key)}}
	// One path element, so that net/http does not clean ".." or "//" out of the key.
	return s.storeBase(r) + storePath + "/" + url.PathEscape(key) + "?" + q.Encode()
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
	form, err := r.MultipartReader()
	if err != nil {
		storeError(w, http.StatusPreconditionFailed, "PreconditionFailed", "the body must be a multipart form")
		return
	}
	fields := map[string]string{}
	for {
		part, err := form.NextPart()
		if err != nil || len(fields) > 20 {
			storeError(w, http.StatusBadRequest, "MalformedPOSTRequest", "the form has no file at its end")
			return
		}
		if part.FormName() == "file" {
			s.putFile(w, fields, part)
			return
		}
		v, err := io.ReadAll(io.LimitReader(part, 32<<10))
		if err != nil {
			storeError(w, http.StatusBadRequest, "IncompleteBody", "a field could not be read")
			return
		}
		fields[part.FormName()] = string(v)
	}
}

func (s *Server) putFile(w http.ResponseWriter, fields map[string]string, part *multipart.Part) {
	if err := s.checkPolicy(fields); err != nil {
		storeError(w, http.StatusForbidden, "AccessDenied", err.Error())
		return
	}
	data, err := io.ReadAll(io.LimitReader(part, maxArtifact+1))
	if err != nil || len(data) > maxArtifact {
		storeError(w, http.StatusBadRequest, "EntityTooLarge", "the file is too large or was cut off")
		return
	}
	key := fields["key"]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stored+len(data)-len(s.blobs[key]) > maxStored {
		storeError(w, http.StatusServiceUnavailable, "SlowDown", "the store is full")
		return
	}
	s.stored += len(data) - len(s.blobs[key])
	s.blobs[key] = data
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) checkPolicy(fields map[string]string) error {
	if !same(s.sign(fields["policy"]), fields["signature"]) {
		return errors.New("the signature does not match the policy")
	}
	var p policy
	raw, err := base64.StdEncoding.DecodeString(fields["policy"])
	if err == nil {
		err = json.Unmarshal(raw, &p)
	}
	switch {
	case err != nil:
		return fmt.Errorf("read policy: %w", err)
	case s.opts.Now().Unix() > p.Expires:
		return errors.New("the policy expired")
	case !strings.HasPrefix(fields["key"], p.Prefix):
		return errors.New("the key does not match the policy")
	}
	return nil
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
