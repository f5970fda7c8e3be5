package bktest

import (
	"bytes"
	"cmp"
	"compress/zlib"
	"crypto/sha1" // git names its objects by it
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// git serves the repositories of pipelines without their own, over git's "dumb" HTTP
// protocol: plain files, which `git clone` reads.
func (s *Server) git(w http.ResponseWriter, r *http.Request) {
	slug, isRepo := strings.CutSuffix(r.PathValue("repo"), ".git")
	s.mu.Lock()
	p := s.pipeline(slug)
	if p != nil && isRepo && s.repos[slug] == nil {
		files := p.Files
		if files == nil {
			files = map[string]string{"README.md": "Nothing to build here.\n"}
		}
		s.repos[slug] = repository(files)
	}
	data, ok := s.repos[slug][r.PathValue("path")]
	s.mu.Unlock()
	if !ok || !isRepo {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	_, _ = w.Write(data) // if the client hung up, only its response is lost
}

// repository builds a bare git repository with one commit on branch main, and returns its
// files by path. An input path that ends in "*" is an executable file of that name.
func repository(files map[string]string) map[string][]byte {
	out := map[string][]byte{}
	object := func(kind string, content []byte) (id [20]byte) {
		full := append(fmt.Appendf(nil, "%s %d\x00", kind, len(content)), content...)
		id = sha1.Sum(full)
		var z bytes.Buffer
		zw := zlib.NewWriter(&z)
		_, _ = zw.Write(full) // a buffer never fails
		_ = zw.Close()
		h := hex.EncodeToString(id[:])
		out["objects/"+h[:2]+"/"+h[2:]] = z.Bytes()
		return id
	}
	var tree func(files map[string]string) [20]byte
	tree = func(files map[string]string) [20]byte {
		type entry struct {
			mode, name, order string
			id                [20]byte
		}
		var entries []entry
		dirs := map[string]map[string]string{}
		for name, content := range files {
			if dir, rest, ok := strings.Cut(name, "/"); ok {
				if dirs[dir] == nil {
					dirs[dir] = map[string]string{}
				}
				dirs[dir][rest] = content
				continue
			}
			name, isExec := strings.CutSuffix(name, "*")
			mode := "100644"
			if isExec {
				mode = "100755"
			}
			entries = append(entries, entry{mode, name, name, object("blob", []byte(content))})
		}
		for dir, sub := range dirs { // git sorts a directory as if its name ended in a slash
			entries = append(entries, entry{"40000", dir, dir + "/", tree(sub)})
		}
		slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.order, b.order) })
		var t []byte
		for _, e := range entries {
			t = append(fmt.Appendf(t, "%s %s\x00", e.mode, e.name), e.id[:]...)
		}
		return object("tree", t)
	}
	who := "bktest <bktest@example.com> 1700000000 +0000"
	commit := object("commit", fmt.Appendf(nil, "tree %x\nauthor %s\ncommitter %s\n\nThe only commit\n", tree(files), who, who))
	out["HEAD"] = []byte("ref: refs/heads/main\n")
	out["refs/heads/main"] = fmt.Appendf(nil, "%x\n", commit)
	out["info/refs"] = fmt.Appendf(nil, "%x\trefs/heads/main\n", commit)
	out["objects/info/packs"] = []byte("\n")
	return out
}
